"""Split a log of events into runs, and read what each run says.

Two forms of events are known: ``[PerfLog] {…}`` and ``:::MLLOG {…}``. A log may hold several runs,
one after the other; a run that ends is followed by the next, and so is one that died.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from trainmark.published.importers.event_checks import EventChecks, Speeds
from trainmark.published.importers.events import END_EVENTS, MALFORMED, find_time_s, parse_event
from trainmark.published.importers.vocabulary import WORDS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from trainmark.published.importers.events import Event
    from trainmark.spec import Message

FORMS = {"[PerfLog]": "perflog", ":::MLLOG": "mlperf"}  # by the mark before an event
_START_EVENTS = {"INIT_START", "cache_clear", "submission_benchmark", "init_start", "run_start"}
_TRAINING_EVENTS = {
    "TRAIN_START",
    "EPOCH_BEGIN",
    "STEP_BEGIN",
    "STEP_END",
    "EVALUATE",
    "epoch_start",
    "block_start",
    "block_stop",
    "eval_start",
    "tracked_stats",
}
# Processes of one run that print without their rank start within this time of each other.
_MAX_START_SPREAD_S = 30.0


class _Instant(NamedTuple):
    """A time in seconds, and the samples trained until then."""

    time_s: float
    samples: float


@dataclass
class EventRun:
    """One run in a log: its speed and its other facts.

    In MLPerf logging, ``tracked_stats`` has speeds, or blocks have samples and times. In PerfLog,
    the time from one STEP_END to the next counts, without evaluations: it includes data loading and
    the steps whose events were not printed, so that time and samples cover the same work.

    Args:
        mark: text before each event: ``[PerfLog]`` or ``:::MLLOG``.
        rank: only events of this rank count; None: the rank of the first event.
        first_line: line of the first event.
        line: line of the event that ends the run; without an end, its first line, or 0 if it is the
            only run.
        raw: text of this line.
        facts: what events say of the whole run, by the header of its column in a table: ``model``,
            ``seed``, and the totals of the event that ends the run.
        has_ended: the log has the event that ends the run.
        is_aborted: another run begins before this one ends.
        has_failed: the event that ends the run says that it did not succeed.
        seconds: of all intervals, the stretches of training between evaluations.
        samples: trained in the intervals; NaN: the log does not say.
        logged_speeds: samples a second, each as the program printed it.
        loss: the last one.
        malformed: number and text of each line that cannot be read.
        checks: finds contradictions in what the log says.
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
    logged_speeds: list[float] = field(default_factory=list)
    loss: object = None
    malformed: list[tuple[int, str]] = field(default_factory=list)
    checks: EventChecks = field(default_factory=EventChecks)
    _start_times_s: dict[str, float | None] = field(default_factory=dict)  # by start event
    _is_training: bool = False  # an event of training was read
    _run_start_s: float | None = None  # time of ``run_start``
    _interval_start: _Instant | None = None  # None: no interval is open
    _trained_samples: float = 0.0  # at the end of the last interval

    @property
    def form(self) -> str:
        """The form of the log by the mark before its events: ``perflog`` or ``mlperf``."""
        return FORMS[self.mark]

    @property
    def speed(self) -> float | None:
        """Samples a second; None: not known.

        It is the mean of the speeds that the program printed, else samples divided by seconds over
        all training between evaluations.
        """
        if self.logged_speeds:
            return sum(self.logged_speeds) / len(self.logged_speeds)
        return self.speed_of_intervals

    def find_contradictions(self, world_size: int | None) -> list[Message]:
        """Return the contradictions in what the log says of this run.

        Args:
            world_size: devices of the run; None: not known.
        """
        return self.checks.find_contradictions(self._speeds, world_size)

    def list_unchecked(self, world_size: int | None) -> list[str]:
        """Return which of samples, batch and times cannot be checked: the log states them once.

        Args:
            world_size: devices of the run; None: not known.
        """
        return self.checks.list_unchecked(self._speeds, world_size)

    @property
    def _speeds(self) -> Speeds:
        """The speeds that the program printed, and samples and seconds, which give a speed, too.

        Samples and seconds are those of all training between evaluations.
        """
        return Speeds(self.logged_speeds, self.samples, self.seconds)

    @property
    def speed_of_intervals(self) -> float | None:
        """Samples divided by seconds over all intervals; None: not known.

        The intervals are the stretches of training between evaluations.
        """
        return self._speeds.measured

    def is_start_of_next_run(self, event: Event) -> bool:
        """Tell whether an event is the first one of the run after this one.

        It is if it is a start event and this run has ended, or has had the same start event before.
        But before training begins, the same event soon after the first one, or without a time, is
        taken for that of another process of this run.
        """
        if event.name not in _START_EVENTS:
            return False
        if self.has_ended:
            return True
        # A run has start events of several names, each of them once. Those that this run has had
        # are in ``_start_times_s``, with the time of the first.
        if event.name not in self._start_times_s:
            return False
        if self._is_training:  # it died without an end, and the program was started again
            return True
        # Other processes of the same run write their start events soon after the first one.
        first_s = self._start_times_s[event.name]
        time_s = find_time_s(event)
        if first_s is None or time_s is None:  # without a time, it is taken for such a process
            return False
        return time_s - first_s > _MAX_START_SPREAD_S

    def add_event(self, event: Event) -> None:
        """Add what an event says: facts of the run, its loss, times, samples or speed.

        ``facts`` later becomes a row of a table of results, so its keys are headers of such tables.

        Raises:
            LookupError, ValueError, TypeError: the event lacks something, or has another kind of
                value than it should.
        """
        name = event.name
        if name in _START_EVENTS:  # the first time of each counts: other processes start later
            self._start_times_s.setdefault(name, find_time_s(event))
        self._is_training = self._is_training or name in _TRAINING_EVENTS
        self.checks.feed(event)
        if name in {"STEP_END", "tracked_stats"}:  # the loss is that of the last event with one
            self.loss = event.named_values.get("loss", self.loss)
        if "case" in event.named_values:
            # The first event that names the case counts, unless the one that ends the run names it.
            self.facts.setdefault("case", event.named_values["case"])
        if name in END_EVENTS:
            self._add_end(event)
        # Names of events that state one fact, each with its header. The last one counts: of the
        # accuracies that each evaluation prints, it is that of the final model.
        elif name in WORDS["mlperf"]:
            header = WORDS["mlperf"][name]
            self.facts[header] = event.value
        elif name == "train_loss":
            self.loss = event.value
        elif name == "run_start":
            time_s = event.time_s
            # The first one counts: other processes of the run start later.
            self._run_start_s = time_s if self._run_start_s is None else self._run_start_s
        else:
            self._add_time(event)

    def _add_time(self, event: Event) -> None:
        """Add what an event says about time and samples.

        An interval is a stretch of training. It runs from ``block_start`` to ``block_stop`` in
        MLPerf logging; a ``block_start`` inside it is skipped. In PerfLog it runs from one STEP_END
        to the next; the first STEP_BEGIN, and the first after EVALUATE, begin one, too.
        """
        name = event.name
        if name == "block_start":
            if self._interval_start is None:
                self._interval_start = _Instant(event.time_s, event.samples)
        elif name == "STEP_BEGIN":
            if self._interval_start is None:  # such events state no samples
                self._interval_start = _Instant(event.time_s, self._trained_samples)
        elif name in {"STEP_END", "block_stop"}:
            end = _Instant(event.time_s, event.samples)
            self._end_interval(end)
            # In MLPerf logging, evaluations run between blocks: the next block begins anew.
            self._interval_start = end if name == "STEP_END" else None
            self._trained_samples = event.samples
        elif name == "EVALUATE":
            self._interval_start = None  # the time until the next STEP_BEGIN does not count
        elif name == "tracked_stats" and "throughput" in event.named_values:
            self.logged_speeds.append(float(event.named_values["throughput"]))

    def _end_interval(self, end: _Instant) -> None:
        """Add the seconds and samples of the interval that ends; none if its start is not known.

        Raises:
            ValueError: it ends before it begins; the line of the end then counts as malformed.
        """
        # An interval whose start is not known counts as one without duration.
        start = self._interval_start or end
        if end < start:  # by time; at the same time by samples
            raise ValueError("an interval ends before it begins")
        self.seconds += end.time_s - start.time_s
        self.samples += end.samples - start.samples

    def _add_end(self, event: Event) -> None:
        """Keep what the event that ends the run says: its line, its facts, whether the run failed.

        The values that the event names become facts of the run, by the same names.
        """
        if self.has_ended:  # the first end counts; the checks report a second one
            return
        self.facts |= event.named_values  # those of the end outweigh what the run stated before
        self.has_ended = True
        self.line = event.line
        self.raw = event.text
        # MLPerf logging states a status, such as `aborted`; PerfLog states none.
        self.has_failed = event.metadata.get("status", "success") != "success"
        if self._run_start_s is not None:  # MLPerf logging: from `run_start` to `run_stop`
            self.facts["train_time"] = event.time_s - self._run_start_s


