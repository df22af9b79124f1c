"""Which raw files make a click log, which rows go where, and what is wrong with a line.

Owns the names of the published files, the splits, gzip, and the faults of files and rows. Must
not know what is made of a row.
"""

from __future__ import annotations

import gzip
import re
import shutil
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, NamedTuple

from trainmark.errors import DataError
from trainmark.preparing import whole_gzip

from .layout import NUM_NUMERICAL

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

SPLITS = ("train", "test", "validation")
SINGLE = "train.txt"
LOG = re.compile(r"(day_(?:0|[1-9][0-9]*)|train\.txt)(\.gz)?")
FORMS = (
    "a log is day_0, day_1 and so on without a gap, as of Criteo Terabyte, or train.txt, as of "
    "Criteo Kaggle, plain or .gz"
)
TEST_SHARE = 7  # of a single log, one row in so many is for the test: Kaggle's is of 7 days
NUM_CATEGORIES = 26
FIELDS = ["[01]", *["(-?[0-9]{1,18})?"] * NUM_NUMERICAL, *["([0-9a-fA-F]{8})?"] * NUM_CATEGORIES]
ROW = "\t".join(FIELDS)  # for Python's `re` and for the RE2 of the database alike
ROW_RULE = (
    "a row is a label of 0 or 1, 13 integers of at most 18 digits and 26 categories of 8 "
    "hexadecimal digits, with tabs between; integers and categories may be empty"
)
LONGEST_LINE_BYTES = 1 << 20
AGAIN = "fetch the file again"


class Part(NamedTuple):
    """Consecutive rows of one source that go to one split.

    Args:
        source: number of the file among the sources.
        start, end: its first row and the row after its last.
        first: the row of the split that its first row is in input order.
    """

    split: str
    source: int
    start: int
    end: int
    first: int


def find_sources(raw: Path) -> dict[str, Path]:
    """Return the files of a folder with days, at least two, or of a single log, by name.

    Raises:
        DataError: there are none, a day is missing, or one is there twice.
    """
    if raw.is_file():
        return {raw.name: raw}
    logs: dict[str, Path] = {}
    for file in sorted(raw.iterdir()) if raw.is_dir() else []:
        if (match := LOG.fullmatch(file.name)) and file.is_file():
            if match[1] in logs:
                what = f"{match[1]} is there twice, plain and gzip"
                raise DataError(what, where=str(raw), rule=FORMS, remedy="remove one of them")
            logs[match[1]] = file
    days = [int(name.removeprefix("day_")) for name in logs if name != SINGLE]
    wanted = [f"day_{day}" for day in range(max(*days, 1) + 1)] if days else [SINGLE]
    if lacking := [name for name in wanted if name not in logs]:
        what = f"no {', '.join(lacking[:8])}{' …' if len(lacking) > 8 else ''}"
        remedy = "fetch what is missing, or name a single log with --from"
        raise DataError(what, where=str(raw), rule=FORMS, remedy=remedy)
    return {logs[name].name: logs[name] for name in wanted}


def refuse_cut_off(path: Path) -> None:
    """Refuse a plain file without a line end at its end: it is known before hours of reading.

    Raises:
        DataError: such a file, or one with nothing in it.
    """
    if not is_gzip(path):
        with path.open("rb") as stream:
            stream.seek(max(path.stat().st_size - 1, 0))
            _refuse_end(stream.read(), f"{path}, byte {stream.tell():,}")


def _refuse_end(end: bytes, where: str) -> None:
    if not end.endswith(b"\n"):
        what = "the file ends inside a row" if end else "no row in the file"
        rule = "a log has rows, and every one ends with a line feed"
        raise DataError(what, where=where, rule=rule, remedy=AGAIN)


def split_rows(rows: Mapping[Path, int]) -> list[Part]:
    """Return which rows go where, by source.

    Of days, the last one is cut into halves, the first for the test. Of a single log, the
    last seventh is for the test and there is no validation.

    Raises:
        DataError: too few rows for a test.
    """
    *early, last = rows.values()
    days = len(early)
    cut = (last + 1) // 2 if days else last - last // TEST_SHARE
    ends = [("train", number, 0, count) for number, count in enumerate(early)]
    ends.append(("test" if days else "train", days, 0, cut))
    ends.append(("validation" if days else "test", days, cut, last))
    sizes = dict.fromkeys(SPLITS, 0)
    parts = []
    for split, number, start, end in ends:
        parts.append(Part(split, number, start, end, sizes[split]))
        sizes[split] += end - start
    if not (sizes["train"] and sizes["test"]):
        what = f"{sizes['train']} rows to train on and {sizes['test']} to test with"
        where, remedy = ", ".join(map(str, rows)), "give more rows with --from"
        raise DataError(what, where=where, rule="both need at least one", remedy=remedy)
    return parts


def is_gzip(path: Path) -> bool:
    """Tell whether a file begins as gzip does."""
    with path.open("rb") as stream:
        return stream.read(2) == b"\x1f\x8b"


@contextmanager
def plain_log(path: Path, folder: Path) -> Iterator[Path]:
    """Give the plain file of a log: itself, or a copy in ``folder``.

    Raises:
        DataError: damaged gzip.
    """
    if not is_gzip(path):
        yield path
        return
    plain = folder / "plain.txt"
    with whole_gzip(path), gzip.open(path) as packed, plain.open("wb") as stream:
        shutil.copyfileobj(packed, stream, LONGEST_LINE_BYTES)
    yield plain
    plain.unlink()


def count_rows(plain: IO[bytes], path: Path) -> int:
    """Return the lines of the log ``path``, read from ``plain``.

    Raises:
        DataError: there are none, one is endless, or the file ends inside a row.
    """
    rows, block = 0, b""
    while more := plain.read(LONGEST_LINE_BYTES):
        rows, block = rows + more.count(b"\n"), more
        if b"\n" not in block and len(block) == LONGEST_LINE_BYTES:
            break
    _refuse_end(block, f"{path}, row {rows + 1}")
    return rows


def first_fault(plain: IO[bytes], path: Path) -> DataError | None:
    """Return what is wrong with the first line that is no row; rows are counted from 1."""
    row = re.compile(ROW.encode() + rb"\n")
    for number, line in enumerate(plain, 1):
        if not row.fullmatch(line):
            what, where = _fault(line.removesuffix(b"\n").split(b"\t")), f"{path}, row {number}"
            return DataError(what, where=where, rule=ROW_RULE, remedy=AGAIN)
    return None


def _fault(fields: list[bytes]) -> str:
    if len(fields) != len(FIELDS):
        return f"{len(fields)} fields, not {len(FIELDS)}"
    forms = enumerate(zip(FIELDS, fields, strict=True))
    at = next(n for n, (form, field) in forms if not re.fullmatch(form.encode(), field))
    kind, first = ("integer", 1) if at <= NUM_NUMERICAL else ("category", 1 + NUM_NUMERICAL)
    name = f"{kind} column {at - first}" if at else "the label"
    return f"{name} is {fields[at][:40].decode('ascii', 'backslashreplace')!r}"
