"""Read the values of a log in one pass, separately for each source and run.

A source is a key in the log, or a form in which a known trainer prints its speed. A key that
belongs to no known trainer has the preset ``PLAIN``.
"""

from __future__ import annotations

import math
import re
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from trainmark.published.analysis.lines import LogContext, StepNumber, may_have_values, read_line
from trainmark.published.analysis.quantities import (
    Quantity,
    is_work_of_step,
    normalize_rate_unit,
    read_quantity,
    read_rate_unit_of_counter,
)
from trainmark.published.analysis.sources import (
    BAR_KEY,
    PLAIN,
    PRESETS,
    SIGNATURES,
    Preset,
    Source,
    list_sources_by_key,
)
from trainmark.published.analysis.values import RunValues
from trainmark.published.importers.event_runs import FORMS, EventReader
from trainmark.published.log import make_number_pattern, parse_number

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trainmark.published.analysis.lines import LogLine
    from trainmark.published.analysis.pairs import Pair
    from trainmark.published.importers.event_runs import EventRun

_SHOWN_CHARACTERS = 300  # of a line in messages
_MAX_SURVEYED_LINES = 2000  # in which all numeric keys are counted
_MAX_STEPS_APART = 4  # steps by which ranks that print into one log may be apart
# The progress bar of tqdm: ` 20/500 [00:12<04:48, 1.67it/s`.
_PROGRESS_BAR = re.compile(
    r"(?P<done>\d+)/(?P<total>\d+)\s*\[(?P<clock>[\d:]+)<[^,\]]*,\s*(?:\?|[\d.]+)\s*"
    r"(?:s/|)(?:it|steps?|iters?|batch(?:es)?)\b"
)
_CLOCK = re.compile(r"(?:(\d+) days?, )?(?:(\d+):)?(\d+):(\d+(?:\.\d+)?)$")


def _list_keys(preset: Preset) -> set[str]:
    """Return keys of a trainer's log: each line in its format has at least one of them.

    Args:
        preset: the format of the trainer's log. Its forms are the ways in which the trainer prints
            its speed, each with the text before the number as its key; ``loss`` is the key of the
            loss.
    """
    keys = {form.key for form in preset.forms}
    # ``closing`` is empty, or names the keys of the line in which the trainer prints its speed only
    # once, at the end of a run. The trainer's other lines have the loss.
    if preset.closing:
        keys.add(preset.loss)
    return keys


_KEYS_OF_PRESETS = {name: _list_keys(preset) for name, preset in PRESETS.items()}
_OTHER_RATE_UNIT = re.compile(r"([A-Za-z]+/s)(?:ec)?")
_ANY_VALUE = r"['\"]?\s*[:=]\s*\S"  # behind a key


def parse_clock(clock: str) -> float | None:
    """Return the seconds of ``1 day, 2:03:04``, ``2:03:04`` or ``03:04``; None: not a time."""
    match = _CLOCK.match(clock)
    if match is None:
        return None
    days, hours, minutes, seconds = match.groups(default="0")
    return ((int(days) * 24 + int(hours)) * 60 + int(minutes)) * 60 + float(seconds)


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
        run.last_text = f"line {line.number}: {line.text.strip()[:_SHOWN_CHARACTERS]}"
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

    def add_mean_rate(self, rate: float) -> None:
        """Keep a rate that the trainer prints as the mean since its start.

        The first and the last are enough: if the log has only one, it is the speed, and if the
        first is far above the speed, it counts work from before a resume.
        """
        if self.first_mean_rate is None:
            self.first_mean_rate = rate
        self.last_mean_rate = rate

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
        speed since the counter and its clock began at 0.

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


