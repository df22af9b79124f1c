"""Summarise what the sampler read of devices and host, over intervals of the run.

Owns the schema of the summary. Keeps only the numbers that are summarised, 8 bytes each: 0.3 GB
for a week of eight devices at 1 Hz. A reading is dated to the middle of the time that it took.
Must not know vendors.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from math import nan
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
from annotated_types import Ge, Le
from pydantic import Field

from trainmark.documents import Frozen
from trainmark.events import schema as events
from trainmark.events.schema import EventFile, Sampling, read_event, telemetry_file
from trainmark.events.series import (
    Energy,
    Interval,
    Quantity,
    draw_lines,
    measure_energy,
    summarize_quantity,
)
from trainmark.events.timeline import PHASES
from trainmark.events.values import Amount, Count  # noqa: TC001 - read at run time
from trainmark.protocols import ERROR_COUNTERS
from trainmark.ranges import format_ranges
from trainmark.spec import Message, message

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from trainmark.events.series import Array, SeriesLine
    from trainmark.events.timeline import RunTimeline
    from trainmark.events.values import PhaseName
    from trainmark.protocols.monitor import DeviceSample

IntervalName = Literal["run", "train", "measured", "to_target"]
NS_PER_S = 1e9
_QUANTITIES = ("memory_used_bytes", "utilization_percent", "power_w", "temperature_c", "clock_mhz")
_MAX_FAULTS = 20  # of a device, in a record
_COLUMNS = ("time_s", *_QUANTITIES, "energy_j")
Share = Annotated[float, Ge(0), Le(1)]


class Use(Frozen):
    """What was read of one device, or of the host, in one interval."""

    readings: Count
    quantities: dict[str, Quantity] = Field(description="those that were told in the interval")
    throttled: dict[str, Share] | None = Field(
        description="share of the time with lowered clocks, by reason; null: not told"
    )
    energy: Energy


class ErrorCounter(Frozen):
    """A counter of errors that a monitor reads."""

    last: Count = Field(description="reading at the end of the run")
    rise: Count = Field(description="by how much it rose from the first reading to the last")


class DeviceTelemetry(Frozen):
    """The device of a rank, or of several of one node; ``index`` as its monitor counts there."""

    ranks: list[Count]
    index: Count
    over: dict[IntervalName, Use]
    errors: dict[str, ErrorCounter] = Field(
        default={}, description="by name, as protocols.ERROR_COUNTERS; those that are reported"
    )
    faults: list[str] = Field(
        default=[], description="faults that the vendor's driver reported during the run"
    )


class Telemetry(Frozen):
    """What was read of devices and host, beside what ranks reported themselves."""

    interval_s: Amount | None
    monitor: str | None = Field(description="library or tool; null where nothing reads devices")
    host_sources: list[str]
    intervals_s: dict[IntervalName, Interval] = Field(description="from the launcher's start")
    devices: list[DeviceTelemetry]
    hosts: list[dict[IntervalName, Use]] = Field(
        min_length=1, description="in the order of the machines"
    )
    faults: list[Message] = Field(
        description="why sources gave no readings for a time: what each first said, how often"
    )


@dataclass
class Readings:
    """The readings of one device, or of a host, in their order; NaN where one tells nothing.

    Args:
        index: number that the monitor gives a device; of a host that of its node.
        ranks: those of a device.
    """

    index: int
    ranks: list[int] = field(default_factory=list)
    rows: array[float] = field(default_factory=lambda: array("d"))  # of ``_COLUMNS``
    reasons: list[tuple[str, ...] | None] = field(default_factory=list)  # for lowered clocks
    errors: dict[str, ErrorCounter] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    def add(self, time_s: float, reading: DeviceSample | events.HostEvent) -> None:
        """Take a reading."""
        if not isinstance(reading, events.HostEvent):
            self._add_errors(reading)
        values = (getattr(reading, name, None) for name in _COLUMNS[1:])
        self.rows.extend((time_s, *(nan if value is None else value for value in values)))
        self.reasons.append(getattr(reading, "throttle_reasons", None))

    def _add_errors(self, reading: DeviceSample) -> None:
        """Take the counters of errors; one that fell was reset, and rises from 0 again."""
        for name in ERROR_COUNTERS:
            value = getattr(reading, name)
            if value is None:
                continue
            before = self.errors.get(name)
            rise = 0
            if before is not None:
                rise = before.rise + (value - before.last if value >= before.last else value)
            self.errors[name] = ErrorCounter(last=value, rise=rise)
        fault = reading.last_fault
        if fault is not None and self.faults[-1:] != [fault]:
            self.faults.append(fault)

    @property
    def columns(self) -> dict[str, Array]:
        """Return ``time_s`` and what else is read of all readings."""
        rows = np.asarray(self.rows).reshape(-1, len(_COLUMNS))
        return dict(zip(_COLUMNS, rows.T, strict=True))

    def over(self, intervals: dict[IntervalName, Interval]) -> dict[IntervalName, Use]:
        """Return what was read in each interval."""
        read = self.columns
        return {name: self._use(read, interval) for name, interval in intervals.items()}

    def _use(self, read: dict[str, Array], interval: Interval) -> Use:
        times_s, (start_s, end_s) = read["time_s"], interval
        inside = np.flatnonzero((start_s <= times_s) & (times_s <= end_s))
        quantities = {
            x: summarize_quantity(times_s[inside], read[x][inside], interval) for x in _QUANTITIES
        }
        reasons_inside = [self.reasons[index] for index in inside]
        shares = {}
        for name in sorted({name for reasons in reasons_inside for name in reasons or ()}):
            held = [nan if reasons is None else name in reasons for reasons in reasons_inside]
            share = summarize_quantity(times_s[inside], np.array(held, float), interval)
            shares[name] = min(1.0, share.mean) if share else 0.0
        shares = dict(sorted(shares.items(), key=lambda item: -item[1]))
        return Use(
            readings=len(inside),
            quantities={name: known for name, known in quantities.items() if known is not None},
            throttled=shares if any(reasons is not None for reasons in reasons_inside) else None,
            energy=measure_energy(times_s, read["energy_j"], interval),
        )


def find_intervals(timeline: RunTimeline) -> dict[IntervalName, Interval]:
    """Return the intervals that the run has, each over all ranks, from the launcher's start.

    ``run``: launcher start to the last rank's end; ``train``: the first window to the last;
    ``measured``: the same after the warm-up; ``to_target``: the first window to the end of the
    evaluation that reached the target.
    """
    ranks = timeline.ranks
    edges_ns: dict[IntervalName, tuple[int, int]] = {"run": (0, timeline.wall_ns)}
    windows: dict[IntervalName, tuple[PhaseName, ...]] = {"train": PHASES, "measured": ("train",)}
    for name, phases in windows.items():
        phase_edges_ns = [
            (start_ns - rank.launch_ns, end_ns - rank.launch_ns)
            for rank in ranks
            for phase, (start_ns, end_ns) in rank.edges_ns.items()
            if phase in phases
        ]
        if phase_edges_ns:
            first_ns = min(start_ns for start_ns, _ in phase_edges_ns)
            last_ns = max(end_ns for _, end_ns in phase_edges_ns)
            edges_ns[name] = (first_ns, last_ns)
    if ranks[0].target_reached and "train" in edges_ns:
        ends_ns = [x.evaluations[-1].end_ns - x.launch_ns for x in ranks if x.evaluations]
        edges_ns["to_target"] = (edges_ns["train"][0], max(ends_ns))
    return {
        name: (start_ns / NS_PER_S, end_ns / NS_PER_S)
        for name, (start_ns, end_ns) in edges_ns.items()
        if start_ns < end_ns
    }


@dataclass
class Samples:
    """What the samplers of all machines wrote; ``began``: the first machine's."""

    began: Sampling | None = None
    devices: list[Readings] = field(default_factory=list)  # in the order of the ranks
    hosts: list[Readings] = field(default_factory=list)
    faults: list[events.FaultEvent] = field(default_factory=list)

    def take(self, file: Path, ranks: range, start_ns: int) -> None:
        """Read a machine's file, if it is there; times count from ``start_ns`` on its clock."""
        host, devices, began = Readings(len(self.hosts)), dict[int, Readings](), None
        for line in EventFile(file, read_event) if file.is_file() else ():
            match line:
                case Sampling():
                    began = line
                case events.DevicesEvent():
                    for sample in line.devices:
                        device = devices.setdefault(sample.index, Readings(sample.index))
                        device.add(_middle_s(line, start_ns), sample)
                case events.HostEvent():
                    host.add(_middle_s(line, start_ns), line)
                case events.FaultEvent():
                    self.faults.append(line)
        used = dict[int, Readings]()
        for rank, index in zip(ranks, began.devices if began else (), strict=False):
            used[index] = devices.setdefault(index, Readings(index))
            used[index].ranks.append(rank)
        self.began = self.began if self.hosts else began
        self.hosts.append(host)
        self.devices += used.values()

    def lines(self) -> Iterator[SeriesLine]:
        """Yield the lines that charts draw, of devices by their ranks, of hosts by their number."""
        devices = {format_ranges(device.ranks): device.columns for device in self.devices}
        hosts = {str(host.index): host.columns for host in self.hosts}
        yield from draw_lines(devices, hosts)


