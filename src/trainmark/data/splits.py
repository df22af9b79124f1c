"""The splits of a data set: their files in a data folder, and their rows by number.

This module finds the files of each split, which may be numbered parts, in one of the forms that a
case accepts. It raises the errors for files that are missing, empty or unreadable. ``Split`` is
what the data of every case provides; ``Ragged`` stores rows of unequal length. This module does not
know the content of files: each case passes its own forms, and in the parameter ``make_error`` a
function that makes a ``DataError`` with the rule and the fix of the case.
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from trainmark.errors import DataError
from trainmark.extras import import_extra

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray
    from typing_extensions import Self

    from trainmark.errors import Fault
    from trainmark.protocols import Counts

PART_NAME = re.compile(r".*-([0-9]+)-of-([0-9]+)(-[0-9a-f]+)?")  # older hub names end in a hash


@contextmanager
def translate_read_errors(file: Path, make_error: Fault) -> Iterator[None]:
    """Turn an ``OSError`` of the block into a ``DataError`` that names ``file``.

    Args:
        make_error: makes a ``DataError`` with the rule and the fix of the case.
    """
    try:
        yield
    except OSError as error:
        what = f"cannot be read: {error.strerror or error}"
        raise make_error(what, where=str(file)) from None


def refuse_unreadable(file: Path, make_error: Fault) -> None:
    """Raise ``DataError`` if a file is missing, empty or unreadable.

    Args:
        make_error: makes a ``DataError`` with the rule and the fix of the case.
    """
    with translate_read_errors(file, make_error), file.open("rb") as stream:
        if stream.read(1):
            return
    raise make_error("the file is empty (0 bytes)", where=str(file))


def read_parquet_rows(file: Path) -> list[dict[str, Any]]:
    """Return the rows of a parquet file.

    Raises:
        EnvironmentFault: the library that reads it is not installed.
        ValueError: the file cannot be read.
    """
    parquet = import_extra("pyarrow.parquet", where=file)
    arrow = import_extra("pyarrow", where=file)
    try:
        rows: list[dict[str, Any]] = parquet.read_table(file).to_pylist()
    except (arrow.ArrowException, OSError) as error:
        raise ValueError(str(error).partition("\n")[0]) from None
    return rows


@dataclass(frozen=True, slots=True)
class Form:
    """A form in which a data folder can store its splits.

    Args:
        kind: its name in records.
        names: for each split the possible file names, of which the first that exists is used;
            instead of one file there may be numbered parts, ``train-00000-of-00001.parquet``.
        folders: the possible subfolders, of which the first that has such files is used.
    """

    kind: str
    names: Mapping[str, Sequence[str]]
    folders: Sequence[str] = (".",)


@dataclass(frozen=True, slots=True)
class Layout:
    """The form of a data folder, and the files of each split in order."""

    kind: str
    files: dict[str, list[Path]]


def find_layout(folder: Path, forms: Sequence[Form], make_error: Fault) -> Layout:
    """Return the files of each split, in the first of ``forms`` that ``folder`` has.

    A form is a way in which a data set is stored, for example as parquet files in a subfolder.

    Args:
        forms: each has the possible names of each split's file, and the subfolders in which the
            files may be; ``kind`` names the form.
        make_error: makes a ``DataError`` with the rule and the fix of the case.

    Raises:
        DataError: there is no such folder, no known form, or not every split of the form, or a file
            is empty or unreadable.
    """
    if not folder.is_dir():
        raise make_error("no such folder", where=str(folder))
    for form in forms:
        for subfolder in form.folders:
            place = folder / subfolder
            files = {split: _find_first_files(place, names) for split, names in form.names.items()}
            if not any(files.values()):  # the folder does not have this form
                continue
            for split, files_of_split in files.items():
                if not files_of_split:
                    where = f"{place}, {' or '.join(form.names[split])}"
                    raise make_error(f"no {split} split", where=where)
                for file in files_of_split:
                    refuse_unreadable(file, make_error)
            return Layout(form.kind, files)
    raise make_error("no data files", where=str(folder))


def _find_first_files(place: Path, names: Sequence[str]) -> list[Path]:
    """Return the files of the first of ``names`` that exists in ``place``; empty: none exists.

    A name may exist as one file or as several numbered parts.
    """
    for name in names:
        files = _find_files(place, name)
        if files:
            return files
    return []


def _find_files(place: Path, name: str) -> list[Path]:
    """Return the file ``name`` in ``place``, or its numbered parts in order; empty: neither exists.

    The parts of ``train.parquet`` are ``train-00000-of-00002.parquet`` and so on.

    Raises:
        DataError: a part is missing or exists twice, or parts state different totals.
    """
    if (place / name).exists():
        return [place / name]
    split, _, ending = name.rpartition(".")  # ``train`` and ``parquet``
    # The pattern of ``glob`` also finds names such as ``train-0a-of-2b``, which are no parts.
    candidates = sorted(place.glob(f"{split}-[0-9]*-of-[0-9]*.{ending}"))
    parts: list[Path] = []
    numbers: list[int] = []
    totals: list[int] = []
    for candidate in candidates:
        match = PART_NAME.fullmatch(candidate.stem)
        if match is not None:
            parts.append(candidate)
            numbers.append(int(match[1]))
            totals.append(int(match[2]))
    # Each part states the total. Parts of several versions of the data may together have each
    # number once; then they state different totals.
    if numbers and (numbers != list(range(totals[0])) or len(set(totals)) > 1):
        raise DataError(
            f"found only the numbered parts {', '.join(part.name for part in parts)}",
            where=str(place),
            rule=f"the {split} data must have {totals[0]} parts, each exactly once",
            fix="download the missing parts, and remove parts of other versions",
        )
    return parts


class Split(Protocol):
    """One split of a data set. Rows are samples, numbered from 0."""

    def __len__(self) -> int:
        """Return the number of rows."""

    def batch(self, rows: NDArray[np.int64]) -> tuple[Any, Counts]:
        """Return the arrays of the rows with these numbers, such as tokens and labels, and counts.

        The arrays may be in tuples or dataclasses; the caller makes tensors of them. ``Counts``
        holds the numbers of samples, sequences, and tokens with and without padding.
        """


@dataclass(frozen=True, slots=True)
class Ragged:
    """Rows of unequal length, concatenated.

    Args:
        values: the values of all rows (total,).
        starts: index in ``values`` at which each row begins and the last one ends, int64
            (rows + 1,).
    """

    values: NDArray[Any]
    starts: NDArray[np.int64]

    @classmethod
    def from_rows(cls, rows: Sequence[Sequence[int]]) -> Self:
        """Make the ragged array of ``rows``: their values are concatenated, and become int32."""
        lengths = np.fromiter(map(len, rows), np.int64, len(rows))
        values = np.fromiter(chain.from_iterable(rows), np.int32, int(lengths.sum()))
        return cls(values, compute_starts(lengths))

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Number of values of each row; ``starts`` has their beginnings and the end of the last."""
        return np.diff(self.starts)

    def get_row(self, number: int) -> NDArray[Any]:
        """Return one row without a copy."""
        return self.values[self.starts[number] : self.starts[number + 1]]


def compute_starts(lengths: NDArray[Any]) -> NDArray[np.int64]:
    """Return the starts of concatenated rows, and the end of the last, int64 (rows + 1,)."""
    return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int64)
