"""Read the numbers behind a keyword, or at a position, as the public log analyzer does.

A line counts if it contains the keyword. The value is the number behind it, or the word at the
position, cut to the characters that the option ``range`` selects.
"""

from __future__ import annotations

import math
import re
from array import array
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from trainmark.errors import UsageError
from trainmark.published.analysis.lines import has_progress
from trainmark.published.analysis.pairs import find_pairs
from trainmark.published.analysis.quantities import Quantity, is_step_counter, read_quantity
from trainmark.published.analysis.samples import Sample, find_slow_values
from trainmark.published.analysis.sources import Source
from trainmark.published.log import (
    MAGNITUDE,
    NUMBER,
    OPENING,
    describe_value_count,
    make_keyword_pattern,
    make_number_pattern,
    parse_number,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trainmark.published.analysis.pairs import Pair

_LEADING_NUMBER = re.compile(rf"[{re.escape(OPENING)}]*({NUMBER})({MAGNITUDE})?")
_CHARACTER_RANGE = re.compile(r"(?:(-?\d+)?:)?(-?\d+)?")  # `N`, `A:B`, or nothing
_FLAGS = re.DOTALL | re.ASCII  # Chinese has no spaces between words
_SHOWN_CHARACTERS = 300  # of a line in messages
_MAX_CLOSING_WORD = 12  # characters of `average ` and the like, with a margin
_OTHER_UNIT = re.compile(r"([A-Za-z]+/s)(?:ec)?")
# A key that begins with one of these words is part of a summary: it is no value of a step.
_CLOSING_WORD = re.compile(r"(?i)\b(?:total|average|avg|mean|overall) $")


class _StepTimePattern(NamedTuple):
    """The pattern of a step time on the lines of the values, and the seconds of its unit."""

    pattern: re.Pattern[str]
    unit_s: float


@dataclass(kw_only=True)
class KeywordReader:
    """Reads the values behind a keyword, and keeps what is needed for their mean.

    Args:
        keyword: empty: every line counts, if a position is given.
        separator: text between words; empty: white space.
        position: place of the word, from 0, from the end if negative; None: behind the keyword.
        character_range: the characters of the word that count, ``N`` or ``A:B``; empty: all.
        skip: values to leave out at the beginning.
        loss_keyword: text before the loss; the last loss in the log counts.

    Attributes:
        values: the number that each line has behind the keyword or at the position.
        seconds: the step time on the line of each value; NaN: there is none. Empty: no line has it.
        closing_values: values of lines at the end, whose keys have a word such as ``total`` or
            ``average``.
        closing_text: the line of the first of them that counts.
        loss: the last loss; None: there is none.
        num_malformed: number of lines with the keyword and without a number.
        first_malformed_text: the first of them.
        first_text: the line of the first value that counts.
        key: the words before the value on its first line.
        unit: that behind the value on its first line; empty: not known.
        quantity: what the values measure by key and unit; None: not known.

    Raises:
        UsageError: the range of characters has another form.
    """

    keyword: str
    separator: str = ""
    position: int | None = None
    character_range: str = ""
    skip: int = 0
    loss_keyword: str = ""
    values: array[float] = field(default_factory=lambda: array("d"))
    seconds: array[float] = field(default_factory=lambda: array("d"))
    closing_values: array[float] = field(default_factory=lambda: array("d"))
    closing_text: str = ""
    loss: float | None = None
    num_malformed: int = 0
    first_malformed_text: str = ""
    first_text: str = ""
    key: str = ""
    unit: str = ""
    quantity: Quantity | None = None
    _slice: slice = field(default_factory=lambda: slice(None))  # of a word's characters
    _step_time: _StepTimePattern | None = None  # None: the first line with a value has no step time

    def __post_init__(self) -> None:
        """Make the slice of characters that ``character_range`` selects from a word."""
        if not _CHARACTER_RANGE.fullmatch(self.character_range):
            rule = "the range must be N, for the first N characters, or A:B, a Python slice"
            raise UsageError(f"invalid range {self.character_range!r}", where="range", rule=rule)
        # An empty text gives a single bound of None: the slice selects all characters.
        bounds = [int(bound) if bound else None for bound in self.character_range.split(":")]
        self._slice = slice(*bounds)

    @property
    def reads_words(self) -> bool:
        """Tell whether values are words at a position instead of the number behind the keyword.

        Each of these options is about words: the text between two words, the place of the word in
        its line, and the characters of the word that count.
        """
        return bool(self.separator or self.position is not None or self.character_range)

    def read(self, lines: Iterable[tuple[int, str]]) -> None:
        """Add the values of all lines, and keep the last loss.

        Args:
            lines: number and text of each line.
        """
        value_pattern = keyword_pattern = loss_pattern = None
        if not self.reads_words:
            value_pattern = re.compile(make_number_pattern(self.keyword), _FLAGS)
        if self.keyword:
            keyword_pattern = re.compile(make_keyword_pattern(self.keyword), _FLAGS)
        if self.loss_keyword:
            loss_pattern = re.compile(make_number_pattern(self.loss_keyword), _FLAGS)
        for number, line in lines:
            if loss_pattern is not None and self.loss_keyword in line:
                loss_match = loss_pattern.search(line)
                if loss_match is not None:
                    self.loss = parse_number(text=loss_match[1], magnitude=loss_match[2])
            # Upper and lower case count in this quick test as in the patterns. An empty keyword is
            # in every line.
            if self.keyword not in line:
                continue
            if value_pattern is None:
                # The space is the character that the pattern of numbers needs behind a number.
                match = _LEADING_NUMBER.match(f"{self._extract_word(line)} ")
            else:
                match = value_pattern.search(line)
            if match is not None:
                # A closing line states the total or mean of a log, as `avg ips: 3`. A word at a
                # position always counts as a value of a step, because the user chose its place.
                is_closing = value_pattern is not None and self._is_closing(line, match.start())
                self._add(number, line, match, is_closing=is_closing)
            # The line has no value. It is malformed if the keyword stands in it as a whole word,
            # not as `ips` in `tips`; if words at a position are read, every line must have one.
            elif value_pattern is None or (keyword_pattern and keyword_pattern.search(line)):
                self._reject(number, line)

    def _extract_word(self, line: str) -> str:
        """Return the word at the position, cut to its range of characters.

        Empty: the line has no word at the position, or the word none of these characters.
        """
        if self.position is None:  # the word is the first one behind the keyword
            # Colons, quotes and the like, and separators, may come before it.
            text = line.partition(self.keyword)[2].strip(OPENING + self.separator)
            position = 0
        else:
            text = line.strip()
            position = self.position
        words = text.split(self.separator or None)
        if not -len(words) <= position < len(words):
            return ""
        return words[position][self._slice]

    @staticmethod
    def _is_closing(line: str, start: int) -> bool:
        """Tell whether a line is a closing line, with a total or mean of the log.

        It is one if a word such as ``total`` or ``avg`` stands before the keyword, as in
        ``total ips`` and ``avg ips`` for the keyword ``ips``. In ``avg_ips`` that keyword is not
        found, because it does not begin a word.

        Args:
            start: place in the line at which the keyword begins.
        """
        before = line[max(0, start - _MAX_CLOSING_WORD) : start]
        # The first test is quick: the pattern, too, ends with a space.
        return before.endswith(" ") and _CLOSING_WORD.search(before) is not None

    def _add(self, number: int, line: str, match: re.Match[str], *, is_closing: bool) -> None:
        """Add the value that a pattern of numbers matched, and the step time on its line.

        Args:
            number: of the line.
            match: its groups are the number and its magnitude, ``K`` of ``1.2K``.
            is_closing: the line has a total or mean of the log, and no value of a step.
        """
        value = parse_number(match[1], match[2])
        if not math.isfinite(value):
            self._reject(number, line)
            return
        if is_closing:
            if len(self.closing_values) <= self.skip:  # until the first value that is not skipped
                self.closing_text = f"line {number}: {line.strip()[:_SHOWN_CHARACTERS]}"
            self.closing_values.append(value)
            return
        if not self.values:  # the first line with a value shows its key and its step time
            self._learn_key(line, match[1])
        if len(self.values) <= self.skip:  # until the first value that is not skipped
            self.first_text = f"line {number}: {line.strip()[:_SHOWN_CHARACTERS]}"
        self.values.append(value)
        # The step time is the weight of the value in the mean; None: the first line has none.
        if self._step_time is not None:
            time = self._step_time.pattern.search(line)  # its groups: the number and its magnitude
            if time is None:
                self.seconds.append(math.nan)
            else:
                self.seconds.append(parse_number(time[1], time[2]) * self._step_time.unit_s)

    def _reject(self, number: int, line: str) -> None:
        """Count a line whose value is missing or not finite, and keep the first such line.

        Args:
            number: of the line.
        """
        self.num_malformed += 1
        if self.num_malformed == 1:
            self.first_malformed_text = f"line {number}: {line.strip()[:_SHOWN_CHARACTERS]}"

    def _learn_key(self, line: str, text: str) -> None:
        """Keep the key, the unit and the quantity of the first value of the log.

        If the value is a rate and its line has a step time, the pattern of that time is kept, too:
        the times of all lines are the weights of the rates in their mean.

        Args:
            line: the first line with a value.
            text: the value as printed.
        """
        # Each pair is a number with the key before it, the known unit behind it (empty: none) and
        # the word behind it, which need not be a known unit.
        pairs = find_pairs(line)
        pair = self._find_pair(pairs, line, text)
        if pair is None:
            return
        self.key = pair.key
        self.quantity = read_quantity(pair.key, pair.unit, pair.following)
        # The word behind the number if it has the form of a unit of rates, such as `words/s`.
        other_unit = _OTHER_UNIT.fullmatch(pair.following)
        self.unit = other_unit[1] if other_unit else ""
        if self.quantity is None or self.quantity.kind == "step_time":
            # The mean of times needs no weights. What is not known to be a rate gets none, either,
            # even if the word behind it looks like the unit of one.
            return
        if self.quantity.time_unit_s == 1:  # a rate per second
            self.unit = self.quantity.unit or self.unit  # a known unit outweighs the word
        else:  # a rate such as `samples/min`: its values stay as printed, and so does its unit
            self.unit = pair.unit
        self._learn_step_time(line, pairs)

    def _learn_step_time(self, line: str, pairs: list[Pair]) -> None:
        """Keep the pattern of the first step time on a line, the weight of the rate on the line.

        Args:
            line: the first line with a value.
            pairs: its numbers, each with the key before it and the unit behind it.
        """
        has_step = has_progress(line) or any(is_step_counter(pair.key) for pair in pairs)
        for pair in pairs:
            quantity = read_quantity(pair.key, pair.unit, pair.following)
            if quantity is None or quantity.kind != "step_time" or not pair.key:
                continue
            # A summary, such as `avg step time`, is no time of this step. A weak key such as `time`
            # may mean something else: without the number of a step on the line, it may be the time
            # of an epoch or of a whole run.
            if quantity.is_summary or (quantity.is_weak and not has_step):
                continue
            pattern = re.compile(make_number_pattern(pair.key), _FLAGS)
            # The seconds of one step if the printed number is 1. A time may cover many steps.
            self._step_time = _StepTimePattern(pattern, quantity.time_unit_s / quantity.num_steps)
            return

    def _find_pair(self, pairs: list[Pair], line: str, text: str) -> Pair | None:
        """Return the pair of the value, by its number, which is printed as ``text``.

        It is the first such pair whose number stands behind the keyword. A word at a position may
        also stand before the keyword: then it is the first such pair in the line.
        None: no key and no unit was found at this number, so it is in no pair.

        Args:
            pairs: the numbers of the line that have a key or a unit.
        """
        # Every line with a value has the keyword; an empty keyword is found at 0.
        keyword_start = line.find(self.keyword)
        candidates = [pair for pair in pairs if pair.text == text]
        for pair in candidates:
            if pair.start >= keyword_start:  # the place of its number
                return pair
        return candidates[0] if candidates and self.position is not None else None

    def make_sample(self, default_quantity: Quantity, preset: str = "") -> Sample | None:
        """Return the values that count; None: there are none.

        Args:
            default_quantity: what the values measure if their key does not say it.
            preset: name of the log format of a known trainer, to which ``default_quantity``
                belongs; empty: there is none. With a preset, ``default_quantity`` counts even if
                the key says something else.
        """
        values = self.values
        first_text = self.first_text
        notes = []
        # A closing line has a total or mean of the log, and no value of a step.
        if self.closing_values and values:
            num_excluded = len(self.closing_values)
            verb = "is" if num_excluded == 1 else "are"
            notes.append(
                f"{describe_value_count(num_excluded)} of a closing line, such as a total, {verb} "
                "excluded"
            )
        elif self.closing_values:  # only such lines have values
            values = self.closing_values
            first_text = self.closing_text
        # The user's ``skip`` also holds for values of closing lines. If it leaves none, the report
        # says so.
        if len(values) <= self.skip:
            return None
        # ``seconds`` has an entry for each of ``values``; it is empty if only closing lines count.
        counted = np.array(values[self.skip :])
        weights = np.array(self.seconds[self.skip :])
        # A mean by time needs the time of every value; a single value needs no mean.
        has_weights = len(weights) > 1 and bool((np.isfinite(weights) & (weights > 0)).all())
        quantity = default_quantity if preset or self.quantity is None else self.quantity
        return Sample(
            source=Source(preset, self.key or self.keyword, quantity),
            unit=self.unit,
            values=counted,
            weights=weights if has_weights else np.empty(0),
            weighted_by="time" if has_weights else "value",
            num_skipped=len(values) - len(counted),
            num_lines=len(values),
            num_malformed=self.num_malformed,
            first_malformed_text=self.first_malformed_text,
            first_text=first_text,
            notes=notes,
            slow=find_slow_values(counted, is_rate=quantity.kind != "step_time"),
        )
