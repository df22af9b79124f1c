"""A page on a terminal, and the few lines at the end of a run: within their width, harmless."""

import re

import pytest
from rich.cells import cell_len

from support.comparison_records import read_golden_record
from support.fakes import GOLDEN
from trainmark.launch.cluster import TESTED
from trainmark.pages.document import Paragraph, build_table
from trainmark.pages.page import build_document
from trainmark.pages.rendering import to_body_html, to_markdown
from trainmark.pages.results import build_listing_table
from trainmark.pages.summary import describe_key_figures, list_first_lines
from trainmark.pages.terminal import show, show_page
from trainmark.pages.texts import translate
from trainmark.pages.wrapping import wrap
from trainmark.protocols.tested import RECORDED_OUTPUTS
from trainmark.record.record import Cause, FigureEntry, Record, Trust
from trainmark.results.store.query import Listing
from trainmark.spec import FigureSpec, PageSpec, Text, message


def make_hostile_record():
    """Return a failed run with texts that a terminal or rich would obey, and very long ones.

    ``rich`` is the library that prints; it takes words in brackets for styles. "\\x1b" and what
    follows would clear the screen or change the window's title. The long texts are the device's
    name, the cause, a finding and the changed recipe fields (``fix_hp``).
    """
    name = "[bold red]X[/]\x1b[2J" + "|wide 宽" * 30
    cause = Cause(
        kind="error",
        message=message("exception", text="[/nope]\x1b]0;title\x07 " + "m" * 200),
        rank=3,
    )
    changed = {f"field_{number}": "x" * 30 for number in range(5)}
    plan = read_golden_record().plan.model_copy(update={"fix_hp": changed})
    return read_golden_record(
        environment=read_golden_record().environment | {"devices": [{"name": name}]},
        status="failed",
        cause=cause,
        findings=[message("note " * 40)],  # a code that is not known is printed as it is
        plan=plan,
    )


def show_record(record, width=80, extent="screen"):
    """Return the page of a record as a terminal shows it, by default its first screen.

    Args:
        width: columns of the terminal.
        extent: how much of the page: "head" for its first lines, "screen" or all.
    """
    return show_page(build_document([record]), width=width, extent=extent)


def test_summary_of_a_run_has_title_sentence_row_ruler_and_limit():
    # The ruler, the line of comparable results, is empty here; all figures are the golden record's.
    # The lines: title, verdict, speed and quality, key figures, doubts, ruler, and what limits it.
    assert list_first_lines([read_golden_record()]) == [
        "DistilBERT on SST-2 · 2 x NVIDIA A100-SXM4-40GB · tf32",
        "passed, noisy, unverified",
        "457 samples/s; reached acc 0.9117 (target 0.91) in 46.1 s",
        "e2e_time 46.1 s · p_whole 412.9, p_train 457.2, p_core 464.6 samples/s · MFU 31.6% · "
        "memory 33.4 of 40.0 GiB",
        "Noisy: only 1 launch (minimum: 5)",
        "No comparable result: this case has no earlier run and no published result",
        "Compute takes 89% of the time and runs at 41% of the device's matmul rate; "
        "no bottleneck found.",
    ]


def test_summary_of_a_run_rates_the_result():
    # The golden record again under another id, so the ratio of the two is 1.
    other = read_golden_record(run_id="other")
    (line,) = [x for x in list_first_lines([read_golden_record()], [other]) if "comparable" in x]
    ratio = "× 1.00 of 2 x NVIDIA A100-SXM4-40GB (your run, noisy)"
    assert line == f"p_train relative to comparable results: {ratio}"
    many = [read_golden_record(run_id=f"r{number}") for number in range(20)]
    # 11 lines are the limit; ``trainmark run`` prints two more, with paths.
    assert len(list_first_lines(many, [other])) <= 11
    assert "20 of 20 launches passed; p_train 457.2 – 457.2 (95%)" in list_first_lines(many)


