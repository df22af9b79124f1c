"""The result page: golden files, both languages, hostile strings, failed runs.

``UPDATE_GOLDEN=1 pytest tests/report/test_page.py`` writes the golden pages anew; look
at the difference before committing it.
"""

import os
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from trainmark.errors import RecordError, UsageError
from trainmark.report import page
from trainmark.results.compilation import Compilation
from trainmark.results.record import Cause, Record
from trainmark.spec import PageSpec, Shown, TableSpec, Text, message

GOLDEN = Path(__file__).parents[1] / "golden"
CJK = re.compile(r"[\u3000-\u9fff\uff00-\uffef]")
HOSTILE = '<script>alert("x")</script>|a\nb\x1b[31m`c`**d**'
VOID = {"meta", "br", "hr", "img", "link", "input"}


def record(**changes):
    text = (GOLDEN / "record_distilbert.json").read_text(encoding="utf-8")
    return Record.model_validate_json(text).model_copy(update=changes)


def markdown(*records, lang="en"):
    return page.to_markdown(page.compose(records, lang=lang))


def html(*records, lang="en"):
    return page.to_html(page.compose(records, lang=lang))


def failed():
    made = record()
    gone = {
        name: entry.model_copy(update={"value": None, "reason": message("no_train_time")})
        for name, entry in made.figures.items()
    }
    return record(
        status="oom",
        cause=Cause(
            kind="oom",
            message=message("exception", text="out of memory|after <2 GiB>"),
            rank=1,
            place="model_build",
            type="OutOfMemoryError",
            exit_code=1,
            traceback="Traceback\n" + "\n".join(f'  File "m.py", line {n}' for n in range(40)),
        ),
        figures=gone,
        quality=made.quality.model_copy(
            update={
                "value": None, "history": [], "reached": False,
                "reason": message("ended_before_evaluation"),
            }
        ),
        steps=made.steps.model_copy(
            update={"time_ns": [], "loss": [], "samples": [], "steady": None, "drift": None}
        ),
    )  # fmt: skip


def of_steps(count):
    made = record()
    series = {"time_ns": [4_000_000] * count, "loss": [0.5] * count, "samples": [64] * count}
    return record(steps=made.steps.model_copy(update=series))


class Checker(HTMLParser):
    """Collect tags, attributes and text; insist that tags close in order."""

    def __init__(self, source):
        super().__init__()
        self.open, self.seen, self.attributes, self.words = [], [], [], []
        self.feed(source)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.seen.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.seen.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("page.en.md", lambda: markdown(record())),
        ("page.zh.md", lambda: markdown(record(), lang="zh")),
        ("page.html", lambda: html(record())),
        ("page.failed.en.md", lambda: markdown(failed())),
    ],
)
def test_golden_pages(name, make):
    path, made = GOLDEN / name, make()
    if os.environ.get("UPDATE_GOLDEN") == "1":
        path.write_text(made, encoding="utf-8")
    assert made == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("make", [markdown, html])
def test_the_english_page_has_no_chinese(make):
    assert CJK.findall(make(record())) == []
    assert CJK.findall(make(failed())) == []


def test_the_chinese_pages_headings_are_chinese():
    headings = re.findall(r"^#+ (.*)$", markdown(failed(), lang="zh"), re.MULTILINE)
    assert len(headings) == 17
    assert [heading for heading in headings if not CJK.search(heading)] == []
    assert '<html lang="zh-Hans">' in html(record(), lang="zh")


def test_reasons_and_notes_are_chinese_too():
    made = markdown(failed(), lang="zh")
    assert "有 rank 未上报训练时间" in made
    assert "did not report" not in made


