"""Read the files of a run while they are written, and return what they tell as points.

Owns the names of the series. Steps are those of ``record.steps``: the slowest rank's time, the mean
loss of all samples. A step is complete when every rank has reported it. Times are those of each
machine's own clock.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import accumulate
from math import nan
from typing import TYPE_CHECKING

from trainmark.events.schema import (
    LAUNCHER_FILE,
    DevicesEvent,
    Evaluate,
    EventTail,
    Facts,
    Finished,
    HostEvent,
    Launch,
    Window,
    name_node_file,
    name_rank_file,
    name_telemetry_file,
)
from trainmark.export.followers.points import (
    EVAL_STEP,
    NS_PER_S,
    TRAIN_STEP,
    FollowedRun,
    Point,
    RunResult,
    describe_settings,
)
from trainmark.record.figures import find_peak, list_specs, name_column
from trainmark.record.record import RECORD_FILE, read_record

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from trainmark.plan.plan import Plan
    from trainmark.protocols.monitor import DeviceSample

_CHUNK_BYTES = 1 << 20
_GIB = 2**30
_INVALID = re.compile(r"[^A-Za-z0-9_.-]+")  # no backend takes more in a name


def format_name(words: str) -> str:
    """Return the name of a quality as a part of a series' name."""
    return _INVALID.sub("_", words).strip("_") or "value"


@dataclass(slots=True)
class StepSum:
    """A step as the ranks reported it until now."""

    num_ranks: int = 0
    step_ns: int = 0  # of the slowest rank
    loss_sum: float = 0.0
    samples: int = 0
    end_ns: int = 0  # on the clock of the first rank that reported it
    windows: list[Window] = field(default_factory=list)  # that end with this step

    def add(self, window: Window, offset: int, end_ns: int) -> None:
        """Take one rank's step: number ``offset`` of a window."""
        samples, loss = window.samples[offset], window.loss[offset]
        self.num_ranks += 1
        self.step_ns = max(self.step_ns, window.step_ns[offset])
        if samples:
            self.loss_sum += (nan if loss is None else loss) * samples
        self.samples += samples
        self.end_ns = self.end_ns or end_ns