def test_result_not_to_be_quoted_has_a_hint():
    # Two runs that are equal but for the trust; that of the golden record is "noisy".
    doubtful = read_golden_record(run_id="odd", trust=Trust(grade="do_not_quote", reasons=[]))
    # The hint appears whichever of the two runs is not to be quoted.
    for chosen, others in (
        ([read_golden_record()], [doubtful]),
        ([doubtful], [read_golden_record()]),
    ):
        for lang, words in (("en", "For guidance only: p_train"), ("zh", "仅供参考：p_train")):
            assert any(x.startswith(words) for x in list_first_lines(chosen, others, lang))
    (line,) = [x for x in list_first_lines([read_golden_record()], [doubtful]) if "guidance" in x]
    assert line.endswith("(your run, do not quote)")


def test_table_cells_wrap_at_blanks_if_that_suffices():
    listed = Listing(
        total=1,
        columns=["case", "device", "trust", "path"],
        units=[""] * 4,
        rows=[
            [
                "toy",
                "AMD EPYC 9V74 Processor",
                "do_not_quote",
                "runs/20261126T155330Z-toy-f3c135/r2",
            ]
        ],
    )
    # The row is wider than 45 columns. The long path is shortened to a pattern by which a shell
    # finds it, and the name of the device goes on in a second line with "Processor". As the row so
    # fits, no column is left out.
    text = build_listing_table(listed, "zh", width=45)
    assert max(map(cell_len, text.splitlines())) <= 45
    assert {"用例", "机器", "do_not_quote", "*f3c135/r2", "Processor"} <= set(text.split())


def test_path_is_shortened_if_chinese_cells_make_the_row_too_wide():
    """The cells have 5 + 39 characters, but take 10 + 39 columns, with three between them."""
    row = ["基准测试一", "runs/20261126T155330Z-distilbert-f3c135"]
    listed = Listing(total=1, columns=["case", "path"], units=["", ""], rows=[row])
    assert "*f3c135" in build_listing_table(listed, "zh", width=50).split()
    assert row[1] in build_listing_table(listed, "zh", width=52).split()


def test_unverified_run_is_marked_beside_its_trust_within_80_columns():
    heads = ["case", "device", "world", "precision", "status", "trust", "verification", "p_core"]
    row = ["distilbert_sst2", "A100-SXM4-40GB", "2x8", "bf16", "passed", "do_not_quote"]
    path = "runs/20261126T155330Z-toy-f3c135"
    verified_row = [*row[:-1], "usable", "verified", 604.0, path]
    listed = Listing(
        total=2,
        columns=[*heads, "path"],
        units=[""] * 7 + ["samples/s", ""],
        rows=[[*row, "unverified", 604.0, path], verified_row],
    )
    text = build_listing_table(listed, "zh", width=80)
    assert {"do_not_quote", "(unverified)", "usable", "*f3c135"} <= set(text.split())
    assert "verified" not in text.split()  # only unverified runs are marked
    # A result that others published has neither trust nor verification: a dash stands there.
    imported = Listing(
        total=1, columns=["case", "trust", "verification"], units=[""] * 3, rows=[["x", None, None]]
    )
    assert build_listing_table(imported).split()[-2:] == ["x", "–"]
    # A list of the verification alone has it as a column.
    listing = Listing(total=1, columns=["verification"], units=[""], rows=[["verified"]])
    assert build_listing_table(listing, "zh").split()[0] == "核验"


def test_too_wide_table_of_one_row_becomes_a_column():
    # ``show_record`` prints the page for 80 columns, less than the row needs; "all": every section.
    text = show_record(read_golden_record(), extent="all")
    # Each column of the table is a line: its header and its value.
    assert re.search(r"configuration +NVIDIA A100-SXM4-40GB 1 node x 2 \(1x2\)\n", text)
    assert re.search(r"acc +0.9117/0.91\n", text)