@pytest.mark.parametrize(
    ("lang", "sentence"),
    [
        ("en", "p_train is also 1234.5 sequences/s and 98765.4 tokens/s without padding; "
               "9.12 sequences a sample on average"),
        ("zh", "p_train 折合 1234.5 sequences/s、98765.4 tokens/s（不含填充）；"
               "平均每个样本 9.12 条序列"),
    ],
)  # fmt: skip
def test_samples_of_several_sequences_are_said_in_these_under_the_table(lang, sentence):
    made, entry = record(), record().figures["p_train"]
    rates = {
        "p_train_sequences": entry.model_copy(
            update={"value": 1234.5, "note": message("sequences_per_sample", sequences=9.12)}
        ),
        "p_train_tokens": entry.model_copy(update={"value": 98765.4}),
    }
    found = record(figures=made.figures | rates)
    assert sentence in markdown(found, lang=lang)
    assert sentence not in markdown(made, lang=lang)


def test_published_rows_stand_with_what_they_imply():
    made = markdown(record(), lang="zh")
    rows = [line for line in made.splitlines() if line.startswith("| A100")]
    assert [row.split(" | ")[-1] for row in rows] == ["9.5 |", "10.0 |", "3.0 |", "3.1 |"]
    assert rows[2].startswith("| A100单机单卡（1x1） | fp32 | bs=96,lr=0.00015 | 720.8 | 283.7 |")
    assert "各行实际训练的数据量不同，其 e2e_time 不可相互比较。" in made
    assert "C：仅公布数值" in made
    english = markdown(record())
    assert "trained different amounts of data: their e2e_time columns cannot be compared" in english


def of_recipe(name, origin="real"):
    plan = record().plan
    data = plan.data.model_copy(update={"origin": origin})
    return record(plan=plan.model_copy(update={"recipe_name": name, "data": data}))


def test_published_rows_of_other_work_say_so_before_the_table():
    made = markdown(of_recipe("tiny", "generated"))
    told = "cannot be compared with this page's runs of tiny: model and data differ"
    assert made.index(told) < made.index("| A100 1 node x 8 (1x8) |")
    chinese = markdown(of_recipe("tiny", "generated"), lang="zh")
    assert chinese.index("模型和数据均不同") < chinese.index("| A100单机8卡")
    other = markdown(of_recipe("throughput-1x1"))
    assert "runs of throughput-1x1 do not train to the target" in other
    assert told not in other
    assert "This page's runs of" not in markdown(record())
    assert told not in markdown(record())


def test_a_failed_run_has_a_page_with_cause_and_reasons():
    made = markdown(failed())
    assert "**out of memory** ·" in made
    assert "- Message: out of memory\\|after &lt;2 GiB>" in made
    assert "- Place: model\\_build" not in made
    assert "- Place: model_build" in made
    assert (
        "- Way out: lower bs, with gas raised by the same factor where the case supports it" in made
    )
    assert "line 39" in made
    assert "line 20" not in made
    row = next(line for line in made.splitlines() if line.startswith("| NVIDIA"))
    assert row.endswith("\\[out of memory\\] | tf32 | bs=96,lr=0.00015 | / | / | / | / | / | / |")
    assert (
        "/ e2e_time, p_whole, p_train, p_core, mem: a rank did not report its training time; "
        "acc: the run ended before an evaluation\n"
    ) in made
    (mfu,) = [line for line in made.splitlines() if line.startswith("| MFU |")]
    assert mfu.startswith("| MFU | / | % | model FLOP utilisation: ")
    assert mfu.endswith("; not measured: a rank did not report its training time |")


def hung(waiting):
    groups = [
        {"ranks": waiting, "count": 700, "state": "collective", "call": "barrier",
         "where": "a.py:1 f", "steps": [7, 8]},
        {"ranks": "9", "count": 1, "state": "silent", "call": None, "where": "zombie",
         "steps": [8]},
    ]  # fmt: skip
    stacks = [f"stacks.rank{rank}.txt" for rank in range(701)]
    said = message("timed_out", limit_s=5, steps=8)
    cause = Cause(kind="timeout", message=said, stacks=stacks, hang=groups)
    return record(status="timed_out", cause=cause)


def test_a_hang_of_many_ranks_is_a_row_for_each_place():
    many = hung(",".join(str(rank) for rank in range(10, 1410, 2)))
    assert "stacks.rank&lt;N>.txt (701)" in markdown(many)
    words = Checker(html(many, lang="zh")).words
    first = words.index("10,12,14,16,18,20,22,24,26,28,30,32,34,3… (700)")
    row = [word for word in words[first:] if word.strip()][:8]
    assert row[1:4] == ["处于集合通信 barrier", "a.py:1 f", "7–8"]
    assert row[4:8] == ["9", "未响应", "zombie", "8"]


