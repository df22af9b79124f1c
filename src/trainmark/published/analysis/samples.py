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
from trainmark.published.log import describe_value_count

if TYPE_CHECKING:
    from typing import Any, Literal, TypeAlias

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


@dataclass(slots=True, kw_only=True)
class Sample:
    """The values of a source, such as a key in the log, that count, and what their mean needs.

    Args:
        unit: of a speed; empty: not known.
        values: in the unit of the log.
        weights: seconds that each value covers; empty: not known, so the mean is by value.
        weighted_by: ``time`` or ``work``, from which the weights are; ``value``: there are none.
        batches: samples of a step over all devices for each value; empty: not known.
        num_skipped: values left out at the beginning.
        num_left_out: values left out because they include other work than training.
        num_lines: number of lines in the log with a value.
        num_malformed: number of lines without a number behind their key.
        first_malformed_text: the first of them.
        first_text: the line of the first value that counts.
        mean_of_all: mean, with its own weights, as if no value were left out or corrected because
            of other work than training; None: none was.
        is_from_closing_line: the value is of a line that the trainer prints once, at the end, about
            the whole run.
        has_steps: a line with a value also has the number of a step.
        slow: values that may hold an evaluation, a checkpoint or a warm-up.
        notes: for the user.
    """

    source: Source
    unit: str
    values: Array
    weights: Array = field(default_factory=lambda: np.empty(0))
    weighted_by: Literal["time", "work", "value"] = "value"
    batches: Array = field(default_factory=lambda: np.empty(0))
    num_skipped: int = 0
    num_left_out: int = 0
    num_lines: int = 0
    num_malformed: int = 0
    first_malformed_text: str = ""
    first_text: str = ""
    mean_of_all: float | None = None
    is_from_closing_line: bool = False
    has_steps: bool = False
    slow: SlowValues = _NO_SLOW_VALUES
    notes: list[str] = field(default_factory=list)

    @property
    def is_rate(self) -> bool:
        """Tell whether the values are rates, so that larger ones are faster, and not step times."""
        return self.source.quantity.kind != "step_time"

    @property
    def mean(self) -> float:
        """The mean: weighted by the time of each value if that is known, else plain."""
        return _compute_mean(self.values, self.weights)


def _compute_mean(values: Array, weights: Array) -> float:
    """Return the mean of values: weighted, or plain if there are no weights.

    Args:
        weights: one for each value, such as the seconds that it covers; empty: not known.
    """
    if len(weights):
        return float(np.average(values, weights=weights))
    return float(values.mean())


def compute_costs(values: Array, *, is_rate: bool) -> Array:
    """Return numbers proportional to the time of a step, of values that are times or rates.

    They are the times themselves, or 1 / rate. A rate of 0 or less has no time. It gives 0, so that
    it never counts as slow and adds nothing to sums; but it lowers the median.
    """
    if not is_rate:
        return values
    return np.divide(1.0, values, out=np.zeros_like(values), where=values > 0)


def take_sample(
    readings: Readings, context: LogContext, *, skip: int, is_from_closing_line: bool = False
) -> Sample | None:
    """Return the values of a source that count; None: there are none.

    A source is a key in the log, which is the text before a number, or a form in which a known
    trainer prints its speed.

    Args:
        readings: all values of the source, separately for each run in the log.
        context: what the lines of the log say besides values, such as where runs begin and end.
        skip: values to leave out at the beginning of a run.
        is_from_closing_line: values are from a line at the end of a run, so the last one is about
            the whole run.
    """
    source = readings.source
    # A running mean is a mean since the start: the last one covers all steps. A line at the end
    # covers them too. So nothing is skipped.
    only_last_counts = is_from_closing_line or source.is_running_mean
    run, notes = _choose_run(readings, context, skip=0 if only_last_counts else skip)
    if run is None:
        return None
    # Such values count the seconds since the start of the run: they are no times of steps. The
    # values of a run are an array of doubles, whose memory NumPy reads without a copy.
    if _is_time_since_start(source, np.frombuffer(run.values)):
        return None
    if only_last_counts:
        # ``skip`` is passed only for a note that it has no effect.
        return _take_last_value(
            readings, run, notes, is_from_closing_line=is_from_closing_line, skip=skip
        )
    return _take_counted_values(readings, run, notes, skip=skip)


