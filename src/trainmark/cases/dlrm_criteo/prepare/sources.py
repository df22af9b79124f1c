"""Which raw files make a click log, which rows go where, and what is wrong with a line.

Owns the names of the published files, the splits, gzip, and the faults of files and rows. Must
not know what is made of a row.
"""

from __future__ import annotations

import gzip
import re
from typing import TYPE_CHECKING, Any, NamedTuple

from trainmark.data.text import enumerate_lines
from trainmark.errors import DataError

from ..data.layout import NUM_NUMERICAL

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from threading import Event

SPLITS = ("train", "test", "validation")
SINGLE = "train.txt"
LOG = re.compile(r"(day_(0|[1-9][0-9]*)|train\.txt)(\.gz)?")
LOG_RULE = "logs are day_0, day_1 and so on without a gap, or train.txt, each plain or .gz"
TEST_SHARE = 7  # of a single log, one row in so many is for the test: Kaggle's is of 7 days
NUM_CATEGORIES = 26
FIELDS = ["[01]", *["(-?[0-9]{1,18})?"] * NUM_NUMERICAL, *["([0-9a-fA-F]{8})?"] * NUM_CATEGORIES]
ROW = "\t".join(FIELDS)  # for Python's `re` and for the RE2 of the database alike
ROW_RULE = "a row is a label of 0 or 1, 13 integers of at most 18 digits and 26 categories of 8 "
ROW_RULE += "hexadecimal digits, or nothing in their place; tabs between, a line's end after it"
BLOCK_BYTES = 1 << 20
AGAIN = "fetch the file again, or correct it"


class RowRange(NamedTuple):
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
    if not raw.is_dir():
        fix = "give --from a folder of logs, or one log"
        raise DataError("no such file or folder", where=str(raw), rule=LOG_RULE, fix=fix)
    candidates = sorted(raw.iterdir())
    logs = {file.name: file for file in candidates if LOG.fullmatch(file.name) and file.is_file()}
    names = [name.removesuffix(".gz") for name in logs]
    days = [int(name.removeprefix("day_")) for name in names if name != SINGLE]
    wanted = [f"day_{day}" for day in range(max(*days, 1) + 1)] if days else [SINGLE]
    if odd := [name for name in wanted if names.count(name) != 1]:
        what = ", ".join(f"{'twice' if name in names else 'no'} {name}" for name in odd[:8])
        fix = "fetch what is missing, remove one of two, or name a single log with --from"
        raise DataError(what, where=str(raw), rule=LOG_RULE, fix=fix)
    return {name: logs[name] for day in wanted for name in (day, f"{day}.gz") if name in logs}


def split_rows(rows: Mapping[Path, int]) -> list[RowRange]:
    """Return which rows go where, by source.

    Of days, the last one is cut into halves, the first for the test; an odd row goes to the
    validation, as NVIDIA's Spark route has it. Of a single log, the
    last seventh is for the test and there is no validation.

    Raises:
        DataError: too few rows for a test.
    """
    *early, last = rows.values()
    days = len(early)
    cut = last // 2 if days else last - last // TEST_SHARE
    ends = [("train", number, 0, count) for number, count in enumerate(early)]
    names = ("test", "validation") if days else ("train", "test")
    ends += [(names[0], days, 0, cut), (names[1], days, cut, last)]
    parts, sizes = [], dict.fromkeys(SPLITS, 0)
    for split, number, start, end in ends:
        parts.append(RowRange(split, number, start, end, sizes[split]))
        sizes[split] += end - start
    if not (sizes["train"] and sizes["test"]):
        what = f"{sizes['train']} rows to train on and {sizes['test']} to test with"
        where, fix = ", ".join(map(str, rows)), "give more rows with --from"
        raise DataError(what, where=where, rule="both need at least one", fix=fix)
    return parts


def is_gzip(path: Path) -> bool:
    """Tell whether a file begins as gzip does."""
    with path.open("rb") as stream:
        return stream.read(2) == b"\x1f\x8b"


def open_log(path: Path) -> Any:
    """Open the plain bytes of a log."""
    return gzip.open(path) if is_gzip(path) else path.open("rb")


def count_rows(path: Path, stop: Event) -> int:
    """Return the lines of a log, or those until ``stop`` is set.

    Raises:
        DataError: there are none, or the file ends inside a row.
    """
    rows, last = 0, b""
    with open_log(path) as stream:
        while not stop.is_set() and (block := stream.read(BLOCK_BYTES)):
            rows, last = rows + block.count(b"\n"), block[-1:]
    if last != b"\n":
        what = "the file ends inside a row" if last else "no row in the file"
        where = f"{path}, row {rows + 1}"
        raise DataError(what, where=where, rule=ROW_RULE, fix=AGAIN)
    return rows


def find_first_fault(path: Path) -> DataError:
    """Return what is wrong with the first line that is no row; rows are counted from 1."""
    row = re.compile(ROW.encode() + rb"\r?\n")
    with open_log(path) as stream:
        number, line = next(pair for pair in enumerate_lines(stream) if not row.fullmatch(pair[1]))
    fields = line.removesuffix(b"\n").removesuffix(b"\r").split(b"\t")
    what = f"{len(fields)} fields, not {len(FIELDS)}"
    if len(fields) == len(FIELDS):
        forms = enumerate(zip(FIELDS, fields, strict=True))
        column = next(n for n, (form, field) in forms if not re.fullmatch(form.encode(), field))
        what = f"field {column + 1} is {fields[column][:40].decode('ascii', 'backslashreplace')!r}"
    return DataError(what, where=f"{path}, row {number}", rule=ROW_RULE, fix=AGAIN)
