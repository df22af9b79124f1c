"""Read the files of a run while they are written, and return their content as points.

Owns the names of the series. Steps are those of ``record.steps``: the slowest rank's time, the mean
loss of all samples. A step is complete when every rank has reported it. Events have the time of
their machine's monotonic clock; the launch event of each machine has the time since 1970 too, and
what must be added to the monotonic clock to have it is the machine's shift.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from math import nan
from typing import TYPE_CHECKING, NamedTuple

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
_INVALID = re.compile(r"[^A-Za-z0-9_.-]+")  # no backend accepts other characters in a name


def format_name(words: str) -> str:
    """Return the name of a quality as a part of a series' name; ``value`` if nothing is left."""
    return _INVALID.sub("_", words).strip("_") or "value"


class _NewPoints(NamedTuple):
    """The points of the events that were read, and how many events these were.

    Not every event gives a point: nothing is left to read only if there were no events.
    """

    points: list[Point]
    num_events: int


@dataclass(slots=True)
class StepSum:
    """A step as the ranks reported it until now.

    Attributes:
        num_ranks: number of ranks that have reported the step.
        slowest_ns: time of the slowest of them.
        loss_sum: sum of the losses over the samples.
        samples: samples of these ranks.
        lowest_rank: the lowest rank that reported the step; None: no rank did.
        end_ns: end of the step on the clock of ``lowest_rank``.
        ended_windows: windows of ranks that end with this step; a window is some steps that a rank
            reports together.
    """

    num_ranks: int = 0
    slowest_ns: int = 0
    loss_sum: float = 0.0
    samples: int = 0
    lowest_rank: int | None = None
    end_ns: int = 0
    ended_windows: list[Window] = field(default_factory=list)

    def add(self, rank: int, window: Window, offset: int, end_ns: int) -> None:
        """Add one rank's part of this step.

        Args:
            rank: number of the rank.
            window: steps of the rank that it reported together; its lists have an entry for each.
            offset: index of this step in the window.
            end_ns: end of this step on the rank's clock.
        """
        samples = window.samples[offset]
        loss = window.loss[offset]  # mean over the rank's samples
        self.num_ranks += 1
        self.slowest_ns = max(self.slowest_ns, window.step_ns[offset])
        if samples:  # a rank without samples has no loss
            # None: the loss is not finite. Then the sum over all ranks is not finite either.
            self.loss_sum += (nan if loss is None else loss) * samples
        self.samples += samples
        # Ranks on other machines have other clocks, so one rank gives the end of the step: the
        # lowest one that reports it. For a step that all ranks report, it is rank 0.
        if self.lowest_rank is None or rank < self.lowest_rank:
            self.lowest_rank = rank
            self.end_ns = end_ns


