"""Launches for tests of comparisons: the golden record with other figures and times."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from support.fakes import GOLDEN
from trainmark.record.record import FigureEntry, Record, Steps

if TYPE_CHECKING:
    from collections.abc import Sequence


@cache
def _read() -> Record:
    return Record.model_validate_json((GOLDEN / "record_distilbert.json").read_bytes())


def read_golden_record(**changes: Any) -> Record:
    return _read().model_copy(update=changes)


def replace_plan_fields(record: Record, **fields: Any) -> Record:
    """Return the record with other values of these fields of its plan."""
    return record.model_copy(update={"plan": record.plan.model_copy(update=fields)})


def make_launch(run_id: str, round_: int = 1, minute: int = 0, **changes: Any) -> Record:
    """Return a launch; ``figures`` by name, ``recipe`` fields and ``steps_ns`` may be given."""
    base = read_golden_record()
    plan = base.plan.model_copy(
        update={
            "run_id": run_id,
            "repeat_index": round_,
            "recipe": base.plan.recipe | changes.pop("recipe", {}),
        }
    )
    figures = base.figures | {
        name: FigureEntry(value=value, unit=base.figures[name].unit)
        for name, value in changes.pop("figures", {}).items()
    }
    times = changes.pop("steps_ns", [])
    steps = Steps(
        warmup=0,
        time_ns=times,
        loss=[0.5] * len(times),
        samples=[96] * len(times),
    )
    started = f"2026-11-21T08:{minute:02}:00+00:00"
    update = {
        "run_id": run_id,
        "plan": plan,
        "figures": figures,
        "steps": steps,
        "started": started,
    } | changes
    return base.model_copy(update=update)


def make_series(
    name: str, rates: Sequence[float], *, first_minute: int = 0, **changes: Any
) -> list[Record]:
    """Return launches of one run, one a minute, with the same rate in all throughputs."""
    return [
        make_launch(
            f"{name}{number}",
            number,
            first_minute + number - 1,
            figures=dict.fromkeys(("p_core", "p_train", "p_whole"), rate),
            **changes,
        )
        for number, rate in enumerate(rates, 1)
    ]


def make_alternating_launches(
    a: Sequence[float], b: Sequence[float], **of_b: Any
) -> tuple[list[Record], list[Record]]:
    """Return launches done in turns: A B, B A, A B …"""
    sides: tuple[list[Record], list[Record]] = ([], [])
    for number, pair in enumerate(zip(a, b, strict=True), 1):
        for side, rate in enumerate(pair):
            minute = 2 * number + (side if number % 2 else 1 - side)
            rates = dict.fromkeys(("p_core", "p_train", "p_whole"), rate)
            fields = of_b if side else {}
            sides[side].append(
                make_launch("ab"[side] + str(number), number, minute, figures=rates, **fields)
            )
    return sides
