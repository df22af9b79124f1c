"""A corpus as blocks of whole lines, read as a stream.

Owns which files make a corpus and where a block begins and ends. Must not know what a line
means. Memory: one block, or the longest line where that is larger.
"""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING

from trainmark.data.prepared import whole_gzip
from trainmark.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

BLOCK_BYTES = 2 << 20
MAX_LINE_BYTES = 1 << 26  # a worker may need twenty times as much
ENDINGS = (".jsonl", ".jsonl.gz", ".json", ".json.gz")
GZIP_MAGIC = b"\x1f\x8b"
REMEDY = "give --from a file of JSON lines, plain or gzip, or a folder of them"


@dataclass(frozen=True, slots=True)
class Position:
    """A place between two lines.

    Args:
        file: which source, from 0.
        offset_bytes: bytes of the source before it, after decompression.
        lines: lines of the source before it.
    """

    file: int = 0
    offset_bytes: int = 0
    lines: int = 0


@dataclass(frozen=True, slots=True)
class Block:
    """Whole lines of one source.

    Args:
        path: the source.
        start: where the block begins.
        end: where it ends.
        data: the lines.
        consumed_bytes: bytes on disk of all sources read up to its end.
    """

    path: Path
    start: Position
    end: Position
    data: bytes
    consumed_bytes: int

    @property
    def size_bytes(self) -> int:
        """Bytes of the lines, known also where they were let go."""
        return self.end.offset_bytes - self.start.offset_bytes


def source_files(raw: Path) -> dict[str, Path]:
    """Return the files of a corpus by name, in the order they are read: sorted by name.

    Args:
        raw: one file of any name, or a folder in which those with a known ending count.

    Raises:
        DataError: nothing is there, or nothing that counts.
    """
    if raw.is_file():
        return {raw.name: raw}
    if not raw.is_dir():
        raise DataError("no such file or folder", where=str(raw), remedy=REMEDY)
    files = (
        file for file in raw.rglob("*") if file.is_file() and file.name.lower().endswith(ENDINGS)
    )
    found = {file.relative_to(raw).as_posix(): file for file in files if file.name[0] != "."}
    if not found:
        raise DataError(
            "no file of JSON lines",
            where=str(raw),
            rule=f"files that end in {', '.join(ENDINGS)} count",
            remedy=REMEDY,
        )
    return dict(sorted(found.items()))


def read_blocks(
    files: Mapping[str, Path], start: Position, block_bytes: int = BLOCK_BYTES
) -> Iterator[Block]:
    """Yield all lines from ``start`` on, in order.

    A block has at most ``block_bytes``, unless one line has more. Where blocks are cut does
    not depend on ``start``, as long as it is the end of a block.

    Raises:
        DataError: a damaged gzip file, or a line longer than ``MAX_LINE_BYTES``.
    """
    before_bytes = 0
    for number, path in enumerate(files.values()):
        if number >= start.file:
            place = start if number == start.file else Position(number)
            with path.open("rb") as raw:
                for lines, end in _blocks_of(_plain(raw), path, place, block_bytes):
                    yield Block(path, place, end, lines, before_bytes + raw.tell())
                    place = end
        before_bytes += path.stat().st_size


def _plain(raw: IO[bytes]) -> IO[bytes]:
    """Return the stream of what ``raw`` holds, decompressed where it is gzip."""
    magic = raw.read(len(GZIP_MAGIC))
    raw.seek(0)
    return gzip.GzipFile(fileobj=raw) if magic == GZIP_MAGIC else raw  # type: ignore[return-value]


def _blocks_of(
    stream: IO[bytes], path: Path, place: Position, block_bytes: int
) -> Iterator[tuple[bytes, Position]]:
    """Yield lines from ``place`` to the end of one source, each with where it ends."""
    kept = bytearray()
    _read(stream, path, seek=place.offset_bytes)
    while True:
        more = _read(stream, path, count=block_bytes - len(kept) % block_bytes)
        cut = more.rfind(b"\n") + 1
        if more and not cut:
            kept += more
            if len(kept) > MAX_LINE_BYTES:
                raise DataError(
                    f"a line of more than {MAX_LINE_BYTES:,} bytes",
                    where=f"{path}, line {place.lines + 1}",
                    rule="a line is one document, and fits in memory many times",
                    remedy="cut the document into several",
                )
            continue
        lines, kept = bytes(kept) + more[:cut], bytearray(more[cut:])
        if lines:
            count = lines.count(b"\n") + (not lines.endswith(b"\n"))
            place = Position(place.file, place.offset_bytes + len(lines), place.lines + count)
            yield lines, place
        if not more:
            return


def _read(stream: IO[bytes], path: Path, *, count: int = 0, seek: int | None = None) -> bytes:
    with whole_gzip(path):
        if seek is not None:
            stream.seek(seek)
        return stream.read(count)
