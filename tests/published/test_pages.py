"""Pages: which tables have results, how rows are read, and what headings and paths add."""

from __future__ import annotations

import pytest

from support.fakes import GOLDEN
from trainmark.pages.texts import describe_record_configuration, translate
from trainmark.published.importers import files
from trainmark.published.importers.page import Page
from trainmark.record.record import Record
from trainmark.record.work import Row

# A page's table with nine columns; its two rows are in lines 3 and 4.
NINE = """\
| 配置 | precision | fix_hp | e2e_time | p_whole | p_train | p_core | acc | mem |
| --- | --- | --- | --- | --- | --- | --- | --- | --- |
| X100单机8卡（1x8） | fp32 | / | 361 | 1764.0 | 1861.9 | 1942.6 | 0.915 | 13.9/40.0 |
| X100单机单卡（1x1） | amp | bs=96,lr=0.00015 | / | 283.7 | | 287.9 | / | OOM |
"""
FACTS = """\
| 指标名称 | 指标值 | 特殊说明 |
| --- | --- | --- |
| 模型 | distilbert | |
| 数据精度 | precision,见“性能指标” | |
| 硬件设备简称 | nvidia X100 | |

"""


def read(text, **facts):
    """Return what is read of a page: rows of results, and places that could not be read, in order.

    Args:
        text: of the page.
        facts: what is known of all its rows, such as the vendor.
    """
    return list(files.read_page(text, Page(file="page.md", form="flagperf", **facts)))


def test_nine_column_table_is_read():
    # ``NINE`` is a table of two rows. ``FACTS``, a table of facts about the page with six lines,
    # precedes it.
    first, second = read(FACTS + NINE)
    assert (first.line, first.table, first.form) == (9, 7, "flagperf")
    assert first.raw == NINE.splitlines()[2]
    assert first.cells["配置"] == first.configuration == "X100单机8卡（1x8）"
    assert (first.device, first.nnodes, first.nproc, first.vendor) == ("X100", 1, 8, "nvidia")
    assert (first.precision, first.changes, first.metric) == ("fp32", {}, "acc")
    assert (first.model, first.case) == ("distilbert", "distilbert_sst2")
    assert {name: figure.value for name, figure in first.figures.items()} == {
        "e2e_time": 361.0,
        "p_whole": 1764.0,
        "p_train": 1861.9,
        "p_core": 1942.6,
        "acc": 0.915,
        "mem": 13.9 * 1024**3,
        "mem_total": 40.0 * 1024**3,
    }
    assert first.figures["mem"].unit == "bytes"
    assert second.precision == "amp"
    assert second.changes == {"bs": "96", "lr": "0.00015"}
    # In its other columns of figures the second row has a dash, nothing, or OOM as its memory.
    assert [name for name, figure in second.figures.items() if figure.value is not None] == [
        "p_whole",
        "p_core",
    ]
    assert second.figures["mem"].raw == "OOM"


def test_page_of_large_models_is_read():
    # ``read`` returns what is read of a page: rows of results, and places that could not be read.
    # "四机32卡（4x8）" are four machines with 8 cards each, so 32 devices in all.
    # ``FACTS`` leaves the precision to a column of the results; here the facts state it.
    (row,) = read(
        FACTS.replace("precision,见“性能指标”", "bf16")
        + "| 配置 | parallel | fix_hp | token/p/s | 是否精度对齐 | mem | MFU |\n"
        "|---|---|---|---|---|---|---|\n"
        "| X100四机32卡（4x8） | TP8PP4DP1 | GAS=64(GBS=1M tokens) "
        "| 253.61 | True | 77/80 | 21.5% |\n"
    )
    assert (row.precision, row.world_size) == ("bf16", 32)
    # The parallel strategy counts as a change.
    assert row.changes == {"GAS": "64", "GBS": "1M", "parallel": "TP8PP4DP1"}
    assert (row.figure("token/p/s"), row.figure("MFU"), row.metric) == (253.61, 21.5, None)


def test_legacy_table_is_read():
    # The columns: training resources, configuration file, seconds of the run, target accuracy,
    # reached accuracy, steps, speed. The device is read from the file's name, "config_X100x1x8".
    row, empty = read(
        "| 训练资源 | 配置文件 | 运行时长(s) | 目标精度 | 收敛精度 | Steps数 | 性能（samples/s) |\n"
        "|---|---|---|---|---|---|---|\n"
        "| 单机8卡 | config_X100x1x8 | 1315.42 | 0.67 | 0.6818 | 4689 | 355.63 |\n"
        "| 两机8卡 | config_X100x2x8 | N/A | 0.67 | | | |\n"
    )
    assert (row.device, row.nnodes, row.nproc, row.metric) == ("X100", 1, 8, "accuracy")
    assert row.figure("accuracy_target") == 0.67
    assert row.figure("accuracy") == 0.6818
    assert (row.figure("steps"), row.figure("p_whole")) == (4689.0, 355.63)
    # A target value is not a result.
    assert (empty.line, empty.reason.code) == (4, "row_without_figures")