class _Ranks:
    """Reads what the ranks of a run report, and makes points of it.

    A rank reports its steps in windows, some steps together. A point has values of all ranks at one
    time, such as the loss of a step.

    Attributes:
        num_steps: number of the last step that was returned as a point.
        _tails: for each rank, reads the events that were added to its file since the last call.
        _peak_flops_per_s: dense peak of one device; None: not looked up yet, or not known.
        _facts_by_rank: what each rank reported of its device before the training.
        _steps: steps that not all ranks have reported yet, by number.
        _samples_so_far: samples of the steps that were returned as points.
        _num_earlier_steps: steps of the run that this one resumes; 0: it resumes none.
    """

    def __init__(self, plan: Plan, run_dir: Path) -> None:
        self._plan = plan
        self._tails = [
            EventTail(run_dir / name_rank_file(rank), _CHUNK_BYTES)
            for rank in range(plan.world_size)
        ]
        self._facts_by_rank: dict[int, Facts] = {}
        self._steps: dict[int, StepSum] = {}
        self._peak_flops_per_s: float | None = None
        # A run that resumes an earlier one counts on from the steps and samples of that.
        progress = None if plan.resumed is None else plan.resumed.progress
        self._num_earlier_steps = 0 if progress is None else progress.steps
        self._samples_so_far = 0 if progress is None else progress.samples
        self.num_steps = self._num_earlier_steps

    def read_new(self, shift_ns: int) -> _NewPoints:
        """Read a chunk of each rank's events; return the points of steps, then of evaluations.

        The number of events that were read is returned too: 0 tells the caller that all is read.
        A rank reports facts of its device once before the training (``Facts``), then the steps
        between two synchronisations (``Window``) and the evaluations (``Evaluate``).

        Args:
            shift_ns: what is added to the clock of the first machine with ranks to have the time
                since 1970. Rank 0, which gives the times of points, is on this machine.
        """
        evaluations: list[Point] = []
        num_events = 0
        for rank, tail in enumerate(self._tails):
            for event in tail.read_new():
                num_events += 1
                if isinstance(event, Facts):
                    self._facts_by_rank[rank] = event
                elif isinstance(event, Window):
                    self._add_window(rank, event)
                elif isinstance(event, Evaluate) and rank == 0:  # all ranks report the same
                    evaluations.append(self._make_evaluation(event, shift_ns))
        steps = self._take_complete_steps(shift_ns)
        return _NewPoints(steps + evaluations, num_events)

    def _add_window(self, rank: int, window: Window) -> None:
        """Add the steps of one rank's window.

        The host reads no clock between the steps of a window. So the ends of its steps are computed
        from the end of the window backwards.

        Args:
            rank: number of the rank.
            window: the steps between two synchronisations; its lists have an entry for each step.
        """
        # ``first_step``: number of steps of this run before the window. If the run resumes an
        # earlier one, steps are counted on from that.
        first_number = self._num_earlier_steps + window.first_step + 1
        last_offset = len(window.step_ns) - 1
        end_ns = window.end_ns
        for offset in range(last_offset, -1, -1):
            step = self._steps.setdefault(first_number + offset, StepSum())
            step.add(rank, window, offset, end_ns)
            end_ns -= window.step_ns[offset]
        # The point of this step also gets what is only known of the whole window, such as the MFU.
        self._steps[first_number + last_offset].ended_windows.append(window)

    def _take_complete_steps(self, shift_ns: int) -> list[Point]:
        """Remove the steps that all ranks have reported, and return their points in order.

        Args:
            shift_ns: what is added to a time of the ranks' events to have the time since 1970.
        """
        world_size = self._plan.world_size
        complete = [n for n, step in self._steps.items() if step.num_ranks == world_size]
        return [self._take_step(number, shift_ns) for number in sorted(complete)]

    def take_rest(self, shift_ns: int) -> list[Point]:
        """Remove the steps that some ranks did not reach, and return their points in order.

        Args:
            shift_ns: what is added to a time of the ranks' events to have the time since 1970.
        """
        return [self._take_step(number, shift_ns) for number in sorted(self._steps)]

    def _take_step(self, number: int, shift_ns: int) -> Point:
        """Remove a step, and return its point.

        Args:
            number: of the step.
            shift_ns: what is added to a time of the ranks' events to have the time since 1970.
        """
        step = self._steps.pop(number)
        self.num_steps = number
        self._samples_so_far += step.samples
        values = {
            # `loss_sum` is over the samples of all ranks; it is 0 if there are none.
            "train/loss": step.loss_sum / max(step.samples, 1),
            "train/samples": float(self._samples_so_far),
            "perf/step_time_seconds": step.slowest_ns / NS_PER_S,
        }
        if step.slowest_ns:
            values["perf/samples_per_second"] = step.samples * NS_PER_S / step.slowest_ns
        if len(step.ended_windows) == step.num_ranks:
            # The step is the last one of a window on each rank that reported it.
            values |= self._measure_window(step.ended_windows, number)
        return Point(axis=TRAIN_STEP, number=number, unix_ns=step.end_ns + shift_ns, values=values)

    def _measure_window(self, windows: list[Window], number: int) -> dict[str, float]:
        """Return values that are only known of a whole window, by the names of their series.

        Args:
            windows: the same window on each rank that reported it.
            number: number of the last step in the window.
        """
        values: dict[str, float] = {}
        # What rank 0 reported before the training. Its number of steps is 0 if it is not known.
        facts = self._facts_by_rank.get(0)
        steps_per_epoch = 0 if facts is None else facts.steps_per_epoch
        if steps_per_epoch:
            values["train/epoch"] = number / steps_per_epoch
        values |= self._measure_rates(windows)
        step_ns = sum(sum(window.step_ns) for window in windows)
        if step_ns:
            wait_ns = sum(sum(window.wait_ns) for window in windows)
            values["perf/data_wait_percent"] = 100 * wait_ns / step_ns
        used_bytes = [window.used_bytes for window in windows if window.used_bytes is not None]
        if used_bytes:
            # `memory_scope`: whether a rank reports the memory of its process or of its whole
            # device. As in a record, memory of processes adds up, and of devices the highest use
            # counts.
            is_of_processes = all(
                rank_facts.memory_scope == "process" for rank_facts in self._facts_by_rank.values()
            )
            total_bytes = sum(used_bytes) if is_of_processes else max(used_bytes)
            values["memory/used_gib"] = total_bytes / _GIB
        return values

    def _measure_rates(self, windows: list[Window]) -> dict[str, float]:
        """Return tokens and model FLOPs a second, and the MFU, as far as they are known.

        Args:
            windows: the same window on each rank, of which each has one device.
        """
        values: dict[str, float] = {}
        # As in a record, the time of the slowest rank counts.
        duration_s = max(window.end_ns - window.start_ns for window in windows) / NS_PER_S
        if not duration_s:
            return values
        tokens = sum(window.tokens for window in windows)
        if tokens:
            values["perf/tokens_per_second"] = tokens / duration_s
            values["perf/tokens_per_second_per_device"] = tokens / duration_s / len(windows)
        flops = [window.model_flops for window in windows if window.model_flops is not None]
        if len(flops) == len(windows):
            flop_rate = sum(flops) / duration_s / len(windows)
            values["perf/model_tflops_per_second_per_device"] = flop_rate / 1e12
            peak = self._find_peak()
            if peak is not None:
                values["perf/mfu"] = 100 * flop_rate / peak
        return values

    def _find_peak(self) -> float | None:
        """Return the dense peak of a device in FLOP/s; None: it is not known, or devices differ."""
        if self._peak_flops_per_s is None:
            # By now all ranks have reported their device, which they do before the first window.
            devices = [facts.device for facts in self._facts_by_rank.values()]
            # The peak in TFLOP/s that the user gave; None: the published one is looked up.
            given_tflops = self._plan.peak_tflops
            # A figure in FLOP/s, whose value is None if the peak is not known.
            peak = find_peak(devices, self._plan.recipe["precision"], given_tflops)
            self._peak_flops_per_s = peak.value
        return self._peak_flops_per_s

    def _make_evaluation(self, event: Evaluate, shift_ns: int) -> Point:
        """Return the point of an evaluation: its time, its samples and all its qualities.

        Args:
            event: times and results of the evaluation; a quality is None if it has no value.
            shift_ns: what is added to a time of the ranks' events to have the time since 1970.
        """
        values = {
            "eval/time_seconds": (event.end_ns - event.start_ns) / NS_PER_S,
            "eval/samples": float(event.samples),
        }
        # `metric` names the quality on which the case's target is set; `detail` has further ones.
        qualities = {self._plan.about.metric: event.value} | event.detail
        # `parts`: the quality of groups of the evaluated samples, by kind of group and then by name
        # of the group.
        for kind, qualities_of_groups in event.parts.items():
            for name, value in qualities_of_groups.items():
                qualities[f"{kind}_{name}"] = value
        for name, value in qualities.items():
            if value is not None:
                values[f"eval/{format_name(name)}"] = value
        # A run that resumes another counts on from the steps of the earlier one.
        number = self._num_earlier_steps + event.step
        return Point(axis=EVAL_STEP, number=number, unix_ns=event.end_ns + shift_ns, values=values)


