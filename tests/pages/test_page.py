"""The result page: golden files, both languages, hostile strings, failed runs.

``UPDATE_GOLDEN=1 pytest tests/pages/test_page.py`` writes the golden pages anew; look
at the difference before committing it.
"""

import itertools
import json
import os
import re
import shlex
from base64 import b64encode
from hashlib import sha256
from html.parser import HTMLParser
from pathlib import Path

import pytest

from trainmark.errors import RecordError, UsageError
from trainmark.judge.audit import audit
from trainmark.judge.audit.subject import of_record
from trainmark.pages import cells, page
from trainmark.pages.provenance import command
from trainmark.plan.overrides import parse_assignments
from trainmark.plan.request import RunRequest
from trainmark.plan.resolving import resolve
from trainmark.record.compilation import Compilation
from trainmark.record.messages import render
from trainmark.record.record import Cause, Record
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
    """Return the page's part in one language, as it is in the file and on the site."""
    return page.body_html(page.compose(records, lang=lang), static=True)


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


def undrawn(made):
    """Return a page without its pictures, whose drawing follows from versions of libraries."""
    return re.sub(r"<svg .*?</svg>", "<svg/>", made, flags=re.DOTALL)


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("page.en.md", lambda: markdown(record())),
        ("page.zh.md", lambda: markdown(record(), lang="zh")),
        ("page.html", lambda: undrawn(page.html_page([record()], scripts=False))),
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
    assert len(headings) == 19
    assert [heading for heading in headings if not CJK.search(heading)] == []
    assert '<html lang="zh-Hans">' in page.html_page([record()], "zh")


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


def attributes(found, *names):
    return [value for name, value in found.attributes if name in names]


@pytest.mark.parametrize("scripts", [False, True])
def test_html_is_one_file_that_loads_nothing(scripts):
    made = page.html_page([record(), of_recipe("tiny")], scripts=scripts)
    found = Checker(made)
    assert not {"link", "img", "iframe", "object", "form"} & set(found.seen)
    assert attributes(found, "src", "srcset", "action") == []
    assert [link for link in attributes(found, "href") if not link.startswith("#")] == []
    style = made[made.index("<style>") : made.index("</style>")]
    assert "url(" not in style
    assert "@import" not in style
    programs = re.findall(r"<script>(.*?)</script>", made, re.DOTALL)
    assert len(programs) == 2 * scripts
    digests = [b64encode(sha256(text.encode()).digest()).decode() for text in programs]
    (policy,) = [value for value in attributes(found, "content") if "default-src" in value]
    allowed = "default-src 'none'; style-src 'unsafe-inline'; "
    allowed += "script-src " + " ".join(f"'sha256-{x}'" for x in digests) + "; " if scripts else ""
    assert policy == allowed + "base-uri 'none'; form-action 'none'"
    ids = attributes(found, "id")
    assert len(ids) == len(set(ids))
    assert {link[1:] for link in attributes(found, "href")} <= set(ids)


@pytest.mark.parametrize(("lang", "other"), [("en", "zh"), ("zh", "en")])
def test_a_file_has_both_languages_and_shows_the_one_that_was_asked_for(lang, other):
    found = Checker(page.html_page([record()], lang, scripts=False))
    for one in (lang, other):
        assert page.compose([record()], lang=one).title in found.words
    checked = [place for place, pair in enumerate(found.attributes) if pair == ("checked", None)]
    # Language and theme: the first attribute before each is the value.
    assert [found.attributes[place - 1] for place in checked] == [
        ("value", lang), ("value", "auto"),
    ]  # fmt: skip
    assert {f"lang-{lang}", f"lang-{other}"} <= set(attributes(found, "for"))
    style = "".join(found.words)
    assert f":root:has(#lang-{lang}:checked) .in-{other}" in style.replace(", ", " ")


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_headings_are_in_order_and_tables_have_captions_and_scopes(lang):
    made = page.html_page([failed(), record(run_id="b")], lang, scripts=False)
    levels = [int(level) for level in re.findall(r"<h([1-6])", made)]
    assert levels[0] == 1
    assert all(below <= above + 1 for above, below in itertools.pairwise(levels))
    found = Checker(made)
    assert found.seen.count("table") == found.seen.count("caption") > 10
    heads = made.count("<th>") + made.count("<th ")
    assert heads == made.count('<th scope="col">') + made.count('<th scope="row">')


def embedded(made):
    return [
        json.loads(text)
        for text in re.findall(
            r'<script type="application/json" id="record[-\d]*" class="record">(.*?)</script>',
            made, re.DOTALL,
        )
    ]  # fmt: skip


def sections(made, anchor):
    found = re.search(rf'<section id="[\w-]*{anchor}".*?</section>', made, re.DOTALL)
    return found.group() if found else ""


def test_a_command_repeats_the_run_and_resolves_to_the_same_work(tmp_path):
    changes = {"bs": "8", "window_steps": "3", "seed": "7"}
    plan = resolve(RunRequest(case="toy", overrides=changes, device="cpu"), generated_root=tmp_path)
    argv = ["__main__.py", "run", "toy", "--out", "a=b", "window_steps=3", "seed=7"]
    line = command(record(plan=plan, argv=argv))
    words = shlex.split(line)
    assert words[:5] == ["trainmark", "run", "toy", "--recipe", plan.recipe_name]
    given = parse_assignments([word for word in words if "=" in word])
    options = dict(itertools.pairwise(words))
    again = resolve(
        RunRequest(
            case=words[2], overrides=given, recipe=words[4], device=options["--device"],
            nproc=options["--nproc"],
        ),
        generated_root=tmp_path,
    )  # fmt: skip
    assert again.recipe == plan.recipe
    assert "--seed" not in words
    assert line in html(record(plan=plan, argv=argv))


