"""Reduce what charts draw of a run over time, while its record is made.

Owns the rule by which series are thinned: a line has at most ``POINTS`` points, the least and the
greatest reading of each stretch of time; more than ``MOST_LINES`` devices are three lines, the
lowest, median and highest of each stretch; ranks are compared in at most ``STRETCHES`` stretches of
steps, and not at all beyond ``MOST_CELLS`` steps of all ranks together.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from pydantic import Field

from trainmark.data.json_documents import Frozen
from trainmark.devices.cores import compact
from trainmark.record.shapes import Count, Number  # noqa: TC001 - pydantic reads them
from trainmark.record.stats import MOST_CELLS
from trainmark.spec import Message, message

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from trainmark.record.run.telemetry import Samples
    from trainmark.record.run.timeline import RunTimeline

MAX_POINTS = 1000
POINTS = 200  # of a line over time
MOST_LINES = 8
STRETCHES = 200  # of steps in which ranks are compared
TOGETHER = ("lowest", "median", "highest")  # of lines that stand for many series
_CELLS_AT_ONCE = 1 << 21
# The column of readings that has each quantity: of devices, then of hosts.
_COLUMNS = (
    {"memory_used_bytes": "memory_used_bytes", "utilization_percent": "utilization_percent",
     "power_w": "power_w", "temperature_c": "temperature_c"},
    {"memory_used_bytes": "memory_used_bytes", "utilization_percent": "cpu_percent",
     "power_w": "node_power_w"},
)  # fmt: skip


class Line(Frozen):
    """A quantity over time, thinned."""

    quantity: str
    of_host: bool
    of: str = Field(
        description="ranks of the device, as 0-3; number of the host; of many devices together "
        "lowest, median or highest"
    )
    points: list[tuple[Number, Number]] = Field(description="seconds from the launch, value")


class StepShares(Frozen):
    """Step times of each rank over that of the step's median rank, of two the faster."""

    ranks: list[Count] = Field(description="those with steps: the rows of share")
    edges: list[Count] = Field(
        description="first step of each stretch, from 0; last, the number of steps"
    )
    share: list[list[Number | None]] = Field(
        description="rank x stretch: its time over that of the median rank in the same steps"
    )
    longest: tuple[Count, Count, Number] = Field(
        description="rank, step from 1 and share of the step longest against its median"
    )


class RunSeries(Frozen):
    """What charts draw of a run over time."""

    lines: list[Line] = Field(default=[])
    steps: StepShares | None = None
    no_steps: Message | None = Field(default=None, description="why ranks are not compared")


def series_of(timeline: RunTimeline, machines: Sequence[Samples]) -> RunSeries:
    """Return the series of a run.

    Args:
        machines: what the samplers wrote.
    """
    kept, no_steps = timeline.rank_steps, None
    if len(timeline.ranks) > 1 and kept is None:
        cells = sum(rank.steps for rank in timeline.ranks)
        no_steps = message("ranks_not_compared", cells=cells, most=MOST_CELLS)
    steps = step_shares(kept) if kept else None
    return RunSeries(lines=list(_lines(machines)), steps=steps, no_steps=no_steps)


def _lines(machines: Sequence[Samples]) -> Iterator[Line]:
    devices = {
        compact(ranks): one.devices[at].columns
        for one in machines
        for at, ranks in one.ranks_of_devices.items()
    }
    hosts = {str(one.node): one.host.columns for one in machines}
    for of_host, members in ((False, devices), (True, hosts)):
        for quantity, name in _COLUMNS[of_host].items():
            known = {of: ~np.isnan(columns[name]) for of, columns in members.items()}
            series = {
                of: (members[of]["time_s"][told], members[of][name][told])
                for of, told in known.items()
                if told.any()
            }
            drawn = _together(series) if len(series) > MOST_LINES else _each(series)
            for of, points in drawn:
                shown = [(round(float(s), 3), float(f"{value:.12g}")) for s, value in points]
                yield Line(quantity=quantity, of_host=of_host, of=of, points=shown)


_Columns = dict[str, "tuple[NDArray[np.float64], NDArray[np.float64]]"]  # seconds and values


def _each(series: _Columns) -> Iterator[tuple[str, list[tuple[float, float]]]]:
    """Yield a line of each device, with the least and the greatest of neighbouring readings."""
    for of, (times_s, values) in series.items():
        yield of, [(times_s[at], value) for at, value in thin(values, max_points=POINTS)]