def _take_counted_values(
    readings: Readings, run: RunValues, notes: list[str], *, skip: int
) -> Sample | None:
    """Return the values of a run that count; None: there are none.

    The first ``skip`` values do not count, nor do values without a batch if others have one. From a
    value that includes an evaluation or a checkpoint, the time of that is subtracted if the log
    prints it; else the value does not count if it is longer than usual.

    Args:
        readings: all values of the source, a key in the log, with counts of lines of the whole log.
        run: the values of the run that was chosen, in arrays of doubles.
        notes: for the user, on the choice of the run; further notes are appended.
    """
    source = readings.source
    is_rate = _is_rate(source)
    printed_values = np.frombuffer(run.values)
    values = printed_values.copy()
    batches = np.frombuffer(run.batches)  # samples of a step for each value; NaN: not printed
    is_counted = np.arange(len(values)) >= skip
    num_malformed = readings.num_malformed
    has_batch = np.isfinite(batches)
    if has_batch.any():  # if some lines print the batch, a value without it is malformed
        num_malformed += int((is_counted & ~has_batch).sum())
        is_counted &= has_batch
    is_counted_with_other_work = is_counted.copy()
    # This changes ``values``, ``is_counted`` and ``notes`` in place.
    num_left_out = _remove_other_work(source, values, is_counted, run, notes)
    if not is_counted.any():
        return None
    has_corrections = bool((printed_values != values).any())
    counted_values = values[is_counted]
    weights, weighted_by = _compute_weights(counted_values, run, is_counted, is_rate=is_rate)
    # A comparison with this mean shows how much the left-out and corrected values matter.
    mean_of_all = None
    if num_left_out or has_corrections:
        all_values = printed_values[is_counted_with_other_work]
        weights_of_all, _ = _compute_weights(
            all_values, run, is_counted_with_other_work, is_rate=is_rate
        )
        mean_of_all = _compute_mean(all_values, weights_of_all)
    sample = Sample(
        source=source,
        unit=readings.unit,
        values=counted_values,
        weights=weights,
        weighted_by=weighted_by,
        batches=batches[is_counted] if has_batch.any() else np.empty(0),
        num_skipped=min(skip, len(values)),  # a run may have fewer values than are to be skipped
        num_left_out=num_left_out,
        num_lines=readings.num_lines,
        num_malformed=num_malformed,
        first_malformed_text=_describe_malformed(readings),
        first_text=run.first_text,
        mean_of_all=mean_of_all,
        has_steps=readings.has_steps,
        slow=find_slow_values(counted_values, is_rate=is_rate),
        notes=notes,
    )
    _note_resume(readings, sample)
    return sample


def _note_resume(readings: Readings, sample: Sample) -> None:
    """Add a note to a sample if the trainer's mean since the start counts work before a resume.

    Some trainers print the mean speed since the start: the work done until now, divided by the time
    on a clock. After a resume from a checkpoint, the work includes that of the earlier run, but the
    clock begins at 0. So the mean is far too high at first, and then falls.

    Args:
        readings: of the key in the log; ``first_mean_rate`` and ``last_mean_rate`` are the means.
        sample: the speeds between two lines, which a resume does not change: the work done between
            them, divided by the time between them.
    """
    form = readings.source.form  # the form in which a known trainer prints its speed
    if form is not None and form.is_counter:
        return  # the log has the counter itself, and no mean that could mislead
    first_rate = readings.first_mean_rate
    # None: the log prints no mean since the start.
    if first_rate is None or first_rate <= _MIN_RESUME_RATIO * sample.mean:
        return
    sample.notes.append(
        f"{readings.source.key} in the log falls from {first_rate:g} to "
        f"{readings.last_mean_rate:g}: it divides the work since the start by the time "
        "since the run was resumed; the increase of its total divided by the time elapsed is used "
        "instead"
    )


def take_only_mean(readings: Readings) -> Sample | None:
    """Return the last mean since the start that a log prints, if it is the only speed of its key.

    Like a closing line, which a trainer prints at the end, it is about the whole run. From several
    such means, the speeds between them are computed instead. None: there are such speeds, or the
    log prints no mean.

    Args:
        readings: of the key of the mean. Its values are the speeds between two means.
    """
    # ``num_lines`` counts the speeds between means. It is 0 if the log prints a single mean, or if
    # its clock shows the same time beside all of them.
    if readings.first_mean_rate is None or readings.num_lines:
        return None
    return Sample(
        source=readings.source,
        unit=readings.source.quantity.unit,
        values=np.array([readings.last_mean_rate]),
        num_lines=1,
        first_text=readings.last_mean_text,
        is_from_closing_line=True,
    )


def _is_rate(source: Source) -> bool:
    """Tell whether larger values of a source are faster."""
    return source.quantity.kind != "step_time"


def _describe_malformed(readings: Readings) -> str:
    """Return the first line that has the key but no number behind it; empty: there is none.

    The text begins with the number of the line: ``line 12: …``.
    """
    if not readings.num_malformed:
        return ""
    return f"line {readings.first_malformed_line}: {readings.first_malformed_text}"


