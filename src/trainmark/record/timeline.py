"""Read a run's event files: spans and counts per rank, a series of steps for the run.

Owns the meaning of events. Reads one rank at a time and keeps only what the run's figures
need, so that a million steps on eight ranks fit in memory.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from trainmark.protocols import Counts, RankWork
from trainmark.rank.events import LAUNCHER_FILE, EventFile, rank_file
from trainmark.record.nodes import NodeTimeline, account, align, read_nodes
from trainmark.record.series import MOST_CELLS
from trainmark.record.shapes import read_event, read_event_unbounded
from trainmark.record.step_series import RankSteps, Series

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray


_NO_STEPS = np.empty(0, np.int64), np.empty(0, np.int64)
PHASES = ("compile", "warmup", "train")
SPAN_NAMES = (
    "launch", "init", "preflight", "data_build", "model_build", "check", "compile", "warmup",
    "train", "evaluate", "checkpoint", "finish", "unfinished",
)  # fmt: skip


@dataclass(slots=True)
class Phase:
    """Sums over the windows of one phase on one rank, and from when to when they are."""

    start_ns: int = 0  # of no meaning without steps, as is the end
    end_ns: int = 0
    windows_ns: int = 0
    windows: int = 0
    step_ns: int = 0
    wait_ns: int = 0
    steps: int = 0
    samples: int = 0
    sequences: int = 0
    tokens: int = 0
    tokens_padded: int = 0
    graphs_compiled: int = 0
    model_flops: float | None = 0.0  # None if a window has none
    parts_ns: Counter[str] = field(default_factory=Counter)

    def add(self, window: dict[str, Any]) -> None:
        """Take a ``window`` event."""
        self.start_ns = self.start_ns if self.steps else window["start_ns"]
        self.end_ns = window["end_ns"]
        self.windows_ns += window["end_ns"] - window["start_ns"]
        self.windows += 1
        self.step_ns += sum(window["step_ns"])
        self.wait_ns += sum(window["wait_ns"])
        self.steps += len(window["step_ns"])
        self.samples += sum(window["samples"])
        self.sequences += window["sequences"]
        self.tokens += window["tokens"]
        self.tokens_padded += window["tokens_padded"]
        flops = window["model_flops"]
        known = flops is not None and self.model_flops is not None
        self.model_flops = self.model_flops + flops if known else None
        self.graphs_compiled += window.get("graphs_compiled", 0)
        if "parts_ns" in window:
            self.parts_ns.update(window["parts_ns"])

    @property
    def counts(self) -> Counts:
        """Return what the phase trained."""
        return Counts(self.samples, self.sequences, self.tokens, self.tokens_padded)


@dataclass(slots=True)
class RankTimeline:
    """The contents of one rank's events."""

    rank: int
    start_ns: int | None = None
    end_ns: int | None = None
    last_ns: int | None = None
    pid: int | None = None
    spans_ns: Counter[str] = field(default_factory=Counter)
    phases: dict[str, Phase] = field(default_factory=lambda: {name: Phase() for name in PHASES})
    first_window_ns: int | None = None
    median_step_ns: float | None = None  # of the phase ``train``
    check_ns: int = 0  # of the span ``check`` within training
    samples_of_epochs: Counter[int] = field(default_factory=Counter)
    micro_batches: int = 0
    epochs: int = 0
    evaluations: list[dict[str, Any]] = field(default_factory=list)
    parameters: dict[str, Any] | None = None
    synced: dict[str, Any] | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    trained: dict[str, Any] = field(default_factory=dict)
    result: dict[str, Any] = field(default_factory=dict)
    error: dict[str, Any] | None = None
    used_bytes: int | None = None
    malformed_lines: int = 0
    torn: bool = False
    unfinished_ns: int = 0  # from the last event to the end that only the launcher saw

    @property
    def counts(self) -> Counts:
        """Return what this rank trained over all phases."""
        return sum((phase.counts for phase in self.phases.values()), Counts())

    @property
    def work(self) -> RankWork:
        """Return the data from which a case computes its own figures."""
        phase = self.phases["train"]
        return RankWork(
            counts=phase.counts,
            windows_ns=phase.windows_ns,
            wait_ns=phase.wait_ns,
            parts_ns=phase.parts_ns,
            facts=self.result.get("job") or {},
        )

    @property
    def steps(self) -> int:
        """Return the optimizer steps this rank reported."""
        return sum(phase.steps for phase in self.phases.values())

    @property
    def wait_ns(self) -> int:
        """Return the time lost to data over the whole training."""
        return sum(phase.wait_ns for phase in self.phases.values())

    @property
    def evaluate_ns(self) -> int:
        """Return the time in evaluations."""
        return self.spans_ns.get("evaluate", 0)

    @property
    def train_ns(self) -> int | None:
        """Return the time from training start to end, without the checks of parameters.

        If the rank did not finish, up to the end of its last window or evaluation.
        """
        if self.trained:
            start_ns, end_ns = self.trained["start_ns"], self.trained["end_ns"]
        else:
            ends = [x.end_ns for x in self.phases.values() if x.steps]
            ends += [event["end_ns"] for event in self.evaluations]
            start_ns, end_ns = self.first_window_ns, max(ends, default=None)
        if start_ns is None or end_ns is None:
            return None
        return int(end_ns - start_ns - self.check_ns)

    @property
    def target_reached(self) -> bool:
        """Tell whether the last evaluation reached the target."""
        return bool(self.evaluations and self.evaluations[-1]["target_reached"])

    def move(self, shift_ns: int) -> None:
        """Move every time to a clock that shows ``shift_ns`` more."""
        for name in ("start_ns", "end_ns", "last_ns", "first_window_ns"):
            if getattr(self, name) is not None:
                setattr(self, name, getattr(self, name) + shift_ns)
        for phase in self.phases.values():
            phase.start_ns += shift_ns
            phase.end_ns += shift_ns
        events = [self.trained, *self.evaluations, *filter(None, [self.error])]
        for event in filter(None, events):
            for name in ("t_ns", "start_ns", "end_ns"):
                if name in event:
                    event[name] += shift_ns

    def wall_ns(self, launch_ns: int) -> int | None:
        """Return the time from launcher start to this rank's last event or observed end."""
        return None if self.last_ns is None else self.last_ns + self.unfinished_ns - launch_ns

    def all_spans_ns(self, launch_ns: int) -> dict[str, int]:
        """Return every span by name, with ``other`` for the rest; they add up to the wall time."""
        spans = dict.fromkeys(SPAN_NAMES, 0)
        if self.start_ns is not None:
            spans["launch"] = self.start_ns - launch_ns
        spans |= self.spans_ns
        spans["unfinished"] = self.unfinished_ns
        for name, phase in self.phases.items():
            spans[name] += phase.windows_ns
        wall = self.wall_ns(launch_ns) or 0
        spans["other"] = wall - sum(spans.values())
        return spans

    def train_parts_ns(self) -> dict[str, int]:
        """Return the time of the windows of all phases, by stage."""
        windows = sum(phase.windows_ns for phase in self.phases.values())
        steps = sum(phase.step_ns for phase in self.phases.values())
        return {
            "data_wait": self.wait_ns,
            "compute": steps - self.wait_ns,
            "other": windows - steps,
        }


