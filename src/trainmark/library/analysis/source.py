"""A log as blocks of whole lines, cleaned of what terminals and crashes leave in it.

Owns opening (plain, gzip, standard input), line ends and control sequences. Must not know
what is looked for in the lines.
"""

from __future__ import annotations

import gzip
import io
import re
import sys
import zlib
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, cast

from trainmark.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

STDIN = "-"
# Small enough for the allocator to hand out the same memory again, which from 128 KiB on it
# gets anew from the system, page by page; and for the cache, as several searches pass over it.
BLOCK_BYTES = 112 << 10
LINE_LIMIT_BYTES = 1 << 22
_PIECE_BYTES = 1 << 13  # read at a time behind a block, up to the end of its last line
NUMBERED_BLOCKS = 256  # whose lines are counted while they are read, whoever asks for them
_GZIP_MAGIC = b"\x1f\x8b"
_LONE_RETURN = re.compile(rb"\r(?!\n|\Z)")  # ends a line with no line feed behind it
_CONTROL = re.compile(
    rb"\x1b(?:\[[0-?]*[ -/]*[@-~]"  # colours and cursor
    rb"|\][^\x07\x1b\n]*(?:\x07|\x1b\\)"  # titles and links
    rb"|[@-Z\\^_])"
)


@dataclass(frozen=True, slots=True)
class Block:
    """Some lines, each ended by a line feed.

    Args:
        data: the lines; the last one lacks its end only where ``cut`` says so.
        number: place of the block in the log, from 0.
        lines_before: counts the lines of the log before this block.
        cut: the last line lacks its end, as the log ends in the middle of it.
        torn: it lacks it because it is longer than ``LINE_LIMIT_BYTES``; ``cut`` is set too.
    """

    data: bytes
    number: int
    lines_before: Callable[[], int]
    cut: bool = False
    torn: bool = False

    def line_number(self, at: int) -> int:
        """Return the number, from 1, of the line that holds byte ``at``."""
        return self.lines_before() + self.data.count(b"\n", 0, at) + 1

    def line(self, at: int) -> str:
        """Return the line that holds byte ``at``, without its end."""
        start = self.data.rfind(b"\n", 0, at) + 1
        end = self.data.find(b"\n", at)
        return self.data[start : None if end < 0 else end].decode("utf-8", "replace")

    def whole_lines(self) -> Block:
        """Return the block without a last line that has no end."""
        if not self.cut:
            return self
        return replace(self, data=self.data[: self.data.rfind(b"\n") + 1], cut=False, torn=False)


def _check_open(log: str) -> None:
    if log == STDIN and sys.stdin is None:
        raise DataError("standard input is closed", where=log, remedy="name a log, or send one")


def check_readable(log: str) -> None:
    """Open and close ``log``; standard input and pipes, which that would spend, are not tried.

    Raises:
        DataError: for a log that cannot be opened.
    """
    _check_open(log)
    if log == STDIN:
        return
    try:
        if Path(log).is_file() or Path(log).is_dir() or not Path(log).exists():
            Path(log).open("rb").close()
    except OSError as error:
        raise DataError(f"cannot read: {error.strerror or error}", where=log) from error


def blocks(log: str) -> Iterator[Block]:
    """Yield ``log`` in order, ``-`` being standard input; gzip is told by its first bytes.

    A carriage return ends a line too, as progress bars have it. Of a line beyond
    ``LINE_LIMIT_BYTES`` the rest is left out, which keeps memory constant.

    Raises:
        DataError: for a log that cannot be opened or is damaged.
    """
    lines = 0
    try:
        with _open(log) as (file, can_reread):
            for number, (data, cut, torn) in enumerate(_clean_blocks(file)):
                # Counting costs as much as searching. Far into a file nobody asks for a
                # line's number but for the first malformed one: that is counted then.
                counted = number < NUMBERED_BLOCKS or not can_reread
                before = partial(int, lines) if counted else partial(_recount, log, number)
                yield Block(data, number, before, cut, torn)
                if counted:
                    lines += data.count(b"\n") + torn
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        remedy = "copy the log again, or cut it with: gzip -dc LOG | trainmark analyze -"
        raise DataError(f"damaged gzip data: {error}", where=log, remedy=remedy) from error
    except OSError as error:
        raise DataError(f"cannot read: {error.strerror or error}", where=log) from error


@contextmanager
def _open(log: str) -> Iterator[tuple[IO[bytes], bool]]:
    """Open the log; tell with it whether reading it anew is possible and cheap."""
    _check_open(log)
    with (
        sys.stdin.buffer if log == STDIN else Path(log).open("rb", buffering=0) as raw,
        io.BufferedReader(cast("io.RawIOBase", raw), BLOCK_BYTES) as file,
    ):
        if file.peek(2)[:2] == _GZIP_MAGIC:
            with gzip.GzipFile(fileobj=file) as unpacked:
                yield cast("IO[bytes]", unpacked), False
        else:
            yield file, log != STDIN and file.seekable()


def _recount(log: str, blocks_before: int) -> int:
    """Return the lines of the first ``blocks_before`` blocks, reading them once more."""
    with _open(log) as (file, _):
        passed = islice(_clean_blocks(file), blocks_before)
        return sum(data.count(b"\n") + torn for data, _, torn in passed)


def _clean_blocks(file: IO[bytes]) -> Iterator[tuple[bytes, bool, bool]]:
    """Yield data that ends where lines end, and whether its last line is cut, and torn."""
    ahead = b""
    while data := ahead + file.read(BLOCK_BYTES):
        rest, ahead, torn = _rest_of_line(file, data[-1:])
        data += rest
        yield _clean(data), torn or not data.endswith((b"\n", b"\r")), torn


def _rest_of_line(file: IO[bytes], last: bytes) -> tuple[bytes, bytes, bool]:
    """Read up to the end of the line that holds the byte ``last``.

    Returns:
        What is left of the line, what was read of the lines behind it, and whether more
        than ``LINE_LIMIT_BYTES`` were left, of which the first are returned.
    """
    kept: list[bytes] = []
    size, torn = 0, False
    while last != b"\n":
        piece = file.readline(min(_PIECE_BYTES, LINE_LIMIT_BYTES - size or _PIECE_BYTES))
        end = _LONE_RETURN.search(last + piece)
        line = piece[: end.start()] if end else piece
        torn = torn or (size == LINE_LIMIT_BYTES and bool(line.strip(b"\r\n")))
        if not torn:
            kept.append(line)
            size = min(size + len(line), LINE_LIMIT_BYTES)
        if end or not piece:
            return b"".join(kept), piece[len(line) :], torn
        last = piece[-1:]
    return b"".join(kept), b"", torn


def _clean(data: bytes) -> bytes:
    # Each test is one fast search; the copies are made only where there is something.
    if b"\0" in data:
        data = data.replace(b"\0", b"")
    if b"\x1b" in data:
        data = _CONTROL.sub(b"", data)
    if b"\r" in data:
        data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    return data