def _middle_s(line: events.DevicesEvent | events.HostEvent, start_ns: int) -> float:
    return (line.t_ns - start_ns - line.took_ns / 2) / NS_PER_S


def read_samples(run_dir: Path, timeline: RunTimeline) -> Samples:
    """Return what the samplers wrote, as far as it can be read."""
    samples = Samples()
    for node in timeline.nodes:
        start_ns = timeline.launch_ns - node.shift_ns
        samples.take(run_dir / telemetry_file(node.number), node.ranks, start_ns)
    if not timeline.nodes:
        samples.take(run_dir / telemetry_file(None), range(len(timeline.ranks)), timeline.launch_ns)
    return samples


def summarize_samples(samples: Samples, timeline: RunTimeline) -> Telemetry:
    """Return the summary of all samples."""
    spans, began = find_intervals(timeline), samples.began
    monitor, of_host = (began.monitor, began.host_sources) if began else (None, [])
    names = {"monitor": monitor or "monitor", "host": "host", **{x: x for x in of_host}}
    texts_by_fault: dict[tuple[str, str], list[str]] = {}
    for fault in samples.faults:
        if fault.source in names:  # what was there
            source = names[fault.source]
            key = (f"source.{fault.kind}", source)
            texts_by_fault.setdefault(key, []).append(fault.said)
    return Telemetry(
        interval_s=began.interval_s if began else None,
        monitor=monitor,
        host_sources=of_host,
        intervals_s=spans,
        devices=[
            DeviceTelemetry(
                ranks=device.ranks,
                index=device.index,
                over=device.over(spans),
                errors=device.errors,
                faults=device.faults[:_MAX_FAULTS],
            )
            for device in samples.devices
        ],
        hosts=[host.over(spans) for host in samples.hosts],
        faults=[
            message(code, source=source, said=texts[0], times=len(texts))
            for (code, source), texts in texts_by_fault.items()
        ],
    )
