"""Pages of any set of records: cases, worlds, precisions, devices and endings mixed."""

import itertools
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from exported_runs import write_two_ranks
from trainmark.errors import UsageError
from trainmark.pages.page import html_page, markdown_page
from trainmark.record.record import Cause, Record
from trainmark.spec import message

HEADS = {"en": "configuration", "zh": "配置"}
MARKS = {"en": r"\[failed\]", "zh": r"\[失败\]"}
GOLDEN = Path(__file__).parents[1] / "golden"


def read(name):
    return Record.model_validate_json((GOLDEN / name).read_text(encoding="utf-8"))


def changed(record, run_id, *, plan=None, **fields):
    planned = record.plan.model_copy(update=plan or {})
    return record.model_copy(update={"run_id": run_id, "plan": planned, **fields})


def kinds():
    """Return a record of each kind, by a name that says what is special about it."""
    usual, toy = read("record_distilbert.json"), read("record_toy.json")
    recipe, host = usual.plan.recipe, usual.plan.device.model_copy(update={"torch_type": "cpu"})
    cause = Cause(kind="error", message=message("exception", text="no"), type="RuntimeError")
    return {
        "usual": usual,
        "again": changed(usual, "again"),
        "eight": changed(usual, "eight", plan={"nproc": 8}),
        "bf16": changed(usual, "bf16", plan={"recipe": recipe | {"precision": "bf16"}}),
        "host": changed(usual, "host", plan={"device": host}),
        "simulated": changed(usual, "simulated", labels=["simulated-device"]),
        "failed": changed(usual, "failed", status="failed", cause=cause),
        "toy": toy,
        "sampled": read("record_sampled.json"),
    }


class Document(HTMLParser):
    """Collect the ids, and what they are referred to by."""

    def __init__(self, source):
        super().__init__()
        self.ids, self.named = [], set()
        self.feed(source)

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.ids += [found["id"]] if "id" in found else []
        self.named |= set((found.get("aria-labelledby") or "").split())


def tables(text, head):
    """Return the rows under each performance table's header line."""
    found = []
    for part in text.split(f"| {head} |")[1:]:
        lines = part.splitlines()[2:]
        found.append(list(itertools.takewhile(lambda line: line.startswith("|"), lines)))
    return found


@pytest.mark.parametrize(("lang", "head"), HEADS.items())
@pytest.mark.parametrize("chosen", [*itertools.combinations(kinds(), 2), tuple(kinds())])
def test_any_records_make_a_page_with_a_table_a_case(chosen, lang, head):
    records = [found for name, found in kinds().items() if name in chosen]
    cases = dict.fromkeys(record.plan.case for record in records)
    made = markdown_page(records, lang)
    per_case = [sum(record.plan.case == case for record in records) for case in cases]
    # Published rows have a table with the same head below it.
    counted = [len(rows) for rows in tables(made, f"{head} | precision | fix_hp | e2e_time")]
    expected = []
    for case, count in zip(cases, per_case, strict=True):
        of_case = next(r for r in records if r.plan.case == case).plan.about.references
        expected += [count, len(of_case.rows)] if of_case.rows else [count]
    assert counted == expected
    found = Document(html_page(records, lang))
    assert len(found.ids) == len(set(found.ids))
    assert found.named <= set(found.ids)


def test_pages_of_two_cases_are_each_as_they_are_alone():
    records = kinds()
    made = markdown_page([records["usual"], records["toy"], records["eight"]])
    alone = [markdown_page([records["usual"], records["eight"]]), markdown_page([records["toy"]])]
    assert made == "\n".join(alone)


def test_a_run_that_is_named_twice_is_no_repeat():
    usual = kinds()["usual"]
    assert markdown_page([usual, usual]) == markdown_page([usual])
    altered = usual.figures | {"mem": usual.figures["mem"].model_copy(update={"value": 1.0})}
    with pytest.raises(UsageError, match="the same run is given twice"):
        markdown_page([usual, changed(usual, usual.run_id, figures=altered)])


@pytest.mark.parametrize(("lang", "mark"), [("en", "simulated device"), ("zh", "模拟设备")])
def test_a_simulated_device_is_marked_in_its_row(lang, mark):
    records = kinds()
    made = markdown_page([records["usual"], records["simulated"]], lang)
    (rows, *_) = tables(made, HEADS[lang])
    assert [f"\\[{mark}\\]" in row for row in rows] == [False, True]


def test_a_figure_that_means_something_else_on_a_host_has_both_meanings():
    records = kinds()
    made = markdown_page([records["usual"], records["host"]])
    (meaning,) = re.findall(r"^- mem: memory use: (.*); GiB$", made, re.MULTILINE)
    assert meaning == (r"\[1\] peak used/total; \[2\] the processes' peak use/the host's total")
    alone = markdown_page([records["host"]])
    assert "- mem: memory use: the processes' peak use/the host's total; GiB" in alone


@pytest.mark.parametrize("lang", ["en", "zh"])
@pytest.mark.parametrize("ends_after", [0, 3, 5, 6, 7, 11])
def test_a_run_that_broke_off_anywhere_is_on_a_page(ends_after, lang, tmp_path):
    broken, _ = write_two_ranks(tmp_path / "run", ends_after=ends_after)
    for records in ([broken], [broken, kinds()["toy"]], [kinds()["usual"], broken]):
        made = markdown_page(records, lang)
        every = [row for rows in tables(made, HEADS[lang]) for row in rows]
        assert ["1x2" in row for row in every if MARKS[lang] in row] == [True]
        found = Document(html_page(records, lang))
        assert len(found.ids) == len(set(found.ids))
