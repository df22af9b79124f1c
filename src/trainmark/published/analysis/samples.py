"""Select the values of a source that count, and compute their mean.

A source is a key in a log, or a form in which a trainer prints its speed. Owns three rules. Rates
are averaged by time if the log has the time or the work of each value. A value that includes an
evaluation or a checkpoint is left out, or corrected by its time. If a log has several runs, the
last one counts.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from trainmark.published.analysis.values import RunValues

if TYPE_CHECKING:
    from typing import Any, TypeAlias

    from trainmark.published.analysis.lines import LogContext
    from trainmark.published.analysis.readings import Readings
    from trainmark.published.analysis.sources import Source

    Array: TypeAlias = np.ndarray[Any, Any]

_MIN_PAUSE_RATIO = 1.1  # to the median time, above which a value includes an evaluation
_MIN_SLOW_RATIO = 2.0  # to the median time, above which a value is slow
_MIN_SLOW_SHARE = 0.1  # of slow values in the sum of times, above which they are reported
_MIN_RESUME_RATIO = 1.5  # of a mean since the start to the speed: it counts work before a resume
_MIN_STEPS_PER_SUMMARY = 5  # lines of steps for each line of a summary
_MIN_VALUES = 3  # for a statement about their distribution or course


class SlowValues(NamedTuple):
    """Values that are over twice the median: their number, and their share of the sum of times."""

    num_values: int
    time_share: float


_NO_SLOW_VALUES = SlowValues(0, 0.0)


@dataclass(slots=True)
class Sample:
    """The values of a source that count, with what is needed for their mean.

    Args:
        unit: of a speed; empty: not known.
        values: in the unit of the log.
        weights: seconds that each value covers; empty: not known, so the mean is by value.
        weighted_by: ``time`` or ``work``, from which the weights are; ``value``: there are none.
        batches: samples of a step over all devices for each value; empty: not known.
        skipped: values left out at the beginning.
        left_out: values left out because they include other work than training.
        lines: number of lines in the log with a value.
        malformed: number of lines without a number behind their key.
        malformed_text: the first of them.
        first_text: the line of the first value that counts.
        mean_of_all: mean of all values before other work was taken off; None: none was.
        is_closing: the value is of a line at the end of the log, about the whole run.
        has_steps: a line with a value also has the number of a step.
        slow: values that may hold an evaluation, a checkpoint or a warm-up.
        notes: for the user.
    """

    source: Source
    unit: str
    values: Array
    weights: Array
    weighted_by: str
    batches: Array
    skipped: int = 0
    left_out: int = 0
    lines: int = 0
    malformed: int = 0
    malformed_text: str = ""
    first_text: str = ""
    mean_of_all: float | None = None
    is_closing: bool = False
    has_steps: bool = False
    slow: SlowValues = _NO_SLOW_VALUES
    notes: list[str] = field(default_factory=list)

    @property
    def is_rate(self) -> bool:
        """Tell whether larger values are faster."""
        return self.source.quantity.kind != "step_time"

    @property
    def mean(self) -> float:
        """The mean, by time where the weights are known."""
        if len(self.weights):
            return float(np.average(self.values, weights=self.weights))
        return float(self.values.mean())


def compute_costs(values: Array, *, is_rate: bool) -> Array:
    """Return numbers proportional to the time of a step, of values that are times or rates.

    A rate of 0 or less, which has no time, costs 0.
    """
    if not is_rate:
        return values
    return np.divide(1.0, values, out=np.zeros_like(values), where=values > 0)


def take_sample(
    readings: Readings, context: LogContext, *, skip: int, is_closing: bool = False
) -> Sample | None:
    """Return the values of a source that count; None: there are none.

    Args:
        skip: values to leave out at the beginning of a run.
        is_closing: the last value is about the whole run.
    """
    source = readings.source
    is_last_value = is_closing or source.is_running_mean
    run, notes = _choose_run(readings, context, skip=0 if is_last_value else skip)
    if run is None:
        return None
    if _is_time_since_start(source, np.frombuffer(run.values)):
        return None
    if is_last_value:
        return _take_last_value(readings, run, notes, is_closing=is_closing, skip=skip)
    return _take_counted_values(readings, run, notes, skip=skip)


def _take_counted_values(
    readings: Readings, run: RunValues, notes: list[str], *, skip: int
) -> Sample | None:
    """Return the values of a run that count, corrected; None: there are none.

    Args:
        notes: on the choice of the run; further notes are appended.
    """
    source = readings.source
    is_rate = _is_rate(source)
    printed_values = np.frombuffer(run.values)
    values = printed_values.copy()
    batches = np.frombuffer(run.batches)
    is_counted = np.arange(len(values)) >= skip
    malformed = readings.malformed
    has_batch = np.isfinite(batches)
    if has_batch.any():  # a value without its batch is malformed
        malformed += int((is_counted & ~has_batch).sum())
        is_counted &= has_batch
    left_out = _remove_other_work(source, values, is_counted, run, notes)
    if not is_counted.any():
        return None
    has_corrections = bool((printed_values != values).any())
    counted = values[is_counted]
    seconds = np.frombuffer(run.seconds)[is_counted]
    work = np.frombuffer(run.work)[is_counted]
    weights, weighted_by = _compute_weights(counted, seconds, work, is_rate=is_rate)
    sample = Sample(
        source,
        readings.unit,
        counted,
        weights,
        weighted_by,
        batches=batches[is_counted] if has_batch.any() else np.empty(0),
        skipped=min(skip, len(values)),
        left_out=left_out,
        lines=readings.lines,
        malformed=malformed,
        malformed_text=_describe_malformed(readings),
        first_text=run.first_text,
        mean_of_all=(float(printed_values[skip:].mean()) if left_out or has_corrections else None),
        has_steps=readings.has_steps,
        slow=find_slow_values(counted, is_rate=is_rate),
        notes=notes,
    )
    if readings.first_rate is not None and readings.first_rate > _MIN_RESUME_RATIO * sample.mean:
        notes.append(
            f"{source.key} in the log falls from {readings.first_rate:g} to "
            f"{readings.last_rate:g}: it divides work done before a resume by the time after "
            "it; the differences of its total and the clock are used instead"
        )
    return sample


def take_only_mean(readings: Readings) -> Sample | None:
    """Return the mean since the start that a log prints only once; None: it prints more, or none.

    From several such means, the speed between them is computed instead.
    """
    if readings.first_rate is None or readings.lines:
        return None
    empty = np.empty(0)
    values = np.array([readings.last_rate])
    return Sample(
        readings.source,
        readings.source.quantity.unit,
        values,
        empty,
        "value",
        empty,
        lines=1,
        is_closing=True,
    )


def _is_rate(source: Source) -> bool:
    """Tell whether larger values of a source are faster."""
    return source.quantity.kind != "step_time"


def _describe_malformed(readings: Readings) -> str:
    """Return the first line without a number, with its number; empty: there is none."""
    if not readings.malformed:
        return ""
    return f"line {readings.malformed_line}: {readings.malformed_text}"


def _take_last_value(
    readings: Readings, run: RunValues, notes: list[str], *, is_closing: bool, skip: int
) -> Sample:
    """Return the last value, which is that of the whole run."""
    what = "a line at the end" if is_closing else "a running mean, of which the last value counts,"
    if skip:
        notes.append(f"{readings.source.name} is {what}: skip_steps has no effect on it")
    empty = np.empty(0)
    values = np.frombuffer(run.values)[-1:].copy()
    return Sample(
        readings.source,
        readings.unit,
        values,
        empty,
        "value",
        empty,
        lines=readings.lines,
        malformed=readings.malformed,
        malformed_text=_describe_malformed(readings),
        first_text=run.first_text,
        has_steps=readings.has_steps,
        is_closing=is_closing,
        notes=notes,
    )


def _choose_run(
    readings: Readings, context: LogContext, *, skip: int
) -> tuple[RunValues | None, list[str]]:
    """Return the values of the last run that has some, and notes about the other runs."""
    runs = readings.runs
    if _are_epochs(context):
        return _join(list(runs.values())), []
    numbers_with_values = [number for number, run in runs.items() if len(run.values) > skip]
    if not numbers_with_values:
        return None, []
    chosen = max(numbers_with_values)
    notes = []
    for earlier in range(context.run):
        end = context.ends[earlier]
        count = len(runs[earlier].values) if earlier in runs else 0
        until = f"step {end.step:g}" if end.step is not None else f"line {end.line}"
        how = "complete" if end.is_complete else f"aborted at {until}, another run follows"
        state = "used" if earlier == chosen else "not used"
        notes.append(
            f"run {earlier + 1} of {context.run + 1}, lines {context.starts[earlier]} to "
            f"{end.line}: {how}; its {count} values are {state}"
        )
    return runs[chosen], notes


def _are_epochs(context: LogContext) -> bool:
    """Tell whether runs are epochs, which all end at the same step."""
    last_steps = [end.step for end in context.ends]
    return len(last_steps) > 1 and len(set(last_steps)) == 1 and last_steps[0] is not None


def _join(runs: list[RunValues]) -> RunValues | None:
    """Return the values of several runs as those of one."""
    if not runs:
        return None
    joined = RunValues(first_text=runs[0].first_text)
    for run in runs:
        joined.values.extend(run.values)
        joined.seconds.extend(run.seconds)
        joined.work.extend(run.work)
        joined.batches.extend(run.batches)
        joined.holds_other.extend(run.holds_other)
        joined.pauses_s.extend(run.pauses_s)
    return joined


def _is_time_since_start(source: Source, values: Array) -> bool:
    """Tell whether a number behind a word such as ``time`` is the time since the start."""
    if not source.quantity.is_weak or source.quantity.kind != "step_time":
        return False
    if len(values) < _MIN_VALUES:
        return False
    return bool((np.diff(values) > 0).all() and values[-1] > 2 * values[0])


def _remove_other_work(
    source: Source, values: Array, is_counted: Array, run: RunValues, notes: list[str]
) -> int:
    """Correct or leave out the values that hold an evaluation or a checkpoint.

    Args:
        values: corrected in place if the log prints how long the other work took.
        is_counted: set to false in place if it does not, for values that are longer than usual.
        notes: a note is appended for each of both.

    Returns:
        How many values are left out.
    """
    holds_other = np.frombuffer(run.holds_other, dtype=np.int8).astype(bool) & is_counted
    if not holds_other.any():
        return 0
    plain_times = compute_costs(values, is_rate=_is_rate(source))[is_counted & ~holds_other]
    usual = float(np.median(plain_times)) if len(plain_times) else None
    pauses = np.frombuffer(run.pauses_s) / source.quantity.seconds  # in the unit of the values
    corrected = left_out = 0
    for index in np.flatnonzero(holds_other):
        time = float(compute_costs(values[index : index + 1], is_rate=_is_rate(source))[0])
        training_time = time - float(pauses[index])
        is_pause_known = pauses[index] > 0 and not _is_rate(source) and training_time > 0
        is_closer = usual is None or abs(training_time - usual) < abs(time - usual)
        if is_pause_known and is_closer:
            values[index] = training_time
            corrected += 1
        elif usual is not None and time > _MIN_PAUSE_RATIO * usual:
            is_counted[index] = False
            left_out += 1
    if corrected:
        notes.append(
            "the time of an evaluation or a checkpoint, as printed in the log, is subtracted "
            f"from {corrected} values"
        )
    if left_out:
        notes.append(f"{left_out} values that include an evaluation or a checkpoint are excluded")
    return left_out


def _compute_weights(
    values: Array, seconds: Array, work: Array, *, is_rate: bool
) -> tuple[Array, str]:
    """Return the seconds that each rate covers, and from what they follow.

    Empty if they are not known, or if the values are times.
    """
    if is_rate:
        if np.isfinite(seconds).all() and (seconds > 0).all():
            return seconds, "time"
        if np.isfinite(work).all() and (work > 0).all() and (values > 0).all():
            return work / values, "work"
    return np.empty(0), "value"


def find_slow_values(values: Array, *, is_rate: bool) -> SlowValues:
    """Return the values over twice the median if they take much of the time; else none."""
    costs = compute_costs(values, is_rate=is_rate)
    if len(costs) < _MIN_VALUES or costs.sum() <= 0:
        return _NO_SLOW_VALUES
    is_slow = costs > _MIN_SLOW_RATIO * np.median(costs)
    share = float(costs[is_slow].sum() / costs.sum())
    if share <= _MIN_SLOW_SHARE:
        return _NO_SLOW_VALUES
    return SlowValues(int(is_slow.sum()), share)


def is_rare(readings: Readings, max_lines: int) -> bool:
    """Tell whether a source has so few lines that they are summaries."""
    return readings.lines * _MIN_STEPS_PER_SUMMARY <= max_lines or readings.lines == 1
