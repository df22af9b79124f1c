"""Scaling: exact efficiencies, both kinds, both languages, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fakes import GOLDEN, check_golden
from trainmark.errors import RecordError, UsageError
from trainmark.pages.scaling import scaling, scaling_text
from trainmark.record.record import Record

TEMPLATE = Record.model_validate_json((GOLDEN / "record_distilbert.json").read_bytes())


def run(world: str, rate: float, step_s: float, *, number: int = 0, micro: int = 32,
        changes: dict[str, Any] | None = None, **fields: Any) -> Record:  # fmt: skip
    """Return a record of ``world``, of so many samples a second; ``changes`` are recipe fields."""
    nnodes, nproc = map(int, world.split("x"))
    recipe = TEMPLATE.plan.recipe | {"micro_batch_size": micro, "world": world} | (changes or {})
    plan = TEMPLATE.plan.model_copy(update={"recipe": recipe, "nnodes": nnodes, "nproc": nproc})
    entries = {
        name: TEMPLATE.figures[name].model_copy(update={"value": value, "reason": None})
        for name, value in (("final_result", rate), ("step_time_p50", step_s))
    }
    known = {"plan": plan, "run_id": f"{world}-r{number}", "figures": TEMPLATE.figures | entries}
    return TEMPLATE.model_copy(update=known | fields)


def weak() -> list[Record]:
    """Return two launches of 2x8, three of 1x1 and one of 1x8, not in order."""
    return [
        run("2x8", 1600.0, 0.325, number=1),
        run("2x8", 1156.0, 0.5078125, number=2),
        *(run("1x1", rate, 0.25, number=n) for n, rate in enumerate([100.0, 80.0, 125.0])),
        run("1x8", 760.0, 0.28125),
    ]


def test_weak_scaling_has_efficiency_and_exposed_communication_of_each_world() -> None:
    found = scaling(weak())
    assert (found["kind"], found["unit"], found["case"]) == (
        "weak", TEMPLATE.figures["final_result"].unit, "distilbert_sst2",
    )  # fmt: skip
    worlds = json.loads(json.dumps(found["worlds"]), parse_float=lambda x: round(float(x), 6))
    assert worlds == [
        {"world": "1x1", "launches": 3, "samples_per_rank": 32,
         "throughput": [100.0, 80.0, 125.0],
         "efficiency": [1.0, 1.0, 1.0], "step_s": 0.25, "exposed_s": 0.0},
        {"world": "1x8", "launches": 1, "samples_per_rank": 32,
         "throughput": [760.0, 760.0, 760.0],
         "efficiency": [0.95, 0.76, 1.1875],
         "step_s": 0.28125, "exposed_s": 0.03125},
        {"world": "2x8", "launches": 2, "samples_per_rank": 32,
         "throughput": [1360.0, 1156.0, 1600.0],
         "efficiency": [0.85, 0.578, 1.25],
         "step_s": 0.40625, "exposed_s": 0.15625},
    ]  # fmt: skip
    assert found["run_ids"] == [["1x1-r0", "1x1-r1", "1x1-r2"], ["1x8-r0"], ["2x8-r1", "2x8-r2"]]


def test_strong_scaling_keeps_the_global_batch_and_exposes_nothing() -> None:
    runs = [run("1x2", 200.0, 0.5, micro=64), run("2x4", 640.0, 0.25, micro=16)]
    found = scaling(runs)
    assert found["kind"] == "strong"
    assert [world["efficiency"][0] for world in found["worlds"]] == pytest.approx([1.0, 0.8])
    assert [world["exposed_s"] for world in found["worlds"]] == [None, None]
    assert [world["samples_per_rank"] for world in found["worlds"]] == [64, 16]
    assert "Exposed communication is not given" in scaling_text(runs, "md", "en")


@pytest.mark.parametrize(
    ("other", "key"),
    [
        (run("1x8", 760.0, 0.25, status="failed"), "status is failed"),
        (run("1x8", 760.0, 0.25, changes={"lr": 1.0}), "lr is 1.0"),
        (run("1x1", 100.0, 0.25, number=9), "all runs have one world size"),
        (run("1x8", 760.0, 0.25, micro=31), "[(32, 1), (31, 1)] in worlds of [1, 8] ranks"),
    ],
)
def test_other_work_and_runs_without_a_result_are_refused_with_the_key(
    other: Record, key: str
) -> None:
    with pytest.raises(UsageError) as raised:
        scaling([run("1x1", 100.0, 0.25), other])
    assert key in raised.value.what


def test_one_world_with_two_batches_and_a_run_given_twice_are_refused() -> None:
    first, eight = run("1x1", 100.0, 0.25), run("1x8", 760.0, 0.25)
    with pytest.raises(RecordError, match="micro_batch_size is 4"):
        scaling([first, eight, run("1x8", 760.0, 0.25, number=1, micro=4)])
    with pytest.raises(UsageError, match="twice"):
        scaling([first, eight, eight])


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_the_golden_pages(lang: str) -> None:
    check_golden(f"page.scaling.{lang}.md", scaling_text(weak(), "md", lang))


def test_the_page_as_html_is_in_both_languages() -> None:
    html = scaling_text(weak(), "html", "zh")
    assert html.startswith("<!DOCTYPE html>")
    assert "弱扩展" in html
    with pytest.raises(UsageError, match="csv"):
        scaling_text(weak(), "csv", "en")
