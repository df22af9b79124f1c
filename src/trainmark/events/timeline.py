"""Read the event files of a run: spans and counts of each rank, and the steps of the run.

Owns the meaning of events. Reads each file once, one rank at a time, and keeps only what the run's
figures need, so that a million steps on eight ranks fit in memory. A window is the steps between
two synchronisations; a replay repeats one from a saved state, to compare the results.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from trainmark.errors import RecordError
from trainmark.events import schema as events
from trainmark.events.nodes import (
    LaunchEvents,
    NodeTimeline,
    align_clocks,
    index_by_name,
    merge_launch_events,
    read_nodes,
)
from trainmark.events.schema import (
    LAUNCHER_FILE,
    EventFile,
    Facts,
    Result,
    name_rank_file,
    read_event,
)
from trainmark.events.steps import RankSteps, Series
from trainmark.events.values import Phase, PhaseName, RankSums
from trainmark.protocols import Counts

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from trainmark.events.schema import (
        ClockSync,
        Error,
        Evaluate,
        Parameters,
        Replay,
        Timed,
        Trained,
        Window,
    )

# Stand for the events of a rank that did not report them.
NO_FACTS = Facts(t_ns=0)
NO_RESULT = Result(t_ns=0)
PHASES: tuple[PhaseName, ...] = ("compile", "warmup", "train")
SPAN_NAMES = (
    "launch",
    "init",
    "preflight",
    "data_build",
    "model_build",
    "check",
    "compile",
    "warmup",
    "train",
    "evaluate",
    "checkpoint",
    "finish",
    "unfinished",
)


@dataclass(slots=True)
class RankTimeline(RankSums):
    """The contents of one rank's events.

    Times ``_ns`` of an event are on the clock of the rank's machine; None: there was no such event.
    A window is the steps between two synchronisations; a replay repeats a window from a saved state
    and compares the results bit by bit. A span is a named piece of the rank's time.

    Args:
        rank: its number.
        launch_ns: time of the launch, on the same clock; 0 until ``read_run`` has set it.
        start_ns: time of the rank's first event.
        last_ns: time of its last event.
        finished: the rank wrote that it reached its end.
        named_ns: duration of the spans that have events, such as checkpoints, by name.
        phases: sums over the windows of each phase: ``compile``, ``warmup`` and ``train``.
        edges_ns: start of the first window and end of the last window, by phase.
        longest_window_ns: duration of the longest window.
        step_ns: median step of the phase ``train``; None: it has no step.
        check_ns: duration of the checks of parameters, which are between windows.
        samples_of_epochs: samples by the epoch, from 0.
        epochs: number of epochs that were trained, the last one perhaps in part.
        evaluations, replays: the events of these types, in order.
        parameters, clock_sync, facts, trained, result, error: the event of this type; None or
            empty: the rank did not write it.
        replay_edges_ns: start and end of each repeat of a window, and of each saved state.
        used_bytes: highest reading of the memory in use; None: there was no reading.
        malformed_lines: number of lines that are not events of a rank.
        unfinished_ns: duration from the last event to the end that only the launcher saw; 0 if the
            rank reported its end or an error, and until ``read_run`` has set it.
    """

    rank: int
    launch_ns: int = 0
    start_ns: int | None = None
    last_ns: int | None = None
    finished: bool = False
    named_ns: Counter[str] = field(default_factory=Counter)
    phases: dict[PhaseName, Phase] = field(
        default_factory=lambda: {name: Phase() for name in PHASES}
    )
    edges_ns: dict[PhaseName, tuple[int, int]] = field(default_factory=dict)
    longest_window_ns: int = 0
    step_ns: int | None = None
    check_ns: int = 0
    samples_of_epochs: Counter[int] = field(default_factory=Counter)
    epochs: int = 0
    evaluations: list[Evaluate] = field(default_factory=list)
    replays: list[Replay] = field(default_factory=list)
    replay_edges_ns: list[tuple[int, int]] = field(default_factory=list)
    parameters: Parameters | None = None
    clock_sync: ClockSync | None = None
    facts: Facts = NO_FACTS
    trained: Trained | None = None
    result: Result = NO_RESULT
    error: Error | None = None
    used_bytes: int | None = None
    malformed_lines: int = 0
    unfinished_ns: int = 0

    def add_memory_reading(self, used_bytes: int | None) -> None:
        """Keep the highest reading of the memory in use; None: the device reports none."""
        if used_bytes is not None:
            self.used_bytes = max(self.used_bytes or 0, used_bytes)

    def add_replay(self, timed: Timed) -> None:
        """Add the time of saving a state or of repeating a window; rates exclude it.

        Args:
            timed: the event of the saving or of the repeats, with its start and end.
        """
        self.named_ns["replay"] += timed.end_ns - timed.start_ns
        self.replay_edges_ns.append((timed.start_ns, timed.end_ns))

    @property
    def train_ns(self) -> int | None:
        """Return the time from the start of training to its end, without what checks its results.

        That is the checks of parameters between windows, the repeats of windows, and the saving of
        the states from which they are repeated. If the rank did not report the end of its training,
        it counts as the end of its last window, repeat or evaluation. None: the rank did not train.
        """
        excluded_ns = self.check_ns + self.named_ns["replay"]
        if self.trained is not None:
            return self.trained.end_ns - self.trained.start_ns - excluded_ns
        if not self.edges_ns:
            return None
        edges_ns = [*self.edges_ns.values(), *self.replay_edges_ns]
        edges_ns += [(evaluation.start_ns, evaluation.end_ns) for evaluation in self.evaluations]
        first_start_ns = min(start_ns for start_ns, _ in edges_ns)
        last_end_ns = max(end_ns for _, end_ns in edges_ns)
        return last_end_ns - first_start_ns - excluded_ns

    @property
    def target_reached(self) -> bool:
        """Tell whether the last evaluation reached the target."""
        return bool(self.evaluations) and self.evaluations[-1].target_reached

    @property
    def wall_ns(self) -> int | None:
        """Return the time from the launch to the rank's end; None: the rank never started.

        The end is its last event. If it did not report its end, ``unfinished_ns`` is the time from
        this event to the end that the launcher saw; else 0.
        """
        if self.last_ns is None:
            return None
        return self.last_ns + self.unfinished_ns - self.launch_ns

    @property
    def spans_ns(self) -> dict[str, int]:
        """Return the duration of each span by name; with ``other`` they add up to the wall time."""
        spans = dict.fromkeys(SPAN_NAMES, 0)
        if self.start_ns is not None:
            spans["launch"] = self.start_ns - self.launch_ns
        spans |= self.named_ns  # what the rank's events name, such as evaluations and checkpoints
        spans["check"] += self.check_ns  # those between windows, which have no event of a span
        spans["unfinished"] = self.unfinished_ns
        for name, phase in self.phases.items():  # each phase is a span as well
            spans[name] += phase.windows_ns
        spans["other"] = (self.wall_ns or 0) - sum(spans.values())
        return spans


@dataclass(slots=True)
class RunTimeline:
    """The contents of all event files of a run directory.

    Args:
        ranks: in order of their numbers.
        series: steps of all ranks together.
        launcher: how the launch began and ended.
        nodes: empty: the launcher started the ranks itself, on one machine.
    """

    ranks: list[RankTimeline]
    series: Series
    launcher: LaunchEvents
    nodes: list[NodeTimeline] = field(default_factory=list)

    @property
    def launch_ns(self) -> int:
        """Return when the launcher began; on several nodes, on the clock of the first one."""
        return self.launcher.launch.t_ns

    @property
    def wall_ns(self) -> int:
        """Return the time from the launch to the end of the last rank; 0: no rank began."""
        walls_ns = [rank.wall_ns for rank in self.ranks if rank.wall_ns is not None]
        return max(walls_ns, default=0)

    @property
    def counts(self) -> Counts:
        """Return the sum of the ranks' counts."""
        return sum((rank.counts for rank in self.ranks), Counts())

    @property
    def steps(self) -> int:
        """Return the largest number of steps of a rank."""
        return max((rank.steps for rank in self.ranks), default=0)

    @property
    def warmup_steps(self) -> int:
        """Return the largest number of steps of a rank before its ``train`` phase."""
        return max(rank.steps - rank.phases["train"].steps for rank in self.ranks)


