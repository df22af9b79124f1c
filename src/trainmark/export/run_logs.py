"""Write the log of a run in the forms of FlagPerf and of MLPerf, from the events of rank 0.

Events become moments with their wall-clock times. A line about steps has the time of the end of a
window: nothing is synchronised inside a window, so there are no other times. An MLPerf log can be
parsed by programs that read such logs; it is no MLPerf submission.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Literal

from trainmark import cases
from trainmark.errors import RecordError
from trainmark.events.schema import LAUNCHER_FILE, iterate_events, name_node_file, name_rank_file
from trainmark.plan.recipes import compute_step_samples
from trainmark.results.store.columns import get_device_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from trainmark.record.record import Record

    # The fields of an event, with `file` and `lineno`: the file and line from which it was read.
    LocatedEvent = dict[str, Any]

MomentKind = Literal[
    "launch",
    "ready",
    "epoch_start",
    "epoch_end",
    "window_start",
    "window_end",
    "evaluation_start",
    "evaluation_end",
    "trained",
    "broke_off",
    "end",
]
_MLPERF_STARTS: dict[MomentKind, str] = {
    "epoch_start": "epoch_start",
    "window_start": "block_start",
    "evaluation_start": "eval_start",
}
_NOTICE = (
    "not an MLPerf result: measured by trainmark, neither submitted nor verified; only the "
    "log format is the same"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """Something that rank 0 did, with the state of the training at that time.

    Attributes:
        time_ms: milliseconds since 1970.
        file: name of the file of the event from which it follows.
        lineno: line of this event, from 1; 0: there is no event.
        epoch: number of the epoch, from 0.
        step: optimizer steps so far.
        samples: samples of all ranks so far.
        loss: loss of the last step; None before the first step.
        quality: value of an evaluation.
    """

    kind: MomentKind
    time_ms: int
    file: str
    lineno: int
    epoch: int
    step: int
    samples: int
    loss: float | None
    quality: float | None


def render_perflog(record: Record, folder: Path) -> str:
    """Return the lines of a run in the form of FlagPerf's perf logger.

    Events and the names in ``FINISHED`` are as FlagPerf's training programs print them, see
    https://github.com/FlagOpen/FlagPerf (2026-11). A window, which is some steps that are timed
    together, has one pair of lines: its first step begins, and its last step ends.

    Args:
        folder: folder of the run, with its events.

    Raises:
        RecordError: the folder has no events, a line is not an event, or the events have more steps
            than the record.
    """
    lines: list[str] = []
    for moment in read_moments(record, folder):
        match moment.kind:
            case "launch":
                run = {"run_id": record.run_id, "case": record.plan.case_key}
                lines.append(_format_perflog_line(moment, "INIT_START", run))
            case "ready":
                lines.append(_format_perflog_line(moment, "INIT_END"))
                lines.append(_format_perflog_line(moment, "TRAIN_START"))
            case "epoch_start":
                lines.append(_format_perflog_line(moment, "EPOCH_BEGIN", {"epoch": moment.epoch}))
            case "window_start":
                lines.append(_format_perflog_line(moment, "STEP_BEGIN", step=moment.step + 1))
            case "window_end":
                trained = {"loss": moment.loss, "num_trained_samples": moment.samples}
                lines.append(_format_perflog_line(moment, "STEP_END", trained, step=moment.step))
            case "evaluation_end":
                quality = {record.quality.metric: moment.quality}
                lines.append(_format_perflog_line(moment, "EVALUATE", quality, step=moment.step))
            case "epoch_end":
                lines.append(_format_perflog_line(moment, "EPOCH_END", {"epoch": moment.epoch}))
            case "trained":
                lines.append(_format_perflog_line(moment, "TRAIN_END"))
            case "end":
                lines.append(_format_perflog_line(moment, "FINISHED", _make_perflog_totals(record)))
            case "evaluation_start" | "broke_off":
                pass  # FlagPerf's logger has no line for them
    return "".join(lines)


def _format_perflog_line(
    moment: Moment, event: str, value: Mapping[str, Any] | None = None, *, step: int | None = None
) -> str:
    """Return the line of an event.

    Args:
        moment: the time of the event, and the file and line of the run's events that show it.
        event: name of the event in FlagPerf's logger.
        value: what the event states; None: nothing.
        step: number of the step that the event is about; None: it is about none.
    """
    document: dict[str, Any] = {
        "event": event,
        "value": value or {},
        "metadata": {
            "file": moment.file,
            "lineno": moment.lineno,
            "time_ms": moment.time_ms,
            "rank": 0,
        },
    }
    if step is not None:
        document["step"] = step
    return f"[PerfLog] {json.dumps(document, allow_nan=False)}\n"


def _make_perflog_totals(record: Record) -> dict[str, Any]:
    """Return the value of ``FINISHED``: figures of the whole run."""
    # Samples a second: `p_whole` over the training with its evaluations, `p_train` without the time
    # of evaluations, `p_core` also without the time of waiting for data.
    return {
        "e2e_time": record.figure("e2e_time"),
        "train_time": record.figure("train_time"),
        "num_trained_samples": record.counts.samples,
        "global_steps": record.counts.steps,
        "throughput(ips)_raw": record.figure("p_whole"),
        "throughput(ips)_no_eval": record.figure("p_train"),
        "throughput(ips)_pure_compute": record.figure("p_core"),
        "converged": record.quality.reached,  # whether the quality has reached the target
        "final_loss": record.figure("final_loss"),
        f"final_{record.quality.metric}": record.quality.value,
    }


def render_mlperf_log(record: Record, folder: Path) -> str:
    """Return the lines of a run in the form of MLPerf logging.

    Keys are those of the compliance checker of https://github.com/mlcommons/logging (4.1.68),
    without those of a submission. A block is a window, which is some steps that are timed together.
    A case that is also an MLPerf benchmark adds the keys of its ruleset.

    Args:
        folder: folder of the run, with its events.

    Raises:
        RecordError: the run continued from a checkpoint, the folder has no events, a line is not an
            event, or the events have more steps than the record.
    """
    if record.plan.resumed:
        raise RecordError(
            "the run was resumed from a checkpoint",
            where=record.run_id,
            rule="an MLPerf log must cover the entire training run, from run_start to run_stop",
            fix="export a run that was not resumed, or use --to perflog",
        )
    lines: list[str] = []
    for moment in read_moments(record, folder):
        match moment.kind:
            case "launch":  # facts of the run, ``init_start``, keys of the ruleset
                lines += _list_first_mlperf_lines(moment, record)
            case "ready":
                lines.append(_format_mlperf_line(moment, "init_stop", event_type="INTERVAL_END"))
                lines.append(_format_mlperf_line(moment, "run_start", event_type="INTERVAL_START"))
            case "window_end":
                lines.append(_format_mlperf_line(moment, "block_stop", event_type="INTERVAL_END"))
                lines.append(_format_mlperf_line(moment, "train_loss", moment.loss))
            case "evaluation_end":
                lines.append(_format_mlperf_line(moment, "eval_stop", event_type="INTERVAL_END"))
                lines.append(_format_mlperf_line(moment, "eval_accuracy", moment.quality))
            case "epoch_end":
                lines.append(_format_mlperf_line(moment, "epoch_stop", event_type="INTERVAL_END"))
            case "epoch_start" | "window_start" | "evaluation_start":
                key = _MLPERF_STARTS[moment.kind]
                lines.append(_format_mlperf_line(moment, key, event_type="INTERVAL_START"))
            case "trained" | "broke_off":
                status = "success" if record.passed else "aborted"
                lines.append(
                    _format_mlperf_line(
                        moment, "run_stop", event_type="INTERVAL_END", status=status
                    )
                )
            case "end":
                pass  # the log ends with ``run_stop``, the end of the training
    return "".join(lines)


def _list_first_mlperf_lines(moment: Moment, record: Record) -> list[str]:
    """Return the lines of a launch: facts of the run, its start, and the keys of the ruleset.

    Args:
        moment: the launch, whose time all lines have.
        record: of the run.
    """
    lines = []
    # MLPerf's checker accepts facts and keys of the ruleset on either side of ``init_start``.
    for key, value in _list_mlperf_facts(record).items():
        lines.append(_format_mlperf_line(moment, key, value))
    lines.append(_format_mlperf_line(moment, "init_start", event_type="INTERVAL_START"))
    for key, value in _list_ruleset_keys(record).items():
        lines.append(_format_mlperf_line(moment, key, value))
    return lines


def _format_mlperf_line(
    moment: Moment,
    key: str,
    value: Any = None,
    *,
    event_type: str = "POINT_IN_TIME",
    status: str | None = None,
) -> str:
    """Return the line of an event.

    Args:
        moment: the time of the event, the steps and samples trained until then, and the file and
            line of the run's events that show it.
        key: name of the event in MLPerf logging.
        value: what the event states; None: nothing.
        event_type: whether the event begins or ends an interval, or is a single time.
        status: how the run ended, only of ``run_stop``.
    """
    metadata: dict[str, Any] = {
        "file": moment.file,
        "lineno": moment.lineno,
        # Both epochs are the same, because a block, which is a window, lies in one epoch.
        "epoch_num": moment.epoch,
        "first_epoch_num": moment.epoch,
        "samples_count": moment.samples,
        "step": moment.step,
    }
    if status is not None:
        metadata["status"] = status
    document = {
        "namespace": "",
        "time_ms": moment.time_ms,
        "event_type": event_type,
        "key": key,
        "value": value,
        "metadata": metadata,
    }
    return f":::MLLOG {json.dumps(document, allow_nan=False)}\n"


def _list_mlperf_facts(record: Record) -> dict[str, Any]:
    """Return the facts of a run that an MLPerf log has before its start, by their keys."""
    recipe = record.plan.recipe
    planned_batch = compute_step_samples(recipe, record.plan.world_size)
    return {
        "trainmark_notice": _NOTICE,
        "trainmark_run": record.run_id,
        "trainmark_case": record.plan.case_key,
        "trainmark_device": get_device_name(record),
        "trainmark_status": record.status,
        "trainmark_trust": record.trust.grade,
        "seed": recipe.get("seed"),
        # The largest batch that was trained; if there was no step, the planned one.
        "global_batch_size": max(record.steps.samples, default=planned_batch),
        "micro_batch_size": recipe["micro_batch_size"],
        "gradient_accumulation_steps": recipe["grad_accum_steps"],
        "opt_base_learning_rate": recipe.get("learning_rate"),
        "train_samples": record.plan.data.train_samples,
        "eval_samples": record.plan.data.eval_samples,
    }


def _list_ruleset_keys(record: Record) -> Mapping[str, Any]:
    """Return the keys that MLPerf's ruleset of the case requires; empty if it has no ruleset."""
    name = record.plan.case
    if name not in cases.list_names():  # the record is of a case that is not available here
        return {}
    ruleset = cases.load(name).mlperf  # makes the keys from the settings of the run
    return {} if ruleset is None else ruleset(record.plan.recipe)