class _Ranks:
    """What the ranks of a run report."""

    def __init__(self, plan: Plan, run_dir: Path) -> None:
        self._plan = plan
        self._tails = [
            EventTail(run_dir / name_rank_file(n), _CHUNK_BYTES) for n in range(plan.world_size)
        ]
        self._facts: dict[int, Facts] = {}
        self._steps: dict[int, StepSum] = {}  # incomplete ones, by number
        self._peak: float | None = None
        resumed = None if plan.resumed is None else plan.resumed.progress
        self._steps_before = 0 if resumed is None else resumed.steps
        self._samples = 0 if resumed is None else resumed.samples
        self.num_steps = self._steps_before  # handed out

    def read_new(self, shift_ns: int) -> tuple[list[Point], int]:
        """Return the points of the next chunks, and how many events were read.

        Args:
            shift_ns: what is added to a rank's clock to have the time since 1970.
        """
        points: list[Point] = []
        num_events = 0
        for rank, tail in enumerate(self._tails):
            for event in tail.read_new():
                num_events += 1
                if isinstance(event, Facts):
                    self._facts[rank] = event
                elif isinstance(event, Window):
                    self._add_window(event)
                elif isinstance(event, Evaluate) and rank == 0:
                    points.append(self._make_evaluation(event, shift_ns))
        return self._take_complete(shift_ns) + points, num_events

    def _add_window(self, window: Window) -> None:
        first = self._steps_before + window.first_step + 1
        # From the end backwards, because only the end of a window is a moment of the host.
        after_ns = list(accumulate(reversed(window.step_ns[1:]), initial=0))[::-1]
        for offset, rest_ns in enumerate(after_ns):
            step = self._steps.setdefault(first + offset, StepSum())
            step.add(window, offset, window.end_ns - rest_ns)
        step.windows.append(window)

    def _take_complete(self, shift_ns: int) -> list[Point]:
        complete = [n for n, x in self._steps.items() if x.num_ranks == self._plan.world_size]
        return [self._take_step(number, shift_ns) for number in sorted(complete)]

    def take_rest(self, shift_ns: int) -> list[Point]:
        """Return the steps that some ranks did not reach."""
        return [self._take_step(number, shift_ns) for number in sorted(self._steps)]

    def _take_step(self, number: int, shift_ns: int) -> Point:
        step = self._steps.pop(number)
        self.num_steps = number
        self._samples += step.samples
        values = {
            "train/loss": step.loss_sum / max(step.samples, 1),
            "train/samples": float(self._samples),
            "perf/step_time_seconds": step.step_ns / NS_PER_S,
        }
        if step.step_ns:
            values["perf/samples_per_second"] = step.samples * NS_PER_S / step.step_ns
        if len(step.windows) == step.num_ranks:
            values |= self._measure_window(step.windows, number)
        return Point(axis=TRAIN_STEP, number=number, unix_ns=step.end_ns + shift_ns, values=values)

    def _measure_window(self, windows: list[Window], number: int) -> dict[str, float]:
        """Return what is only known of a whole window, over all ranks that reported it."""
        values: dict[str, float] = {}
        steps_per_epoch = self._facts[0].steps_per_epoch if 0 in self._facts else 0
        if steps_per_epoch:
            values["train/epoch"] = number / steps_per_epoch
        duration_s = max(window.end_ns - window.start_ns for window in windows) / NS_PER_S
        tokens = sum(window.tokens for window in windows)
        if tokens and duration_s:
            values["perf/tokens_per_second"] = tokens / duration_s
            values["perf/tokens_per_second_per_device"] = tokens / duration_s / len(windows)
        flops = [window.model_flops for window in windows if window.model_flops is not None]
        if len(flops) == len(windows) and duration_s:
            rate = sum(flops) / duration_s / len(windows)
            values["perf/model_tflops_per_second_per_device"] = rate / 1e12
            peak = self._find_peak()
            if peak is not None:
                values["perf/mfu"] = 100 * rate / peak
        step_ns = sum(sum(window.step_ns) for window in windows)
        if step_ns:
            wait_ns = sum(sum(window.wait_ns) for window in windows)
            values["perf/data_wait_percent"] = 100 * wait_ns / step_ns
        used = [window.used_bytes for window in windows if window.used_bytes is not None]
        if used:
            of_processes = all(x.memory_scope == "process" for x in self._facts.values())
            values["memory/used_gib"] = (sum(used) if of_processes else max(used)) / _GIB
        return values

    def _find_peak(self) -> float | None:
        """Return the dense peak of a device in FLOP/s, if all ranks have the same one."""
        if self._peak is None:
            devices = [facts.device for facts in self._facts.values()]
            precision = self._plan.recipe["precision"]
            self._peak = find_peak(devices, precision, self._plan.peak_tflops).value
        return self._peak

    def _make_evaluation(self, event: Evaluate, shift_ns: int) -> Point:
        values = {
            "eval/time_seconds": (event.end_ns - event.start_ns) / NS_PER_S,
            "eval/samples": float(event.samples),
        }
        named = {self._plan.about.metric: event.value} | event.detail
        for kind, part in event.parts.items():
            named |= {f"{kind}_{name}": value for name, value in part.items()}
        for name, value in named.items():
            if value is not None:
                values[f"eval/{format_name(name)}"] = value
        number = self._steps_before + event.step
        return Point(axis=EVAL_STEP, number=number, unix_ns=event.end_ns + shift_ns, values=values)


class _Machine:
    """What the sampler and the launching process of one machine write."""

    def __init__(self, run_dir: Path, node: int | None, prefix: str) -> None:
        process_file = LAUNCHER_FILE if node is None else name_node_file(node)
        self._process = EventTail(run_dir / process_file, _CHUNK_BYTES)
        self._sampler = EventTail(run_dir / name_telemetry_file(node), _CHUNK_BYTES)
        self._prefix = prefix
        self._num_readings = {"host": 0, "gpu": 0}
        self.launch: Launch | None = None
        self.is_finished = False

    @property
    def shift_ns(self) -> int | None:
        """Return what is added to its clock to have the time since 1970; None: not known yet."""
        return None if self.launch is None else self.launch.unix_ns - self.launch.t_ns

    def read_new(self) -> tuple[list[Point], int]:
        """Return the points of the next chunk, and how many events were read."""
        events = self._process.read_new()
        for event in events:
            if isinstance(event, Launch):
                self.launch = event
            elif isinstance(event, Finished):
                self.is_finished = True
        if self.launch is None:
            return [], len(events)
        samples = self._sampler.read_new()
        points = [
            self._make_reading(sample)
            for sample in samples
            if isinstance(sample, DevicesEvent | HostEvent)
        ]
        return points, len(events) + len(samples)

    def _make_reading(self, event: DevicesEvent | HostEvent) -> Point:
        """Return a reading, dated to the middle of the time that it took."""
        assert self.launch is not None, "samples are read after the launch"
        if isinstance(event, HostEvent):
            kind, axis = "host", f"{self._prefix}reading"
            values = self._name_host_values(event)
        else:
            kind, axis = "gpu", f"{self._prefix}gpu/reading"
            values = {}
            for sample in event.devices:
                values |= self._name_device_values(sample)
        self._num_readings[kind] += 1
        unix_ns = event.t_ns - event.took_ns // 2 + self.launch.unix_ns - self.launch.t_ns
        return Point(axis=axis, number=self._num_readings[kind], unix_ns=unix_ns, values=values)

    def _name_host_values(self, event: HostEvent) -> dict[str, float]:
        used = event.memory_used_bytes
        known = {
            "cpu/utilization_percent": event.utilization_percent,
            "memory/used_gib": None if used is None else used / _GIB,
            "power_watts": event.power_w,
            "cpu/energy_joules": event.energy_j,
        }
        return {f"{self._prefix}{name}": x for name, x in known.items() if x is not None}

    def _name_device_values(self, sample: DeviceSample) -> dict[str, float]:
        used, total = sample.memory_used_bytes, sample.memory_total_bytes
        reasons = sample.throttle_reasons
        known = {
            "power_watts": sample.power_w,
            "temperature_celsius": sample.temperature_c,
            "utilization_percent": sample.utilization_percent,
            "clock_mhz": sample.clock_mhz,
            "memory_used_gib": None if used is None else used / _GIB,
            "memory_total_gib": None if total is None else total / _GIB,
            "energy_joules": sample.energy_j,
            "throttled": None if reasons is None else float(bool(reasons)),
        }
        device = f"{self._prefix}gpu{sample.index}"
        return {f"{device}/{name}": x for name, x in known.items() if x is not None}