def read_rank(run_dir: Path, rank: int) -> tuple[RankTimeline, RankSteps]:
    """Read one rank's file and return what its events say, and its steps.

    Without a file the rank never started, and both are empty. ``launch_ns`` and ``unfinished_ns``,
    which need events of the launcher, are left for ``read_run`` to set.

    Raises:
        OSError: the file cannot be read.
    """
    timeline = RankTimeline(rank)
    steps = RankSteps()
    path = run_dir / name_rank_file(rank)
    if not path.exists():
        return timeline, steps
    file = EventFile(path, read_event)
    for event in file:
        # A rank writes its events in order of time, so that the last in the file is the latest.
        timeline.last_ns = event.t_ns
        match event:
            case events.Window():
                _add_window(timeline, event)
                steps.add(event)
            case events.Replay():
                timeline.replays.append(event)
                timeline.add_replay(event)
            case events.Span(name="replay"):  # saving the state before a window to repeat
                timeline.add_replay(event)
            case events.Span():
                timeline.named_ns[event.name] += event.end_ns - event.start_ns
            case events.Evaluate():
                timeline.evaluations.append(event)
                timeline.named_ns["evaluate"] += event.end_ns - event.start_ns
            case events.Start():
                timeline.start_ns = event.t_ns
            case events.End():
                timeline.finished = True
            case _:
                _store_single_event(timeline, event)
    # Windows count the epochs that were begun; at its end the loop reports its own count.
    if timeline.trained is not None:
        timeline.epochs = timeline.trained.epochs
        timeline.check_ns += timeline.trained.check_ns  # of the checks after the last window
    # Without the event ``Result``, ``timeline.result`` has no reading.
    timeline.add_memory_reading(timeline.result.used_bytes)
    # Malformed are lines that cannot be read, and events that ranks do not write, which were
    # counted above. No run with such a line passes, so that their ``last_ns`` does not matter.
    timeline.malformed_lines += file.malformed_lines
    num_measured = timeline.phases["train"].steps
    if num_measured:  # they are the last ones: compile and warmup come before
        timeline.step_ns = int(np.median(steps.step_ns[-num_measured:]))
    return timeline, steps