def test_an_errors_own_advice_comes_before_the_general_one():
    made = failed()
    cause = made.cause.model_copy(
        update={"message": message("fault", text="boom", remedy="do the right thing")}
    )
    text = markdown(made.model_copy(update={"cause": cause}))
    assert "- Message: boom\n- Way out: do the right thing\n" in text
    chinese = markdown(made.model_copy(update={"cause": cause}), lang="zh")
    assert "do the right thing" in chinese


def hostile():
    made = record()
    devices = [{"name": HOSTILE, "memory_total_bytes": 1}]
    plan = made.plan.model_copy(update={"recipe_name": HOSTILE, "case_key": HOSTILE})
    cause = Cause(
        kind="error",
        message=message("exception", text=HOSTILE),
        traceback=f"```\n{HOSTILE}\n````",
        place=HOSTILE,
    )
    return record(
        plan=plan, status="failed", cause=cause, run_id=HOSTILE, notes=[message(HOSTILE)],
        labels=[HOSTILE], fix_hp={"a": HOSTILE}, extra={"b|c": HOSTILE}, case_key=HOSTILE,
        environment=made.environment | {"devices": devices, "os": HOSTILE, "cpu": HOSTILE,
                                        "packages": {HOSTILE: HOSTILE}, "commit": HOSTILE},
        quality=made.quality.model_copy(update={"metric": HOSTILE}),
    )  # fmt: skip


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_hostile_strings_stay_text_in_html(lang):
    made = html(hostile(), lang=lang)
    found = Checker(made)
    assert "script" not in found.seen
    assert "\x1b" not in made
    assert any('<script>alert("x")</script>|a b' in text for text in found.words)


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_hostile_strings_stay_cells_in_markdown(lang):
    made = markdown(hostile(), lang=lang)
    outside = re.sub(r"(?ms)^(`{3,})text$.*?^\1$", "", made)
    assert "<script" not in outside
    assert "\x1b" not in made
    table = []
    for line in [*outside.splitlines(), ""]:
        if line.startswith("|"):
            table.append(len(re.findall(r"(?<!\\)\|", line)))
            continue
        assert len(set(table)) <= 1
        table = []


def test_html_is_one_file_that_loads_nothing():
    made = html(record())
    found = Checker(made)
    assert not {"script", "link", "img", "iframe"} & set(found.seen)
    links = [value for name, value in found.attributes if name in ("href", "src", "srcset")]
    assert links == []
    assert "url(" not in made
    assert "@import" not in made
    assert "prefers-color-scheme: dark" in made
    assert "@media print" in made
    ids = [value for name, value in found.attributes if name == "id"]
    assert len(ids) == len(set(ids))


def test_several_records_share_a_page_with_their_repeats():
    second = record(run_id="second")
    third = failed().model_copy(update={"run_id": "third"})
    made = markdown(record(), second, third)
    assert "| [1] " not in made
    rows = re.findall(r"^\| \\\[(\d)\\\] NVIDIA", made, re.MULTILINE)
    assert rows == ["1", "2", "3"]
    assert "2 of 3 launches passed" in made
    assert "excluded from every figure: third (out of memory)" in made
    assert "nothing can be inferred from it" in made
    assert "not measured: a rank did not report its training time |" in made
    assert "; ;" not in made
    assert " ; " not in made
    assert "- Status: \\[1,2\\] passed; \\[3\\] out of memory" in made
    found = Checker(html(record(), second, third))
    ids = [value for name, value in found.attributes if name == "id"]
    assert len(ids) == len(set(ids))


def tiles(picture):
    found = re.findall(
        r'tile-name">([^<]*)</span> <span class="tile-value">([^<]*)</span>', picture
    )
    return dict(found)


