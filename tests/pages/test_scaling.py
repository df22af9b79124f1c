"""Scaling: exact efficiencies, both kinds, both languages, and what does not scale."""

from __future__ import annotations

from typing import Any

import pytest

from document_texts import rows
from fakes import GOLDEN, check_golden
from trainmark.pages.document import Section, Table
from trainmark.pages.page import documents
from trainmark.pages.rendering import to_markdown
from trainmark.pages.texts import say
from trainmark.record.record import Record

TEMPLATE = Record.model_validate_json((GOLDEN / "record_distilbert.json").read_bytes())


def run(world: str, rate: float, *, number: int = 0, micro: int = 32,
        changes: dict[str, Any] | None = None, **fields: Any) -> Record:  # fmt: skip
    """Return a record of ``world``, of so many samples a second; ``changes`` are recipe fields."""
    nnodes, nproc = map(int, world.split("x"))
    recipe = TEMPLATE.plan.recipe | {"micro_batch_size": micro, "world": world} | (changes or {})
    plan = TEMPLATE.plan.model_copy(update={"recipe": recipe, "nnodes": nnodes, "nproc": nproc})
    result = TEMPLATE.figures["final_result"].model_copy(update={"value": rate, "reason": None})
    entries = {"final_result": result}
    known = {"plan": plan, "run_id": f"{world}-r{number}", "figures": TEMPLATE.figures | entries}
    return TEMPLATE.model_copy(update=known | fields)


def weak() -> list[Record]:
    """Return two launches of 2x8, three of 1x1 and one of 1x8, not in order."""
    return [
        run("2x8", 1600.0, number=1),
        run("2x8", 1156.0, number=2),
        *(run("1x1", rate, number=n) for n, rate in enumerate([100.0, 80.0, 125.0])),
        run("1x8", 760.0),
    ]


def sections(runs: list[Record]) -> list[Section]:
    """Return the sections of scaling on the first page of a report."""
    return [one for one in documents(runs)[0].sections if one.anchor.startswith("scaling")]


def worlds(section: Section) -> list[tuple[str, ...]]:
    """Return the rows of the table."""
    assert isinstance(section.blocks[0], Table)
    return rows(section.blocks[0])


def test_weak_scaling_has_throughput_and_efficiency_of_each_world() -> None:
    (found,) = sections(weak())
    assert say(found.heading, "en").endswith("weak scaling")
    assert worlds(found) == [
        ("1x1", "3", "32", "100.0 (80.0 – 125.0)", "100.0%"),
        ("1x8", "1", "32", "760.0 (1 launch)", "95.0%"),
        ("2x8", "2", "32", "1360.0 (1156.0 – 1600.0)", "85.0% (57.8% – 125.0%)"),
    ]


def test_strong_scaling_keeps_the_global_batch() -> None:
    (found,) = sections([run("1x2", 200.0, micro=64), run("2x4", 640.0, micro=16)])
    assert [(row[2], row[4].split()[0]) for row in worlds(found)] == [
        ("64", "100.0%"), ("16", "80.0%"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "other",
    [
        run("1x8", 760.0, status="failed"),
        run("1x8", 760.0, changes={"lr": 1.0}),
        run("1x8", 760.0, micro=31),
    ],
)
def test_other_work_and_runs_without_a_result_do_not_scale(other: Record) -> None:
    assert sections([run("1x1", 100.0), other]) == []


def test_one_world_with_two_batches_scales_weakly_and_strongly() -> None:
    found = sections([run("1x1", 1.0), run("1x8", 8.0),
                      run("1x8", 6.0, number=1, micro=4)])  # fmt: skip
    assert [len(worlds(one)) for one in found] == [2, 2]


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_the_golden_pages(lang: str) -> None:
    check_golden(f"page.scaling.{lang}.md", to_markdown(documents(weak())[:1], lang))
