"""Sparse matrices in an HDF5 file, in the layout of the h5sparse package.

Owns how a matrix lies in a group and which rules a sound one keeps. A matrix is a group
with ``data``, ``indices`` and ``indptr`` and the attributes ``h5sparse_format`` and
``h5sparse_shape``. Rows are read as they are asked for. Must not know samples.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import h5py
import numpy as np

from trainmark.data import input_files
from trainmark.errors import DataError

from .ragged import Ragged

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

FORMAT, SHAPE = "h5sparse_format", "h5sparse_shape"
LARGEST_DENSE = 2**31  # numbers of a matrix that is read whole
AGAIN = "fetch and unpack glm_train_dataset.zip again, or train on ReCoRD's .jsonl files"


def open_file(file: Path) -> h5py.File:
    """Open an HDF5 file for reading.

    Raises:
        DataError: it cannot be read, or is none.
    """
    with input_files.readable(file, rule="a split is one readable HDF5 file", remedy=AGAIN):
        input_files.file_bytes(file)
    try:
        return h5py.File(file, "r", locking="best-effort")  # some file systems know no locks
    except OSError as error:
        raise DataError(
            f"not readable as HDF5: {str(error).splitlines()[0]}", where=str(file), remedy=AGAIN
        ) from None


@dataclass(frozen=True, slots=True)
class SparseRows:
    """A matrix of R rows in compressed sparse rows; only where rows begin is in memory.

    Args:
        name: of its group.
        columns: width of the matrix.
        starts: where each row begins in the other two, int64 (R + 1,).
        values: stored numbers, none of them read yet.
        indices: their columns, none of them read yet.
    """

    name: str
    columns: int
    starts: NDArray[np.int64]
    values: Any
    indices: Any

    @classmethod
    def open(cls, file: h5py.File, name: str) -> Self:
        """Open the matrix ``name``.

        Raises:
            DataError: no such group, or one that is no sound CSR matrix.
        """
        group, (rows, columns) = _group(file, name), _shape(file, name)
        parts = {part: _vector(group, part) for part in ("data", "indices", "indptr")}
        starts = parts["indptr"][()].astype(np.int64)
        stored = len(parts["data"])
        rising = len(starts) == rows + 1 and starts[0] == 0 and (np.diff(starts) >= 0).all()
        if not rising or starts[-1] != stored or len(parts["indices"]) != stored:
            raise DataError(
                f"indptr has {len(starts)} numbers for {rows} rows, data {stored}, "
                f"indices {len(parts['indices'])}",
                where=f"{file.filename}, {name}",
                rule="indptr rises from 0 to the length of data and of indices, one step a row",
                remedy=AGAIN,
            )
        return cls(name, columns, starts, _mapped(parts["data"]), _mapped(parts["indices"]))

    def __len__(self) -> int:
        return len(self.starts) - 1

    def read(self, first: int, last: int) -> tuple[Ragged, Ragged]:
        """Return values and columns of the rows from ``first`` to ``last``, that one left out."""
        starts = self.starts[first : last + 1]
        of = slice(int(starts[0]), int(starts[-1]))
        relative = starts - starts[0]
        return Ragged(self.values[of], relative), Ragged(self.indices[of], relative)


def read_dense(file: h5py.File, name: str) -> NDArray[np.int64]:
    """Return a small matrix or data set whole, int64 with one axis or two.

    Raises:
        DataError: as ``SparseRows.open``.
    """
    if isinstance(file.get(name), h5py.Dataset):
        found: NDArray[np.int64] = _whole(file[name])[()].astype(np.int64)
        return found
    matrix, shape = SparseRows.open(file, name), _shape(file, name)
    if shape[0] * shape[1] > LARGEST_DENSE:
        raise DataError(
            f"{shape[0]} x {shape[1]} numbers",
            where=f"{file.filename}, {name}",
            rule=f"at most {LARGEST_DENSE} are read whole",
            remedy=AGAIN,
        )
    values, columns = matrix.read(0, len(matrix))
    dense = np.zeros(shape, np.int64)
    outside = (columns.values < 0) | (columns.values >= shape[1])
    if outside.any():
        raise DataError(
            f"column {columns.values[outside][0]}",
            where=f"{file.filename}, {name}/indices",
            rule=f"the matrix has {shape[1]} columns, counted from 0",
            remedy=AGAIN,
        )
    dense[np.repeat(np.arange(len(values)), values.lengths), columns.values] = values.values
    return dense


def _group(file: h5py.File, name: str) -> h5py.Group:
    found = file.get(name)
    if not isinstance(found, h5py.Group):
        raise DataError(
            f"no group {name}" if found is None else f"{name} is no group",
            where=str(file.filename),
            rule=f"there are: {', '.join(sorted(file)) or 'none'}",
            remedy=AGAIN,
        )
    return found


def _shape(file: h5py.File, name: str) -> tuple[int, int]:
    attributes = _group(file, name).attrs
    told, shape = attributes.get(FORMAT), np.ravel(attributes.get(SHAPE, ()))
    told = told.decode("utf-8", "replace") if isinstance(told, bytes) else told
    if told != "csr" or len(shape) != 2 or shape.dtype.kind not in "iu" or (shape < 0).any():
        raise DataError(
            f"{FORMAT} is {told}, {SHAPE} is {shape.tolist()}",
            where=f"{file.filename}, {name}",
            rule=f"a matrix is a group with {FORMAT} csr and {SHAPE} (rows, columns)",
            remedy=AGAIN,
        )
    return int(shape[0]), int(shape[1])


def _vector(group: h5py.Group, part: str) -> h5py.Dataset:
    found = group.get(part)
    if not isinstance(found, h5py.Dataset) or found.ndim != 1:
        raise DataError(
            f"no vector {part}",
            where=f"{group.file.filename}, {group.name}",
            rule="a matrix is data, indices and indptr",
            remedy=AGAIN,
        )
    return _whole(found)


def _whole(dataset: h5py.Dataset) -> h5py.Dataset:
    """Return a data set, which must hold whole numbers or truth values."""
    if dataset.dtype.kind not in "iub":
        raise DataError(
            f"holds {dataset.dtype}",
            where=f"{dataset.file.filename}, {dataset.name}",
            rule="everything in the file is a whole number",
            remedy=AGAIN,
        )
    return dataset


def _mapped(dataset: h5py.Dataset) -> Any:
    """Return a data set as mapped memory where it lies in one piece, else as it is.

    A slice of it then costs microseconds; the library takes a hundred of them for each.
    """
    offset = dataset.id.get_offset()
    if offset is None or len(dataset) == 0 or dataset.dtype.kind == "b":
        return dataset
    mapped = np.memmap(
        dataset.file.filename, dataset.dtype, mode="r", offset=offset, shape=dataset.shape
    )
    return mapped.view(np.ndarray)  # slices of the class itself cost ten times as much