def read_moments(record: Record, folder: Path) -> Iterator[Moment]:
    """Yield what rank 0 did and when, in order: the launch, the training and its parts, the end.

    Raises:
        RecordError: ``folder`` has no events, a line is not an event, or the events have more steps
            than the record.
    """
    launch = _read_launch(folder)
    path = folder / name_rank_file(0)
    # All events have the time of a monotonic clock. The launch event, which is in another file than
    # those of rank 0, has the time since 1970 too; `shift_ns` is what lies between them.
    timeline = _Timeline(record, path, shift_ns=launch["unix_ns"] - launch["t_ns"])
    yield from timeline.iterate_moments(launch)
    for event in _read_events(path):
        yield from timeline.iterate_moments(event)
    # The end of the training sets the epoch to None.
    if timeline.epoch is not None:
        no_event = {"file": path.name, "lineno": 0}  # lines count from 1: this moment has none
        yield timeline.make_moment("broke_off", timeline.last_ns, no_event)


def _read_launch(folder: Path) -> LocatedEvent:
    """Return the launch event of rank 0's machine, which ties its clock to the time since 1970.

    If a process on each node started the ranks, rank 0 is on the first node, whose clock may differ
    from the launcher's. Otherwise the node has no file, and the launcher's file is read.
    """
    for path in (folder / name_node_file(0), folder / LAUNCHER_FILE):
        for event in _read_events(path):
            if event["event"] == "launch":
                return event
    raise RecordError(
        "no events in this folder",
        where=str(folder),
        rule="a log is written from the times in the run's events; the record alone is not enough",
        fix="pass the run directory",
    )


