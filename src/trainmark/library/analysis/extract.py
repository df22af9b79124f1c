"""Values of one rule out of the blocks of a log, with what is shown about them.

Owns the search for matching lines and its evidence: first value, malformed lines, the line
nearest to a keyword that never came. Must not know what values mean.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import TYPE_CHECKING

from trainmark.library.analysis.source import NUMBERED_BLOCKS

if TYPE_CHECKING:
    from trainmark.library.analysis.distribution import Distribution
    from trainmark.library.analysis.numbers import Rule
    from trainmark.library.analysis.source import Block

SHOWN_CHARACTERS = 160
_CANDIDATES_PER_BLOCK, _CANDIDATES = 200, 400


@dataclass(frozen=True, slots=True)
class Shown:
    """A line as evidence: its number from 1, ``SHOWN_CHARACTERS`` of it around the place."""

    number: int
    text: str

    def __str__(self) -> str:
        return f"line {self.number}: {self.text}"


def shown(block: Block, at: int) -> Shown:
    """Return the line at byte ``at`` as evidence."""
    line = block.line(at)
    column = at - (block.data.rfind(b"\n", 0, at) + 1)  # in bytes: near enough for a view
    start = max(0, min(column - SHOWN_CHARACTERS // 3, len(line) - SHOWN_CHARACTERS))
    text = line[start : start + SHOWN_CHARACTERS].strip()
    before, after = "…" if start else "", "…" if len(line) > start + SHOWN_CHARACTERS else ""
    return Shown(block.line_number(at), before + text + after)


class Evidence:
    """What a reader of values can show: counts and first lines."""

    def __init__(self) -> None:
        self.matched = 0
        self.malformed = 0
        self.first: Shown | None = None
        self.first_word = ""
        self.first_malformed: Shown | None = None
        self.cut_value: Shown | None = None

    def found(self, block: Block, at: int, word: str, *, used: bool) -> None:
        """Note a value; the first word is kept, and the first line that is not skipped."""
        self.first_word = self.first_word or word
        if used and self.first is None:
            self.first = shown(block, at)

    def not_found(self, block: Block, at: int) -> None:
        """Count a line that should have held a value; the first is kept."""
        self.malformed += 1
        if self.first_malformed is None:
            self.first_malformed = shown(block, at)


class Extractor(Evidence):
    """Feeds the values of ``rule`` to ``distribution``, block by block."""

    def __init__(self, rule: Rule, distribution: Distribution) -> None:
        super().__init__()
        self.rule = rule
        self.distribution = distribution
        self._key = rule.keyword.encode()
        self._plain = rule.plain

    def feed(self, block: Block) -> None:
        """Take the values of all matching lines of ``block``."""
        end = block.data.rfind(b"\n") + 1  # what lies behind is a line without its end
        words = self._plain.findall(block.data, 0, end) if self._plain and self.first else [b""]
        values = list(map(float, words)) if all(words) else [math.inf]
        if math.isfinite(sum(values)):
            self.matched += len(words)
        else:
            values = self._one_by_one(block, end)
        self.distribution.add(values)
        if block.cut and (at := block.data.find(self._key, end)) >= 0:
            self._cut_line(block, at)

    def _one_by_one(self, block: Block, end: int) -> list[float]:
        """Return the values of a block in which some line needs a closer look."""
        values: list[float] = []
        find = block.data.find
        plain = self._plain.match if self._plain else None
        at = find(self._key, 0, end)
        while at >= 0:
            self.matched += 1
            found = plain(block.data, at, end) if plain and self.first else None
            value = float(found[1]) if found and found[1] else math.inf
            if math.isfinite(value):
                values.append(value)
            else:
                self._careful(block, at, values)
            line_end = find(b"\n", at, end)
            at = find(self._key, line_end, end)
        return values

    def _careful(self, block: Block, at: int, values: list[float]) -> None:
        found = self.rule.value(block.line(at))
        if found is None or not math.isfinite(found[0]):
            self.not_found(block, at)
        else:
            self.found(block, at, found[1], used=self.distribution.uses(len(values)))
            values.append(found[0])

    def _cut_line(self, block: Block, at: int) -> None:
        """Take the value of a last line without its end, unless it may lack digits.

        It is whole if something follows it, or if it has as many decimals as the first
        value; a lone value is taken as it is. At the limit of long lines nothing is taken
        that touches it.
        """
        line = block.line(at)
        found = self.rule.value(line)
        self.matched += 1
        lacking = block.torn and found is not None and _touches_end(self.rule, line, found[1])
        if found is None or lacking or not math.isfinite(found[0]):
            self.not_found(block, at)
        elif (
            not block.torn
            and line.endswith(found[1])
            and found[1][-1:].isdigit()
            and self.first_word
            and _decimals(found[1]) != _decimals(self.first_word)
        ):
            self.cut_value = shown(block, at)
        else:
            self.found(block, at, found[1], used=self.distribution.uses())
            self.distribution.add([found[0]])


def _touches_end(rule: Rule, line: str, word: str) -> bool:
    """Tell whether more of ``line`` would change its value: the word reaches its end."""
    return line.endswith(word) or (rule.position is not None and rule.position < 0)


def _decimals(word: str) -> int:
    fraction = re.search(r"\.(\d*)", word)
    return len(fraction[1]) if fraction else 0


class LastValue:
    """The last value of a rule in a log, a loss for instance; it may be infinite or NaN."""

    def __init__(self, rule: Rule) -> None:
        self.rule = rule
        self.value: float | None = None
        self._key = rule.keyword.encode()

    def feed(self, block: Block) -> None:
        """Take the last value of ``block``, if it has one.

        A last line without its end may have lost digits: it counts only where no line
        before it has a value. One longer than the limit counts if its value ends before it.
        """
        end = len(block.data)
        if block.cut:
            end = block.data.rfind(b"\n") + 1
        if block.torn and block.data.find(self._key, end) >= 0:
            line = block.line(end)
            found = self.rule.value(line)
            if found and not _touches_end(self.rule, line, found[1]):
                self.value = found[0]
                return
        if block.torn:
            block = block.whole_lines()
        if not self._search(block, end) and self.value is None and block.cut:
            self._search(block, len(block.data))

    def _search(self, block: Block, end: int) -> bool:
        at = block.data.rfind(self._key, 0, end)
        while at >= 0:
            if found := self.rule.value(block.line(at)):
                self.value = found[0]
                return True
            line_start = block.data.rfind(b"\n", 0, at) + 1
            at = block.data.rfind(self._key, 0, line_start)
        return False


class NearMiss:
    """The line most like a keyword, of a bounded number of differing lines."""

    def __init__(self, keyword: str) -> None:
        self._keyword = keyword.lower()
        self._seen: set[str] = set()
        self._best: tuple[float, Shown] | None = None
        self._ways = SequenceMatcher(autojunk=False)
        self._ways.set_seq2(self._keyword)

    def feed(self, block: Block) -> None:
        """Compare the first lines of ``block``; lines that differ in digits only once."""
        if block.number >= NUMBERED_BLOCKS:
            return
        start = 0
        for _ in range(_CANDIDATES_PER_BLOCK):
            if len(self._seen) >= _CANDIDATES or start >= len(block.data):
                return
            end = block.data.find(b"\n", start)
            end = len(block.data) if end < 0 else end
            text = block.data[start : min(end, start + 1000)].decode("utf-8", "replace").lower()
            shape = re.sub(r"\d+", "0", text)
            if text.strip() and shape not in self._seen:
                self._seen.add(shape)
                self._compare(text, block, start)
            start = end + 1

    def _compare(self, text: str, block: Block, at: int) -> None:
        self._ways.set_seq1(text)
        common = self._ways.find_longest_match().size / len(self._keyword)
        if common >= 0.5 and (self._best is None or common > self._best[0]):
            self._best = common, shown(block, at)

    @property
    def best(self) -> Shown | None:
        """The nearest line, which has half of the keyword in one piece; none: no line has."""
        return self._best[1] if self._best else None