def _take_last_value(
    readings: Readings, run: RunValues, notes: list[str], *, is_from_closing_line: bool, skip: int
) -> Sample:
    """Return a sample of the last value alone, which is that of the whole run.

    Args:
        readings: all values of the key in the log; its counts of lines are those of the whole log.
        run: the values of the run that was chosen, in an array of doubles.
        notes: for the user, on the choice of the run; another one may be appended.
        is_from_closing_line: the trainer prints the value once, at the end. False: each value is
            the mean since the start, so the last one covers all steps.
        skip: number of first values that the user wants to leave out. That has no effect on the
            last value, which a note says.
    """
    kind_of_value = (
        "a line at the end"
        if is_from_closing_line
        else "a running mean of which only the last value counts"
    )
    if skip:
        notes.append(f"{readings.source.name} is {kind_of_value}: skip_steps has no effect on it")
    return Sample(
        source=readings.source,
        unit=readings.unit,
        values=np.frombuffer(run.values)[-1:].copy(),
        num_lines=readings.num_lines,
        num_malformed=readings.num_malformed,
        first_malformed_text=_describe_malformed(readings),
        first_text=run.last_text,  # the only value that counts is the last one
        has_steps=readings.has_steps,
        is_from_closing_line=is_from_closing_line,
        notes=notes,
    )


def _choose_run(
    readings: Readings, context: LogContext, *, skip: int
) -> tuple[RunValues | None, list[str]]:
    """Return the values of the last run that has some, and a note on each run but the log's last.

    Several runs may follow each other in one log. None: no run has more values than are skipped. A
    note says how its run ended, and whether its values are used.

    Args:
        readings: the values of a key in the log, by the number of the run.
        context: where each run begins and ends in the log.
        skip: number of values at the beginning of a run that do not count.
    """
    runs = readings.runs
    # Steps that begin anew look like another run. If they do so in each epoch, all values belong to
    # one run, of which the caller skips the first values.
    if _are_epochs(context):
        return _join(list(runs.values())), []
    numbers_with_values = [number for number, run in runs.items() if len(run.values) > skip]
    if not numbers_with_values:
        return None, []
    chosen_number = max(numbers_with_values)
    notes = []
    # These are all runs but the last one, whose number is ``context.run_number``.
    for number in range(context.run_number):
        end = context.run_ends[number]
        count = len(runs[number].values) if number in runs else 0
        until = f"step {end.step:g}" if end.step is not None else f"line {end.line}"
        # Complete: the run reached the last step that it planned.
        outcome = "complete" if end.is_complete else f"aborted at {until}, another run follows"
        usage = "used" if number == chosen_number else "not used"
        verb = "is" if count == 1 else "are"
        notes.append(
            f"run {number + 1} of {context.run_number + 1}, lines {context.start_lines[number]} to "
            f"{end.line}: {outcome}; its {describe_value_count(count)} {verb} {usage}"
        )
    return runs[chosen_number], notes


def _are_epochs(context: LogContext) -> bool:
    """Tell whether what looks like several runs are epochs, which all end at the same step.

    Where the step number falls, another run is taken to begin, but some trainers count the steps
    of each epoch anew.
    """
    # ``run_ends`` has the end of each run but the last, which may go on.
    last_steps = [end.step for end in context.run_ends]
    if len(last_steps) < 2:  # one end shows nothing
        return False
    return last_steps[0] is not None and len(set(last_steps)) == 1


def _join(runs: list[RunValues]) -> RunValues | None:
    """Return the values of several runs, one after the other, as those of one; None: no runs."""
    if not runs:
        return None
    # The lines of the first and of the last value.
    joined = RunValues(first_text=runs[0].first_text, last_text=runs[-1].last_text)
    # Each of these arrays has one number for each value: the seconds and the work, in samples or
    # tokens, that it covers, the batch of its step, and the evaluations and checkpoints before it.
    for run in runs:
        joined.values.extend(run.values)
        joined.seconds.extend(run.seconds)
        joined.work.extend(run.work)
        joined.batches.extend(run.batches)
        joined.has_pause.extend(run.has_pause)
        joined.pauses_s.extend(run.pauses_s)
    return joined


def _is_time_since_start(source: Source, values: Array) -> bool:
    """Tell whether a number behind a word such as ``time`` is the time since the start.

    Such a time always rises, and to more than twice its first value; the times of steps do not.
    Fewer than three values do not show it: then the answer is no.
    """
    # A key is weak if it alone, such as `time`, does not say for sure that it is a step time.
    if not source.quantity.is_weak or source.quantity.kind != "step_time":
        return False
    if len(values) < _MIN_VALUES:
        return False
    always_rises = bool((np.diff(values) > 0).all())
    return always_rises and bool(values[-1] > 2 * values[0])


