"""The lines of a log, cleaned of what terminals leave in them; plain, gzip or standard input."""

from __future__ import annotations

import gzip
import io
import re
import sys
import zlib
from contextlib import ExitStack
from difflib import SequenceMatcher
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from trainmark.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

STDIN = "-"
LINE_LIMIT = 1 << 22  # characters; the rest of a longer line is another one
SHOWN_CHARACTERS = 160
_CANDIDATES = 400  # in which the line closest to a keyword is sought
_GZIP_MAGIC = b"\x1f\x8b"
_CONTROL = re.compile(
    "\0|\x1b(?:\\[[0-?]*[ -/]*[@-~]"  # colours and cursor
    "|\\][^\x07\x1b\n]*(?:\x07|\x1b\\\\)"  # titles and links
    "|[@-Z\\\\^_])"
)


class Line(NamedTuple):
    """A line with its number, from 1; ``text`` lacks its line feed only where it was cut."""

    number: int
    text: str

    def shown(self, at: int) -> str:
        """Return the number and ``SHOWN_CHARACTERS`` of the line around the place ``at``."""
        start = max(0, min(at - SHOWN_CHARACTERS // 3, len(self.text) - SHOWN_CHARACTERS))
        end = start + SHOWN_CHARACTERS
        before, after = "…" * (start > 0), "…" * (end < len(self.text))
        return f"line {self.number}: {before}{self.text[start:end].strip()}{after}"


def read(log: str) -> Iterator[Line]:
    """Yield the lines of ``log``, ``-`` being standard input; gzip is told by its first bytes.

    A carriage return ends a line too, as progress bars have it.

    Raises:
        DataError: for a log that cannot be opened or is damaged.
    """
    if log == STDIN and sys.stdin is None:
        raise DataError("standard input is closed", where=log, remedy="name a log, or send one")
    try:
        with ExitStack() as opened:
            source = sys.stdin.buffer if log == STDIN else Path(log).open("rb")  # noqa: SIM115
            raw = opened.enter_context(source)
            packed = raw.peek(2)[:2] == _GZIP_MAGIC
            data = opened.enter_context(gzip.GzipFile(fileobj=raw)) if packed else raw
            file = io.TextIOWrapper(data, "utf-8", errors="replace")
            for number, text in enumerate(iter(partial(file.readline, LINE_LIMIT), ""), 1):
                if "\x1b" in text or "\0" in text:
                    text = _CONTROL.sub("", text)  # noqa: PLW2901
                yield Line(number, text)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        remedy = "copy the log again, or cut it with: gzip -dc LOG | trainmark analyze -"
        raise DataError(f"damaged gzip data: {error}", where=log, remedy=remedy) from error
    except OSError as error:
        raise DataError(f"cannot read: {error.strerror or error}", where=log) from error


def closest(keyword: str, lines: Sequence[Line]) -> str | None:
    """Return of the first lines that with the longest piece of ``keyword``; None: under half."""
    ways = SequenceMatcher(autojunk=False)
    ways.set_seq2(keyword.lower())
    best, found = len(keyword) / 2, None
    for line in lines[:_CANDIDATES]:
        ways.set_seq1(line.text[:1000].lower())
        match = ways.find_longest_match()
        if match.size >= best and (found is None or match.size > best):
            best, found = match.size, line.shown(match.a)
    return found