def test_headings_between_rows_apply_to_following_rows():
    # ``read`` returns rows and unread lines in their order. The table has, after its header, a row
    # with nothing but a model's name, which is a heading, a row of results, a line of text and a
    # blank row.
    heading, row, text, empty = read(
        "| 配置 | config | precision | fix_hp | parallel_strategy | throughput | memory |\n"
        "|---|---|---|---|---|---|---|\n"
        "| GPT3-13B | ------- | --- | --- | --- | --- | --- |\n"
        '| X100单机8卡（1x8*80G） | config_TP1X10080Gx1x8 | fp16, level="O2" | per_device_bs=4 '
        '| sharding="stage2", tensor=2 | 17.23 * 2048 / 8 = 4410 tokens/s | 66.27 * 8 GB |\n'
        "2x8 follows later\n"
        "| | | | | | | |\n"
    )
    assert (heading.kind, heading.line, heading.reason.code) == ("row", 3, "row_is_heading")
    assert (row.model, row.precision) == ("GPT3-13B", "fp16")
    assert row.changes == {"per_device_bs": "4", "sharding": '"stage2"', "tensor": "2"}
    assert row.figure("token/p/s") == 4410.0  # the result of the printed arithmetic
    assert text.reason.code == "row_is_text"
    assert empty.reason.code == "row_is_text"  # a blank line has no figures either


def test_unreadable_cell_is_listed_and_its_row_kept():
    # ``NINE`` is a table of nine columns with two rows. In the first row, the 361 in the column
    # ``e2e_time`` is replaced by "3 to 4 days". The second row begins with the label of a device,
    # "X100单机单卡"; it is replaced by an empty line, which ends the table before that row.
    row, cell = read(NINE.replace("361", "3-4天").replace("| X100单机单卡", "\n"))[:2]
    assert isinstance(row, Row)
    assert "e2e_time" not in row.figures
    assert row.cells["e2e_time"] == "3-4天"
    assert (cell.kind, cell.line, cell.raw) == ("cell", row.line, "3-4天")


def test_other_tables_and_pages_without_results_are_listed():
    # Neither header is that of a figure. So both the table and the page, which has only this table,
    # are listed.
    table, page = read("| name | size |\n|---|---|\n| a | 1 |\n")
    assert (table.kind, table.line, table.reason.code) == ("table", 1, "table_without_results")
    assert (page.kind, page.reason.code, page.reason.args) == (
        "file",
        "page_without_results",
        {"tables": 1},
    )
    assert [entry.reason.code for entry in read("nothing")] == ["page_without_tables"]


def test_pipes_code_and_quotes_in_cells_are_read():
    # ``NINE`` is a table of two rows, in its lines 3 and 4, with the precisions "fp32" and "amp".
    # Here it is in a block of code, so one line further down, and again in a quotation, from line 8
    # on, where a cell has a pipe, which Markdown escapes: "fp32|x".
    text = "```\n" + NINE + "```\n\n> " + NINE.replace("\n", "\n> ").replace("fp32", r"fp32\|x")
    rows = [entry for entry in read(text) if isinstance(entry, Row)]
    assert [row.cells["precision"] for row in rows] == ["fp32", "amp", "fp32|x", "amp"]
    assert [row.line for row in rows] == [4, 5, 10, 11]


def test_commands_joined_by_pipes_are_no_table():
    commands = "```bash\nexport steps=1 | cat\nexport steps=2 | cat\n```\n"
    assert [entry.reason.code for entry in read(commands)] == ["page_without_tables"]
    # Unlike a table in such a block: ``NINE`` has two rows, with these precisions.
    rows = [entry for entry in read(commands + f"```bash\n{NINE}```\n") if isinstance(entry, Row)]
    assert [row.cells["precision"] for row in rows] == ["fp32", "amp"]


@pytest.mark.parametrize("lang", ["en", "zh"])
@pytest.mark.parametrize("status", ["diverged", "oom"])
def test_status_in_brackets_behind_a_label_of_our_own_page_is_read(lang, status):
    # The golden record of the toy case is of one rank on one node.
    record = Record.model_validate_json((GOLDEN / "record_toy.json").read_text(encoding="utf-8"))
    record = record.model_copy(update={"status": status, "cause": None})
    # The label ends with the status in square brackets, which Markdown escapes.
    label = (
        translate(describe_record_configuration(record), lang)
        .replace("[", r"\[")
        .replace("]", r"\]")
    )
    (row,) = read(f"| configuration | p_core |\n|---|---|\n| {label} | 9 |\n")
    assert (row.nnodes, row.nproc) == (1, 1)
    code = "run_not_converged" if status == "diverged" else "run_not_successful"
    assert [note.code for note in row.notes] == [code]