def test_table_whose_words_do_not_fit_is_split_after_its_first_column():
    # Seven columns of words of up to 9 characters need more than 40 columns of the screen.
    names = ["name", *(f"column_{number}" for number in range(6))]
    rows = [[f"row_{m}", *(f"value_{m}_{number}" for number in range(6))] for m in range(3)]
    text = show([build_table(names, rows)], width=40)
    assert text.split().count("row_2") == 2  # two tables, each with the first column
    assert {x for row in [names, *rows] for x in row} <= set(text.split())
    assert max(map(cell_len, text.splitlines())) <= 40


def test_lines_end_between_words_and_between_chinese_characters():
    # ``wrap`` splits a text into lines of at most so many columns; a Chinese character takes two.
    assert wrap("do_not_quote this run", 14) == ["do_not_quote", "this run"]
    assert wrap("后段比前段快，step_time_cv 很大。", 13) == [
        "后段比前段",
        "快，",
        "step_time_cv",
        "很大。",
    ]
    # A full stop does not begin a line.
    assert wrap("步步步。", 6) == ["步步", "步。"]
    # A word that is too long is cut, after a slash if possible.
    assert wrap("a/very/long/path", 6) == ["a/very", "/long/", "path"]
    assert wrap("", 6) == [""]


@pytest.mark.parametrize("width", [80, 60])
@pytest.mark.parametrize("lang", ["en", "zh"])
def test_first_screen_is_short_and_all_option_shows_more(width, lang):
    sampled = Record.model_validate_json((GOLDEN / "record_sampled.json").read_bytes())
    # Of two golden records, ``sampled`` has readings of its devices over time. ``cell_len`` is the
    # width in columns. ``step_time_p50`` is one of the figures that only ``--all`` shows.
    for record in (read_golden_record(), sampled):
        screen = show_page(build_document([record]), lang, width=width)
        everything = show_page(build_document([record]), lang, width=width, extent="all")
        assert len(screen.splitlines()) <= 40  # of a usual terminal
        assert "--all" in screen
        assert "step_time_p50" not in screen
        assert "step_time_p50" in everything
        for text in (screen, everything):
            assert max(map(cell_len, text.splitlines())) <= width


@pytest.mark.parametrize(
    ("lang", "line"),
    [
        (
            "en",
            "Tested on: amd: recorded outputs of its tool, but no real card yet; ssh: two nodes",
        ),
        (
            "zh",
            "测试依据：amd：公开的工具输出，尚未在真卡上测试；ssh：一台主机上的两个节点，尚未在集群上测试",
        ),
    ],
)
def test_page_states_what_device_and_launcher_were_tested_on(lang, line):
    # ``unproven``: what a run used that was not tested enough by real runs, and on what it was
    # tested, in both languages. Here a kind of device, tested on published outputs of its tool, and
    # a launcher.
    unproven = {"amd": RECORDED_OUTPUTS, "ssh": TESTED["ssh"]}
    record = read_golden_record(
        plan=read_golden_record().plan.model_copy(update={"unproven": unproven})
    )
    text = to_markdown([build_document([record])], lang)
    assert line in text.replace("\\", "")
    # A run on what is well tested has no such line.
    beginning = {"en": "Tested on", "zh": "测试依据"}[lang]
    assert line.startswith(beginning)
    assert beginning not in to_markdown([build_document([read_golden_record()])], lang)


def test_memory_has_its_unit_and_its_total_if_known():
    # The golden record used 33.4 GiB of the memory of a device, of 40.0 GiB in all (``mem_total``).
    lines = show_page(build_document([read_golden_record()])).splitlines()
    assert any(line.endswith("memory 33.4 of 40.0 GiB") for line in lines)
    figures = read_golden_record().figures
    unknown = figures["mem_total"].model_copy(update={"value": None})
    record = read_golden_record(figures=figures | {"mem_total": unknown})
    assert translate(describe_key_figures([record]), "en").endswith(" · memory 33.4 GiB")
    assert translate(describe_key_figures([record]), "zh").endswith(" · 内存 33.4 GiB")