@dataclass(slots=True)
class RunTimeline:
    """The contents of all event files of a run directory."""

    ranks: list[RankTimeline]
    series: Series
    launcher: dict[str, dict[str, Any]]  # its events by their names
    launcher_malformed_lines: int = 0
    nodes: list[NodeTimeline] = field(default_factory=list)  # empty: one machine
    rank_steps: list[NDArray[np.int64]] | None = None  # times of each rank's; None: too many
    first_steps_ns: tuple[NDArray[np.int64], NDArray[np.int64]] = _NO_STEPS  # of rank 0

    @property
    def launch_ns(self) -> int:
        """Return when the launcher began, on the clock of all events."""
        return int(self.launcher["launch"]["t_ns"])

    @property
    def end_ns(self) -> int | None:
        """Return the last rank's end; of ranks that did not finish, as the launcher observed it."""
        ends = [rank.last_ns for rank in self.ranks if rank.last_ns is not None]
        if ends and not self.finished:
            ends += _seen_ns(self.launcher)
        return max(ends, default=None)

    @property
    def finished(self) -> bool:
        """Tell whether every rank reported its end."""
        return all(rank.end_ns is not None for rank in self.ranks)

    @property
    def others_cpu_share(self) -> float | None:
        """Return the share of the machine's cores that other work used during the run."""
        share: float | None = self.launcher.get("agent_exit", {}).get("others_cpu_share")
        return share

    @property
    def counts(self) -> Counts:
        """Return the sum of the ranks' counts."""
        return sum((rank.counts for rank in self.ranks), Counts())

    @property
    def warmup_steps(self) -> int:
        """Return the steps before the ``train`` phase, of the rank that trained most steps."""
        return max(rank.steps - rank.phases["train"].steps for rank in self.ranks)


def read_rank(run_dir: Path, rank: int) -> tuple[RankTimeline, RankSteps]:
    """Read one rank's file, also its steps; a missing file is a rank that never started.

    Raises:
        OSError: an unreadable file.
    """
    path = run_dir / rank_file(rank)
    if not path.exists():
        return RankTimeline(rank), RankSteps()
    try:
        timeline, steps = _read_rank(EventFile(path, read_event_unbounded), rank)
        if steps.within_bounds():
            return timeline, steps
    except OverflowError:  # a number beyond 64 bits
        pass
    return _read_rank(EventFile(path, read_event), rank)


