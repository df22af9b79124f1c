"""The speeds that a program printed, in the form in which a record has them."""

from __future__ import annotations

from itertools import pairwise
from math import ceil
from statistics import fmean, harmonic_mean, median
from typing import TYPE_CHECKING

from trainmark.documents import Frozen
from trainmark.events.values import Count, Number  # noqa: TC001 - pydantic reads it at run time

if TYPE_CHECKING:
    from collections.abc import Callable

    from trainmark.events.schema import Printed

_MIN_BEST_VALUES = 20
TIMES = {"step_s": 1.0, "step_ms": 1e-3}  # seconds of the unit of a step time


class PrintedSpeed(Frozen):
    """The values of one quantity in a program's output.

    Args:
        quantity: group of the pattern, which names the unit.
        lines: with a value.
        mean, median: of the values after the warm-up; the mean is that over the time.
        mean_of_all, last, best: of all values; the best is the fastest.
        raw: the first line with a value.
        is_best_so_far: each value after the warm-up is the fastest until then.
    """

    quantity: str
    lines: Count
    mean: Number | None
    median: Number | None
    mean_of_all: Number | None
    last: Number | None
    best: Number | None
    raw: str
    is_best_so_far: bool = False


def summarize_printed(event: Printed | None, *, steps: int, warmup: int) -> list[PrintedSpeed]:
    """Return what the launcher read in the program's output.

    Args:
        steps: of the run, over which lines are taken to be spread evenly.
        warmup: steps at the start that do not count.
    """
    summaries = []
    speeds = [] if event is None else event.speeds
    for reading in speeds:
        values = [value for value in reading.values if value > 0]
        num_skipped = ceil(len(values) * warmup / steps) if steps else 0
        after = values[num_skipped:] or values[-1:]  # at least the last value
        fastest = min if reading.quantity in TIMES else max
        summaries.append(
            PrintedSpeed(
                quantity=reading.quantity,
                lines=reading.lines,
                mean=_compute_mean(reading.quantity, after),
                median=median(after) if after else None,
                mean_of_all=_compute_mean(reading.quantity, values),
                last=values[-1] if values else None,
                best=fastest(values) if values else None,
                raw=reading.raw,
                is_best_so_far=_are_best_so_far(after, fastest),
            )
        )
    return summaries


def _are_best_so_far(values: list[float], fastest: Callable[[float, float], float]) -> bool:
    """Tell whether no value is slower than the one before, as steps that vary never are.

    Few values, and values with less than three digits, which repeat by themselves, tell nothing.
    """
    has_digits = any(float(f"{value:.2g}") != value for value in values)
    if len(values) < _MIN_BEST_VALUES or not has_digits or len(set(values)) == 1:
        return False
    return all(fastest(before, after) == after for before, after in pairwise(values))


def _compute_mean(quantity: str, values: list[float]) -> float | None:
    """Return the mean over steps of equal work: of rates it is the harmonic one."""
    if not values:
        return None
    return fmean(values) if quantity in TIMES else harmonic_mean(values)