def _together(series: _Columns) -> Iterator[tuple[str, list[tuple[float, float]]]]:
    """Yield lines of the lowest, median and highest reading of all in each stretch of time."""
    times_s, values = (np.concatenate(columns) for columns in zip(*series.values(), strict=True))
    start_s, end_s = float(times_s.min()), float(times_s.max())
    width_s = (end_s - start_s) / POINTS or 1.0
    bucket = np.minimum((times_s - start_s) // width_s, POINTS - 1).astype(int)
    order = np.lexsort((values, bucket))
    found, first = np.unique(bucket[order], return_index=True)
    last = np.append(first[1:], len(order)) - 1
    middle_s = start_s + (found + 0.5) * width_s
    for of, places in zip(TOGETHER, (first, (first + last) // 2, last), strict=True):
        yield of, list(zip(middle_s, values[order][places], strict=True))


def bucket_steps(steps: int, *, max_points: int = MAX_POINTS) -> int:
    """Return how many steps a bucket holds: 1 where every step is drawn."""
    return 1 if steps <= max_points else math.ceil(steps / max(max_points // 2, 1))


def thin(values: NDArray[np.float64], *, max_points: int = MAX_POINTS) -> list[tuple[int, float]]:
    """Return at most ``max_points`` pairs of index and value, in order.

    Each bucket gives its least and its greatest finite value; a bucket without one gives a
    single NaN, so that a gap stays a gap.
    """
    size = bucket_steps(len(values), max_points=max_points)
    if size == 1:
        return list(enumerate(values.tolist()))
    points: list[tuple[int, float]] = []
    for at in range(0, len(values), size):
        bucket = np.where(np.isfinite(values[at : at + size]), values[at : at + size], np.nan)
        if np.isnan(bucket).all():
            points.append((at, math.nan))
        else:
            places = sorted({int(np.nanargmin(bucket)), int(np.nanargmax(bucket))})
            points += [(at + place, float(bucket[place])) for place in places]
    return points


def step_shares(step_ns: Sequence[NDArray[np.int64]]) -> StepShares | None:
    """Return the step times of ranks against each other; None where fewer than two have steps.

    Args:
        step_ns: of each rank, from the first step on.
    """
    ranks = [rank for rank, times in enumerate(step_ns) if len(times)]
    if len(ranks) < 2:
        return None
    steps = max(len(times) for times in step_ns)
    size = -(-steps // STRETCHES)
    edges = [*range(0, steps, size), steps]
    share = np.full((len(ranks), len(edges) - 1), np.nan)
    longest = (ranks[0], 1, 0.0)
    for stretch, (first, end) in enumerate(pairwise(edges)):
        spent = np.zeros((2, len(ranks)))  # by the rank, and by the median rank in these steps
        columns = max(1, _CELLS_AT_ONCE // len(ranks))
        for at in range(first, end, columns):
            block = _block([step_ns[rank] for rank in ranks], at, min(at + columns, end))
            usual = _lower_medians(block)
            own = np.where(np.isnan(usual), np.nan, block)
            spent += np.nansum([own, np.where(np.isnan(own), np.nan, usual)], axis=2)
            ratio = np.nan_to_num(own / usual)
            row, column = np.unravel_index(int(ratio.argmax()), ratio.shape)
            if ratio[row, column] > longest[2]:
                longest = ranks[row], at + int(column) + 1, float(ratio[row, column])
        known = spent[1] > 0
        share[known, stretch] = spent[0, known] / spent[1, known]
    rounded = [[None if np.isnan(one) else round(one, 6) for one in row] for row in share.tolist()]
    return StepShares(ranks=ranks, edges=edges, share=rounded, longest=longest)


def _block(step_ns: Sequence[NDArray[np.int64]], first: int, end: int) -> NDArray[np.float64]:
    """Return ranks x steps, NaN where a rank ended before."""
    block = np.full((len(step_ns), end - first), np.nan)
    for row, times in enumerate(step_ns):
        taken = times[first:end]
        block[row, : len(taken)] = taken
    return block


def _lower_medians(block: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the lower median of each column; NaN where it is not over zero."""
    count = np.count_nonzero(~np.isnan(block), axis=0)
    ordered = np.sort(block, axis=0)  # NaN last
    usual = np.take_along_axis(ordered, np.maximum(count - 1, 0)[None] // 2, axis=0)[0]
    return np.where(usual > 0, usual, np.nan)