class RunReader:
    """Reads one run from its beginning, from call to call."""

    def __init__(self, plan: Plan, run_dir: Path) -> None:
        self._plan = plan
        self._run_dir = run_dir
        self._ranks = _Ranks(plan, run_dir)
        self._launcher = _Machine(run_dir, None, "sys/")
        self._nodes = [
            _Machine(run_dir, node, f"sys/node{node}/") for node in range(plan.node_processes)
        ]

    @property
    def _machines(self) -> list[_Machine]:
        """Return the machines that have ranks; the first one's clock is that of the steps."""
        return self._nodes or [self._launcher]

    def iterate_new(self) -> Iterator[list[Point]]:
        """Yield what was written since the last call, in parts of bounded size."""
        while True:
            points: list[Point] = []
            num_events = 0
            for machine in (self._launcher, *self._nodes):
                new_points, num_new = machine.read_new()
                points += new_points
                num_events += num_new
            shift_ns = self._machines[0].shift_ns
            if shift_ns is not None:
                new_points, num_new = self._ranks.read_new(shift_ns)
                points += new_points
                num_events += num_new
            if points:
                yield points
            if num_events == 0:
                return

    @property
    def is_started(self) -> bool:
        """Tell whether the launcher's first event was read."""
        return self._launcher.launch is not None

    @property
    def waits_for_nodes(self) -> bool:
        """Tell whether a node of an engine's job has not reported its end."""
        return any(not node.is_finished for node in self._nodes)

    @property
    def num_steps(self) -> int:
        """Return the steps of the training that were read."""
        return self._ranks.num_steps

    def take_rest(self) -> list[Point]:
        """Return the last steps, which some ranks did not reach."""
        shift_ns = self._machines[0].shift_ns
        return [] if shift_ns is None else self._ranks.take_rest(shift_ns)

    def describe_run(self) -> FollowedRun:
        """Return the facts of a run that has started."""
        assert self._launcher.launch is not None, "only a run that has started is described"
        return FollowedRun(
            run_id=self._plan.run_id,
            case=self._plan.case,
            folder=self._run_dir,
            settings=describe_settings(self._plan),
            started_unix_ns=self._launcher.launch.unix_ns,
        )

    def read_result(self) -> RunResult | None:
        """Return how the run ended; None if it has no record.

        Raises:
            RecordError: the record cannot be read.
        """
        if not (self._run_dir / RECORD_FILE).exists():
            return None
        record = read_record(self._run_dir)
        specs = list_specs(record.plan.about.page)
        figures = {
            f"final/{name_column(name, entry.unit, specs.get(name))}": entry.value
            for name, entry in record.figures.items()
            if entry.value is not None
        }
        assert self._launcher.launch is not None, "a run with a record has started"
        wall_s = record.figure("e2e_time") or 0.0
        return RunResult(
            status=record.status,
            trust=record.trust.grade,
            number=self.num_steps,
            unix_ns=self._launcher.launch.unix_ns + round(wall_s * NS_PER_S),
            figures=figures,
        )
