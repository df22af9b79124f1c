"""Which raw files make a click log, which rows go where, and their lines in blocks.

Owns the names of the published files, the splits, gzip, and what is refused in a file as a
whole. Must not know what a row holds.
"""

from __future__ import annotations

import gzip
import os
import re
import zlib
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING

from trainmark.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SPLITS = ("train", "test", "validation")
DAY = re.compile(r"day_(0|[1-9][0-9]*)(\.gz)?")
SINGLE = ("train.txt", "train.txt.gz")
PUBLISHED_DAYS = 24
TEST_SHARE = 7  # of a single file, one row in so many is for the test
BLOCK_BYTES = 1 << 24
GZIP_MAGIC = b"\x1f\x8b"
FORMS = "day_0 to day_23 of the Terabyte logs, or train.txt of the Kaggle ones, plain or .gz"


@dataclass(frozen=True, slots=True)
class Block:
    """Whole lines of one file.

    Args:
        path: the file.
        lines: each with its line end.
        first_row: rows of the file before it.
        read_bytes: bytes of the file, as it lies on disk, read so far.
    """

    path: Path
    lines: bytes
    first_row: int
    read_bytes: int


@dataclass(frozen=True, slots=True)
class Sources:
    """The files of a click log by name, in order; ``days``: the last one is the test day."""

    files: dict[str, Path]
    days: bool


def find_sources(raw: Path) -> Sources:
    """Return the files of a folder with days or of a single log.

    Raises:
        DataError: there are none, a day is missing, or one is there twice.
    """
    if raw.is_file():
        return Sources({raw.name: raw}, days=False)
    if not raw.is_dir():
        raise DataError(
            "no such file or folder", where=str(raw), rule=FORMS, remedy="name it with --from"
        )
    days: dict[int, Path] = {}
    for file in sorted(raw.iterdir()):
        if (match := DAY.fullmatch(file.name)) and file.is_file():
            day = int(match[1])
            if day in days:
                raise DataError(
                    f"day {day} is there twice: {days[day].name} and {file.name}",
                    where=str(raw), rule="a day has one file", remedy="remove one of them",
                )  # fmt: skip
            days[day] = file
    if days:
        return Sources(_in_order(days, raw), days=True)
    single = [raw / name for name in SINGLE if (raw / name).is_file()]
    if len(single) != 1:
        raise DataError(
            "no click log" if not single else "train.txt is there twice, plain and gzip",
            where=str(raw), rule=FORMS, remedy="give the folder or the file with --from",
        )  # fmt: skip
    return Sources({single[0].name: single[0]}, days=False)


def _in_order(days: dict[int, Path], raw: Path) -> dict[str, Path]:
    count = max(max(days) + 1, 2)
    lacking = [f"day_{day}" for day in range(count) if day not in days]
    if lacking:
        raise DataError(
            f"no {', '.join(lacking[:8])}{' …' if len(lacking) > 8 else ''}",
            where=str(raw),
            rule="days run from 0 without a gap; all but the last are for training",
            remedy="fetch what is missing, or name a single log with --from",
        )
    return {days[day].name: days[day] for day in range(count)}


def refuse_cut_off(sources: Sources) -> None:
    """Refuse plain files without a line end at their end: it is known before hours of reading.

    Raises:
        DataError: such a file, or one with nothing in it.
    """
    for path in sources.files.values():
        with path.open("rb") as raw:
            if _is_gzip(raw):
                continue
            size_bytes = raw.seek(0, os.SEEK_END)
            if not size_bytes:
                raise no_row(path)
            raw.seek(-1, os.SEEK_END)
            if raw.read(1) != b"\n":
                raise _cut_off(f"{path}, byte {size_bytes:,}", "the file ends inside a row")


def split_rows(sources: Sources, rows: dict[str, int]) -> dict[str, list[tuple[str, int, int]]]:
    """Return by file which rows go where: ``(split, first row, row after the last)``.

    Of days, the last one is cut into halves, the first for the test. Of a single log, the
    last seventh is for the test and there is no validation.

    Raises:
        DataError: too few rows for a test.
    """
    *early, last = sources.files
    count = rows[last]
    if sources.days:
        half = (count + 1) // 2
        parts = [("test", 0, half), ("validation", half, count)]
    else:
        cut = count - count // TEST_SHARE
        parts = [("train", 0, cut), ("test", cut, count)]
    parts = [part for part in parts if part[1] < part[2]]
    found = {name: [("train", 0, rows[name])] for name in early} | {last: parts}
    sizes = dict.fromkeys(SPLITS, 0)
    for split, start, end in (part for parts in found.values() for part in parts):
        sizes[split] += end - start
    if not (sizes["train"] and sizes["test"]):
        raise DataError(
            f"{sizes['train']} rows to train on and {sizes['test']} to test with",
            where=", ".join(str(sources.files[name]) for name in (*early[:1], last)),
            rule="both need at least one", remedy="give more rows with --from",
        )  # fmt: skip
    return found


def read_blocks(path: Path) -> Iterator[Block]:
    """Yield a file's lines in order, about ``BLOCK_BYTES`` at a time.

    Raises:
        DataError: damaged gzip, a line without end, or the file ends inside a row.
    """
    with path.open("rb") as raw:
        stream = _plain(raw)
        kept, rows = b"", 0
        while more := _read(stream, path, rows):
            cut = more.rfind(b"\n") + 1
            if not cut and len(kept) + len(more) > BLOCK_BYTES:
                raise _cut_off(
                    f"{path}, row {rows + 1}", f"no line end in {len(kept) + len(more):,} bytes"
                )
            lines, kept = (kept + more[:cut], more[cut:]) if cut else (b"", kept + more)
            if lines:
                yield Block(path, lines, rows, raw.tell())
                rows += lines.count(b"\n")
        if kept:
            raise _cut_off(f"{path}, row {rows + 1}", "the file ends inside the row")


def no_row(path: Path) -> DataError:
    """Return the fault of a file without rows."""
    return DataError(
        "no row in the file", where=str(path), rule="a log has at least one row",
        remedy="fetch it again",
    )  # fmt: skip


def _cut_off(where: str, what: str) -> DataError:
    return DataError(
        what,
        where=where,
        rule="every row ends with a line feed, the last one too",
        remedy="fetch the file again: it is cut off or of another form",
    )


def _plain(raw: IO[bytes]) -> IO[bytes]:
    """Return the stream of what ``raw`` holds, decompressed where it is gzip."""
    return gzip.GzipFile(fileobj=raw) if _is_gzip(raw) else raw  # type: ignore[return-value]


def _is_gzip(raw: IO[bytes]) -> bool:
    magic = raw.read(len(GZIP_MAGIC))
    raw.seek(0)
    return magic == GZIP_MAGIC


def _read(stream: IO[bytes], path: Path, rows: int) -> bytes:
    try:
        return stream.read(BLOCK_BYTES)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(
            f"not readable as gzip: {error}",
            where=f"{path}, after row {rows}",
            rule="a file that begins as gzip is whole gzip to its end",
            remedy="fetch or compress the file again",
        ) from None