class EventReader:
    """Splits the events of a log into runs, line by line."""

    def __init__(self) -> None:
        self._runs: dict[str, EventRun] = {}

    @property
    def open_runs(self) -> list[EventRun]:
        """The last run of PerfLog events and the last of MLPerf events, if the log has them.

        Lines that are not read yet may continue them.
        """
        return list(self._runs.values())

    def feed(self, number: int, line: str) -> Iterator[EventRun]:
        """Read a line; if it begins another run, yield the run before it.

        The yielded run is marked as aborted if the log has no event that ends it.

        Args:
            number: of the line, from 1.
        """
        for mark in FORMS:  # `[PerfLog]` and `:::MLLOG`: the runs of each are kept apart
            if mark not in line:
                continue
            run = self._runs.setdefault(mark, EventRun(mark, first_line=number))
            try:
                event = parse_event(number, line, mark)
                rank = event.metadata.get("rank", 0)  # other ranks repeat what one prints
                if run.rank is None:  # this is the first event of the log with this mark
                    run.rank = rank
                if rank != run.rank:
                    continue
                if run.is_start_of_next_run(event):
                    run.is_aborted = not run.has_ended
                    # The line of a run is that of its end; without an end, that of its start.
                    run.line = run.line or run.first_line
                    yield run
                    run = EventRun(
                        mark, rank=run.rank, first_line=number, line=number, raw=event.text
                    )
                    self._runs[mark] = run
                run.add_event(event)
            except MALFORMED:
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
    yield from reader.open_runs  # those that no other run has followed