def _read_events(path: Path) -> Iterator[LocatedEvent]:
    """Yield the events of a file, if it exists, each with its file and its line in it.

    Raises:
        RecordError: the first line that is not an event.
    """
    if path.exists():
        for number, event in iterate_events(path):
            yield event | {"file": path.name, "lineno": number}


class _Timeline:
    """Turns the events of rank 0 into moments, and counts epochs and steps on the way.

    Attributes:
        epoch: number of the current epoch, from 0; None before the training and after its end.
        last_ns: time of the last moment, by the clock of the events.
        _shift_ns: what is added to the time of an event to have the time since 1970.
        _num_steps: number of steps so far.
        _samples_by_num_steps: entry ``n`` is the number of samples trained after ``n`` steps.
        _losses_by_num_steps: entry ``n`` is the loss of step ``n`` from 1 on; entry 0 is None.
    """

    def __init__(self, record: Record, events_path: Path, *, shift_ns: int) -> None:
        """Begin before the first event.

        Args:
            record: has the samples and the loss of each step.
            events_path: file of the events of rank 0, as errors name it.
            shift_ns: what is added to the time of an event, by its machine's monotonic clock, to
                have the time since 1970.
        """
        self.epoch: int | None = None  # None before the training and after its end
        # Time of the last moment that was returned, by the monotonic clock of the events.
        self.last_ns = 0
        self._num_steps = 0  # number of steps so far
        # Entry `n` is of the time after `n` steps: the samples trained until then, and the loss of
        # the last step.
        self._samples_by_num_steps = [0, *accumulate(record.steps.samples)]
        self._losses_by_num_steps: list[float | None] = [None, *record.steps.loss]
        self._events_path = events_path
        self._shift_ns = shift_ns

    def iterate_moments(self, event: LocatedEvent) -> Iterator[Moment]:
        """Yield the moments of an event: what rank 0 did, and when.

        Events that no log has a line for give none.

        Args:
            event: fields of the event, with the file and the line from which it was read.
        """
        # Events of something that lasts have a start and an end, others a single time.
        end_ns = event["end_ns"] if "end_ns" in event else event["t_ns"]
        match event["event"]:
            case "launch" | "end" as kind:
                yield self.make_moment(kind, end_ns, event)
            case "window":
                yield from self._start_window(event)
                self._count_steps(event)
                yield self.make_moment("window_end", end_ns, event)
            case "evaluate":
                yield self.make_moment("evaluation_start", event["start_ns"], event)
                yield self.make_moment("evaluation_end", end_ns, event)
            case "trained":
                # The last epoch ended with the moment before. None: there was no window, so there
                # is no epoch.
                if self.epoch is not None:
                    yield self.make_moment("epoch_end", self.last_ns, event)
                yield self.make_moment("trained", end_ns, event)
                self.epoch = None

    def _start_window(self, event: LocatedEvent) -> Iterator[Moment]:
        """Yield the start of a window, which also starts its epoch if it is the first one in it.

        Args:
            event: the event of the window, which is the steps between two synchronisations.
        """
        start_ns = event["start_ns"]
        if event["epoch"] != self.epoch:
            if self.epoch is None:  # the training begins
                yield self.make_moment("ready", start_ns, event)
            else:  # the epoch before ended with its last moment; until here it is `self.epoch`
                yield self.make_moment("epoch_end", self.last_ns, event)
            self.epoch = event["epoch"]
            yield self.make_moment("epoch_start", start_ns, event)
        yield self.make_moment("window_start", start_ns, event)

    def _count_steps(self, event: LocatedEvent) -> None:
        """Count the steps of a window, for each of which the event has a time.

        Raises:
            RecordError: the record has fewer steps.
        """
        self._num_steps += len(event["step_ns"])
        # The list has an entry before the first step and one after each step.
        num_recorded = len(self._samples_by_num_steps) - 1
        if self._num_steps > num_recorded:
            raise RecordError(
                f"the events up to this line contain {self._num_steps} steps, but the record "
                f"contains only {num_recorded}",
                where=f"{self._events_path}:{event['lineno']}",
                rule="the events must belong to the record",
                fix="run `trainmark verify` to list the differences",
            )

    def make_moment(self, kind: MomentKind, t_ns: int, event: LocatedEvent) -> Moment:
        """Return a moment, with the steps and samples counted so far.

        Args:
            kind: what rank 0 did.
            t_ns: time of the moment by the clock of the events.
            event: the event from which the moment follows, with the line of the rank's event file
                in which it is.
        """
        self.last_ns = t_ns
        return Moment(
            kind=kind,
            time_ms=(t_ns + self._shift_ns) // 1_000_000,  # Unix time
            file=event["file"],
            lineno=event["lineno"],
            epoch=self.epoch or 0,  # None outside of the training
            step=self._num_steps,
            samples=self._samples_by_num_steps[self._num_steps],
            loss=self._losses_by_num_steps[self._num_steps],
            quality=event.get("value"),  # only the event of an evaluation has one
        )
