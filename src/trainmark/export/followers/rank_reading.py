"""Read what the ranks of a run report, and return its steps and evaluations as points.

Steps are those of ``record.steps``: the slowest rank's time, the mean loss of all samples. A step
is complete when every rank has reported it. Owns the names of the series ``train/``, ``perf/``,
``memory/`` and ``eval/``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from math import nan
from typing import TYPE_CHECKING

from trainmark.events.schema import Evaluate, EventTail, Facts, Window, name_rank_file
from trainmark.export.followers.points import (
    CHUNK_BYTES,
    EVAL_STEP,
    NS_PER_S,
    TRAIN_STEP,
    NewPoints,
    Point,
)
from trainmark.record.figures import find_peak

if TYPE_CHECKING:
    from pathlib import Path

    from trainmark.plan.plan import Plan

_GIB = 2**30
_INVALID = re.compile(r"[^A-Za-z0-9_.-]+")  # no backend accepts other characters in a name


def format_name(words: str) -> str:
    """Return the name of a quality as a part of a series' name; ``value`` if nothing is left."""
    return _INVALID.sub("_", words).strip("_") or "value"


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


class RankReader:
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
            EventTail(run_dir / name_rank_file(rank), CHUNK_BYTES)
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

    def read_new(self, shift_ns: int) -> NewPoints:
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
        return NewPoints(steps + evaluations, num_events)

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
