"""Read a run's event files into numbers: spans and counts a rank, series a job.

Owns the meaning of events. Works through one rank at a time and keeps only what the job
needs of it, so that a million steps on eight ranks fit in memory.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from trainmark.measure.events import LAUNCHER_FILE, EventFile, rank_file
from trainmark.measure.shapes import read_event
from trainmark.measure.step_series import RankSteps, Series
from trainmark.protocols import Counts

if TYPE_CHECKING:
    from pathlib import Path


PHASES = ("compile", "warmup", "train")
SPAN_NAMES = (
    "launch", "init", "preflight", "data_build", "model_build", "check", "compile", "warmup",
    "train", "evaluate", "checkpoint", "finish", "unfinished",
)  # fmt: skip


@dataclass(slots=True)
class Phase:
    """Sums over the windows of one phase on one rank."""

    windows_ns: int = 0
    step_ns: int = 0
    wait_ns: int = 0
    steps: int = 0
    samples: int = 0
    sequences: int = 0
    tokens: int = 0
    tokens_padded: int = 0
    model_flops: float | None = 0.0
    parts_ns: dict[str, int] = field(default_factory=dict)

    @property
    def counts(self) -> Counts:
        """Return what the phase trained."""
        return Counts(self.samples, self.sequences, self.tokens, self.tokens_padded)


@dataclass(slots=True)
class RankTimeline:
    """What one rank's events say."""

    rank: int
    start_ns: int | None = None
    end_ns: int | None = None
    last_ns: int | None = None
    pid: int | None = None
    spans_ns: dict[str, int] = field(default_factory=dict)
    phases: dict[str, Phase] = field(default_factory=lambda: {name: Phase() for name in PHASES})
    trained_ns: int | None = None
    trained_start_ns: int | None = None
    trained_steps: int | None = None
    trained_samples: int | None = None
    trained_evaluations: int | None = None
    trained_check_ns: int = 0  # of the span ``check`` within training
    whole_epochs: int = 0
    samples_of_epochs: dict[int, int] = field(default_factory=dict)
    parameters: dict[str, Any] | None = None
    micro_batches: int = 0
    epochs: int = 0
    target_reached: bool = False
    evaluations: list[dict[str, Any]] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
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
        """Return training start to end, our own checks left out.

        Up to the last event when the rank did not finish.
        """
        if self.trained_ns is not None:
            return self.trained_ns - self.trained_check_ns
        if self.trained_start_ns is None or self.last_ns is None:
            return None
        return self.last_ns - self.trained_start_ns - self.trained_check_ns

    def wall_ns(self, launch_ns: int) -> int | None:
        """Return launcher start to this rank's last event, or to where it was seen to end."""
        return None if self.last_ns is None else self.last_ns + self.unfinished_ns - launch_ns

    def all_spans_ns(self, launch_ns: int) -> dict[str, int]:
        """Return every span by name, ``other`` the rest of the wall time, adding up to it."""
        spans = dict.fromkeys(SPAN_NAMES, 0)
        if self.start_ns is not None:
            spans["launch"] = self.start_ns - launch_ns
        for name, value in self.spans_ns.items():
            spans[name] = spans.get(name, 0) + value
        spans["unfinished"] = self.unfinished_ns
        for name, phase in self.phases.items():
            spans[name] += phase.windows_ns
        wall = self.wall_ns(launch_ns) or 0
        spans["other"] = wall - sum(spans.values())
        return spans

    def train_parts_ns(self) -> dict[str, int]:
        """Return what the windows of all phases were spent on."""
        windows = sum(phase.windows_ns for phase in self.phases.values())
        steps = sum(phase.step_ns for phase in self.phases.values())
        return {
            "data_wait": self.wait_ns,
            "compute": steps - self.wait_ns,
            "other": windows - steps,
        }


@dataclass(slots=True)
class RunTimeline:
    """What all event files of a run directory say."""

    launch_ns: int
    launch_unix_ns: int
    ranks: list[RankTimeline]
    series: Series
    launcher: list[dict[str, Any]]
    launcher_malformed_lines: int = 0

    @property
    def end_ns(self) -> int | None:
        """Return the last rank's end; where one did not finish, what the launcher saw of it."""
        ends = [rank.last_ns for rank in self.ranks if rank.last_ns is not None]
        if ends and not self.finished:
            ends += [e["t_ns"] for e in self.launcher if e["event"] in ("stop", "agent_exit")]
        return max(ends, default=None)

    @property
    def finished(self) -> bool:
        """Tell whether every rank reported its end."""
        return all(rank.end_ns is not None for rank in self.ranks)

    @property
    def others_cpu_share(self) -> float | None:
        """Return the share of the machine's cores that other work used during the run."""
        for event in self.launcher:
            if event["event"] == "agent_exit":
                share: float | None = event.get("others_cpu_share")
                return share
        return None

    @property
    def counts(self) -> Counts:
        """Return the sum of the ranks' counts."""
        return sum((rank.counts for rank in self.ranks), Counts())

    @property
    def warmup_steps(self) -> int:
        """Return the steps before the ``train`` phase, as the rank that came furthest has them."""
        return max(rank.steps - rank.phases["train"].steps for rank in self.ranks)


