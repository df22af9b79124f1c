"""Summarize what the sampler read of devices and host, over intervals of the run.

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
from trainmark.events.schema import EventFile, Sampling, name_telemetry_file, read_event
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
    from collections.abc import Iterator, Sequence
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
    quantities: dict[str, Quantity] = Field(
        description="quantities that were reported in the interval"
    )
    throttled: dict[str, Share] | None = Field(
        description="share of the time with lowered clocks, by reason; null: not reported"
    )
    energy: Energy


class ErrorCounter(Frozen):
    """A counter of errors that a monitor reads."""

    last: Count = Field(description="reading at the end of the run")
    rise: Count = Field(description="increase from the first reading to the last")


class DeviceTelemetry(Frozen):
    """The device of a rank, or of several ranks of one node.

    ``index`` is its number in the monitor of its node; ``over`` has its use by interval.
    """

    ranks: list[Count]
    index: Count
    over: dict[IntervalName, Use]
    errors: dict[str, ErrorCounter] = Field(
        default={},
        description="by name, as in protocols.ERROR_COUNTERS; only those that are reported",
    )
    faults: list[str] = Field(
        default=[], description="faults that the vendor's driver reported during the run"
    )


class KernelMessages(Frozen):
    """Messages of one kind that the kernel of one machine wrote about devices during the run."""

    node: Count
    kind: str
    count: Count
    kernel_text: str = Field(description="the first message")


class KernelLog(Frozen):
    """What the kernels of all machines wrote about devices, as ``telemetry.kernel`` knows them."""

    source: str | None = Field(
        description="source on the first machine; null: its log cannot be read"
    )
    reason: Message | None = Field(default=None, description="why the log cannot be read")
    messages: list[KernelMessages]


class Telemetry(Frozen):
    """What was read of devices and host, in addition to what ranks reported themselves."""

    interval_s: Amount | None
    monitor: str | None = Field(description="library or tool; null: no monitor reads the devices")
    host_sources: list[str]
    intervals_s: dict[IntervalName, Interval] = Field(description="from the start of the launcher")
    devices: list[DeviceTelemetry]
    hosts: list[dict[IntervalName, Use]] = Field(
        min_length=1, description="in the order of the machines"
    )
    kernel: KernelLog | None = Field(
        default=None, description="null: the kernel log was not sampled"
    )
    faults: list[Message] = Field(
        description=(
            "why sources gave no readings for a time: the first message of each source, and how "
            "often it occurred"
        )
    )


@dataclass
class Readings:
    """The readings of one device, or of a host, in order of time.

    Args:
        index: number that the monitor gives the device, or number of the host's node.
        ranks: ranks that use the device.
        values: values of ``_COLUMNS`` for each reading, one after another; NaN: not reported.
        reasons: why clocks were lowered at each reading; None: not reported.
        errors: counters of errors by name.
        faults: texts of faults that the device reported; one that it repeats is there once.
    """

    index: int
    ranks: list[int] = field(default_factory=list)
    values: array[float] = field(default_factory=lambda: array("d"))
    reasons: list[tuple[str, ...] | None] = field(default_factory=list)
    errors: dict[str, ErrorCounter] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    def add(self, time_s: float, reading: DeviceSample | events.HostEvent) -> None:
        """Append a reading to ``values``, which is flat: one number for each of ``_COLUMNS``.

        A host lacks some of the columns.
        """
        if not isinstance(reading, events.HostEvent):
            self._add_errors(reading)
        self.values.append(time_s)
        for name in _COLUMNS[1:]:  # the first column is the time
            value = getattr(reading, name, None)
            self.values.append(nan if value is None else value)
        self.reasons.append(getattr(reading, "throttle_reasons", None))

    def _add_errors(self, reading: DeviceSample) -> None:
        """Add the counters of errors and the last fault of a reading.

        A counter that is lower than before was reset, and has risen from 0 since.
        """
        for name in ERROR_COUNTERS:
            value = getattr(reading, name)
            if value is None:
                continue
            before = self.errors.get(name)
            if before is None:  # the first reading
                rise = 0
            elif value >= before.last:
                rise = before.rise + value - before.last
            else:
                rise = before.rise + value
            self.errors[name] = ErrorCounter(last=value, rise=rise)
        # The monitor repeats its last fault at each reading.
        fault = reading.last_fault
        if fault is not None and self.faults[-1:] != [fault]:
            self.faults.append(fault)

    @property
    def columns(self) -> dict[str, Array]:
        """Return the values of all readings by the name of their column; NaN: not reported."""
        rows = np.asarray(self.values).reshape(-1, len(_COLUMNS))  # a row for each reading
        return dict(zip(_COLUMNS, rows.T, strict=True))

    def summarize(self, intervals: dict[IntervalName, Interval]) -> dict[IntervalName, Use]:
        """Return the summary of what was read in each interval."""
        columns = self.columns
        return {name: self._summarize(columns, interval) for name, interval in intervals.items()}

    def _summarize(self, columns: dict[str, Array], interval: Interval) -> Use:
        """Return the summary of what was read in one interval."""
        start_s, end_s = interval
        times_s = columns["time_s"]
        inside = np.flatnonzero((start_s <= times_s) & (times_s <= end_s))  # indexes of readings
        quantities = {}
        for name in _QUANTITIES:
            quantity = summarize_quantity(times_s[inside], columns[name][inside], interval)
            if quantity is not None:
                quantities[name] = quantity
        reasons = [self.reasons[index] for index in inside]
        return Use(
            readings=len(inside),
            quantities=quantities,
            throttled=_compute_throttled_shares(times_s[inside], reasons, interval),
            # Also needs the readings around the interval, to interpolate the counter at its edges.
            energy=measure_energy(times_s, columns["energy_j"], interval),
        )


def _compute_throttled_shares(
    times_s: Array, reasons: list[tuple[str, ...] | None], interval: Interval
) -> dict[str, float] | None:
    """Return the share of an interval with lowered clocks by reason, the largest share first.

    Args:
        times_s: of the readings in the interval, ``(n,)``.
        reasons: why clocks were lowered at each reading; None: not reported.

    Returns:
        None if no reading reports reasons.
    """
    known_reasons = [names for names in reasons if names is not None]
    if not known_reasons:
        return None
    shares = {}
    distinct_names = {name for names in known_reasons for name in names}
    for name in sorted(distinct_names):
        is_throttled = [nan if names is None else name in names for names in reasons]
        share = summarize_quantity(times_s, np.array(is_throttled, float), interval)
        # ``share`` is never None: at least one reading reports its reasons. Rounding may exceed 1.
        shares[name] = min(1.0, share.mean) if share else 0.0
    return dict(sorted(shares.items(), key=lambda item: -item[1]))


def find_intervals(timeline: RunTimeline) -> dict[IntervalName, Interval]:
    """Return the intervals that the run has, each over all ranks, from the launcher's start.

    ``run``: launcher start to the last rank's end; ``train``: the first window to the last;
    ``measured``: the same after the warm-up; ``to_target``: the first window to the end of the
    evaluation that reached the target. An interval that has no length is left out.
    """
    ranks = timeline.ranks
    # First and last nanosecond of each interval, from the launcher's start.
    edges_ns: dict[IntervalName, tuple[int, int]] = {"run": (0, timeline.wall_ns)}
    # The phases of training in which the windows of an interval are. The interval ``train`` has all
    # phases; the phase ``train`` is the one after the warm-up.
    phases_of_interval: dict[IntervalName, tuple[PhaseName, ...]] = {
        "train": PHASES,
        "measured": ("train",),
    }
    for name, phases in phases_of_interval.items():
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
    # As in the record, whose quality is that of rank 0, this rank says whether the target is
    # reached. The ranks of a case agree: training stops if their results differ.
    if ranks[0].target_reached and "train" in edges_ns:
        # The evaluation that reaches the target is the last one, because it ends the training. It
        # lasts until the slowest rank has finished it.
        ends_ns = [x.evaluations[-1].end_ns - x.launch_ns for x in ranks if x.evaluations]
        train_start_ns, _ = edges_ns["train"]
        edges_ns["to_target"] = (train_start_ns, max(ends_ns))
    return {
        name: (start_ns / NS_PER_S, end_ns / NS_PER_S)
        for name, (start_ns, end_ns) in edges_ns.items()
        if start_ns < end_ns
    }


@dataclass
class Samples:
    """What the samplers of all machines wrote.

    Args:
        sampling: last event ``sampling`` of the first machine's sampler: what it reads; None: it
            wrote none.
        devices: readings of each device that ranks use, in order of the ranks.
        hosts: readings of each machine.
        faults: why sources of any machine gave no readings.
        kernel_sources: where the operating system's messages were read, by number of the node;
            nodes are numbered from 0.
        kernel_messages: by number of the node and kind.
    """

    sampling: Sampling | None = None
    devices: list[Readings] = field(default_factory=list)
    hosts: list[Readings] = field(default_factory=list)
    faults: list[events.FaultEvent] = field(default_factory=list)
    kernel_sources: dict[int, str] = field(default_factory=dict)
    kernel_messages: dict[tuple[int, str], KernelMessages] = field(default_factory=dict)

    def add_file(self, file: Path, ranks: range, start_ns: int) -> None:
        """Add the readings in a machine's file, if it exists.

        Args:
            ranks: numbers of the machine's ranks, in the order of the devices in the sampler's
                ``sampling`` event.
            start_ns: from which times count, on the machine's clock.
        """
        host = Readings(len(self.hosts))
        devices: dict[int, Readings] = {}
        sampling = None
        lines = EventFile(file, read_event) if file.is_file() else ()
        for line in lines:
            match line:
                case Sampling():
                    sampling = line  # written again with the monitor when that is opened
                case events.DevicesEvent():
                    for sample in line.devices:
                        device = devices.setdefault(sample.index, Readings(sample.index))
                        device.add(_compute_middle_s(line, start_ns), sample)
                case events.HostEvent():
                    host.add(_compute_middle_s(line, start_ns), line)
                case events.FaultEvent():
                    self.faults.append(line)
                case events.KernelLogEvent():
                    self.kernel_sources[host.index] = line.source
                case events.KernelEvent():
                    self._add_kernel_messages(host.index, line)
        # The devices of the machine's ranks by index, in the order of the ranks. One that was never
        # read is there too, without readings.
        used_devices: dict[int, Readings] = {}
        # The index of each rank's device. Without a ``sampling`` event none is known.
        device_indexes = sampling.devices if sampling else ()
        for rank, index in zip(ranks, device_indexes, strict=False):
            used_devices[index] = devices.setdefault(index, Readings(index))
            used_devices[index].ranks.append(rank)
        if not self.hosts:  # the first machine: its event describes the sampling of all machines
            self.sampling = sampling
        self.hosts.append(host)  # without a file too: the index of a host is the number of its node
        self.devices += used_devices.values()

    def _add_kernel_messages(self, node: int, event: events.KernelEvent) -> None:
        """Add the number of new messages to the messages of the same kind on a node.

        The text of the first message of a kind is kept.
        """
        before = self.kernel_messages.get((node, event.kind))
        self.kernel_messages[node, event.kind] = KernelMessages(
            node=node,
            kind=event.kind,
            count=event.count + (before.count if before else 0),
            kernel_text=before.kernel_text if before else event.kernel_text,
        )

    def make_kernel_log(self) -> KernelLog | None:
        """Return what the kernels of all machines wrote; None: no sampler tried to read them.

        The schema has one source and one reason for all machines: the source of the first machine,
        and if it has none, the first reason that any machine gave.
        """
        faults = [fault for fault in self.faults if fault.source == "kernel"]
        if not self.kernel_sources and not faults:
            return None
        reason = None
        if 0 not in self.kernel_sources and faults:
            reason = message("kernel_log_unreadable", text=faults[0].text)
        return KernelLog(
            source=self.kernel_sources.get(0),
            reason=reason,
            messages=list(self.kernel_messages.values()),
        )

    def make_lines(self) -> Iterator[SeriesLine]:
        """Yield the lines that charts draw, of devices by their ranks, of hosts by their number."""
        devices = {format_ranges(device.ranks): device.columns for device in self.devices}
        hosts = {str(host.index): host.columns for host in self.hosts}
        yield from draw_lines(devices, hosts)


def _compute_middle_s(line: events.DevicesEvent | events.HostEvent, start_ns: int) -> float:
    """Return the middle of the time that a reading took, in seconds from the start.

    An event is written at the end of its reading, so ``t_ns`` is this end.
    """
    return (line.t_ns - start_ns - line.took_ns / 2) / NS_PER_S


def read_samples(run_dir: Path, timeline: RunTimeline) -> Samples:
    """Return what the samplers of all machines wrote; unreadable lines are left out."""
    samples = Samples()
    for node in timeline.nodes:
        # The launch on the node's own clock: ``shift_ns`` is what is added to a time on that clock
        # to get the time on the first node's clock.
        start_ns = timeline.launch_ns - node.shift_ns
        samples.add_file(run_dir / name_telemetry_file(node.number), node.ranks, start_ns)
    if not timeline.nodes:  # the launcher started the ranks itself, on one machine
        samples.add_file(
            run_dir / name_telemetry_file(None), range(len(timeline.ranks)), timeline.launch_ns
        )
    return samples


def summarize_samples(samples: Samples, timeline: RunTimeline) -> Telemetry:
    """Return the summary of all samples.

    Of a device, ``errors`` are its error counters and ``faults`` what its driver reported during
    the run. The faults of ``samples`` are those of sampling itself: readings that failed.
    """
    intervals = find_intervals(timeline)
    sampling = samples.sampling
    monitor = sampling.monitor if sampling else None
    host_sources = sampling.host_sources if sampling else []
    return Telemetry(
        interval_s=sampling.interval_s if sampling else None,
        monitor=monitor,
        host_sources=host_sources,
        intervals_s=intervals,
        devices=[
            DeviceTelemetry(
                ranks=device.ranks,
                index=device.index,
                over=device.summarize(intervals),
                errors=device.errors,
                faults=device.faults[:_MAX_FAULTS],
            )
            for device in samples.devices
        ],
        hosts=[host.summarize(intervals) for host in samples.hosts],
        kernel=samples.make_kernel_log(),
        faults=_group_faults(samples.faults, monitor, host_sources),
    )


def _group_faults(
    faults: Sequence[events.FaultEvent], monitor: str | None, host_sources: Sequence[str]
) -> list[Message]:
    """Return a message for each source and kind of fault: the first text, and how many there were.

    Faults of the kernel's log are reported with its messages.

    Args:
        monitor: name of the devices' monitor; None: none was opened.
        host_sources: names of the sources of the host that could be read.
    """
    # How a message names each source that a fault may name.
    message_names = {"monitor": monitor or "monitor", "host": "host"}
    for source in host_sources:
        message_names[source] = source
    texts_by_fault: dict[tuple[str, str], list[str]] = {}  # by code of the message, and source
    for fault in faults:
        if fault.source in message_names:
            key = (f"source.{fault.kind}", message_names[fault.source])
            texts_by_fault.setdefault(key, []).append(fault.text)
    return [
        message(code, source=source, text=texts[0], times=len(texts))
        for (code, source), texts in texts_by_fault.items()
    ]