def test_the_tiles_are_the_figures_to_quote():
    assert tiles(html(record())) == {
        "p_train, tf32": "457.2", "MFU": "31.6", "acc": "0.9117", "e2e_time": "46.1",
    }  # fmt: skip
    made = record()
    unknown = {"MFU": made.figures["MFU"].model_copy(update={"value": None})}
    assert tiles(html(record(figures=made.figures | unknown)))["MAMFU"] == "40.7"


def test_the_tiles_of_a_failed_run_are_marked_as_no_result():
    note = "these figures are not a valid result"
    assert note in html(failed())
    assert 'class="tiles void"' in html(failed())
    assert note not in html(record())
    assert 'class="tiles void"' not in html(record())


def test_results_come_before_conditions():
    headings = re.findall(r"^## (.*)$", markdown(record()), re.MULTILINE)
    assert headings == [
        "Performance figures", "Where the time went", "All figures", "The run", "Environment",
        "Provenance", "Glossary",
    ]  # fmt: skip
    assert re.findall(r"^## (.*)$", markdown(failed()), re.MULTILINE)[0] == (
        "Why the run did not pass"
    )


def test_a_page_of_repeats_shows_their_medians_and_the_typical_launch():
    made = record()
    entry = made.figures["p_train"].model_copy(update={"value": 500.0})
    second = record(run_id="second", figures=made.figures | {"p_train": entry})
    third = failed().model_copy(update={"run_id": "third"})
    launches = (made, second, third)
    headings = re.findall(r"^## (.*)$", markdown(*launches), re.MULTILINE)
    assert headings[:4] == [
        "Why the run did not pass \\[3\\]", "Performance figures", "Where the time went \\[1\\]",
        "Repeated launches",
    ]  # fmt: skip
    picture = html(*launches)
    assert tiles(picture)["p_train, tf32, median"] == "478.6"  # of 457.2 and 500
    assert picture.count('class="launch"') == 2 * 7  # the launches that passed, seven figures
    assert "p_train, tf32（中位数）" in html(*launches, lang="zh")


def test_runs_of_different_work_have_no_medians_in_front():
    other = of_recipe("throughput-1x1")
    other = other.model_copy(
        update={"run_id": "o", "plan": other.plan.model_copy(update={"nnodes": 2})}
    )
    made = html(record(), other)
    assert "median</span>" not in made
    assert "Repeated launches" not in made


def on_cpu():
    made = record()
    device = made.plan.device.model_copy(update={"torch_type": "cpu", "vendor": "cpu"})
    plan = made.plan.model_copy(update={"device": device, "nproc": 1})
    entry = {"name": "CPU X", "keeps_freed_memory": True, "memory_total_bytes": 1024**3}
    return record(
        plan=plan,
        notes=[message("steadiness_unknown"), message("malformed_event_lines", rank=0, lines=2)],
        steps=made.steps.model_copy(update={"steady": None, "drift": None}),
        environment=made.environment
        | {"devices": [entry], "network": None, "driver": None, "collective": None},
    )  # fmt: skip


def test_a_cpu_page_says_what_does_not_apply():
    made = markdown(on_cpu())
    assert "- Network between machines, bandwidth: does not apply\n" in made
    assert "- Accelerator driver: does not apply\n" in made
    assert "- Collective library: does not apply\n" in made
    assert "keeps freed memory yes, memory total 1.0 GiB" in made
    assert "autocast none, deterministic no" in made
    assert "True" not in made
    chinese = markdown(on_cpu(), lang="zh")
    assert chinese.count("：不适用\n") == 3
    assert "单卡" not in chinese.partition("## 已公布")[0]
    assert "显存" not in chinese
    several = on_cpu().plan.model_copy(update={"nproc": 2, "nnodes": 2})
    asked = markdown(on_cpu().model_copy(update={"plan": several}))
    assert "- Collective library: not known\n" in asked
    assert "- Network between machines, bandwidth: not known\n" in asked


def test_steadiness_is_said_once():
    made = markdown(on_cpu())
    assert made.count("too few steps") == 1
    assert "- Notes: rank 0: 2 malformed event line(s)\n" in made