@pytest.mark.parametrize(
    ("cells", "num_cells"),
    [("| 9 |", 9), ("| |", 9), ("||", 9), ("| 9 | |", 9), ("|", 8), ("| 9 | 8 |", 10)],
)
def test_row_with_another_number_of_cells_than_headers_is_not_read(cells, num_cells):
    # ``NINE`` is a table with nine columns, the last of which is the memory in GiB. ``cells``
    # replace its cell in the first row; ``num_cells`` is how many cells this row then has. Their
    # first pipe ends the eighth cell, so "|" adds no ninth one and "||" an empty one. Empty cells
    # after the ninth do not count.
    text = NINE.replace("| 13.9/40.0 |", cells)
    for page_text in (text, "> " + text.replace("\n", "\n> ")):
        row = read(page_text)[0]
        if num_cells == 9:
            assert row.notes == []
            assert row.figures["mem"].value == (9 * 1024**3 if "9" in cells else None)
        else:
            assert (row.kind, row.reason.code) == ("row", "row_has_other_cells")
            assert row.reason.args == {"cells": num_cells, "columns": 9}


def test_path_of_a_page_gives_model_and_vendor(tmp_path):
    # In collections of results, the path of a page is VENDOR/MODEL-FRAMEWORK/README.md.
    page = files._add_folder_names(
        Page(file="p", form="flagperf"), tmp_path / "metax" / "glm-pytorch" / "README.md"
    )
    assert (page.vendor, page.model, page.framework) == ("metax", "glm", "pytorch")
    # The path takes precedence over the page: its table of facts (``FACTS``) before the results
    # (``NINE``) names another model, distilbert, and another vendor. The program has a benchmark
    # case of the path's model, ``glm_superglue``.
    row = next(files.read_page(FACTS + NINE, page))
    assert (row.case, row.vendor) == ("glm_superglue", "metax")


@pytest.mark.parametrize(
    ("name", "content", "code"),
    [
        ("p.md", b"\x00\x01", "file_is_no_text"),
        ("p.csv", b"a" * (files.MAX_BYTES + 1), "file_too_large"),
        ("p.png", b"\x89PNG\r\n\x1a\n", "file_of_unknown_form"),
    ],
)
def test_hostile_files_are_listed(tmp_path, name, content, code):
    # Bytes that are no text, a file above the limit, and an image, of which neither the ending nor
    # the content is known.
    path = tmp_path / name
    path.write_bytes(content)
    imported_rows = files.read_files([path])
    assert [entry.reason.code for entry in imported_rows.unread] == [code]
    assert imported_rows.rows == []


@pytest.mark.parametrize("encoding", ["utf-8-sig", "gb18030", "utf-16"])
@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_any_encoding_and_line_ending_is_read(tmp_path, encoding, ending):
    path = tmp_path / "README.md"
    # ``FACTS``, a table of facts about the page, has 6 lines with the empty one at its end. So the
    # two rows of ``NINE``, a table of results with two lines of headers, are in lines 9 and 10. Its
    # label says "device X100, one machine of 8 cards (1x8)".
    path.write_bytes((FACTS + NINE).replace("\n", ending).encode(encoding))
    rows = files.read_files([path]).rows
    assert [row.line for row in rows] == [9, 10]
    assert rows[0].configuration == "X100单机8卡（1x8）"


def test_folder_is_read_whole_but_for_hidden_files(tmp_path):
    # ``NINE`` is a page with a table of results, whose two rows are in lines 3 and 4.
    folder = tmp_path / "pages"
    (folder / "b").mkdir(parents=True)
    (folder / ".git").mkdir()
    (folder / ".git" / "hidden.md").write_text(NINE)
    (folder / "b" / "README.md").write_text(NINE)
    (folder / "a.md").symlink_to("b/README.md")
    (folder / "d").symlink_to("b")  # a link to a folder is not followed
    imported_rows = files.read_files([folder])
    assert [(row.file, row.line) for row in imported_rows.rows] == [
        (str(folder / name), line) for name in ("a.md", "b/README.md") for line in (3, 4)
    ]
    assert imported_rows.unread == []


