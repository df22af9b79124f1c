"""The splits of a data set: their files in a data folder, and their rows, laid out in batches.

Owns which of the forms that a case knows a folder has, numbered parts, the errors where a file is
missing, empty or cannot be read, and the one contract that every case's data has: rows by number.
Rows of token ids of unequal length are stored as ``Ragged``. Must not know what files hold: forms
and faults are the case's own.
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
def translate_read_errors(file: Path, fault: Fault) -> Iterator[None]:
    """Turn what the system refuses into a ``DataError`` naming ``file``."""
    try:
        yield
    except OSError as error:
        what = f"cannot be read: {error.strerror or error}"
        raise fault(what, where=str(file)) from None


def refuse_unreadable(file: Path, fault: Fault) -> None:
    """Refuse a file that is missing, empty or not to be read."""
    with translate_read_errors(file, fault), file.open("rb") as stream:
        if stream.read(1):
            return
    raise fault("the file is empty (0 bytes)", where=str(file))


def read_parquet_rows(file: Path) -> list[dict[str, Any]]:
    """Return the rows of a parquet file.

    Raises:
        EnvironmentFault: the library that reads it is not installed.
        ValueError: the file cannot be read.
    """
    parquet, arrow = (import_extra(name, where=file) for name in ("pyarrow.parquet", "pyarrow"))
    try:
        rows: list[dict[str, Any]] = parquet.read_table(file).to_pylist()
    except (arrow.ArrowException, OSError) as error:
        raise ValueError(str(error).partition("\n")[0]) from None
    return rows


@dataclass(frozen=True, slots=True)
class Form:
    """One form in which a folder can hold its splits.

    Args:
        kind: as records name it.
        names: names of each split's files, the first that is there is used; instead of a file
            there may be numbered parts, ``train-00000-of-00001.parquet``.
        folders: where below the data folder they can lie, the first that has some is used.
    """

    kind: str
    names: Mapping[str, Sequence[str]]
    folders: Sequence[str] = (".",)


@dataclass(frozen=True, slots=True)
class Layout:
    """The form that a folder has, and the files of each split in order."""

    kind: str
    files: dict[str, list[Path]]


def find_layout(folder: Path, forms: Sequence[Form], fault: Fault) -> Layout:
    """Find the splits of ``folder`` in the first of ``forms`` that it has.

    Args:
        fault: says what a data folder holds, and the fix.

    Raises:
        DataError: no such folder, no form, only one split, or a file that is empty or cannot
            be read.
    """
    if not folder.is_dir():
        raise fault("no such folder", where=str(folder))
    for form in forms:
        for place in (folder / name for name in form.folders):
            files = {
                split: next(filter(None, (_find_files(place, name) for name in names)), [])
                for split, names in form.names.items()
            }
            if not any(files.values()):
                continue
            for split, files_of_split in files.items():
                if not files_of_split:
                    where = f"{place}, {' or '.join(form.names[split])}"
                    raise fault(f"no {split} split", where=where)
                for file in files_of_split:
                    refuse_unreadable(file, fault)
            return Layout(form.kind, files)
    raise fault("no data files", where=str(folder))


def _find_files(place: Path, name: str) -> list[Path]:
    """Return the file ``name`` of ``place``, or its numbered parts in order.

    Raises:
        DataError: a part is missing, or there twice.
    """
    if (place / name).exists():
        return [place / name]
    split, _, ending = name.rpartition(".")
    parts = sorted(place.glob(f"{split}-[0-9]*-of-[0-9]*.{ending}"))
    matches = [match for part in parts if (match := PART_NAME.fullmatch(part.stem))]
    if matches and [int(match[1]) for match in matches] != list(range(int(matches[0][2]))):
        raise DataError(
            f"numbered parts {', '.join(part.name for part in parts)}",
            where=str(place),
            rule=f"{split} has {int(matches[0][2])} parts, each there once",
            fix="fetch what is missing, move other versions away",
        )
    return parts


class Split(Protocol):
    """One split of a data set. Rows are samples, numbered from 0."""

    def __len__(self) -> int:
        """Return the number of rows."""

    def batch(self, rows: NDArray[np.int64]) -> tuple[Any, Counts]:
        """Return arrays of ``rows``, tokens and labels, on the host, and what they hold.

        Arrays stand in tuples or dataclasses and become tensors as they are; ``Counts`` has
        samples, sequences, and tokens with and without padding.
        """


@dataclass(frozen=True, slots=True)
class Ragged:
    """Rows of unequal length one after another.

    Args:
        values: all rows' values (total,).
        starts: where each row begins in ``values``, int64 (rows + 1,).
    """

    values: NDArray[Any]
    starts: NDArray[np.int64]

    @classmethod
    def from_rows(cls, rows: Sequence[Sequence[int]]) -> Self:
        """Build from rows, int32."""
        lengths = np.fromiter(map(len, rows), np.int64, len(rows))
        values = np.fromiter(chain.from_iterable(rows), np.int32, int(lengths.sum()))
        return cls(values, compute_starts(lengths))

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Values of each row."""
        return np.diff(self.starts)

    def get_row(self, number: int) -> NDArray[Any]:
        """Return one row without a copy."""
        return self.values[self.starts[number] : self.starts[number + 1]]


def compute_starts(lengths: NDArray[Any]) -> NDArray[np.int64]:
    """Return where rows of these lengths begin, and where the last one ends."""
    return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int64)
