"""Find the raw files of a click log, divide their rows into splits, and describe faulty lines.

A source is a log: one of several days, or a single log with all days. This module does not know how
rows are encoded.
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
SINGLE_LOG = "train.txt"
LOG_NAME = re.compile(r"(day_(0|[1-9][0-9]*)|train\.txt)(\.gz)?")
LOG_RULE = (
    "the logs must be day_0, day_1 and so on without gaps, or train.txt; each log may be plain or "
    "gzip (.gz)"
)
NUM_DAYS = 7  # of Kaggle's single log; the last day is the test split
NUM_CATEGORIES = 26
# Patterns of a row's fields: label, numbers, categories.
FIELD_PATTERNS = [
    "[01]",
    *["(-?[0-9]{1,18})?"] * NUM_NUMERICAL,
    *["([0-9a-fA-F]{8})?"] * NUM_CATEGORIES,
]
ROW_PATTERN = "\t".join(FIELD_PATTERNS)  # valid both for Python's `re` and for the database's RE2
ROW_RULE = (
    "a row must contain a label (0 or 1), 13 integers with at most 18 digits each and 26 "
    "categories with 8 hexadecimal digits each, separated by tabs, and must end with a newline; "
    "integers and categories may be empty"
)
BLOCK_BYTES = 1 << 20
DOWNLOAD_AGAIN = "download the file again, or correct it"


class RowRange(NamedTuple):
    """Consecutive rows of one source that belong to one split.

    Args:
        source: index of the file among the sources.
        start, end: first row in the source, and the row after the last one.
        first: row number within the split of the row ``start``, in input order.
    """

    split: str
    source: int
    start: int
    end: int
    first: int


def find_sources(raw: Path) -> dict[str, Path]:
    """Return the logs by name, in order: those of at least two days, or a single log.

    If a folder has logs of days and a single log, the single log is ignored.

    Raises:
        DataError: there is no log, a day is missing, or a log exists twice.
    """
    if raw.is_file():
        return {raw.name: raw}
    if not raw.is_dir():
        fix = "set --from to a folder of logs, or to one log"
        raise DataError("no such file or folder", where=str(raw), rule=LOG_RULE, fix=fix)
    candidates = sorted(raw.iterdir())
    logs = {
        file.name: file for file in candidates if LOG_NAME.fullmatch(file.name) and file.is_file()
    }
    stems = [name.removesuffix(".gz") for name in logs]
    days = [int(stem.removeprefix("day_")) for stem in stems if stem != SINGLE_LOG]
    expected_stems = [SINGLE_LOG]  # without days
    if days:
        last_day = max([*days, 1])  # there must be at least two days
        expected_stems = [f"day_{day}" for day in range(last_day + 1)]
    wrong_stems = [stem for stem in expected_stems if stems.count(stem) != 1]
    if wrong_stems:
        # Twice: plain and gzip. At most 8 are named, so that the error stays short.
        problems = [
            f"{stem} is given twice" if stem in stems else f"{stem} is missing"
            for stem in wrong_stems[:8]
        ]
        fix = "download what is missing, remove the duplicate, or set --from to a single log"
        raise DataError(", ".join(problems), where=str(raw), rule=LOG_RULE, fix=fix)
    sources: dict[str, Path] = {}
    for stem in expected_stems:
        name = stem if stem in logs else f"{stem}.gz"
        sources[name] = logs[name]
    return sources


def split_rows(rows: Mapping[Path, int]) -> list[RowRange]:
    """Divide the rows of the sources into splits.

    The last of several days is cut into two halves, test and validation; an odd row belongs to the
    validation, as in NVIDIA's preprocessing with Spark. A single log is Kaggle's, with seven days:
    its last seventh is the test split, and there is no validation split.

    Args:
        rows: number of rows of each source (a log), in order.

    Raises:
        DataError: there are too few rows.
    """
    *earlier_counts, last_count = rows.values()
    last_source = len(earlier_counts)
    parts: list[RowRange] = []
    sizes = dict.fromkeys(SPLITS, 0)  # rows of each split so far

    def add_part(split: str, source: int, start: int, end: int) -> None:
        # ``first``: number within the split of the part's first row.
        parts.append(RowRange(split, source, start, end, first=sizes[split]))
        sizes[split] += end - start

    for source, count in enumerate(earlier_counts):
        add_part("train", source, 0, count)
    if earlier_counts:
        half = last_count // 2
        add_part("test", last_source, 0, half)
        add_part("validation", last_source, half, last_count)
    else:
        num_train = last_count - last_count // NUM_DAYS
        add_part("train", last_source, 0, num_train)
        add_part("test", last_source, num_train, last_count)
    if sizes["train"] == 0 or sizes["test"] == 0:
        what = f"there are {sizes['train']} training rows and {sizes['test']} test rows"
        raise DataError(
            what,
            where=", ".join(str(path) for path in rows),
            rule="each split needs at least one row",
            fix="set --from to logs with more rows",
        )
    return parts


def is_gzip(path: Path) -> bool:
    """Return whether a file begins with the signature of gzip."""
    with path.open("rb") as stream:
        return stream.read(2) == b"\x1f\x8b"


def open_log(path: Path) -> Any:
    """Open a log for reading its uncompressed bytes."""
    return gzip.open(path) if is_gzip(path) else path.open("rb")


def count_rows(path: Path, stop: Event) -> int:
    """Return the number of lines of a log.

    Args:
        stop: set by another thread when the result is no longer needed. Counting then ends early,
            and the result, or the error, means nothing.

    Raises:
        DataError: there are no lines, or the file ends within a row.
    """
    rows = 0
    last_byte = b""
    with open_log(path) as stream:
        while not stop.is_set():
            block = stream.read(BLOCK_BYTES)
            if not block:
                break
            rows += block.count(b"\n")
            last_byte = block[-1:]
    if last_byte != b"\n":
        what = "the file ends in the middle of a row" if last_byte else "the file has no rows"
        where = f"{path}, row {rows + 1}"
        raise DataError(what, where=where, rule=ROW_RULE, fix=DOWNLOAD_AGAIN)
    return rows


def describe_first_fault(path: Path) -> DataError:
    """Return the error for the first line of a log that is not a row; rows are counted from 1.

    If there is no such line, the log changed after it was found to be faulty.
    """
    line_pattern = re.compile(ROW_PATTERN.encode() + rb"\r?\n")
    with open_log(path) as stream:
        for number, line in enumerate_lines(stream):
            if not line_pattern.fullmatch(line):
                return _describe_fault(path, number, line)
    return DataError(
        "the file changed while it was read",
        where=str(path),
        rule="logs must stay unchanged while they are prepared",
        fix="wait until the file is complete, then run the command again",
    )


def _describe_fault(path: Path, number: int, line: bytes) -> DataError:
    """Return the error for a line of a log that is not a row.

    Args:
        number: of the line, from 1.
        line: with its end.
    """
    fields = line.removesuffix(b"\n").removesuffix(b"\r").split(b"\t")
    noun = "field" if len(fields) == 1 else "fields"
    what = f"the row has {len(fields)} {noun}, not {len(FIELD_PATTERNS)}"
    if len(fields) == len(FIELD_PATTERNS):
        is_valid = [
            re.fullmatch(pattern.encode(), field) is not None
            for pattern, field in zip(FIELD_PATTERNS, fields, strict=True)
        ]
        column = is_valid.index(False)  # the first invalid field
        # At most 40 bytes are shown: a faulty field may be of any length.
        text = fields[column][:40].decode("ascii", "backslashreplace")
        what = f"field {column + 1} is {text!r}"
    return DataError(what, where=f"{path}, row {number}", rule=ROW_RULE, fix=DOWNLOAD_AGAIN)
