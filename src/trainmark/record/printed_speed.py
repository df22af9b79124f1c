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

_MIN_BEST_VALUES = 20  # fewer values may become better one after the other by chance
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
    lines: Count  # number of lines with a value
    mean: Number | None
    median: Number | None
    mean_of_all: Number | None
    last: Number | None
    best: Number | None
    raw: str
    is_best_so_far: bool = False


def summarize_printed(event: Printed | None, *, steps: int, warmup: int) -> list[PrintedSpeed]:
    """Return a summary of the values of each quantity, such as steps/s, that a program printed.

    Args:
        event: values that the launcher read in the program's output; None: it wrote no such event.
        steps: number of steps of the run. Printed lines are taken to be spread evenly over them.
        warmup: number of steps at the start whose values do not count.
    """
    summaries = []
    speeds = [] if event is None else event.speeds
    for reading in speeds:
        # A value of 0 or less is no speed, and a harmonic mean cannot have it.
        values = [value for value in reading.values if value > 0]
        num_skipped = ceil(len(values) * warmup / steps) if steps else 0
        values_after_warmup = values[num_skipped:] or values[-1:]  # at least the last value
        # ``TIMES`` are the quantities that are a time of a step; all others are rates.
        find_fastest = min if reading.quantity in TIMES else max
        summaries.append(
            PrintedSpeed(
                quantity=reading.quantity,
                lines=reading.lines,  # number of lines with a value
                mean=_compute_mean(reading.quantity, values_after_warmup),
                median=median(values_after_warmup) if values_after_warmup else None,
                mean_of_all=_compute_mean(reading.quantity, values),
                last=values[-1] if values else None,
                best=find_fastest(values) if values else None,
                raw=reading.raw,  # text of the first line with a value
                is_best_so_far=_are_best_so_far(values_after_warmup, find_fastest),
            )
        )
    return summaries


def _are_best_so_far(values: list[float], find_fastest: Callable[[float, float], float]) -> bool:
    """Tell whether a program prints its best speed so far in place of the speed of its last steps.

    It does if no value is slower than the one before: speeds of single steps vary up and down. Few
    values and equal values prove nothing. Neither do values that all have at most two significant
    digits: they are often equal only because they are rounded.

    Args:
        values: in the order in which they were printed.
        find_fastest: returns the faster of two values.
    """
    # A value with at most two significant digits is not changed by rounding to two.
    have_three_digits = any(float(f"{value:.2g}") != value for value in values)
    are_equal = len(set(values)) == 1
    if len(values) < _MIN_BEST_VALUES or not have_three_digits or are_equal:
        return False
    return all(find_fastest(before, after) == after for before, after in pairwise(values))


def _compute_mean(quantity: str, values: list[float]) -> float | None:
    """Return the mean of printed speeds; None without values.

    Each value stands for the same number of steps. So the mean of step times is the arithmetic
    one, and that of rates (work per time) the harmonic one.

    Args:
        quantity: name of what was printed, such as ``step_ms`` or ``tokens_per_second``.
    """
    if not values:
        return None
    if quantity in TIMES:
        return fmean(values)
    return harmonic_mean(values)