class LogReader:
    """Reads a log once, and keeps all that the choice of its speed needs.

    Attributes:
        context: what the lines said besides values.
        readings: the values of each source, which is a key in the log or a form in which a known
            trainer prints its speed.
        num_lines_of_preset: number of lines that have the form of each preset.
        last_loss_of: the last loss with each key; with an empty key, the main loss of training.
        wanted_loss: the last number behind the user's keyword for the loss; None: there is none.
        key_counts: how often each key of a number stands in the first lines.
        last_value_of: the last value of each of these keys.
    """

    def __init__(self, preset: str, skip: int, loss_keyword: str = "") -> None:
        """Start with no line read.

        Args:
            preset: the log format of a known trainer that the user names. Numbers behind its keys
                count even on lines that do not look like its own. ``auto``: the user names none;
                ``plain``: a trainer that is not known.
            skip: values to leave out at the beginning of a run.
            loss_keyword: text before the loss that the user wants; empty: any loss of training.
        """
        self.preset = preset
        self.skip = skip
        self.wanted_loss: float | None = None  # the last number behind the user's keyword
        self._loss_keyword = loss_keyword
        self._wanted_loss_pattern: re.Pattern[str] | None = None
        if loss_keyword:
            self._wanted_loss_pattern = re.compile(make_number_pattern(loss_keyword))
        # Runs of logs of events, such as MLPerf's; all other lines give values.
        self._events = EventReader()
        self._ended_runs: list[EventRun] = []  # of events; another run has followed each
        self.context = LogContext()  # what the lines say besides values: where runs begin and end
        # The values of each source: a key, or a form in which a known trainer prints its speed.
        self.readings: dict[SourceKey, Readings] = {}
        self.num_lines_of_preset: Counter[str] = Counter()  # lines in the format of each trainer
        self.last_loss_of: dict[str, float] = {}  # by the key before it
        # How often each key, the text before a number, stands in the first lines, and its last
        # value. The user sees them if none of the numbers is a speed.
        self.key_counts: Counter[str] = Counter()
        self.last_value_of: dict[str, float] = {}
        self._sources_by_key = list_sources_by_key()  # in which known trainers print their speed
        # The keys of the losses of all presets. The empty key stands for the main loss of a log,
        # whatever it is called.
        self._loss_keys = {preset.loss for preset in PRESETS.values()} | {""}
        # A key of a preset with anything behind it. A line with no number there is malformed.
        self._key_patterns = {
            key: re.compile(rf"(?<!\w){re.escape(key)}{_ANY_VALUE}") for key in self._sources_by_key
        }

    @property
    def event_runs(self) -> list[EventRun]:
        """The runs of PerfLog or MLPerf events in the log.

        Such logs have a line with a mark for each event of a training. To the runs that ended, the
        last ones are added, which more lines could continue.
        """
        return [*self._ended_runs, *self._events.open_runs]

    def read(self, lines: Iterable[tuple[int, str]]) -> None:
        """Read all lines: events give runs, other lines give values, losses and their context.

        An event is a line of a PerfLog or MLPerf log. The context is what lines say besides values,
        such as where a run begins, and which other work than training interrupts it.

        Args:
            lines: number and text of each line.
        """
        for number, text in lines:
            # The keys of ``FORMS`` are the texts that stand before events, such as `:::MLLOG`.
            if any(mark in text for mark in FORMS):
                # The event may begin another run: then this gives the run that it ends.
                self._ended_runs += self._events.feed(number, text)
                continue
            # The user may give the keyword before the loss; the last number behind it counts.
            if self._wanted_loss_pattern is not None and self._loss_keyword in text:
                match = self._wanted_loss_pattern.search(text)
                if match is not None:  # of `1.2K`, the groups are the number and the magnitude `K`
                    self.wanted_loss = parse_number(match[1], match[2])
            self.context.notice_text(number, text)
            # The keys of the first lines, the texts before numbers, are counted. They are shown to
            # the user if none of them is a speed.
            is_surveyed = number <= _MAX_SURVEYED_LINES
            line = None
            if is_surveyed or may_have_values(text):
                line = read_line(number, text)
                if is_surveyed:
                    self._count_keys(line)
                if self._add_line(line):  # the line has a value
                    continue
            # A line without a value may name an evaluation or a checkpoint, which takes time.
            self.context.notice_other_work(text, line)

    def _count_keys(self, line: LogLine) -> None:
        """Count the keys before the numbers of a line, and keep the last value of each.

        They are shown to the user if no number of the log is known to be a speed or a step time.
        """
        for pair in line.pairs:  # each number with its key, the text before it
            if pair.key:  # empty: only a unit behind the number says what it is
                self.key_counts[pair.key] += 1
                self.last_value_of[pair.key] = pair.value

    def _add_line(self, line: LogLine) -> bool:
        """Add the values and losses of a line of training; return whether it has a speed or time.

        A preset is the log format of a known trainer. Each of its sources is a form in which it
        prints its speed, found by its key, the text before the number. Other numbers are plain:
        their key or unit says that they are a speed or a step time.

        Args:
            line: with its numbers and their keys (``pairs``), and with those of them that are a
                speed or step time (``speeds``), whether a trainer is known or not.
        """
        if line.is_other_work:  # of evaluation or preparation
            return False
        has_loss = self._add_loss(line)
        pairs = {pair.key: pair for pair in line.pairs}  # of a key that is repeated, the last
        presets = self._recognise_presets(line, pairs)
        # The steps of such lines show where runs begin and end.
        if line.speeds or has_loss or presets:
            self.context.notice_values(line)
        has_progress_bar = self._add_progress_bar(line)
        preset_keys = set()  # keys whose numbers are added as those of a preset
        for key in pairs.keys() & self._sources_by_key.keys():
            for source in self._sources_by_key[key]:
                # The preset that the user names counts even on lines without its signature, the
                # pattern by which its lines are recognised.
                if source.preset in presets or source.preset == self.preset:
                    self._add_form(line, pairs[key], source)
                    preset_keys.add(key)
        for pair, quantity in line.speeds:
            # Without a key, it may be the `1.67it/s` of a progress bar. That is a mean;
            # `_add_progress_bar` has added the exact speed.
            is_rate_of_bar = has_progress_bar and not pair.key and quantity.kind != "speed"
            # If the user names the preset ``PLAIN``, keys of known trainers count as plain, too.
            is_plain = pair.key not in preset_keys or self.preset == PLAIN
            if is_plain and not is_rate_of_bar:
                self._add_plain(line, pair, quantity)
        self._reject_malformed(line, pairs)
        return bool(line.speeds) or has_progress_bar

    def _add_loss(self, line: LogLine) -> bool:
        """Keep the losses of a line as the last ones of their keys; return whether it has one."""
        if "oss" not in line.text:  # a quick test: `loss` or `Loss`
            return False
        has_loss = False
        for key in self._loss_keys:  # the empty key stands for the main loss of training
            loss = line.find_loss(key)
            if loss is not None:
                self.last_loss_of[key] = loss
                has_loss = True
        return has_loss

    def _recognise_presets(self, line: LogLine, pairs: dict[str, Pair]) -> set[str]:
        """Return the presets whose lines look like this one, and count the line for each of them.

        A preset is the log format of a known trainer. Its signature is a pattern that only lines in
        this format match.

        Args:
            pairs: the numbers of the line by their keys, the texts before them.
        """
        presets = set()
        for name, keys in _KEYS_OF_PRESETS.items():
            # The pattern is slow: it is tried only on lines with a key of the preset.
            if not keys.isdisjoint(pairs) and SIGNATURES[name].search(line.text):
                presets.add(name)
        self.num_lines_of_preset.update(presets)
        return presets

    def _get_readings(self, source: Source) -> Readings:
        """Return all values of a source so far; at its first value, there are none yet.

        A source is a key in the log, or a form in which a known trainer prints its speed. ``skip``
        is the number of values that do not count at the beginning of a run.
        """
        # ``source.unit`` stands behind numbers without a key; ``quantity.unit`` is that of a speed.
        key = SourceKey(source.preset, source.key, source.unit)
        if key not in self.readings:
            self.readings[key] = Readings(source, skip=self.skip, unit=source.quantity.unit)
        return self.readings[key]

    def _add_plain(self, line: LogLine, pair: Pair, quantity: Quantity) -> None:
        """Add a number that belongs to no known trainer, but whose key or unit says what it is.

        In its source, ``PLAIN`` stands in place of the name of a trainer's log format.

        Args:
            pair: the number with its key, the text before it, and the unit behind it.
            quantity: what the number measures: a speed or a step time.
        """
        # Numbers with one key are one source, whatever stands behind them; only numbers without a
        # key are told apart by their unit.
        unit = "" if pair.key else pair.unit
        source = Source(PLAIN, pair.key, quantity, unit=unit)
        readings = self._get_readings(source)
        self._add_value(line, pair, readings)

    def _add_form(self, line: LogLine, pair: Pair, source: Source) -> None:
        """Add a number that stands in one of the forms in which a known trainer prints its speed.

        With some forms, the line also prints the time since the start, behind another key. Then the
        number is either the mean speed since the start or a counter of the work done. In place of
        the number, the speed since the last such line is added.

        Args:
            pair: the number with its key, the text before it.
            source: its ``form`` has the key of the time in ``clock``; empty: the line has no such
                time, and the number itself is the speed.
        """
        readings = self._get_readings(source)
        form = source.form
        assert form is not None, "the source of a preset is one of its forms"
        if not form.clock:
            self._add_value(line, pair, readings)
            return
        # The clock's key, a colon or equals sign, and the time up to a quote or bracket.
        match = re.search(rf"{re.escape(form.clock)}['\"]?\s*[:=]\s*['\"]?([^'\"\]}}]+)", line.text)
        clock_s = parse_clock(match[1].strip()) if match else None
        if clock_s is None or not math.isfinite(pair.value):
            readings.reject(line.number, line.text)  # it counts as malformed
            return
        # At 0 seconds a mean rate says nothing about the work done, but a counter does.
        if clock_s > 0 or form.is_counter:
            # A mean rate since the start, times the clock, is the work done until now.
            done = pair.value if form.is_counter else pair.value * clock_s
            readings.add_counter_reading(line, done, clock_s, self.context)
        # The mean itself is kept, too: it counts if it is printed only once, and if it falls much,
        # it shows that the run was resumed.
        if not form.is_counter:
            readings.add_mean_rate(pair.value)
        elif clock_s > 0:
            readings.add_mean_rate(pair.value / clock_s)

    def _add_value(self, line: LogLine, pair: Pair, readings: Readings) -> None:
        """Add a number as it is printed, with the time and the work that its line prints.

        The weight of a rate in the mean is computed from the time of the step, or from its work:
        samples or tokens.

        Args:
            pair: the number with its key and the unit behind it.
            readings: all values of its source so far. Their unit is that of the first number that
                has one.
        """
        readings.unit = readings.unit or _read_rate_unit(pair)
        seconds = math.nan
        is_rate = readings.source.quantity.kind != "step_time"
        if is_rate and line.step_time_s is not None:  # times need no weight
            seconds = line.step_time_s
        work = readings.read_work(line)
        readings.add(line, pair.value, self.context, seconds=seconds, work=work)

    def _add_progress_bar(self, line: LogLine) -> bool:
        """Add the speed by counter and clock of a progress bar; return whether there is one.

        Of ``20/500 [00:12<04:48, 1.67it/s``, the counter is 20 of 500, and the clock is 12 seconds.

        Args:
            line: ``speeds`` are its numbers that are speeds or step times, such as `1.67it/s`.
        """
        if "<" not in line.text or not line.speeds:  # a quick test: `[00:12<04:48, 1.67it/s`
            return False
        match = _PROGRESS_BAR.search(line.text)
        clock_s = parse_clock(match["clock"]) if match else None
        if match is None or clock_s is None:
            return False
        # It is taken as steps a second. Weak: the bar may count something else than steps.
        quantity = Quantity("steps", "steps/s", is_weak=True)
        # Bars with different totals, such as those of training and evaluation, are two sources.
        key = f"{BAR_KEY} of {match['total']}"
        readings = self._get_readings(Source(PLAIN, key, quantity))
        done = float(match["done"])
        is_last_reading = match["done"] == match["total"]
        # A full bar gives a speed even if no other reading of it is printed: its counter began at
        # 0. After a resume it did not, so there the last reading alone gives no speed.
        if is_last_reading and not self.context.resumed_at:
            readings.add_last_counter_reading(line, done, clock_s, self.context)
        else:
            readings.add_counter_reading(line, done, clock_s, self.context)
        return True

    def _reject_malformed(self, line: LogLine, pairs: dict[str, Pair]) -> None:
        """Count a line of a known trainer that has one of its keys, but no number behind the key.

        Sources whose preset is ``PLAIN``, which belong to no known trainer, are left out.

        Args:
            pairs: the numbers of the line by their keys.
        """
        # All sources with a value so far, each with its key, the text before its numbers.
        for (preset, key, _unit), readings in self.readings.items():
            # Plain keys are ordinary words, which also stand in text without a number.
            if preset == PLAIN or key in pairs or key not in line.text:
                continue
            if self._key_patterns[key].search(line.text):
                readings.reject(line.number, line.text)


def _read_rate_unit(pair: Pair) -> str:
    """Return the unit behind the number of a speed: a known unit, else a word such as ``words/s``.

    Empty: neither stands there.

    Args:
        pair: the number with the known unit behind it (``unit``, empty if there is none) and the
            word behind it (``following``).
    """
    quantity = read_quantity("", pair.unit)
    if quantity is not None and quantity.kind != "step_time":
        return quantity.unit
    other_unit = _OTHER_RATE_UNIT.fullmatch(pair.following)  # the group has `words/s`
    return other_unit[1] if other_unit else ""
