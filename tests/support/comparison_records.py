"""Launches for tests of comparisons: the golden record with other figures and times."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from support.fakes import GOLDEN
from trainmark.record.record import FigureEntry, Record, Steps

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@cache
def _read_golden_file() -> Record:
    return Record.model_validate_json((GOLDEN / "record_distilbert.json").read_bytes())


def read_golden_record(**changes: Any) -> Record:
    """Return the golden record of DistilBERT with other values of these top-level fields."""
    return _read_golden_file().model_copy(update=changes)


def replace_plan_fields(record: Record, **fields: Any) -> Record:
    """Return the record with other values of these fields of its plan."""
    return record.model_copy(update={"plan": record.plan.model_copy(update=fields)})


def make_launch(
    run_id: str,
    round_: int = 1,
    minute: int = 0,
    *,
    figures: Mapping[str, float | None] | None = None,
    recipe: Mapping[str, Any] | None = None,
    steps_ns: Sequence[int] = (),
    **changes: Any,
) -> Record:
    """Return a launch of the golden record's run.

    Args:
        run_id: the launch's id.
        round_: which repeat of the run it is, from 1.
        minute: of the hour at which it started.
        figures: other values of figures, by name.
        recipe: other values of the recipe's fields.
        steps_ns: times of its steps; samples and losses of the steps are always the same.
        changes: other values of fields of the record.
    """
    base = read_golden_record()
    plan = base.plan.model_copy(
        update={
            "run_id": run_id,
            "repeat_index": round_,
            "recipe": base.plan.recipe | dict(recipe or {}),
        }
    )
    changed_figures = {
        name: FigureEntry(value=value, unit=base.figures[name].unit)
        for name, value in (figures or {}).items()
    }
    steps = Steps(
        warmup=0,
        time_ns=list(steps_ns),
        loss=[0.5] * len(steps_ns),
        samples=[96] * len(steps_ns),
    )
    started = f"2026-11-21T08:{minute:02}:00+00:00"
    update = {
        "run_id": run_id,
        "plan": plan,
        "figures": base.figures | changed_figures,
        "steps": steps,
        "started": started,
    } | changes
    return base.model_copy(update=update)


def make_series(
    name: str, rates: Sequence[float], *, first_minute: int = 0, **changes: Any
) -> list[Record]:
    """Return launches of one run, one a minute, with the same rate in all throughputs.

    Args:
        name: beginning of their ids.
        rates: samples per second, one for each launch.
        first_minute: when the first one started, as a minute of an hour.
        changes: of each launch, as ``make_launch`` takes them.
    """
    return [
        make_launch(
            f"{name}{number}",
            round_=number,
            minute=first_minute + number - 1,
            figures=_make_throughputs(rate),
            **changes,
        )
        for number, rate in enumerate(rates, 1)
    ]


def make_alternating_launches(
    rates_a: Sequence[float], rates_b: Sequence[float], **fields_of_b: Any
) -> tuple[list[Record], list[Record]]:
    """Return launches of A and of B, one a minute in the order A B, B A, A B …

    Args:
        rates_a: the throughput of each launch of A.
        rates_b: the throughput of each launch of B.
        fields_of_b: changes of B's launches, as ``make_launch`` takes them.
    """
    launches_a: list[Record] = []
    launches_b: list[Record] = []
    for number, (rate_a, rate_b) in enumerate(zip(rates_a, rates_b, strict=True), 1):
        minute_a, minute_b = 2 * number, 2 * number + 1
        if number % 2 == 0:  # B before A
            minute_a, minute_b = minute_b, minute_a
        launches_a.append(
            make_launch(
                f"a{number}", round_=number, minute=minute_a, figures=_make_throughputs(rate_a)
            )
        )
        launches_b.append(
            make_launch(
                f"b{number}",
                round_=number,
                minute=minute_b,
                figures=_make_throughputs(rate_b),
                **fields_of_b,
            )
        )
    return launches_a, launches_b


def _make_throughputs(rate: float) -> dict[str, float]:
    """Return the same rate for all throughputs."""
    return dict.fromkeys(("p_core", "p_train", "p_whole"), rate)