class _Machine:
    """Reads what the sampler and the launching process of one machine write.

    The sampler is a process that reads the devices and the host once a second.

    Args:
        node: number of the machine in the job of a cluster's scheduler; None: the machine of the
            launcher.
        prefix: of the names of its series, ``sys/`` or ``sys/node0/``.

    Attributes:
        launch: the event with which it began; None: it was not read yet.
        is_finished: it has reported its end.
        _num_readings: number of points so far, of the host and of the devices.
    """

    def __init__(self, run_dir: Path, node: int | None, prefix: str) -> None:
        # Two processes of the machine write a file of events each: the one that starts its ranks,
        # and the one that samples its devices. `node` is the machine's number; None: the machine of
        # the launcher.
        process_file = LAUNCHER_FILE if node is None else name_node_file(node)
        self._process_events = EventTail(run_dir / process_file, _CHUNK_BYTES)
        self._sampler_events = EventTail(run_dir / name_telemetry_file(node), _CHUNK_BYTES)
        self._prefix = prefix  # of the names of the machine's series, for example `sys/node0/`
        self._num_readings = {"host": 0, "gpu": 0}  # so far; they number the points of each kind
        self.launch: Launch | None = None  # the event of its launch; None: not read yet
        self.is_finished = False  # whether the process that starts the ranks has reported its end

    @property
    def shift_ns(self) -> int | None:
        """Return what is added to the machine's monotonic clock to have the time since 1970.

        The launch event has both times. None: this event was not read yet.
        """
        return None if self.launch is None else self.launch.unix_ns - self.launch.t_ns

    def read_new(self) -> _NewPoints:
        """Read a chunk of each of the two files of the machine, and return the sampler's points.

        One file is of the process that starts the ranks, the other of the sampler, which reads the
        devices and the host. The sampler's file is read only after the launch event. This event has
        the time since 1970, from which the points get theirs.
        """
        events = self._process_events.read_new()
        for event in events:
            if isinstance(event, Launch):
                self.launch = event
            elif isinstance(event, Finished):
                self.is_finished = True
        if self.launch is None:
            return _NewPoints([], len(events))  # the number tells whether there may be more to read
        samples = self._sampler_events.read_new()
        points = [
            self._make_reading(sample)
            for sample in samples
            if isinstance(sample, DevicesEvent | HostEvent)
        ]
        return _NewPoints(points, len(events) + len(samples))

    def _make_reading(self, event: DevicesEvent | HostEvent) -> Point:
        """Return the point of a reading, at the middle of the time that the reading took.

        Args:
            event: a reading of all devices of the machine, or of the host, at its end.
        """
        shift_ns = self.shift_ns
        assert shift_ns is not None, "samples are read after the launch"
        # The host and the devices are read independently, so each has an axis that numbers its
        # readings. All devices share one axis. With the prefix `sys/`, which names the machine, the
        # axis of the host is `sys/reading`, and that of the devices `sys/gpu/reading`.
        if isinstance(event, HostEvent):
            kind = "host"
            axis = f"{self._prefix}reading"
            values = self._name_host_values(event)
        else:
            kind = "gpu"
            axis = f"{self._prefix}gpu/reading"
            values = {}
            for sample in event.devices:
                values |= self._name_device_values(sample)
        self._num_readings[kind] += 1
        unix_ns = event.t_ns - event.took_ns // 2 + shift_ns
        return Point(axis=axis, number=self._num_readings[kind], unix_ns=unix_ns, values=values)

    def _name_host_values(self, event: HostEvent) -> dict[str, float]:
        """Return the values of a reading of the host by the names of their series.

        The names begin with the prefix of the machine, such as ``sys/``. Values that the host does
        not report are None, and get no series.
        """
        used_bytes = event.memory_used_bytes
        readings = {
            "cpu/utilization_percent": event.utilization_percent,
            "memory/used_gib": None if used_bytes is None else used_bytes / _GIB,
            "power_watts": event.power_w,  # of the whole machine
            "cpu/energy_joules": event.energy_j,
        }
        return {f"{self._prefix}{name}": x for name, x in readings.items() if x is not None}

    def _name_device_values(self, sample: DeviceSample) -> dict[str, float]:
        """Return the values of a reading of a device by the names of their series.

        The names begin with the prefix of the machine, such as ``sys/``. Values that the device
        does not report are None, and get no series.
        """
        used_bytes = sample.memory_used_bytes
        total_bytes = sample.memory_total_bytes
        reasons = sample.throttle_reasons
        readings = {
            "power_watts": sample.power_w,
            "temperature_celsius": sample.temperature_c,
            "utilization_percent": sample.utilization_percent,
            "clock_mhz": sample.clock_mhz,
            "memory_used_gib": None if used_bytes is None else used_bytes / _GIB,
            "memory_total_gib": None if total_bytes is None else total_bytes / _GIB,
            "energy_joules": sample.energy_j,
            # 1 if the device gives any reason for which it is throttled, else 0.
            "throttled": None if reasons is None else float(bool(reasons)),
        }
        device = f"{self._prefix}gpu{sample.index}"
        return {f"{device}/{name}": x for name, x in readings.items() if x is not None}