def test_a_page_shows_one_case():
    other = record()
    other = record(plan=other.plan.model_copy(update={"case": "toy"}))
    with pytest.raises(RecordError, match="distilbert_sst2, toy"):
        page.markdown_page([record(), other])
    with pytest.raises(RecordError, match="no record"):
        page.html_page([])
    with pytest.raises(UsageError, match="'fr'"):
        page.markdown_page([record()], "fr")


def test_a_page_is_the_same_where_the_case_is_not_installed():
    made = record()
    elsewhere = record(plan=made.plan.model_copy(update={"case": "from_elsewhere"}))
    assert markdown(elsewhere) == markdown(made)
    assert "Published figures" in markdown(elsewhere)


def test_the_same_record_gives_the_same_page():
    assert html(record()) == html(record())


SPREAD = PageSpec(
    tables=(
        TableSpec(
            heading=Text("Parallel strategy", "并行策略"),
            entries=(
                Shown(name=Text("Ranks", "rank 划分"), value="job.parallel"),
                Shown(name=Text("Share"), value="job.share", form=".1%"),
                Shown(name=Text("Batch"), value="run.global_batch_size", form=","),
                Shown(name=Text("Width"), value="recipe.width"),
            ),
        ),
        TableSpec(
            heading=Text("Layers", "各层"),
            entries=(
                Shown(name=Text("rows"), value="rows", form=","),
                Shown(name=Text("of"), value="of"),
            ),
            rows="layers",
        ),
    )
)  # fmt: skip


def of_spread_model(**job):
    made = record()
    about = made.plan.about.model_copy(update={"page": SPREAD})
    told = {**(made.environment["job"] or {}), **job}
    return record(
        plan=made.plan.model_copy(update={"about": about}),
        environment=made.environment | {"job": told},
    )


def test_a_case_s_list_is_filled_with_what_the_run_says():
    spread = of_spread_model(parallel={"data": 4, "tensor": 2, "fsdp": True}, share=0.125)
    assert "- Ranks: data 4, tensor 2, fsdp yes\n- Share: 12.5%\n- Batch: 192\n" in markdown(spread)
    assert "- rank 划分：data 4，tensor 2，fsdp 是" in markdown(spread, lang="zh")
    # A case's author may leave the Chinese out.
    assert "- Share：12.5%" in markdown(spread, lang="zh")


def test_what_a_run_did_not_tell_is_not_known_and_what_it_has_none_of_is_none():
    made = markdown(of_spread_model(parallel=None))
    assert "- Ranks: none\n- Share: not known\n" in made
    assert "- Width: not known\n" in made


def test_a_case_s_table_has_the_rows_that_the_job_told():
    made = markdown(of_spread_model(layers=[{"rows": 1200, "of": "a"}, {"rows": 7}]))
    assert "### Layers\n\n| rows | of |\n| --- | --- |\n| 1,200 | a |\n| 7 | none |\n" in made
    for told in (None, [], "none", [3]):
        assert "### Layers" not in markdown(of_spread_model(layers=told))


@pytest.mark.parametrize(("steps", "stretch"), [(12, None), (1000, None), (1001, 3), (4000, 8)])
def test_a_page_says_that_charts_are_thinned_only_where_they_are(steps, stretch):
    said = re.findall(r"value of every ([\d,]+) steps", html(of_steps(steps)))
    assert said == ([] if stretch is None else [str(stretch)])


@pytest.mark.parametrize(
    ("lang", "line"),
    [
        ("en", "- Compiler: torch.compile: 1 graph(s), 0 graph break(s), cache warm (2 hit(s), 0 "),
        ("zh", "- 编译器：torch.compile：1 个图，0 处图中断，缓存已有（命中 2，编译 0）\n"),
    ],
)
def test_what_the_compiler_did_is_listed_only_where_something_was_compiled(
    lang: str, line: str
) -> None:
    found = Compilation(
        cache="warm", graphs=1, graph_breaks=0, cache_hits=2, cache_misses=0, cache_bypasses=0,
        graphs_left_out=None, graphs_while_measured=0,
    )  # fmt: skip
    assert line in markdown(on_cpu().model_copy(update={"compilation": found}), lang=lang)
    assert line[:6] not in markdown(on_cpu(), lang=lang)
