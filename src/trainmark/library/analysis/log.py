"""The bytes of a log and the numbers in them: behind a keyword, or at a position of its lines.

Owns what counts as a number, for tables of others too.
"""

from __future__ import annotations

import gzip
import math
import re
import sys
import zlib
from array import array
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from trainmark.errors import DataError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

STDIN = "-"
_FRACTION = r"(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?"
DIGITS = rf"(?:[0-9]{{1,3}}(?:,[0-9]{{3}})+(?![0-9])|[0-9]+){_FRACTION}"
_OTHERS = r"\.[0-9]+(?:[eE][+-]?[0-9]+)?|(?i:nan|inf(?:inity)?)(?![A-Za-z_])"
# Dates, versions, clock times and decimal commas begin like a number, and so does one that the end
# of the log has cut: all of them are none.
_NUMBER = rf"((?>(?!0[xX])[+-]?(?:{DIGITS}|{_OTHERS})))(?![:.\-_,]?\d)(?=.)"
_OPENING = " \t:='\"(["
_LEADING = re.compile(rf"[{re.escape(_OPENING)}]*{_NUMBER}".encode())
_BLOCK_BYTES = 1 << 20
_SHOWN_CHARACTERS = 300
_UNIT = r"[\s:='\"]*[\d.,eE+-]+\s*([A-Za-z]+/s)(?:ec)?\b"
_CONTROL = re.compile(
    b"\0|\x1b(?:\\[[0-?]*[ -/]*[@-~]"  # colours and cursor
    b"|\\][^\x07\x1b\n]*(?:\x07|\x1b\\\\)"  # titles and links
    b"|[@-Z\\\\^_])"
)


def blocks(log: str) -> Iterator[bytes]:
    """Yield the whole lines of ``log``, about a MiB at a time; ``-`` is standard input.

    Gzip is told by its first bytes. A carriage return ends a line too, as progress bars have it.

    Raises:
        DataError: for a log that cannot be opened or is damaged.
    """
    try:
        raw: Any
        with sys.stdin.buffer if log == STDIN else Path(log).open("rb") as raw:
            packed = raw.peek(2)[:2] == b"\x1f\x8b"
            data, rest = gzip.GzipFile(fileobj=raw) if packed else raw, b""
            while block := data.read(_BLOCK_BYTES):
                end = 1 + max(block.rfind(b"\n"), block.rfind(b"\r", 0, -1))
                if end:
                    yield _cleaned(rest + block[:end])
                rest = block[end:] if end else rest + block
            if rest:
                yield _cleaned(rest)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"damaged gzip data: {error}", where=log) from error
    except OSError as error:
        raise DataError(f"cannot read: {error.strerror or error}", where=log) from error


def _cleaned(block: bytes) -> bytes:
    if b"\r" in block:
        block = block.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    return _CONTROL.sub(b"", block) if b"\x1b" in block or b"\0" in block else block


def lines(source: Iterable[bytes], *marks: str) -> Iterator[tuple[int, str]]:
    """Yield the lines that hold one of ``marks``, each with its number, from 1."""
    wanted, number = [mark.encode() for mark in marks], 0
    for block in source:
        for number, line in enumerate(block.splitlines(), number + 1):  # noqa: B020 - goes on
            if any(mark in line for mark in wanted):
                yield number, line.decode("utf-8", "replace")


class Rule:
    """Which number of a line is the value: a word's leading one, so that units may be glued to it.

    A keyword inside another word does not count: ``ips:`` is not ``avg_ips:``.

    Args:
        keyword: a line counts when it holds this text.
        separator: what words stand between; empty: white space.
        position: the word's place in the line, from 0, from the end if negative; None: the first
            number that follows the keyword.
        cut: which characters of the word count, ``N`` or ``A:B``; empty: all.
        batch: keyword of a second number, further on in the line.

    Raises:
        UsageError: for a keyword that is no piece of a line, or a cut of another form.
    """

    def __init__(
        self,
        keyword: str,
        separator: str = "",
        position: int | None = None,
        cut: str = "",
        batch: str = "",
    ) -> None:
        if not keyword or "\n" in keyword:
            remedy = "give keyword=TEXT, as in the log, or preset=auto"
            raise UsageError("no keyword to look for", where="keyword", remedy=remedy)
        if not re.fullmatch(r"(?:(-?\d+)?:)?(-?\d+)?", cut):
            rule = "N for the first N characters, or A:B as Python cuts"
            raise UsageError(f"cannot cut by {cut!r}", where="range", rule=rule)
        self.keyword = keyword.encode()
        self._separator, self._position = separator.encode(), position
        self._cut = slice(*(int(end) if end else None for end in cut.split(":")))
        # A literal in front is what ``re`` finds fastest; the rest of the line is passed over.
        pattern = f"{_after(keyword)}(?:[^\n]*?{_after(batch)})?" if batch else _after(keyword)
        self._pattern = re.compile(f"{pattern}[^\n]*".encode(), re.DOTALL)
        self._plain = not separator and position is None and not cut

    def of_lines(self, block: bytes) -> list[array[float]] | None:
        """Return value, and batch, of each line with the keyword; None: take line by line."""
        if not self._plain or not (found := self._pattern.findall(block)):
            return None
        columns = zip(*found, strict=True) if self._pattern.groups > 1 else [found]
        try:
            numbers = [array("d", map(float, column)) for column in columns]
        except ValueError:  # a malformed line, or one with commas between thousands
            return None
        finite = all(np.isfinite(np.frombuffer(column)).all() for column in numbers)
        return numbers if finite else None

    def of_line(self, block: bytes, at: int, end: int) -> list[float] | None:
        """Return value, and batch, of the line with the keyword at ``at`` and its end at ``end``.

        None: it is malformed.
        """
        while at >= 0 and self._plain:
            found = self._pattern.match(block, at)
            if found and all(found.groups()):
                return [_number(text) for text in found.groups()]
            at = block.find(self.keyword, at + 1, end)
        if self._plain:
            return None
        line, whole = block[block.rfind(b"\n", 0, at) + 1 : end], end < len(block)
        place, text = self._position, line
        if place is None:
            behind = line.partition(self.keyword)[2]
            place, text = 0, behind.lstrip(_OPENING.encode() + self._separator)
        words = text.strip().split(self._separator or None)
        if not -len(words) <= place < len(words):
            return None
        number = _LEADING.match(words[place][self._cut] + b" ")
        torn = not whole and line.endswith(words[place])
        return [_number(number[1])] if number and not torn else None