def test_page_in_the_folder_of_its_run_is_no_published_result(tmp_path):
    # ``FACTS`` and ``NINE`` are a page of results, as others publish them and as a run writes them.
    # A page beside the files of a run tells of this run.
    # The folders a and b have runs with records, in b one level down. The runs of d and e are in
    # progress: they have events, but no records yet. Only c has no run, so only its page is read.
    files_of_runs = (
        "a/record.json",
        "b/r1/record.json",
        "d/events.launcher.jsonl",
        "e/r1/events.launcher.jsonl",
    )
    for file in files_of_runs:
        (tmp_path / file).parent.mkdir(parents=True)
        (tmp_path / file).write_text("{}", encoding="utf-8")
    for folder in ("a", "b", "c", "d", "e"):
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / "page.en.md").write_text(FACTS + NINE, encoding="utf-8")
    imported_rows = files.read_files([tmp_path])
    assert {row.file for row in imported_rows.rows} == {str(tmp_path / "c/page.en.md")}
    assert imported_rows.unread == []
    # Unless the page itself is named; the table in it (``NINE``) has two rows.
    assert len(files.read_files([tmp_path / "a" / "page.en.md"]).rows) == 2


def test_ordinary_table_has_a_device_and_no_configuration():
    table = "| device | nnodes | nproc | precision | p_whole |\n|---|---|---|---|---|\n"
    (row,) = read(table + "| A100 | 2 | 8 | ＦＰ３２ | 1764 |\n")
    assert (row.device, row.world_size, row.precision) == ("A100", 16, "fp32")
    assert (row.figure("p_whole"), row.configuration) == (1764.0, "A100 (2x8)")
    # A device with its world is a configuration.
    (row,) = read("| device | p_whole |\n|---|---|\n| A100（1×8） | 1764 |\n")
    assert (row.device, row.world_size, row.configuration) == ("A100", 8, "A100（1×8）")


def test_table_of_plain_text_may_follow_another_without_a_line_between():
    # The second line of headers begins another table; ``p_whole`` is the figure for samples/s.
    text = """```
device | throughput (samples/s)
A100 | 100
device | throughput (samples/s) | train time (s)
H100 | 200 | 30
H200 | 300 | 20
```
"""
    assert [(row.device, row.figure("p_whole")) for row in read(text)] == [
        ("A100", 100),
        ("H100", 200),
        ("H200", 300),
    ]


def test_precision_of_a_fact_outweighs_a_less_exact_heading():
    # AMP in the heading is mixed precision with 16 bits of any kind; the line "Precision: bf16"
    # states which.
    page = "# AMP results\n\nPrecision: bf16\n\n| device | samples/s |\n|---|---|\n| A100 | 5 |\n"
    (row,) = read(page)
    assert row.precision == "bf16"


def test_table_that_lacks_a_column_names_it():
    entry = read("| who | p_whole |\n|---|---|\n| A100 | 1764 |\n")[0]
    assert entry.reason.code == "table_without_configuration"


def test_decimal_commas_are_recognized_by_column():
    # In the column ``p_core``, 0,125 and 12,5 can only have decimal commas. In the column ``acc``,
    # the point of 0.5 leaves open what the comma of 0,5 is: this cell is not read, though its row
    # is.
    text = "| 配置 | p_core | acc |\n|---|---|---|\n| 8卡 | 0,125 | 0,5 |\n| 16卡 | 12,5 | 0.5 |\n"
    first, cell, second = read(text)
    assert (first.figure("p_core"), second.figure("p_core")) == (0.125, 12.5)
    assert (cell.kind, cell.raw) == ("cell", "0,5")  # its column has 0.5 too


def test_fact_in_a_line_holds_until_the_next_one():
    # Two models on a page, each with its facts and a table of results; ``p_train`` is any figure.
    table = "\n| precision | p_train |\n|---|---|\n| fp32 | 100000 |\n\n"
    facts_and_tables = (
        f"Model: distilbert\n\nHardware: nvidia X100\n{table}",
        f"Model: glm\n\nHardware: amd X200\n{table}",
    )
    first, second = read("".join(facts_and_tables))
    assert (first.model, first.vendor, first.device) == ("distilbert", "nvidia", "X100")
    assert (second.model, second.vendor, second.device) == ("glm", "amd", "X200")


@pytest.mark.parametrize(
    ("name", "title"), [("x.md", "distilbert_sst2"), ("distilbert.md", "Ours")]
)
def test_model_is_read_from_the_title_or_the_file_name(tmp_path, name, title):
    page = tmp_path / name
    page.write_text(
        f"# {title}\n\n| configuration | precision | p_train |\n|---|---|---|\n"
        "| A100 1x1 | fp32 | 100000 |\n"
    )
    (row,) = files.read_files([page]).rows
    assert row.model == (  # whichever is a known model
        title if name == "x.md" else "distilbert"
    )
    # A line of the page that states the model outweighs the file's name, but not the title.
    page.write_text(page.read_text().replace("\n\n", "\n\nModel: ResNet50\n\n", 1))
    (row,) = files.read_files([page]).rows
    assert row.model == (title if name == "x.md" else "ResNet50")