def test_a_command_names_what_records_do_not():
    line = command(record())
    assert "bs=96 lr=0.00015 --data DATA --device nvidia --nproc 2" in line
    assert "<data>" not in line
    assert "DATA is the folder with the real data" in markdown(record())
    assert "started as: trainmark run distilbert_sst2 bs=96 lr=0.00015" in markdown(record())
    hostile_line = command(record(plan=record().plan.model_copy(update={"fix_hp": {"a": HOSTILE}})))
    assert shlex.split(hostile_line)[5].startswith("a=<script>")
    assert "\n" not in hostile_line


def test_the_audit_s_findings_are_on_the_page_with_their_arithmetic():
    made = record()
    assert "The audit found nothing." in markdown(made)
    mfu = made.figures["MFU"].model_copy(update={"value": 140.0})
    wrong = record(figures=made.figures | {"MFU": mfu})
    found = [one for one in audit([of_record(wrong, "")]) if one.rule == "mfu"]
    assert {one.severity for one in found} == {"error"}
    part = sections(html(wrong), "audit")
    assert f"Findings of the audit: {len(audit([of_record(wrong, '')]))}" in part
    for one in found:
        assert "mfu 140" in part.lower()
        assert cells.clean(render(one.message, "zh")) in "".join(
            Checker(sections(html(wrong, lang="zh"), "audit")).words
        )


def test_the_environment_is_in_drawers_with_what_differs_from_a_reference():
    made = record()
    alone = sections(html(made), "environment")
    assert "<table" not in alone
    drawers = re.findall(r"<summary>([^<]*)</summary>", sections(html(made), "software"))
    assert len(drawers) == 1
    other = made.model_copy(
        update={"run_id": "other", "environment": made.environment | {"kernel": "9.9 other"}}
    )
    composed = page.compose([made], against=[other])
    part = sections(page.body_html(composed, static=True), "environment")
    assert "differ from other" in part
    words = [word for word in Checker(part).words if word.strip()]
    place = words.index("kernel")
    assert words[place + 1 : place + 3] == [made.environment["kernel"], "9.9 other"]
    same = page.compose([made], against=[made.model_copy(update={"run_id": "same"})])
    assert "do not differ from same" in page.to_markdown(same)


def test_the_record_is_in_the_file():
    made = page.html_page([record()], scripts=False)
    (found,) = embedded(made)
    assert Record.model_validate_json(json.dumps(found)) == record()
    assert "and null" not in made
    both = embedded(page.html_page([record(), of_recipe("tiny")], "zh", scripts=False))
    assert len(both) == 1  # the same run twice
    other = record(run_id="other")
    assert [one["run_id"] for one in embedded(page.html_page([record(), other]))] == [
        record().run_id, "other",
    ]  # fmt: skip


def test_a_record_of_very_many_steps_is_in_the_file_without_them():
    made = page.html_page([of_steps(100_000)], scripts=False)
    (found,) = embedded(made)
    assert found["steps"] is None
    assert found["figures"]["p_train"]["value"] == record().figure("p_train")
    assert "Left out there because of their size, and null: steps." in made
    assert len(made) < 1_000_000


def test_hostile_strings_stay_text_in_the_record_of_a_file():
    run_id = "</script><!--<script>\u202e&amp;" + HOSTILE
    made = page.html_page([hostile().model_copy(update={"run_id": run_id})], scripts=False)
    (found,) = embedded(made)
    assert found["run_id"] == run_id
    assert "\u202e" not in made
    assert [tag for tag in Checker(made).seen if tag == "script"] == ["script"]


@pytest.mark.parametrize("more", ["", "<b>" * 7000], ids=["short", "long"])
def test_a_hostile_unit_is_text_in_a_drawn_chart(more):
    made = record()
    units = {
        name: entry.model_copy(update={"unit": "s\u2028'\"</script>\r\x1b" + more})
        for name, entry in made.figures.items()
    }
    found = page.html_page([record(figures=made.figures | units)], scripts=False)
    assert found.count("<svg ") >= 6
    assert [tag for tag in Checker(found).seen if tag == "script"] == ["script"]
    assert "\u2028" not in found


def test_a_name_of_ten_thousand_characters_is_text():
    long = "<b>" * 4000
    made = page.html_page([record(case_key=long, run_id=long)], scripts=False)
    assert "b" not in Checker(made).seen
    assert long in "".join(Checker(made).words)


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
        "Performance figures", "Where the time went", "Step by step", "All figures", "Audit",
        "The run", "Environment", "Repeat this run", "Provenance", "Glossary",
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
    assert headings[:5] == [
        "Why the run did not pass \\[3\\]", "Performance figures", "Where the time went \\[1\\]",
        "Step by step \\[1\\]", "Repeated launches",
    ]  # fmt: skip
    picture = html(*launches)
    assert tiles(picture)["p_train, tf32, median"] == "478.6"  # of 457.2 and 500
    (dots,) = [
        block.data["launches"]
        for section in page.compose(launches).sections
        for block in section.blocks
        if block.kind == "chart" and block.name == "repeats1"
    ]
    assert len(dots) == 2 * 7  # the launches that passed, seven figures
    assert 'id="chart-repeats1"' in picture
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
        page.compose([record(), other])
    with pytest.raises(RecordError, match="no record"):
        page.html_page([])
    with pytest.raises(UsageError, match="'fr'"):
        page.markdown_page([record()], "fr")


def test_a_page_is_the_same_where_the_case_is_not_installed():
    made = record()
    elsewhere = record(plan=made.plan.model_copy(update={"case": "from_elsewhere"}))
    # Where it is named, it is in the command that repeats the run.
    assert markdown(elsewhere).replace("from_elsewhere", made.plan.case) == markdown(made)
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
