"""The lines of a log and the numbers in them: behind a keyword, or at a position.

Owns what counts as a number, for tables of others too.
"""

from __future__ import annotations

import gzip
import io
import math
import re
import sys
import zlib
from array import array
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
_LEADING = re.compile(rf"[{re.escape(_OPENING)}]*{_NUMBER}")
_COLOURS = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
_FLAGS = re.DOTALL | re.ASCII  # Chinese has no spaces between words
_SHOWN_CHARACTERS = 300
_UNIT = r"[\s:='\"]*[\d.,eE+-]+\s*([A-Za-z]+/s)(?:ec)?\b"


def lines(log: str) -> Iterator[str]:
    """Yield the lines of ``log``, plain or gzip, without colours; ``-`` is standard input.

    A carriage return ends a line too, as progress bars have it.

    Raises:
        DataError: for a log that cannot be opened or is damaged.
    """
    try:
        raw: Any
        with sys.stdin.buffer if log == STDIN else Path(log).open("rb") as raw:
            packed = raw.peek(2)[:2] == b"\x1f\x8b"
            data: Any = gzip.GzipFile(fileobj=raw) if packed else raw
            with io.TextIOWrapper(data, "utf-8", "replace") as text:
                for line in text:
                    yield _COLOURS.sub("", line) if "\x1b" in line else line
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"damaged gzip data: {error}", where=log) from error
    except OSError as error:
        raise DataError(f"cannot read: {error.strerror or error}", where=log) from error


def _own(keyword: str) -> str:
    """Return the pattern of a keyword that is a word of its own: ``ips:`` is not ``avg_ips:``."""
    return r"(?<!\w)" * keyword[0].isalnum() + re.escape(keyword)


def _behind(keyword: str) -> str:
    """Return the pattern of the number behind a keyword."""
    return f"{_own(keyword)}[{re.escape(_OPENING)}]{'+' if keyword[-1].isalnum() else '*'}{_NUMBER}"


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
    notes: list[str] = field(default_factory=list)
    malformed: int = 0
    malformed_at: int = 0
    first_malformed: str = ""
    first: str = ""

    def take(self, number: int, line: str, *found: str | float) -> None:
        """Add value, and batch, of a line; without a finite one it is malformed."""
        numbers = [float(str(text).replace(",", "")) for text in found]
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

    def read(self, source: Iterable[str], batch: str = "", loss: str = "") -> None:
        """Add the numbers behind the keyword: a value's is its word's leading one.

        So units may be glued to it. Of several keywords in a line the first that a number follows
        counts.

        Args:
            batch: keyword of a number further on in the line, which is malformed without it.
            loss: keyword of the loss, of which the last in the log counts.
        """
        value = _behind(self.keyword) + (f".*?{_behind(batch)}" if batch else "")
        wanted, own = re.compile(value, _FLAGS), re.compile(_own(self.keyword), _FLAGS)
        of_loss = re.compile(_behind(loss), _FLAGS) if loss else None
        keyword = self.keyword
        for number, line in enumerate(source, 1):
            if of_loss and loss in line and (told := of_loss.search(line)):
                self.loss = float(told[1].replace(",", ""))
            if keyword in line:
                if found := wanted.search(line):
                    self.take(number, line, *found.groups())
                elif own.search(line):
                    self.take(number, line)

    def read_words(
        self, source: Iterable[str], separator: str, position: int | None, cut: str
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
        for number, line in enumerate(source, 1):
            if self.keyword not in line:
                continue
            text, place = line.strip(), position
            if place is None:
                text, place = line.partition(self.keyword)[2].strip(_OPENING + separator), 0
            words = text.split(separator or None)
            word = words[place][characters] if -len(words) <= place < len(words) else ""
            found = _LEADING.match(f"{word} ")
            self.take(number, line, *(found.groups() if found else ()))
