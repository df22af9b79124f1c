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
_NUMBER = rf"(?>(?!0[xX])[+-]?(?:{DIGITS}|{_OTHERS}))"
_END = r"(?![:.\-_,]?\d)(?=.)"
_OPENING = " \t:='\"(["
_LEADING = re.compile(rf"[{re.escape(_OPENING)}]*({_NUMBER}){_END}")
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
            data = gzip.GzipFile(fileobj=raw) if packed else raw
            while block := data.read(_BLOCK_BYTES):
                yield _cleaned(block + data.readline())
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
    wanted, before = [mark.encode() for mark in marks], 0
    for block in source:
        for number, line in enumerate(block.splitlines(), before + 1):
            before = number
            if any(mark in line for mark in wanted):
                yield number, line.decode("utf-8", "replace")


def _after(keyword: str) -> str:
    """Return the pattern of a keyword that is a word of its own, and of the number behind it.

    Of several in a line the first that a number follows counts; none of them: no number.
    """
    literal = re.escape(keyword)  # in front, as ``re`` finds it fastest
    alone = rf"(?<!\w{literal})" if keyword[0].isalnum() else ""
    gap = f"[{re.escape(_OPENING)}]{'+' if keyword[-1].isalnum() else '*'}"
    other = rf"(?![^\n]*?{literal}{alone}{gap}{_NUMBER}{_END})"
    return f"{literal}{alone}(?:{gap}({_NUMBER}){_END}|{other})"


@dataclass(kw_only=True)
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
    malformed_at: int = 0
    first_malformed: str = ""
    first: str = ""

    def take(self, number: int, line: str, *found: str | float) -> None:
        """Add value, and batch, of a line; without a finite one it is malformed."""
        numbers = [float(str(text).replace(",", "") or "nan") for text in found]
        if not numbers or not all(map(math.isfinite, numbers)):
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

    def read(self, source: Iterable[bytes], batch: str = "", loss: str = "") -> None:
        """Add the numbers behind the keyword: a value's is its word's leading one.

        So units may be glued to it. A keyword inside another word does not count: ``ips:`` is not
        ``avg_ips:``.

        Args:
            batch: keyword of a number further on in the line, which is malformed without it.
            loss: keyword of the loss, of which the last in the log counts.
        """
        text = _after(self.keyword) + (f"(?:[^\n]*?{_after(batch)})?" if batch else "")
        pattern = re.compile(f"{text}[^\n]*".encode(), re.DOTALL)
        of_loss = re.compile(_after(loss).encode(), re.DOTALL) if loss else None
        before = 0  # lines before the block
        for block in source:
            if len(self.values) <= self.skip or not self._take_all(pattern, block):
                number, seen = before + 1, 0
                for found in pattern.finditer(block):
                    start = block.rfind(b"\n", 0, found.start()) + 1
                    number, seen = number + block.count(b"\n", seen, start), start
                    line = block[start : found.end()].decode("utf-8", "replace")
                    self.take(number, line, *((text or b"").decode() for text in found.groups()))
            last = block.rfind(loss.encode()) if of_loss else -1
            if of_loss and last >= 0:
                told = of_loss.search(block, block.rfind(b"\n", 0, last) + 1)
                self.loss = float(told[1]) if told and told[1] else self.loss
            before += int(np.count_nonzero(np.frombuffer(block, np.uint8) == ord("\n")))

    def _take_all(self, pattern: re.Pattern[bytes], block: bytes) -> bool:
        """Add the numbers of a block at once; tell whether all of its lines had them."""
        found = pattern.findall(block)
        texts = zip(*found, strict=True) if pattern.groups > 1 else [found]
        try:
            columns = [array("d", map(float, column)) for column in texts]
        except ValueError:  # a malformed line, or one with commas between thousands
            return False
        if not all(np.isfinite(np.frombuffer(column)).all() for column in columns if column):
            return False
        for own, column in zip((self.values, self.batches), columns, strict=False):
            own.extend(column)
        return True

    def read_words(
        self, source: Iterable[bytes], separator: str, position: int | None, cut: str
    ) -> None:
        """Add the numbers in one word of each line with the keyword.

        Args:
            separator: what words stand between; empty: white space.
            position: the word's place, from 0, from the end if negative; None: behind the keyword.
            cut: which characters of the word count, ``N`` or ``A:B``; empty: all.

        Raises:
            UsageError: for a cut of another form.
        """
        if not re.fullmatch(r"(?:(-?\d+)?:)?(-?\d+)?", cut):
            rule = "N for the first N characters, or A:B as Python cuts"
            raise UsageError(f"cannot cut by {cut!r}", where="range", rule=rule)
        characters = slice(*(int(end) if end else None for end in cut.split(":")))
        for number, line in lines(source, self.keyword):
            text, place = line.strip(), position
            if place is None:
                text, place = line.partition(self.keyword)[2].strip(_OPENING + separator), 0
            words = text.split(separator or None)
            word = words[place][characters] if -len(words) <= place < len(words) else ""
            found = _LEADING.match(f"{word} ")
            self.take(number, line, *(found.groups() if found else ()))
