"""Hold the values of one source of a log, in each run, and count its lines without a number.

A source is a key in the log, or a form in which a known trainer prints its speed. Values that
several ranks print for one step are averaged, and speeds are computed from the readings of a
counter.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from trainmark.published.analysis.quantities import (
    is_work_of_step,
    normalize_rate_unit,
    read_rate_unit_of_counter,
)
from trainmark.published.analysis.values import RunValues

if TYPE_CHECKING:
    from trainmark.published.analysis.lines import LogContext, LogLine, StepNumber
    from trainmark.published.analysis.sources import Source

_SHOWN_CHARACTERS = 300  # of a line in messages
_MAX_STEPS_APART = 4  # steps by which ranks that print into one log may be apart


@dataclass
class _StepPrint:
    """A value of a step, which other ranks may print too.

    Args:
        num_restarts: how often steps began anew before it.
        counters: the numbers of the step.
        index: of the value among those of the run.
        count: number of ranks whose values are averaged in it.
    """

    num_restarts: int
    counters: tuple[StepNumber, ...]
    index: int
    count: int = 1


class SourceKey(NamedTuple):
    """What identifies a source: its preset, the text before the number, and the text behind it."""

    preset: str
    key: str
    unit: str


class _CounterReading(NamedTuple):
    """The work that a counter counted until now, and the seconds on the clock beside it."""

    done: float
    clock_s: float


def _show_line(line: LogLine) -> str:
    """Return a line of the log, cut if it is long, with its number: ``line 12: …``."""
    return f"line {line.number}: {line.text.strip()[:_SHOWN_CHARACTERS]}"


@dataclass
class Readings:
    """All values of one source: a key in the log, or a form in which a known trainer prints speed.

    Args:
        skip: number of values to leave out at the beginning of a run; the line of the next value
            is kept.
        unit: of a speed, from the form or behind the first number; empty: not known.
        runs: values by the number of the run in the log.
        num_lines: number of lines with a value.
        num_malformed: number of lines that have the key, but no finite number behind it.
        first_malformed_line: number of the first of them.
        first_malformed_text: text of the first of them.
        has_steps: a line with a value also has the number of a step.
        first_mean_rate: first mean rate since the start, of a source whose form has a clock.
        last_mean_rate: last of them.
        last_mean_text: its line.
    """

    source: Source
    skip: int = 0
    unit: str = ""
    runs: dict[int, RunValues] = field(default_factory=dict)
    num_lines: int = 0
    num_malformed: int = 0
    first_malformed_line: int = 0
    first_malformed_text: str = ""
    has_steps: bool = False
    first_mean_rate: float | None = None
    last_mean_rate: float = 0.0
    last_mean_text: str = ""
    # The last values of steps, which other ranks may print a little later.
    _recent: deque[_StepPrint] = field(default_factory=lambda: deque(maxlen=_MAX_STEPS_APART))
    _last_num_pauses: int = 0  # ``num_pauses`` of the context at the last value
    _last_paused_s: float = 0.0  # ``paused_s`` of the context at the last value
    _last_counter: _CounterReading | None = None  # None: the next reading is the first one
    _is_resume_skipped: bool = False  # the difference that includes steps from before a resume
    _work_so_far: float = math.nan  # last reading of a counter of samples or tokens; NaN: none yet

    def reject(self, line: int, text: str) -> None:
        """Count a line without a finite number behind the key, and keep the first such line.

        Args:
            line: number of the line.
        """
        self.num_malformed += 1
        if self.num_malformed == 1:
            self.first_malformed_line = line
            self.first_malformed_text = text.strip()[:_SHOWN_CHARACTERS]

    def add(
        self, line: LogLine, value: float, context: LogContext, *, seconds: float, work: float
    ) -> None:
        """Add a value of a line; values of several ranks for one step are averaged.

        Args:
            line: has the value, and perhaps the number of a step and the batch size.
            context: what the log said until now besides values: the number of the run, evaluations
                and checkpoints, and how often steps began anew.
            seconds: that the value covers; NaN: not known.
            work: samples, tokens or other units of a speed that the value covers; NaN: not known.
        """
        if not math.isfinite(value):
            self.reject(line.number, line.text)
            return
        run = self.runs.setdefault(context.run_number, RunValues())
        self.num_lines += 1
        self.has_steps = self.has_steps or line.step is not None
        # Ranks that print one step count as one value; a line without a step is always a new one.
        # ``counters`` are the numbers of a step on the line. If steps have begun anew in between,
        # equal numbers mean different steps.
        if line.counters and self._average_with_rank(line, value, run, context.num_restarts):
            return
        # The first ``skip`` values of a run do not count.
        is_first_counted = len(run.values) == self.skip
        run.last_text = _show_line(line)
        # The shown line is that of the first value that counts. If no value counts, because all
        # are skipped, it is that of the first value.
        if is_first_counted or not run.first_text:
            run.first_text = run.last_text
        self._recent.append(_StepPrint(context.num_restarts, line.counters, len(run.values)))
        run.values.append(value)
        run.seconds.append(seconds)
        run.work.append(work)
        run.batches.append(math.nan if line.batch is None else line.batch)
        # The evaluations and checkpoints since the last value lie in the time of this one.
        run.has_pause.append(context.num_pauses > self._last_num_pauses)
        run.pauses_s.append(context.paused_s - self._last_paused_s)
        self._last_num_pauses = context.num_pauses
        self._last_paused_s = context.paused_s

    def _average_with_rank(
        self, line: LogLine, value: float, run: RunValues, num_restarts: int
    ) -> bool:
        """Average a value into that of another rank for the same step; False: there is none.

        Args:
            line: its ``counters`` are all numbers of a step.
            run: the values of the run; the mean replaces the value of the other rank.
            num_restarts: how often steps began anew before the line. Equal numbers of steps mean
                the same step only if steps did not begin anew between them.
        """
        for earlier in self._recent:  # the last few values, with the numbers of their steps
            if earlier.num_restarts == num_restarts and earlier.counters == line.counters:
                earlier.count += 1
                mean = run.values[earlier.index]  # of the ranks that have printed the step
                run.values[earlier.index] = mean + (value - mean) / earlier.count
                return True
        return False

    def add_mean_rate(self, line: LogLine, rate: float) -> None:
        """Keep a rate that the trainer prints as the mean since its start.

        The first and the last are enough: if the log has only one, it is the speed, and if the
        first is far above the speed, it counts work from before a resume.
        """
        if self.first_mean_rate is None:
            self.first_mean_rate = rate
        self.last_mean_rate = rate
        self.last_mean_text = _show_line(line)

    def add_counter_reading(
        self, line: LogLine, done: float, clock_s: float, context: LogContext
    ) -> None:
        """Add the speed since the last reading of a counter and of the clock beside it.

        Args:
            line: on which both stand.
            done: work that the counter shows.
            clock_s: seconds that the clock shows.
            context: what the log said until now besides values, such as a resume.
        """
        last = self._last_counter
        self._last_counter = _CounterReading(done, clock_s)
        if last is None or clock_s < last.clock_s or done < last.done:
            # It is the first reading, or the counter or its clock began anew: there is no
            # earlier reading from which to compute a speed.
            return
        if clock_s == last.clock_s:
            # The clock has not ticked: the speed is computed at the next reading, from `last` on.
            self._last_counter = last
            return
        elapsed_s = clock_s - last.clock_s
        if context.resumed_at and not self._is_resume_skipped:
            # After a resume, the first difference may include the steps from before it: a progress
            # bar is drawn at step 0, and then at the step from which the run goes on.
            self._is_resume_skipped = True
            return
        speed = (done - last.done) / elapsed_s
        # The seconds are the weight of the speed in the mean. The work would be needed only if the
        # seconds were not known.
        self.add(line, speed, context, seconds=elapsed_s, work=math.nan)

    def add_last_counter_reading(
        self, line: LogLine, done: float, clock_s: float, context: LogContext
    ) -> None:
        """Add the speed at the last reading of a counter, such as that of a full progress bar.

        It is the speed since the reading before it. If the log has no earlier reading, it is the
        speed since the counter and its clock began at 0. After a resume the counter did not begin
        at 0: the caller adds such a reading by ``add_counter_reading``. Nothing is added if the
        clock shows no more seconds than at the reading before.

        Args:
            line: of the last reading.
            done: work that the counter shows, such as steps.
            clock_s: seconds that the clock shows.
            context: it says in which run of the log the line stands.
        """
        last = self._last_counter
        self._last_counter = None  # the next counter of this source begins at 0
        # If the reading before is not lower, it belongs to an earlier counter, such as the progress
        # bar before this one.
        if last is None or last.done >= done:
            last = _CounterReading(done=0.0, clock_s=0.0)
        elapsed_s = clock_s - last.clock_s
        if elapsed_s > 0:
            speed = (done - last.done) / elapsed_s
            # The seconds are the weight of the speed in the mean, so the work is not needed.
            self.add(line, speed, context, seconds=elapsed_s, work=math.nan)

    def read_work(self, line: LogLine) -> float:
        """Return the samples or tokens of the step or interval of a line; NaN: not known.

        The weights of rates in a mean are computed from them. So any number that is proportional to
        the work will do.
        """
        # The unit of this source's rates: the form of the log names it, or it stood behind the
        # first number. Empty: not known.
        unit = normalize_rate_unit(self.source.quantity.unit or self.unit)
        if unit == "samples/s" and line.batch is not None:
            return line.batch  # the samples of a step
        for pair in line.pairs:  # each number with its key, the text before it
            if is_work_of_step(pair.key):  # such as `tokens per step`, in whatever unit
                return pair.value
            # A counter of all samples or tokens until now, such as `consumed samples`.
            if unit and normalize_rate_unit(read_rate_unit_of_counter(pair.key)) == unit:
                # At the first reading the work so far is NaN, and so is the work of this line.
                work = pair.value - self._work_so_far
                self._work_so_far = pair.value
                return work if work > 0 else math.nan  # a counter that falls began anew
        return math.nan