def _store_single_event(timeline: RankTimeline, event: events.Event) -> None:
    """Store an event that a rank writes at most once."""
    match event:
        case events.ClockSync():
            timeline.clock_sync = event
        case events.Facts():
            timeline.facts = event
        case events.Trained():
            timeline.trained = event
        case events.Parameters():
            timeline.parameters = event
        case events.Result():
            timeline.result = event
        case events.Error():
            timeline.error = event
        case _:  # an event that ranks do not write
            timeline.malformed_lines += 1


def _add_window(timeline: RankTimeline, window: Window) -> None:
    """Add a window to the sums of its phase, its epoch and the rank."""
    samples = sum(window.samples)
    duration_ns = window.end_ns - window.start_ns
    timeline.longest_window_ns = max(timeline.longest_window_ns, duration_ns)
    timeline.phases[window.phase].add(window, samples)
    # Of the phase: the start of its first window and the end of its last one so far.
    first_start_ns = window.start_ns
    if window.phase in timeline.edges_ns:
        first_start_ns, _ = timeline.edges_ns[window.phase]
    timeline.edges_ns[window.phase] = (first_start_ns, window.end_ns)
    timeline.epochs = window.epoch + 1  # epochs are numbered from 0
    timeline.samples_of_epochs[window.epoch] += samples
    timeline.add_memory_reading(window.used_bytes)
    timeline.check_ns += window.check_ns


def read_run(run_dir: Path, world_size: int, nodes: int = 0) -> RunTimeline:
    """Read every event file of ``run_dir``; without a file a rank never started.

    Args:
        world_size: number of ranks.
        nodes: number of nodes with a node process; 0: the launcher started the ranks itself.

    Raises:
        OSError: there are no events of the launcher, or a file cannot be read.
        RecordError: the launcher's events have no launch.
    """
    path = run_dir / LAUNCHER_FILE
    launcher = index_by_name(EventFile(path, read_event))
    if "launch" not in launcher:
        rule = "the first event of a run must be `launch`"
        raise RecordError("not a run directory", where=str(path), rule=rule)
    ranks: list[RankTimeline] = []
    series = Series()
    for number in range(world_size):
        timeline, steps = read_rank(run_dir, number)
        ranks.append(timeline)
        series.add(steps)
        del steps  # a million steps take 32 MB, and the next rank's as much again
    node_timelines = read_nodes(run_dir, nodes, world_size // nodes) if nodes else []
    align_clocks(node_timelines, [rank.clock_sync for rank in ranks])
    # By rank, what is added to a time on its clock to have it on the first node's clock; empty on a
    # single machine.
    shifts_ns = {number: node.shift_ns for node in node_timelines for number in node.ranks}
    starts_ns = [
        rank.start_ns + shifts_ns.get(rank.rank, 0) for rank in ranks if rank.start_ns is not None
    ]
    launch_events = merge_launch_events(
        launcher, node_timelines, run_dir, first_start_ns=min(starts_ns, default=None)
    )
    _set_launch_times(ranks, launch_events, shifts_ns)
    return RunTimeline(ranks, series, launch_events, node_timelines)


def _set_launch_times(
    ranks: list[RankTimeline], launch_events: LaunchEvents, shifts_ns: Mapping[int, int]
) -> None:
    """Set ``launch_ns`` and ``unfinished_ns`` of each rank.

    ``launch_ns`` is the time of the launch on the rank's clock. ``unfinished_ns`` is the time from
    the last event of a rank to the end that the launcher saw. It is 0 if the rank reported its end
    or an error: after an error a rank ends, or the probe in a user's own program stops measuring.

    Args:
        launch_events: all its times are on the clock of the first node.
        shifts_ns: by rank, what is added to a time on its clock to have it on the first node's;
            empty on a single machine.
    """
    ends = [end for end in (launch_events.stop, launch_events.ranks_ended) if end is not None]
    ends_ns = [end.t_ns - launch_events.launch.t_ns for end in ends]
    observed_end_ns = max(ends_ns, default=0)  # from the launch
    for rank in ranks:
        # From here on, ``rank.wall_ns`` counts from the launch.
        rank.launch_ns = launch_events.launch.t_ns - shifts_ns.get(rank.rank, 0)
        # A rank that never started has no wall time.
        if not rank.finished and rank.error is None and rank.wall_ns is not None:
            # Not negative: a stop whose time is not known counts as at the launch, which is before
            # the rank's last event.
            rank.unfinished_ns = max(0, observed_end_ns - rank.wall_ns)