class RunReader:
    """Reads the points of one run from its events; each call returns what was added since.

    Attributes:
        _ranks: reads the events of the ranks.
        _launcher: reads those of the machine from which the run was launched.
        _nodes: read those of each machine if a cluster's scheduler started the run; else empty.
    """

    def __init__(self, plan: Plan, run_dir: Path) -> None:
        self._plan = plan
        self._run_dir = run_dir
        # Ranks write events, and so do other processes on the launcher's machine and on each node.
        # The prefix begins the names of a machine's series. `node_processes` is 0 if the launcher
        # itself starts the ranks: then there are no nodes.
        self._ranks = _Ranks(plan, run_dir)
        self._launcher = _Machine(run_dir, node=None, prefix="sys/")
        self._nodes = [
            _Machine(run_dir, node=node, prefix=f"sys/node{node}/")
            for node in range(plan.node_processes)
        ]

    @property
    def _rank_shift_ns(self) -> int | None:
        """What is added to the times of ranks' events to have the time since 1970.

        Points of steps have the time of rank 0, which is on the first node, or on the launcher's
        machine if there are no nodes. None: the launch event of this machine was not read yet.
        """
        first_machine = self._nodes[0] if self._nodes else self._launcher
        return first_machine.shift_ns

    def iterate_new(self) -> Iterator[list[Point]]:
        """Yield what was written since the last call, in parts of bounded size.

        The ranks' events wait until their time since 1970 can be computed.
        """
        while True:
            points: list[Point] = []
            num_events = 0
            for machine in (self._launcher, *self._nodes):
                new = machine.read_new()
                points += new.points
                num_events += new.num_events
            shift_ns = self._rank_shift_ns
            if shift_ns is not None:
                new = self._ranks.read_new(shift_ns)
                points += new.points
                num_events += new.num_events
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
        """Tell whether a node has not reported its end; False if the launcher starts all ranks."""
        return any(not node.is_finished for node in self._nodes)

    @property
    def num_steps(self) -> int:
        """Return the number of the last step whose point this reader has returned."""
        return self._ranks.num_steps

    def take_rest(self) -> list[Point]:
        """Return the points of the last steps, which some ranks did not reach."""
        # What is added to the times of steps, which are on a machine's monotonic clock, to have the
        # time since 1970. None: it is not known, and until then no event of a rank is read.
        shift_ns = self._rank_shift_ns
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
        # By name of a figure, its declaration, which may name its column in tables: the figures of
        # all cases, and those that the result page of this case adds.
        specs = list_specs(record.plan.about.page)
        figures = {
            f"final/{name_column(name, entry.unit, specs.get(name))}": entry.value
            for name, entry in record.figures.items()
            if entry.value is not None
        }
        assert self._launcher.launch is not None, "a run with a record has started"
        # The time of the result is the start of the launcher plus the end-to-end time.
        wall_s = record.figure("e2e_time") or 0.0
        return RunResult(
            status=record.status,
            trust=record.trust.grade,
            num_steps=self.num_steps,
            unix_ns=self._launcher.launch.unix_ns + round(wall_s * NS_PER_S),
            figures=figures,
        )
