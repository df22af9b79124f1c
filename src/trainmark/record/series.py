"""Reduce what charts draw of a run over time, while its record is made.

Owns the rule by which series are thinned: a line has at most ``POINTS`` points, the least and the
greatest reading of each stretch of time; more than ``MOST_LINES`` devices are three lines, the
lowest, median and highest of each stretch; ranks are compared in at most ``STRETCHES`` stretches of
steps, and not at all beyond ``MOST_CELLS`` steps of all ranks together.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from pydantic import Field

from trainmark.data.json_documents import Frozen
from trainmark.devices.cores import compact
from trainmark.protocols import SET_LIMITS
from trainmark.record.shapes import Count, Number  # noqa: TC001 - pydantic reads them
from trainmark.record.step_series import MOST_CELLS
from trainmark.record.thinning import TOGETHER, thin
from trainmark.spec import Message, message

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from trainmark.record.telemetry.over_time import Array
    from trainmark.record.telemetry.summary import Readings, Samples
    from trainmark.record.timeline import RunTimeline

POINTS = 200  # of a line
MOST_LINES = 8
STRETCHES = 200  # of steps in which ranks are compared
LOWERED_STRETCHES = 400  # of steps; one step with lowered clocks marks the whole stretch
MOST_LOWERED = 400  # readings with lowered clocks that are kept of a quantity
_CELLS_AT_ONCE = 1 << 21
_NS_PER_S = 1e9
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


class Extremes(Frozen):
    """The extremes of a quantity on one device or host over the whole run."""

    quantity: str
    of_host: bool
    of: str
    readings: Count
    lowest: Number
    highest: Number
    highest_s: Number
    lowered: list[tuple[Number, Number, str]] = Field(
        description="readings with clocks lowered beyond set limits, thinned: seconds, value, why"
    )
    lowered_readings: Count = Field(description="how many there were")


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
    extremes: list[Extremes] = Field(default=[])
    lowered: list[tuple[Count, Count]] = Field(
        default=[], description="first and last of each stretch of steps with lowered clocks"
    )
    steps: StepShares | None = None
    no_steps: Message | None = Field(default=None, description="why ranks are not compared")


def series_of(timeline: RunTimeline, machines: Sequence[Samples]) -> RunSeries:
    """Return the series of a run.

    Args:
        machines: what the samplers wrote.
    """
    lines, extremes = _over_time(machines)
    cards = [card for one in machines for card in one.devices.values()]
    spans = _lowered_spans(cards)
    kept = timeline.rank_steps
    no_steps = None
    if len(timeline.ranks) > 1 and kept is None:
        cells = sum(rank.steps for rank in timeline.ranks)
        no_steps = message("ranks_not_compared", cells=cells, most=MOST_CELLS)
    return RunSeries(
        lines=lines,
        extremes=extremes,
        lowered=lowered_steps(spans, timeline.first_steps_ns, timeline.launch_ns) if spans else [],
        steps=step_shares(kept) if kept else None,
        no_steps=no_steps,
    )


class _Series(NamedTuple):
    """The readings of one device or host that have a quantity; ``reasons`` by number, or NaN."""

    times_s: Array
    values: Array
    reasons: Array

    @classmethod
    def of(cls, columns: dict[str, Array], name: str) -> _Series:
        known = ~np.isnan(columns[name])
        return cls(*(columns[one][known] for one in ("time_s", name, "throttling")))

    def lowered(self, words: Sequence[str]) -> list[tuple[float, float, str]]:
        beyond = [number for number, reasons in enumerate(words) if reasons]
        return [
            (_ms(self.times_s[at]), _short(self.values[at]), words[int(self.reasons[at])])
            for at in np.flatnonzero(np.isin(self.reasons, beyond))
        ]


def _ms(seconds: float) -> float:
    return round(float(seconds), 3)


def _short(value: float) -> float:
    return float(f"{value:.12g}")


def _over_time(machines: Sequence[Samples]) -> tuple[list[Line], list[Extremes]]:
    devices = {
        compact(ranks): one.devices[at]
        for one in machines
        for at, ranks in one.ranks_of_devices.items()
    }
    hosts = {str(one.node): one.host for one in machines}
    lines: list[Line] = []
    extremes: list[Extremes] = []
    for of_host, members in ((False, devices), (True, hosts)):
        columns = {of: one.columns for of, one in members.items()}
        words = {of: _beyond_limits(one) for of, one in members.items()}
        for quantity, name in _COLUMNS[of_host].items():
            series = {of: _Series.of(columns[of], name) for of in members}
            series = {of: one for of, one in series.items() if len(one.values)}
            lowered = {of: one.lowered(words[of]) for of, one in series.items()}
            every = -(-sum(map(len, lowered.values())) // MOST_LOWERED) or 1
            for of, one in series.items():
                highest = int(one.values.argmax())
                extremes.append(
                    Extremes(
                        quantity=quantity,
                        of_host=of_host,
                        of=of,
                        readings=len(one.values),
                        lowest=_short(one.values.min()),
                        highest=_short(one.values[highest]),
                        highest_s=_ms(one.times_s[highest]),
                        lowered=lowered[of][::every],
                        lowered_readings=len(lowered[of]),
                    )
                )
            drawn = _together(series) if len(series) > MOST_LINES else _each(series)
            lines += [
                Line(quantity=quantity, of_host=of_host, of=of, points=points)
                for of, points in drawn
            ]
    return lines, extremes


def _each(series: dict[str, _Series]) -> Iterator[tuple[str, list[tuple[float, float]]]]:
    """Yield a line of each device, with the least and the greatest of neighbouring readings."""
    for of, one in series.items():
        thinned = thin(one.values, max_points=POINTS)
        yield of, [(_ms(one.times_s[at]), _short(value)) for at, value in thinned]


def _together(series: dict[str, _Series]) -> Iterator[tuple[str, list[tuple[float, float]]]]:
    """Yield lines of the lowest, median and highest reading of all in each stretch of time."""
    times_s = np.concatenate([one.times_s for one in series.values()])
    values = np.concatenate([one.values for one in series.values()])
    start_s, end_s = float(times_s.min()), float(times_s.max())
    width_s = (end_s - start_s) / POINTS or 1.0
    bucket = np.minimum((times_s - start_s) // width_s, POINTS - 1).astype(int)
    order = np.lexsort((values, bucket))
    found, first = np.unique(bucket[order], return_index=True)
    last = np.append(first[1:], len(order)) - 1
    middle_s = [_ms(start_s + (at + 0.5) * width_s) for at in found]
    for of, places in zip(TOGETHER, (first, (first + last) // 2, last), strict=True):
        yield of, list(zip(middle_s, map(_short, values[order][places]), strict=True))


def _beyond_limits(readings: Readings) -> list[str]:
    """Return for each number of reasons those beyond set limits."""
    return [
        ", ".join(word for word in words if word not in SET_LIMITS) for words in readings.reasons
    ]


def _lowered_spans(cards: Iterable[Readings]) -> list[NDArray[np.float64]]:
    """Return for each device with lowered clocks when they were: starts and ends in seconds.

    A reading holds for the time that is nearer to it than to any other.
    """
    spans = []
    for one in cards:
        times = one.columns["time_s"]
        reasons = [number for number, words in enumerate(_beyond_limits(one)) if words]
        here = np.isin(one.columns["throttling"], reasons)
        edges = np.concatenate((times[:1], (times[1:] + times[:-1]) / 2, times[-1:]))
        if here.any():
            spans.append(np.stack((edges[:-1], edges[1:]))[:, here])
    return spans


def lowered_steps(
    spans: Sequence[NDArray[np.float64]],
    steps_ns: tuple[NDArray[np.int64], NDArray[np.int64]],
    launch_ns: int,
) -> list[tuple[int, int]]:
    """Return first and last of each stretch of steps, from 1, with the clocks of a device lowered.

    Args:
        spans: starts and ends in seconds from the launch, by device.
        steps_ns: when each step of the first rank began and ended, on the clock of ``launch_ns``.
    """
    from_s, to_s = np.concatenate(spans, axis=1)
    begins_s, ends_s = ((edge - launch_ns) / _NS_PER_S for edge in steps_ns)
    if not len(ends_s):
        return []
    first, end = np.searchsorted(ends_s, from_s, side="right"), np.searchsorted(begins_s, to_s)
    changes = np.zeros(len(ends_s) + 1, np.int64)
    np.add.at(changes, first[first < end], 1)
    np.add.at(changes, end[first < end], -1)
    size = max(1, -(-len(ends_s) // LOWERED_STRETCHES))
    lowered = np.add.reduceat(changes.cumsum()[:-1] > 0, np.arange(0, len(ends_s), size)) > 0
    turns = np.flatnonzero(np.diff(lowered.astype(np.int8), prepend=0, append=0)).tolist()
    return [
        (begin * size + 1, min(stop * size, len(ends_s)))
        for begin, stop in zip(turns[::2], turns[1::2], strict=True)
    ]


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
