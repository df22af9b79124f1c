"""Split a log of events into runs, and read what each run says.

Two forms of events are known: ``[PerfLog] {…}`` and ``:::MLLOG {…}``. A log may hold several runs,
one after the other; a run that ends is followed by the next, and so is one that died.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic_core import from_json

from trainmark.library.importers.event_checks import EventChecks
from trainmark.library.importers.vocabulary import WORDS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

FORMS = {"[PerfLog]": "perflog", ":::MLLOG": "mlperf"}  # by the mark before an event
_STARTS = {"INIT_START", "cache_clear", "submission_benchmark", "init_start", "run_start"}
_ENDS = {"FINISHED", "run_stop"}
_TRAINING = {
    "TRAIN_START", "EPOCH_BEGIN", "STEP_BEGIN", "STEP_END", "EVALUATE",
    "epoch_start", "block_start", "block_stop", "eval_start", "tracked_stats",
}  # fmt: skip
# Processes of one run that print without their rank start within this time of each other.
_SAME_START_S = 30.0
_MALFORMED = (LookupError, ValueError, TypeError, AttributeError)


class Event(NamedTuple):
    """One event; ``totals`` is its value if that is an object, else empty."""

    line: int
    text: str
    name: str
    value: Any
    totals: dict[str, Any]
    metadata: dict[str, Any]

    @property
    def time_s(self) -> float:
        """Seconds since the clock's origin.

        Raises:
            LookupError: the event has no time.
        """
        return float(self.metadata["time_ms"]) / 1000

    @property
    def samples(self) -> float:
        """Samples trained until this event; NaN: it does not say."""
        count = self.totals.get("num_trained_samples", self.metadata.get("samples_count"))
        return math.nan if count is None else float(count)


@dataclass
class EventRun:
    """One run in a log: its speed, and what it says beside it by column.

    MLPerf logging has speeds in ``tracked_stats``, else blocks. PerfLog has what lies between one
    STEP_END and the next without evaluations: data loading and every step whose events were not
    printed, so that time and samples cover the same work.

    Args:
        rank: only events of this rank count; None: the rank of the first event.
        first_line: line of the first event.
        line: line of the event that ends the run; of a later run without an end, its first line.
        facts: what the run says, by column.
        has_ended: the log has the event that ends the run.
        is_aborted: another run begins before this one ends.
        has_failed: the event that ends the run says that it did not succeed.
        seconds: of all intervals; ``samples``: trained in them, NaN: the log does not say.
    """

    mark: str
    rank: object = None
    first_line: int = 0
    line: int = 0
    raw: str = ""
    facts: dict[str, Any] = field(default_factory=dict)
    has_ended: bool = False
    is_aborted: bool = False
    has_failed: bool = False
    seconds: float = 0.0
    samples: float = 0.0
    speeds: list[float] = field(default_factory=list)
    loss: object = None
    malformed: list[tuple[int, str]] = field(default_factory=list)
    checks: EventChecks = field(default_factory=EventChecks)
    _started: dict[str, float | None] = field(default_factory=dict)  # when, by start event
    _is_training: bool = False
    _run_start_s: float | None = None
    _interval_start: tuple[float, float] | None = None  # seconds, and samples trained until then
    _trained: float = 0.0

    @property
    def speed(self) -> float | None:
        """The mean speed as logged, else all samples over all seconds; None: not known."""
        if self.speeds:
            return sum(self.speeds) / len(self.speeds)
        return self.speed_of_intervals

    @property
    def speed_of_intervals(self) -> float | None:
        """Samples over seconds of all intervals; None: not known."""
        known = self.seconds > 0 and not math.isnan(self.samples)
        return self.samples / self.seconds if known else None

    def begins_next_run(self, event: Event) -> bool:
        """Tell whether an event is the first one of the run after this one."""
        if event.name not in _STARTS:
            return False
        if self.has_ended:
            return True
        if event.name not in self._started:
            return False
        first_s, time_s = self._started[event.name], _time_of(event)
        is_late = None not in (first_s, time_s) and time_s - first_s > _SAME_START_S  # type: ignore[operator]
        return self._is_training or is_late

    def take(self, event: Event) -> None:
        """Add an event.

        Raises:
            LookupError, ValueError, TypeError: the event lacks something, or has another kind of
                value than it should.
        """
        name = event.name
        if name in _STARTS:
            self._started.setdefault(name, _time_of(event))
        self._is_training = self._is_training or name in _TRAINING
        self.checks.feed(event)
        if name in {"STEP_END", "tracked_stats"}:
            self.loss = event.totals.get("loss", self.loss)
        if "case" in event.totals:
            self.facts.setdefault("case", event.totals["case"])
        if name in _ENDS:
            self._end(event)
        elif name in WORDS["mlperf"]:
            self.facts[WORDS["mlperf"][name]] = event.value
        elif name == "train_loss":
            self.loss = event.value
        elif name == "run_start":
            self._run_start_s = event.time_s
        else:
            self._time(event)

    def _time(self, event: Event) -> None:
        """Add what an event says of time and samples."""
        name = event.name
        if name == "block_start":
            self._interval_start = self._interval_start or (event.time_s, event.samples)
        elif name == "STEP_BEGIN":  # the first one, or the first after EVALUATE
            self._interval_start = self._interval_start or (event.time_s, self._trained)
        elif name in {"STEP_END", "block_stop"}:
            end = event.time_s, event.samples
            start = self._interval_start or end
            if end < start:
                raise ValueError("an interval ends before it begins")
            self.seconds += end[0] - start[0]
            self.samples += end[1] - start[1]
            self._interval_start = end if name == "STEP_END" else None
            self._trained = event.samples
        elif name == "EVALUATE":
            self._interval_start = None
        elif name == "tracked_stats" and "throughput" in event.totals:
            self.speeds.append(float(event.totals["throughput"]))

    def _end(self, event: Event) -> None:
        if self.has_ended:  # a second end is named by the checks
            return
        self.facts |= event.totals
        self.has_ended, self.line, self.raw = True, event.line, event.text
        self.has_failed = event.metadata.get("status", "success") != "success"
        if self._run_start_s is not None:
            self.facts["train_time"] = event.time_s - self._run_start_s


def _time_of(event: Event) -> float | None:
    try:
        return event.time_s
    except _MALFORMED:
        return None


def _parse(number: int, line: str, mark: str) -> Event:
    """Return the event behind a mark; raises one of ``_MALFORMED``."""
    document = from_json(line.partition(mark)[2])
    metadata = (document.get("metadata") or {}) | document
    value = document.get("value")
    totals = value if isinstance(value, dict) else {}
    name = document.get("event") or document["key"]
    return Event(number, line.rstrip("\r\n"), name, value, totals, metadata)


class EventReader:
    """Splits the events of a log into runs, line by line."""

    def __init__(self) -> None:
        self._runs: dict[str, EventRun] = {}

    @property
    def open_runs(self) -> list[EventRun]:
        """The run of each form of events that no other run follows."""
        return list(self._runs.values())

    def feed(self, number: int, line: str) -> Iterator[EventRun]:
        """Take a line; yield the runs before those that it begins."""
        for mark in FORMS:
            if mark not in line:
                continue
            run = self._runs.setdefault(mark, EventRun(mark, first_line=number))
            try:
                event = _parse(number, line, mark)
                rank = event.metadata.get("rank", 0)
                run.rank = rank if run.rank is None else run.rank
                if rank != run.rank:
                    continue
                if run.begins_next_run(event):
                    run.is_aborted = not run.has_ended
                    run.line = run.line or run.first_line
                    yield run
                    run = EventRun(mark, run.rank, number, number, event.text)
                    self._runs[mark] = run
                run.take(event)
            except _MALFORMED:
                run.malformed.append((number, line.strip()))


def read_runs(lines: Iterable[tuple[int, str]]) -> Iterator[EventRun]:
    """Yield each run of a log when it is complete.

    Args:
        lines: of the log, each with its number.

    Raises:
        DataError: the log cannot be read further.
    """
    reader = EventReader()
    for number, line in lines:
        yield from reader.feed(number, line)
    yield from reader.open_runs
