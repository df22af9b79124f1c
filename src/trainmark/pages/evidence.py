"""Series from a run's own files, reduced to what charts draw: samples, and steps of each rank.

Owns which files are read, how much of them, and how far series are reduced: extremes are kept.
Samples and steps are read only of files whose digest is the record's, so that no chart shows
another run.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

import numpy as np

from trainmark.devices.numa import compact
from trainmark.pages.lowered import beyond_limits, lowered_steps
from trainmark.pages.thinning import TOGETHER, thin
from trainmark.rank.events import LAUNCHER_FILE, node_file, rank_file, telemetry_file
from trainmark.record.evidence import entry_of
from trainmark.record.telemetry.summary import read_samples
from trainmark.record.timeline import read_rank, read_run
from trainmark.record.verify import UNREADABLE
from trainmark.spec import message

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from trainmark.record.record import Record
    from trainmark.record.telemetry.over_time import Array
    from trainmark.record.telemetry.summary import Samples
    from trainmark.record.timeline import RunTimeline
    from trainmark.spec import Message

    _Points = tuple[tuple[float, float], ...]

MOST_BYTES = 256 << 20  # of samples, and of the ranks' events: some seconds of reading each
STRETCHES = 200
POINTS = 200  # of a line
MOST_LINES = 8  # beyond, all are drawn together
# Quantities over time, and the columns of the file that tell them: of devices, then of hosts.
_COLUMNS = (
    {"memory_used_bytes": "memory_used_bytes", "utilization_percent": "utilization_percent",
     "power_w": "power_w", "temperature_c": "temperature_c"},
    {"memory_used_bytes": "memory_used_bytes", "utilization_percent": "cpu_percent",
     "power_w": "node_power_w"},
)  # fmt: skip
_CELLS_AT_ONCE = 1 << 21  # ranks x steps, held 8 bytes each


@dataclass(frozen=True, slots=True)
class Line:
    """A quantity over time, thinned out: seconds from the launcher's start, and value.

    Args:
        of: the device's ranks, as ``0-3``; the number of a host; of many one of ``TOGETHER``.
    """

    quantity: str
    of_host: bool
    of: str
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class Told:
    """What one device or host told of a quantity over the whole run.

    Args:
        highest_s: when it was highest.
        lowered: readings with clocks lowered beyond set limits, thinned: seconds, value, reasons.
        lowered_readings: how many there are.
    """

    quantity: str
    of_host: bool
    of: str
    readings: int
    lowest: float
    highest: float
    highest_s: float
    lowered: tuple[tuple[float, float, str], ...]
    lowered_readings: int


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Step times of each rank over that of the step's median rank, of two the faster.

    Args:
        ranks: number of each row of ``share``.
        edges: first step of each stretch, from 0, and after the last the number of steps.
        share: ranks x stretches: time of a rank over that of the median rank in the same steps;
            NaN where the rank has none.
        longest: rank, step from 1, and share of the step that is longest against its median.
    """

    ranks: tuple[int, ...]
    edges: tuple[int, ...]
    share: NDArray[np.float64]
    longest: tuple[int, int, float]


@dataclass(frozen=True, slots=True)
class Seen:
    """What was read beside a record; the last two say why samples or steps were not.

    Args:
        lowered: first and last of each stretch of steps, from 1, with lowered clocks.
    """

    lines: tuple[Line, ...] = ()
    told: tuple[Told, ...] = ()
    lowered: tuple[tuple[int, int], ...] = ()
    steps: StepTimes | None = None
    no_samples: tuple[Message, ...] = ()
    no_steps: tuple[Message, ...] = ()


def read(folder: Path, record: Record) -> Seen | None:
    """Return reduced series of the run in ``folder``; None where none of its files is there.

    Takes some seconds and some hundred megabytes at most. Files that are missing, altered, larger
    than ``MOST_BYTES`` or unreadable give no series, but a message that says why.
    """
    if not any((folder / entry.name).is_file() for entry in record.evidence):
        return None
    nodes, ranks = record.plan.node_processes, range(len(record.ranks))
    clocks = [LAUNCHER_FILE, *map(node_file, range(nodes))]
    samples = [telemetry_file(node) for node in (range(nodes) if nodes else [None])]
    lines: tuple[Line, ...] = ()
    told: tuple[Told, ...] = ()
    lowered: tuple[tuple[int, int], ...] = ()
    steps: StepTimes | None = None
    no_samples: list[Message] = []
    no_steps: list[Message] = []
    some = _within(record, samples)
    sampled = record.telemetry is not None
    if sampled and not _refused(folder, record, [*some, *clocks], no_samples):
        try:
            timeline = read_run(folder, len(ranks), nodes, clocks_only=True)
            del timeline.nodes[len(some) :]
            machines = read_samples(folder, timeline)
            lines, told = _over_time(machines)
            why = no_samples if len(ranks) == 1 else []  # else said below, of all ranks
            if not _refused(folder, record, [rank_file(0)], why):
                lowered = _lowered(folder, record, timeline, machines)
        except UNREADABLE as error:
            no_samples.append(_unreadable(samples[0], error))
        if len(some) < len(samples):
            no_samples.append(message("seen_in_part", machines=len(some), of=len(samples)))
    if len(ranks) > 1 and not _refused(folder, record, [*map(rank_file, ranks)], no_steps):
        try:
            steps = step_times([read_rank(folder, rank)[1].step_ns for rank in ranks])
        except UNREADABLE as error:
            no_steps.append(_unreadable(rank_file(0), error))
    return Seen(lines, told, lowered, steps, tuple(no_samples), tuple(no_steps))


