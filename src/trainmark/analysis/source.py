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
LINE_LIMIT_BYTES = 1 << 24
NUMBERED_BLOCKS = 256  # whose lines are counted while they are read, whoever asks for them
_GZIP_MAGIC = b"\x1f\x8b"
_CONTROL = re.compile(
    rb"\x1b(?:\[[0-?]*[ -/]*[@-~]"  # colours and cursor
    rb"|\][^\x07\x1b\n]*(?:\x07|\x1b\\)"  # titles and links
    rb"|[@-Z\\^_])"
)


@dataclass(frozen=True, slots=True)
class Block:
    """Some whole lines, each ended by a line feed.

    Args:
        data: the lines; the last one lacks its end only where ``cut`` says so.
        number: place of the block in the log, from 0.
        lines_before: counts the lines of the log before this block.
        cut: the log ends in the middle of the last line.
    """

    data: bytes
    number: int
    lines_before: Callable[[], int]
    cut: bool = False

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
        return replace(self, data=self.data[: self.data.rfind(b"\n") + 1], cut=False)


def check_readable(log: str) -> None:
    """Open and close ``log``; standard input and pipes, which that would spend, are not tried.

    Raises:
        DataError: for a log that cannot be opened.
    """
    if log == STDIN:
        return
    try:
        if Path(log).is_file() or Path(log).is_dir() or not Path(log).exists():
            Path(log).open("rb").close()
    except OSError as error:
        raise DataError(f"cannot read: {error.strerror or error}", where=log) from error


def blocks(log: str) -> Iterator[Block]:
    """Yield ``log`` in order, ``-`` being standard input; gzip is told by its first bytes.

    A carriage return ends a line too, as progress bars have it. A line beyond
    ``LINE_LIMIT_BYTES`` is cut there, which keeps memory constant.

    Raises:
        DataError: for a log that cannot be opened or is damaged.
    """
    lines = 0
    try:
        with _open(log) as (file, can_reread):
            for number, (data, cut) in enumerate(_clean_blocks(file)):
                # Counting costs as much as searching. Far into a file nobody asks for a
                # line's number but for the first malformed one: that is counted then.
                counted = number < NUMBERED_BLOCKS or not can_reread
                before = partial(int, lines) if counted else partial(_recount, log, number)
                yield Block(data, number, before, cut)
                if counted:
                    lines += data.count(b"\n")
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        remedy = "copy the log again, or cut it with: gzip -dc LOG | trainmark analyze -"
        raise DataError(f"damaged gzip data: {error}", where=log, remedy=remedy) from error
    except OSError as error:
        raise DataError(f"cannot read: {error.strerror or error}", where=log) from error


@contextmanager
def _open(log: str) -> Iterator[tuple[IO[bytes], bool]]:
    """Open the log; tell with it whether reading it anew is possible and cheap."""
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
        return sum(data.count(b"\n") for data, _ in islice(_clean_blocks(file), blocks_before))


def _clean_blocks(file: IO[bytes]) -> Iterator[tuple[bytes, bool]]:
    """Yield data that ends where lines end; the last with True if its line has no end."""
    while data := file.read(BLOCK_BYTES):
        rest = file.readline(LINE_LIMIT_BYTES)
        data += rest
        if len(rest) == LINE_LIMIT_BYTES and not rest.endswith(b"\n"):
            data += b"\n"
        yield _clean(data), not data.endswith((b"\n", b"\r"))


def _clean(data: bytes) -> bytes:
    # Each test is one fast search; the copies are made only where there is something.
    if b"\0" in data:
        data = data.replace(b"\0", b"")
    if b"\x1b" in data:
        data = _CONTROL.sub(b"", data)
    if b"\r" in data:
        data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    return data