def read_rank(path: Path, rank: int, series: Series) -> RankTimeline:
    """Read one rank's file, merging its steps into ``series``."""
    timeline = RankTimeline(rank)
    steps = RankSteps()
    events = EventFile(path, read_event)
    for event in events:
        timeline.last_ns = event["t_ns"]
        match event["event"]:
            case "parameters":
                timeline.parameters = event
            case "window":
                _add_window(timeline, event)
                steps.add(event)
            case "span":
                name = event["name"]
                spent = event["end_ns"] - event["start_ns"]
                timeline.spans_ns[name] = timeline.spans_ns.get(name, 0) + spent
            case "start":
                timeline.start_ns, timeline.pid = event["t_ns"], event["pid"]
            case "facts":
                timeline.facts = event
            case "evaluate":
                timeline.evaluations.append(event)
                spent = event["end_ns"] - event["start_ns"]
                timeline.spans_ns["evaluate"] = timeline.spans_ns.get("evaluate", 0) + spent
                timeline.target_reached = event["target_reached"]
            case "trained":
                timeline.trained_ns = event["end_ns"] - event["start_ns"]
                timeline.trained_start_ns = event["start_ns"]
                timeline.trained_steps = event["steps"]
                timeline.trained_samples = event.get("samples")
                timeline.trained_evaluations = event.get("evaluations")
                timeline.epochs = event["epochs"]
                timeline.whole_epochs = event.get("whole_epochs", 0)
                _add_check(timeline, event)
            case "result":
                timeline.result = event
                timeline.used_bytes = event["used_bytes"]
            case "error":
                timeline.error = event
            case "end":
                timeline.end_ns = event["t_ns"]
    timeline.malformed_lines, timeline.torn = events.malformed_lines, events.torn
    series.add_rank(steps)
    return timeline


def _add_window(timeline: RankTimeline, event: dict[str, Any]) -> None:
    phase = timeline.phases[event["phase"]]
    phase.windows_ns += event["end_ns"] - event["start_ns"]
    phase.step_ns += sum(event["step_ns"])
    phase.wait_ns += sum(event["wait_ns"])
    phase.steps += len(event["step_ns"])
    phase.samples += sum(event["samples"])
    phase.sequences += event["sequences"]
    phase.tokens += event["tokens"]
    phase.tokens_padded += event["tokens_padded"]
    flops = event["model_flops"]
    phase.model_flops = (
        None if flops is None or phase.model_flops is None else phase.model_flops + flops
    )
    for name, spent_ns in event.get("parts_ns", {}).items():
        phase.parts_ns[name] = phase.parts_ns.get(name, 0) + spent_ns
    if timeline.trained_start_ns is None:
        timeline.trained_start_ns = event["start_ns"]
    timeline.epochs = event["epoch"] + 1
    of_epochs, epoch = timeline.samples_of_epochs, event["epoch"]
    of_epochs[epoch] = of_epochs.get(epoch, 0) + sum(event["samples"])
    _add_check(timeline, event)
    timeline.micro_batches += event["micro_batches"]
    timeline.used_bytes = event["used_bytes"]


def _add_check(timeline: RankTimeline, event: dict[str, Any]) -> None:
    """Take the time of our own checks between windows, which no window holds."""
    spent_ns = event.get("check_ns", 0)
    timeline.trained_check_ns += spent_ns
    timeline.spans_ns["check"] = timeline.spans_ns.get("check", 0) + spent_ns


def read_run(run_dir: Path, world_size: int) -> RunTimeline:
    """Read every event file of ``run_dir``; a missing one is a rank that never started.

    Raises:
        OSError: no launcher's events, or a file that cannot be read.
        StopIteration: the launcher's events do not begin with a launch.
    """
    launcher_file = EventFile(run_dir / LAUNCHER_FILE, read_event)
    launcher = list(launcher_file)
    start = next(event for event in launcher if event["event"] == "launch")
    series = Series.empty()
    ranks = []
    for rank in range(world_size):
        path = run_dir / rank_file(rank)
        ranks.append(read_rank(path, rank, series) if path.exists() else RankTimeline(rank))
    seen = [event["t_ns"] for event in launcher if event["event"] in ("stop", "agent_exit")]
    for item in ranks:
        silent = item.end_ns is None and item.error is None and item.last_ns is not None
        if silent and seen:
            item.unfinished_ns = max(0, seen[0] - (item.last_ns or 0))
    return RunTimeline(
        start["t_ns"], start["unix_ns"], ranks, series, launcher, launcher_file.malformed_lines
    )