def _within(record: Record, names: Sequence[str]) -> Sequence[str]:
    """Return the first of ``names`` that are not too large together, at least one."""
    sizes = {entry.name: entry.bytes for entry in record.evidence}
    sums = accumulate(sizes.get(name, 0) for name in names)
    return names[: max(1, sum(size <= MOST_BYTES for size in sums))]


def _unreadable(file: str, error: Exception) -> Message:
    return message("seen_unreadable", file=file, error=f"{type(error).__name__}: {error}"[:200])


def _refused(folder: Path, record: Record, names: Sequence[str], why: list[Message]) -> bool:
    """Tell whether files are not to be read, and add why.

    A file that the record does not name was not there when it was made: a rank that never began.
    """
    named = {entry.name: entry for entry in record.evidence}
    known = [named[name] for name in names if name in named]
    size = sum(entry.bytes for entry in known)
    if size > MOST_BYTES:
        why.append(message("seen_too_large", file=names[0], bytes=size, most=MOST_BYTES))
        return True
    for entry in known:
        path = folder / entry.name
        # The size first: a digest of something larger could take hours.
        if not path.is_file() or path.stat().st_size != entry.bytes or entry_of(path) != entry:
            why.append(message("seen_altered", file=entry.name))
            return True
    return False


def _over_time(machines: Sequence[Samples]) -> tuple[tuple[Line, ...], tuple[Told, ...]]:
    """Return what the samplers of machines told, as lines and over the run."""
    devices = {
        compact(ranks): one.devices[at]
        for one in machines
        for at, ranks in one.ranks_of_devices.items()
    }
    hosts = {str(one.node): one.host for one in machines}
    lines: list[Line] = []
    told: list[Told] = []
    for of_host, members in enumerate((devices, hosts)):
        read = {of: (one.columns, beyond_limits(one)) for of, one in members.items()}
        for quantity, name in _COLUMNS[of_host].items():
            series = {of: _series(columns, name) for of, (columns, _) in read.items()}
            series = {of: one for of, one in series.items() if len(one.values)}
            about = (quantity, bool(of_host))
            told += [one.over_run(*about, of, read[of][1]) for of, one in series.items()]
            drawn = _together(series) if len(series) > MOST_LINES else _each(series)
            lines += [Line(*about, of, points) for of, points in drawn]
    return tuple(lines), tuple(told)


def _lowered(
    folder: Path, record: Record, timeline: RunTimeline, machines: Sequence[Samples]
) -> tuple[tuple[int, int], ...]:
    """Return the stretches of steps with lowered clocks; none where the first rank never began."""
    if rank_file(0) not in (entry.name for entry in record.evidence):
        return ()
    shift_ns = timeline.nodes[0].shift_ns if timeline.nodes else 0
    cards = [card for one in machines for card in one.devices.values()]
    return lowered_steps(folder / rank_file(0), timeline.launch_ns - shift_ns, cards)


@dataclass(frozen=True, slots=True)
class _Series:
    """The readings of one device or host that tell a quantity; ``reasons`` by number, or NaN."""

    times_s: Array
    values: Array
    reasons: Array

    def over_run(self, quantity: str, of_host: bool, of: str, words: Sequence[str]) -> Told:
        """Return what they tell together."""
        beyond = [number for number, said in enumerate(words) if said]
        lowered = np.flatnonzero(np.isin(self.reasons, beyond))
        shown = lowered[:: -(-len(lowered) // POINTS) or 1]
        highest = int(self.values.argmax())
        return Told(
            quantity, of_host, of, readings=len(self.values),
            lowest=float(self.values.min()), highest=float(self.values[highest]),
            highest_s=float(self.times_s[highest]), lowered_readings=len(lowered),
            lowered=tuple(
                (float(self.times_s[at]), float(self.values[at]), words[int(self.reasons[at])])
                for at in shown
            ),
        )  # fmt: skip


def _series(columns: dict[str, Array], name: str) -> _Series:
    told = ~np.isnan(columns[name])
    return _Series(*(columns[one][told] for one in ("time_s", name, "throttling")))


def _each(series: dict[str, _Series]) -> Iterator[tuple[str, _Points]]:
    """Yield a line of each device, with the least and the greatest of neighbouring readings."""
    for of, one in series.items():
        yield (
            of,
            tuple(
                (float(one.times_s[at]), value) for at, value in thin(one.values, max_points=POINTS)
            ),
        )


def _together(series: dict[str, _Series]) -> Iterator[tuple[str, _Points]]:
    """Yield lines of the lowest, median and highest reading of all in each stretch of time."""
    times_s = np.concatenate([one.times_s for one in series.values()])
    values = np.concatenate([one.values for one in series.values()])
    start_s, end_s = float(times_s.min()), float(times_s.max())
    width_s = (end_s - start_s) / POINTS or 1.0
    bucket = np.minimum((times_s - start_s) // width_s, POINTS - 1).astype(int)
    order = np.lexsort((values, bucket))
    found, first = np.unique(bucket[order], return_index=True)
    last = np.append(first[1:], len(order)) - 1
    middle_s = start_s + (found + 0.5) * width_s
    for of, places in zip(TOGETHER, (first, (first + last) // 2, last), strict=True):
        yield of, tuple(zip(middle_s.tolist(), values[order][places].tolist(), strict=True))


def step_times(step_ns: Sequence[NDArray[np.int64]]) -> StepTimes | None:
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
        spent = np.zeros((2, len(ranks)))  # by the rank, and by the median rank meanwhile
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
        told = spent[1] > 0
        share[told, stretch] = spent[0, told] / spent[1, told]
    return StepTimes(tuple(ranks), tuple(edges), share, longest)


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
