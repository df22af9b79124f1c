"""Read the values of a log in one pass, separately for each source and run.

A source is a key in the log, or a form in which a known trainer prints its speed. A key that
belongs to no known trainer has the preset ``PLAIN``.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from typing import TYPE_CHECKING

from trainmark.published.analysis.lines import LogContext, may_have_values, read_line
from trainmark.published.analysis.quantities import Quantity, read_quantity
from trainmark.published.analysis.readings import Readings, SourceKey
from trainmark.published.analysis.sources import (
    BAR_KEY,
    PLAIN,
    PRESETS,
    SIGNATURES,
    Preset,
    Source,
    list_sources_by_key,
)
from trainmark.published.importers.event_runs import FORMS, EventReader
from trainmark.published.log import make_number_pattern, parse_number

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trainmark.published.analysis.lines import LogLine
    from trainmark.published.analysis.pairs import Pair
    from trainmark.published.importers.event_runs import EventRun

_MAX_SURVEYED_LINES = 2000  # in which all numeric keys are counted
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
        if "loss" not in line.text.lower():  # a quick test
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
            readings.add_mean_rate(line, pair.value)
        elif clock_s > 0:
            readings.add_mean_rate(line, pair.value / clock_s)

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
