"""A corpus as blocks of whole lines, read as a stream.

Owns which files make a corpus and where a block begins and ends. Must not know what a line
means. Memory: one block, and the longest line.
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

BLOCK_BYTES = 1 << 19
MAX_LINE_BYTES = 1 << 26  # a worker may need forty times as much
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
        lines: the lines with their ends.
        consumed_bytes: bytes on disk of all sources read up to its end.
    """

    path: Path
    start: Position
    end: Position
    lines: list[bytes]
    consumed_bytes: int


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
    found = {
        file.relative_to(raw).as_posix(): file
        for file in raw.rglob("*")
        if file.is_file() and file.name.lower().endswith(ENDINGS) and file.name[0] != "."
    }
    if not found:
        rule = f"files that end in {', '.join(ENDINGS)} count"
        raise DataError("no file of JSON lines", where=str(raw), rule=rule, remedy=REMEDY)
    return dict(sorted(found.items()))


def read_blocks(files: Mapping[str, Path], start: Position) -> Iterator[Block]:
    """Yield all lines from ``start`` on, in order.

    A block ends with the line that makes it ``BLOCK_BYTES`` or more, or with its source. Where
    blocks are cut does not depend on ``start``, as long as it is the end of a block.

    Raises:
        DataError: a damaged gzip file, or a line longer than ``MAX_LINE_BYTES``.
    """
    before_bytes = 0
    for number, path in enumerate(files.values()):
        if number >= start.file:
            place = start if number == start.file else Position(number)
            with path.open("rb") as raw, whole_gzip(path):
                zipped = raw.read(len(GZIP_MAGIC)) == GZIP_MAGIC
                raw.seek(0)
                stream = gzip.GzipFile(fileobj=raw) if zipped else raw
                stream.seek(place.offset_bytes)
                while lines := _read_lines(stream, path, place):
                    size_bytes = sum(map(len, lines))
                    offset_bytes = place.offset_bytes + size_bytes
                    end = Position(number, offset_bytes, place.lines + len(lines))
                    yield Block(path, place, end, lines, before_bytes + raw.tell())
                    place = end
        before_bytes += path.stat().st_size


def _read_lines(stream: IO[bytes] | gzip.GzipFile, path: Path, place: Position) -> list[bytes]:
    lines: list[bytes] = []
    size_bytes = 0
    while size_bytes < BLOCK_BYTES and (line := stream.readline(MAX_LINE_BYTES + 1)):
        if len(line) > MAX_LINE_BYTES:
            raise DataError(
                f"a line of more than {MAX_LINE_BYTES:,} bytes",
                where=f"{path}, line {place.lines + len(lines) + 1}",
                rule="a line is one document, and fits in memory many times",
                remedy="cut the document into several",
            )
        lines.append(line)
        size_bytes += len(line)
    return lines