def _after(keyword: str) -> str:
    """Return the pattern of a keyword that is a word of its own, and the number behind it."""
    alone = rf"(?<!\w{re.escape(keyword)})" if keyword[0].isalnum() else ""
    gap = "+" if keyword[-1].isalnum() else "*"
    return f"{re.escape(keyword)}{alone}(?:[{re.escape(_OPENING)}]{gap}{_NUMBER})?"


def _number(text: bytes) -> float:
    return float(text.replace(b",", b""))


@dataclass(slots=True, kw_only=True)
class Values:
    """What was read of a log until now.

    Args:
        skip: values before those that count.
        reads: ``step_time``, ``steps`` a second or ``speed``; empty: the mode says it.
        whole_job: a speed is that of the whole job.
        unit: what a speed counts; None: not known.
        batches: samples of all devices, one for each value; empty: the log does not tell.
        first: the first line whose value counts, as it is shown.
    """

    keyword: str
    skip: int = 0
    reads: str = ""
    time_unit: str = "s"
    whole_job: bool = False
    unit: str | None = None
    values: array[float] = field(default_factory=lambda: array("d"))
    batches: array[float] = field(default_factory=lambda: array("d"))
    loss: float | None = None
    failed: bool = False
    notes: list[str] = field(default_factory=list)
    malformed: int = 0
    first: str = ""
    malformed_at: int = 0
    first_malformed: str = ""

    def take(self, numbers: list[float] | None, number: int, line: str) -> None:
        """Add value, and batch, of a line; None, or one that is not finite: it is malformed."""
        if numbers is None or not all(map(math.isfinite, numbers)):
            self.malformed += 1
            if self.malformed == 1:
                self.malformed_at, self.first_malformed = number, line.strip()
            return
        if len(self.values) == self.skip:
            self.first = f"line {number}: {line.strip()[:_SHOWN_CHARACTERS]}"
            told = re.search(f"{re.escape(self.keyword)}{_UNIT}", line)
            self.unit = told[1] if told else self.unit
        self.values.append(numbers[0])
        self.batches.extend(numbers[1:])


def read(source: Iterable[bytes], found: Values, rule: Rule, loss: str = "") -> None:
    """Add the numbers of a log to ``found``, and the last one behind the keyword ``loss``."""
    of_loss = Rule(loss) if loss else None
    before = 0  # lines before the block
    for block in source:
        at = block.find(rule.keyword)
        if at >= 0 and len(found.values) > found.skip and (columns := rule.of_lines(block)):
            found.values.extend(columns[0])
            found.batches.extend(columns[-1] if len(columns) > 1 else ())
            at = -1
        number, seen = before + 1, 0
        while at >= 0:
            end = block.find(b"\n", at) % (len(block) + 1)
            line = block[block.rfind(b"\n", 0, at) + 1 : end].decode("utf-8", "replace")
            number, seen = number + block.count(b"\n", seen, at), at
            found.take(rule.of_line(block, at, end), number, line)
            at = block.find(rule.keyword, end)
        found.loss = _last(of_loss, block, found.loss) if of_loss else found.loss
        before += int(np.count_nonzero(np.frombuffer(block, np.uint8) == ord("\n")))


def _last(rule: Rule, block: bytes, otherwise: float | None) -> float | None:
    """Return the last value in a block; ``otherwise`` if it has none."""
    at, found = block.rfind(rule.keyword), None
    while at >= 0 and found is None:
        found = rule.of_line(block, at, block.find(b"\n", at) % (len(block) + 1))
        at = block.rfind(rule.keyword, 0, at)
    return found[0] if found else otherwise