def test_key_figures_of_a_case_follow_those_of_all_cases():
    # ``overload`` is a figure that only this case has, so it comes after those of all cases but
    # before the memory, which ends the line. The 33.4 GiB are the golden record's.
    overload = FigureSpec(
        name="overload",
        unit="x",
        label=Text("overload", "过载"),
        definition=Text("load of the busiest rank over the mean", "最忙 rank 的负载与均值之比"),
        first_screen=True,  # a key figure
    )
    about = read_golden_record().plan.about.model_copy(
        update={"page": PageSpec(figures=(overload,))}
    )
    record = read_golden_record(
        plan=read_golden_record().plan.model_copy(update={"about": about}),
        figures=read_golden_record().figures | {"overload": FigureEntry(value=1.25, unit="x")},
    )
    assert " · overload 1.250 x · memory 33.4" in translate(describe_key_figures([record]), "en")


def test_sentences_about_charts_appear_only_with_charts():
    # A run with readings over time; a terminal cannot draw their curves, an HTML page does.
    sampled = Record.model_validate_json((GOLDEN / "record_sampled.json").read_bytes())
    assert "The curves show" not in show_record(sampled)
    assert "The curves show" in to_body_html(build_document([sampled]), "en")


def test_summary_of_a_failed_run_has_cause_and_advice():
    # The golden record's batch size is 96 (bs); gas is the number of micro-batches of a step. The
    # first line, which is not looked at, names the case and its configuration.
    failure = message("exception", text="no memory left")
    cause = Cause(kind="oom", message=failure, rank=1, place="model_build")
    lines = list_first_lines([read_golden_record(status="oom", cause=cause)])
    assert lines[1:3] == [
        "failed, unverified",
        "out of memory while building the model, rank 1: no memory left",
    ]
    (advice,) = [line for line in lines if line.startswith("What to try")]
    assert advice.startswith("What to try: lower bs (now 96) and raise gas")
    assert list_first_lines([read_golden_record(status="oom", cause=cause)], lang="zh")[2] == (
        "内存不足（构建模型时），rank 1：异常信息：no memory left"
    )


def test_summary_of_a_run_that_missed_its_target_says_so_once():
    # The golden record's accuracy is 0.9117, less than the target of 0.95 that it gets here. Its
    # batch size was changed to 96 by its user. Epochs and steps of the message do not matter.
    missed = message("target_missed", metric="acc", target=0.95, epochs=1, steps=250, value=0.9117)
    quality = read_golden_record().quality.model_copy(update={"target": 0.95, "reached": False})
    cause = Cause(kind="target_missed", message=missed, rank=0)
    lines = list_first_lines(
        [read_golden_record(status="target_missed", cause=cause, quality=quality)]
    )
    assert sum("did not reach" in line for line in lines) == 1
    assert not any(line.startswith("Cause: ") for line in lines)
    (advice,) = [line for line in lines if line.startswith("What to try: ")]
    assert "train longer: raise max_epochs (now " in advice
    assert "you changed bs=96" in advice  # which may be why


def test_the_first_screen_of_a_failed_run_has_its_traceback_line_by_line():
    # "\x1b[2J" would clear the terminal, so its first character is printed as an escape. A tab is
    # printed as four spaces.
    lines = ['  File "job.py", line 7, in step', "\treturn x / y", "ZeroDivisionError: \x1b[2J"]
    failure = message("exception", text="division by zero")
    cause = Cause(kind="error", message=failure, rank=0, traceback="\n".join(lines) + "\n")
    record = read_golden_record(status="failed", cause=cause)
    screen_lines = show_record(record).splitlines()
    start = screen_lines.index(lines[0])
    assert screen_lines[start + 1 : start + 3] == [
        "    return x / y",
        r"ZeroDivisionError: \u001b[2J",
    ]
    # The first lines of a page ("head") do not have the traceback.
    assert "job.py" not in show_record(record, extent="head")


