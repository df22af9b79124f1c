"""Summarise what the sampler read of devices and host, over the run and over its training.

Owns the schema of the summary. Reads ``telemetry.jsonl`` line by line, so that days at 1 Hz fit in
memory. A reading is dated to the middle of the time that it took. Must not know vendors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from annotated_types import Ge, Le
from pydantic import Field

from trainmark.data.json_documents import Frozen
from trainmark.measure.events import TELEMETRY_FILE, EventFile
from trainmark.measure.over_time import NS_PER_S, CounterDifference, Weighted
from trainmark.measure.shapes import Amount, Bytes, Count, Number  # noqa: TC001 - read at run time
from trainmark.measure.telemetry_lines import read_line
from trainmark.spec import Message, message

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from trainmark.measure.over_time import Interval
    from trainmark.measure.timeline import Phase, RunTimeline

IntervalName = Literal["run", "train", "measured", "to_target"]
_OF_DEVICES = (
    "memory_used_bytes", "utilization_percent", "power_w", "temperature_c", "clock_mhz",
    "memory_clock_mhz",
)  # fmt: skip
_OF_HOST = ("cpu_percent", "memory_used_bytes", "node_power_w")
_ONLY: dict[IntervalName, tuple[str, ...]] = {  # of some intervals not everything is of use
    "measured": ("clock_mhz",), "to_target": ("power_w", "node_power_w"),
}  # fmt: skip

Share = Annotated[float, Ge(0), Le(1)]


class Quantity(Frozen):
    """One quantity over an interval; the mean is weighted by time."""

    readings: Count
    longest_gap_s: Amount = Field(description="without a reading, up to the interval's edges")
    mean: Number
    lowest: Number
    highest: Number


class Energy(Frozen):
    """Difference of a counter over an interval; never computed from power."""

    joules: Amount | None
    between_s: Amount = Field(
        description="between the readings around the edges, where the counter is interpolated"
    )
    reason: Message | None = None


class Use(Frozen):
    """What was read of one device, or of the host, in one interval."""

    readings: Count
    longest_gap_s: Amount | None
    reason: Message | None = Field(description="why there is no reading")
    quantities: dict[str, Quantity] = Field(description="those that were told in the interval")
    throttled: Share | None = Field(
        description="share of the time with lowered clocks, for whatever reason"
    )
    throttle_reasons: dict[str, Share]
    energy: Energy


class DeviceTelemetry(Frozen):
    """The device of a rank, or of several."""

    ranks: list[Count]
    index: Count
    name: str | None
    memory_total_bytes: Bytes | None
    over: dict[IntervalName, Use]


class SourceFault(Frozen):
    """Why a source gave no readings for a time."""

    source: str
    kind: str
    said: str = Field(description="when it first began")
    times: Count = Field(description="that it began")


class Telemetry(Frozen):
    """What was read of devices and host, beside what ranks reported themselves."""

    interval_s: Amount | None
    monitor: str | None = Field(description="library or tool; null where nothing reads devices")
    host_sources: list[str]
    intervals_s: dict[IntervalName, tuple[Number, Number]] = Field(
        description="from the launcher's start"
    )
    devices: list[DeviceTelemetry]
    host: dict[IntervalName, Use]
    faults: list[SourceFault]
    failed_readings: dict[str, Count] | None = Field(description="by source; null without an end")
    last_s: Number | None = Field(description="time of the last line")
    malformed_lines: Count
    torn_last_line: bool


class _Readings:
    """Everything that is told of one device, or of the host, in one interval."""

    def __init__(self, interval: Interval, names: Iterable[str]) -> None:
        self._all = Weighted(interval)
        self._quantities = {name: Weighted(interval) for name in names}
        self._throttle = Weighted(interval)
        self._energy = CounterDifference(interval)

    def add(self, event: Mapping[str, Any], told: Mapping[str, Any]) -> None:
        t_ns = event["t_ns"] - event["took_ns"] // 2
        self._all.add(t_ns, {})
        for name, quantity in self._quantities.items():
            if name in told:
                quantity.add(t_ns, {"": told[name]})
        reasons = told.get("throttle_reasons")
        if reasons is not None:
            self._throttle.add(t_ns, {"": float(bool(reasons)), **dict.fromkeys(reasons, 1.0)})
        joules = told.get("energy_j", told.get("package_energy_j"))
        if joules is not None:
            self._energy.add(t_ns, joules)

    def use(self) -> Use:
        self._all.means()
        shares = {name: min(1.0, share) for name, share in self._throttle.means().items()}
        (joules, untold), readings = self._energy.difference(), self._all.readings
        return Use(
            readings=readings,
            longest_gap_s=self._all.gap_ns / NS_PER_S if readings else None,
            reason=None if readings else message("no_reading_in_interval"),
            quantities={
                name: Quantity(
                    mean=means[""],
                    lowest=item.lowest,
                    highest=item.highest,
                    readings=item.readings,
                    longest_gap_s=item.gap_ns / NS_PER_S,
                )
                for name, item in self._quantities.items()
                if (means := item.means())
            },
            throttled=shares.pop("", None),
            throttle_reasons=dict(sorted(shares.items(), key=lambda item: (-item[1], item[0]))),
            energy=Energy(
                joules=joules, between_s=self._energy.between_ns / NS_PER_S, reason=untold
            ),
        )


def intervals(timeline: RunTimeline) -> dict[IntervalName, Interval]:
    """Return the intervals that the run has, each over all ranks.

    ``run``: launcher start to the last rank's end; ``train``: the first window to the last;
    ``measured``: the same after the warm-up; ``to_target``: the first window to the end of the
    evaluation that reached the target.
    """
    found: dict[IntervalName, Interval] = {}
    if timeline.end_ns is not None:
        found["run"] = (timeline.launch_ns, timeline.end_ns)
    phases = [phase for rank in timeline.ranks for phase in rank.phases.values() if phase.steps]
    if phases:
        found["train"] = _around(phases)
    if timeline.ranks[0].target_reached and phases:
        reached = (rank.evaluations[-1]["end_ns"] for rank in timeline.ranks if rank.evaluations)
        found["to_target"] = (found["train"][0], max(reached))
    measured = [rank.phases["train"] for rank in timeline.ranks if rank.phases["train"].steps]
    if measured:
        found["measured"] = _around(measured)
    return {name: pair for name, pair in found.items() if pair[0] < pair[1]}


def _around(phases: Sequence[Phase]) -> Interval:
    return min(phase.start_ns for phase in phases), max(phase.end_ns for phase in phases)


class _File:
    """What the lines of one file tell, added up."""

    def __init__(self, spans: Mapping[IntervalName, Interval], numbers: Iterable[int]) -> None:
        self.devices = {number: _over(spans, _OF_DEVICES) for number in numbers}
        self.facts: dict[int, dict[str, Any]] = {number: {} for number in self.devices}
        self.host = _over(spans, _OF_HOST)
        self.faults: dict[tuple[str, str], SourceFault] = {}
        self.failed: dict[str, int] | None = None
        self.last_ns: int | None = None

    def take(self, line: Mapping[str, Any]) -> None:
        self.last_ns = line["t_ns"]
        match line["event"]:
            case "devices":
                for told in line["devices"]:
                    number = told["index"]
                    if number in self.devices:
                        self.facts[number] |= told
                        for readings in self.devices[number].values():
                            readings.add(line, told)
            case "host":
                for readings in self.host.values():
                    readings.add(line, line)
            case "fault":
                key = source, kind = line["source"], line["kind"]
                new = SourceFault(source=source, kind=kind, said=line["said"], times=0)
                known = self.faults.get(key, new)
                self.faults[key] = known.model_copy(update={"times": known.times + 1})
            case "end":
                self.failed = line["faults"]


def _over(
    spans: Mapping[IntervalName, Interval], names: tuple[str, ...]
) -> dict[IntervalName, _Readings]:
    return {
        interval: _Readings(pair, [name for name in names if name in _ONLY.get(interval, names)])
        for interval, pair in spans.items()
    }


def read(run_dir: Path, timeline: RunTimeline) -> Telemetry | None:
    """Return the summary of ``telemetry.jsonl``; None for a run that was not sampled.

    Raises:
        OSError: the file cannot be read.
    """
    path = run_dir / TELEMETRY_FILE
    if not path.is_file():  # a pipe would block
        return None
    # A device may be read before the monitor has its name, so the start is found first.
    lines = EventFile(path, read_line)
    start: dict[str, Any] = next((line for line in lines if line["event"] == "start"), {})
    numbers = start.get("devices", [])[: len(timeline.ranks)]
    spans = intervals(timeline)
    file = _File(spans, numbers)
    for line in lines:
        file.take(line)

    def seconds(t_ns: int) -> float:
        return (t_ns - timeline.launch_ns) / NS_PER_S

    return Telemetry(
        interval_s=start.get("interval_s"),
        monitor=start.get("monitor"),
        host_sources=start.get("host_sources", []),
        intervals_s={name: (seconds(pair[0]), seconds(pair[1])) for name, pair in spans.items()},
        devices=[
            DeviceTelemetry(
                ranks=[rank for rank, number in enumerate(numbers) if number == index],
                index=index,
                name=file.facts[index].get("name"),
                memory_total_bytes=file.facts[index].get("memory_total_bytes"),
                over={name: item.use() for name, item in over.items()},
            )
            for index, over in file.devices.items()
        ],
        host={name: item.use() for name, item in file.host.items()},
        faults=list(file.faults.values()),
        failed_readings=file.failed,
        last_s=None if file.last_ns is None else seconds(file.last_ns),
        malformed_lines=lines.malformed_lines,
        torn_last_line=lines.torn,
    )