def _remove_other_work(
    source: Source, values: Array, is_counted: Array, run: RunValues, notes: list[str]
) -> int:
    """Correct or leave out the values that include the time of an evaluation or a checkpoint.

    Such other work is a pause of the training.

    Args:
        source: the key in the log; it says whether the values are times or rates, and their unit.
        values: of the run, as printed. Corrected in place if the log prints how long the other work
            took.
        is_counted: true for each value that counts. Set to false in place for values that cannot be
            corrected and whose step is longer than usual.
        run: says of each value whether a pause came before it, and how many seconds it took.
        notes: for the user. One is appended on corrected values, and one on values that are left
            out.

    Returns:
        How many values are left out.
    """
    has_pause = np.frombuffer(run.has_pause, dtype=np.int8).astype(bool) & is_counted
    if not has_pause.any():
        return 0
    is_rate = _is_rate(source)
    # Times of steps, of rates only up to a common factor, which is enough to compare them.
    times = compute_costs(values, is_rate=is_rate)
    plain_times = times[is_counted & ~has_pause]
    usual_time = float(np.median(plain_times)) if len(plain_times) else None
    # The time of each pause in the values' unit of time; 0: the log does not print it.
    pauses = np.frombuffer(run.pauses_s) / source.quantity.time_unit_s
    num_corrected = 0
    num_left_out = 0
    for index in np.flatnonzero(has_pause):
        time = float(times[index])
        training_time = time - float(pauses[index])
        # From a rate the pause cannot be subtracted: the time that the rate covers is not known.
        can_subtract_pause = pauses[index] > 0 and not is_rate and training_time > 0
        # The value may not include the pause. It does if it comes closer to the usual time by
        # subtracting the pause. If every value has a pause, no usual time is known.
        is_closer = usual_time is None or abs(training_time - usual_time) < abs(time - usual_time)
        if can_subtract_pause and is_closer:
            values[index] = training_time
            num_corrected += 1
        elif usual_time is not None and time > _MIN_PAUSE_RATIO * usual_time:
            is_counted[index] = False
            num_left_out += 1
    if num_corrected:
        notes.append(
            "the time of an evaluation or a checkpoint, as printed in the log, is subtracted "
            f"from {describe_value_count(num_corrected)}"
        )
    if num_left_out:
        verbs = ("includes", "is") if num_left_out == 1 else ("include", "are")
        notes.append(
            f"{describe_value_count(num_left_out)} that {verbs[0]} an evaluation or a checkpoint "
            f"{verbs[1]} excluded"
        )
    return num_left_out


def _compute_weights(
    values: Array, run: RunValues, is_selected: Array, *, is_rate: bool
) -> tuple[Array, Literal["time", "work", "value"]]:
    """Return the weight of each rate in the mean, and what it is computed from.

    The weight is the time that the rate covers, up to a common factor: the printed ``time``, or the
    ``work`` divided by the rate. If neither is known, or if the values are times, the weights are
    empty and the second item is ``value``: each value counts the same.

    Args:
        values: rates or times: the selected ones of the run, perhaps corrected.
        run: has the seconds, as printed, and the samples or tokens that each of its values covers;
            NaN: not known.
        is_selected: true for each value of the run that is among ``values``.
        is_rate: the values are rates.
    """
    if not is_rate:
        return np.empty(0), "value"
    seconds = np.frombuffer(run.seconds)[is_selected]
    work = np.frombuffer(run.work)[is_selected]
    if np.isfinite(seconds).all() and (seconds > 0).all():
        return seconds, "time"
    if np.isfinite(work).all() and (work > 0).all() and (values > 0).all():
        return work / values, "work"
    return np.empty(0), "value"


def find_slow_values(values: Array, *, is_rate: bool) -> SlowValues:
    """Return how many values took over twice the median time, and their share of all time.

    If their share is small, no value counts as slow.
    """
    costs = compute_costs(values, is_rate=is_rate)
    # Few values show no usual time; rates of 0 alone have no time.
    if len(costs) < _MIN_VALUES or costs.sum() <= 0:
        return _NO_SLOW_VALUES
    is_slow = costs > _MIN_SLOW_RATIO * np.median(costs)
    time_share = float(costs[is_slow].sum() / costs.sum())
    if time_share <= _MIN_SLOW_SHARE:
        return _NO_SLOW_VALUES
    return SlowValues(int(is_slow.sum()), time_share)


def is_rare(readings: Readings, num_step_lines: int) -> bool:
    """Tell whether a source has so few lines that they are summaries, not values of steps.

    A single line is a summary even if the log has few lines of steps.

    Args:
        readings: the values of the source, a key in the log.
        num_step_lines: lines of the source that is printed most often, once a step or interval.
    """
    num_lines = readings.num_lines  # lines with a value of this source
    return num_lines == 1 or num_lines * _MIN_STEPS_PER_SUMMARY <= num_step_lines