@pytest.mark.parametrize("make", [read_golden_record, make_hostile_record])
def test_no_line_is_wider_than_80(make):
    text = show_record(make(), width=80, extent="all")
    assert max(cell_len(line) for line in text.splitlines()) <= 80


def test_text_of_a_record_is_escaped():
    # The record's texts have escape sequences of terminals (they begin with \x1b and end with \x07)
    # and marks that the library rich would obey, such as ``[bold red]``; these are printed as they
    # are.
    for text in (
        show_record(make_hostile_record()),
        "\n".join(list_first_lines([make_hostile_record()])),
    ):
        assert not {"\x1b", "\x07"} & set(text)
        assert "[bold red]X[/]" in text
        assert "[/nope]" in text


def test_colour_is_used_only_on_request(monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    lines = [Paragraph("DistilBERT", "warn")]
    assert show(lines, colour=True) == "\x1b[33mDistilBERT\x1b[0m"  # yellow for a warning
    assert show(lines) == "DistilBERT"


def test_figures_of_repeated_launches_are_their_means():
    speeds = 400.0, 625.0  # their geometric mean is 500
    many = [
        read_golden_record(
            run_id=f"r{number}",
            figures=read_golden_record().figures
            | {
                "p_train": read_golden_record()
                .figures["p_train"]
                .model_copy(update={"value": speed})
            },
        )
        for number, speed in enumerate(speeds)
    ]
    (row,) = [line for line in list_first_lines(many) if "p_train 500.0" in line]
    assert row.startswith("geometric mean: ")
    text = to_markdown([build_document(many)])
    assert "| p_train | 500.0 |" in text
    # Not those of a single launch; "## Figures" is the heading of the table with the means.
    assert "p_train | 400.0" not in text.split("## Figures")[1]


def test_narrow_list_moves_columns_with_one_value_below_the_table():
    heads = ["case", "device", "world", "precision", "bs", "status", "p_core", "path"]
    rows = [
        [
            "toy",
            "AMD EPYC",
            1,
            "fp32",
            bs,
            "passed",
            100.0 * bs,
            f"runs/20261128T094608Z-toy-{bs:06}",
        ]
        for bs in (8, 32)
    ]
    units = ["", "", "", "", "", "", "samples/s", ""]
    # ``settings``: the columns that are fields of recipes.
    listed = Listing(total=2, columns=heads, units=units, rows=rows, settings=["bs"])
    wide = build_listing_table(listed, width=100)
    assert "The same in all rows" not in wide
    # Only the columns world, device, precision and recipe may leave the table, in this order; what
    # identifies a run or is its result stays, even if it is the same in all rows.
    narrow = build_listing_table(listed, width=40)
    alike = "The same in all rows: world 1, device AMD EPYC, precision fp32"
    assert alike in " ".join(narrow.split())
    # A path that is too long keeps its end, behind an asterisk.
    assert {"bs", "32", "*000032"} <= set(narrow.split())
    assert max(map(cell_len, narrow.splitlines())) <= 40


def test_chinese_cells_take_two_columns_for_each_character():
    rows = [["吞吐", "每秒训练的样本数，不含评测。", 457.2], ["MFU", "模型算力与峰值之比", 31.6]]
    table = build_table(["指标", "定义", "数值"], rows)
    assert show([table], "zh", width=80).splitlines() == [
        "指标   定义                            数值",
        "─" * 43,
        "吞吐   每秒训练的样本数，不含评测。   457.2",
        "MFU    模型算力与峰值之比              31.6",
    ]
    assert show([table], "zh", width=24).splitlines() == [
        "指标 定义           数值",
        "─" * 24,
        "吞吐 每秒训练的样  457.2",
        "     本数，不含评",
        "     测。",
        "MFU  模型算力与峰   31.6",
        "     值之比",
    ]