def _read_rank(events: EventFile, rank: int) -> tuple[RankTimeline, RankSteps]:
    timeline, steps = RankTimeline(rank), RankSteps()
    for event in events:
        timeline.last_ns = event["t_ns"]
        match event["event"]:
            case "window":
                _add_window(timeline, event)
                steps.add(event)
            case "span":
                timeline.spans_ns[event["name"]] += event["end_ns"] - event["start_ns"]
            case "start":
                timeline.start_ns, timeline.pid = event["t_ns"], event["pid"]
            case "synced":
                timeline.synced = event
            case "facts":
                timeline.facts = event
            case "evaluate":
                timeline.evaluations.append(event)
                timeline.spans_ns["evaluate"] += event["end_ns"] - event["start_ns"]
            case "trained":
                timeline.trained = event
                timeline.epochs = event["epochs"]
                _add_check(timeline, event)
            case "parameters":
                timeline.parameters = event
            case "result":
                timeline.result = event
                timeline.used_bytes = event["used_bytes"]
            case "error":
                timeline.error = event
            case "end":
                timeline.end_ns = event["t_ns"]
    timeline.malformed_lines, timeline.torn = events.malformed_lines, events.torn
    timeline.median_step_ns = steps.median_ns(timeline.phases["train"].steps)
    return timeline, steps


def read_ranks(run_dir: Path, world_size: int) -> RunTimeline:
    """Read the files of all ranks and merge their steps in the order of their numbers."""
    run = RunTimeline([], Series.empty(), {}, rank_steps=[])
    cells = 0
    for rank in range(world_size):
        timeline, steps = read_rank(run_dir, rank)
        if rank == 0:
            run.first_steps_ns = steps.edges_ns()
        run.ranks.append(timeline)
        of_rank = Series.of_rank(steps)
        run.series.add(of_rank)
        cells += timeline.steps
        if run.rank_steps is not None:
            run.rank_steps.append(of_rank.step_ns)
            run.rank_steps = run.rank_steps if cells <= MOST_CELLS else None
    return run


def _add_window(timeline: RankTimeline, event: dict[str, Any]) -> None:
    timeline.phases[event["phase"]].add(event)
    if timeline.first_window_ns is None:
        timeline.first_window_ns = event["start_ns"]
    timeline.epochs = event["epoch"] + 1
    timeline.samples_of_epochs[event["epoch"]] += sum(event["samples"])
    timeline.micro_batches += event["micro_batches"]
    timeline.used_bytes = event["used_bytes"]
    if "check_ns" in event:
        _add_check(timeline, event)


def _add_check(timeline: RankTimeline, event: dict[str, Any]) -> None:
    """Add the time of the parameter checks between windows, which belongs to no window."""
    spent_ns = event.get("check_ns", 0)
    timeline.check_ns += spent_ns
    timeline.spans_ns["check"] += spent_ns


def read_run(run_dir: Path, world_size: int, nodes: int = 0) -> RunTimeline:
    """Read every event file of ``run_dir``; a missing one is a rank that never started.

    Args:
        nodes: that had a node process; 0: the launcher started the ranks itself.

    Raises:
        OSError: no launcher's events, or an unreadable file.
        KeyError: the launcher's events have no launch.
    """
    launcher_file = EventFile(run_dir / LAUNCHER_FILE, read_event)
    launcher = {event["event"]: event for event in launcher_file}
    if "launch" not in launcher:
        raise KeyError("launch")
    run = read_ranks(run_dir, world_size)
    ranks = run.ranks
    of_nodes = read_nodes(run_dir, nodes, world_size // nodes) if nodes else []
    align(of_nodes, [rank.synced for rank in ranks])
    for node in of_nodes:
        for rank in node.ranks:
            ranks[rank].move(node.shift_ns)
    launcher = account(launcher, of_nodes, run_dir)
    starts = [rank.start_ns for rank in ranks if rank.start_ns is not None]
    if of_nodes and starts and not any("launch" in node.events for node in of_nodes):
        # The launcher's clock is another machine's.
        launcher["launch"] = launcher["launch"] | {"t_ns": min(starts)}
    seen_ns = _seen_ns(launcher)
    for item in ranks:
        silent = item.end_ns is None and item.error is None and item.last_ns is not None
        if silent and seen_ns:
            item.unfinished_ns = max(0, min(seen_ns) - (item.last_ns or 0))
    malformed = launcher_file.malformed_lines + sum(node.malformed_lines for node in of_nodes)
    return replace(run, launcher=launcher, launcher_malformed_lines=malformed, nodes=of_nodes)


def _seen_ns(launcher: dict[str, dict[str, Any]]) -> list[int]:
    """Return when the launcher stopped the ranks and when it saw them end, where it did."""
    return [launcher[name]["t_ns"] for name in ("stop", "agent_exit") if name in launcher]
