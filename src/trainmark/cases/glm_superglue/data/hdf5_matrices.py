"""Read and convert the matrices of integers in an HDF5 file.

A matrix is a CSR group in the layout of the h5sparse package, or a plain data set; both are read by
rows. The publisher's program stores CSC groups, which ``copy_as_csr`` converts. The indices that
locate the elements of a row are checked.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from trainmark.data.splits import compute_starts
from trainmark.errors import DataError
from trainmark.extras import import_extra

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    Numbers = NDArray[np.int64]

RULE = (
    "a matrix must be a dataset, or a group with data, indices and indptr and the attributes "
    "h5sparse_format=csr and h5sparse_shape; `trainmark prepare` converts csc to csr"
)
DOWNLOAD_AGAIN = "download and unpack glm_train_dataset.zip again, or use ReCoRD's .jsonl files"
make_fault = partial(DataError, rule=RULE, fix=DOWNLOAD_AGAIN)


def open_file(file: Path) -> Any:
    """Open an HDF5 file for reading.

    Raises:
        DataError: the file is unreadable.
        EnvironmentFault: the optional package ``h5py`` is not installed.
    """
    h5py = import_extra("h5py", where=file)
    try:
        # best-effort: also open a file on a file system without locks.
        return h5py.File(file, "r", locking="best-effort")
    except OSError as error:
        what = f"not readable as HDF5: {str(error).splitlines()[0]}"
        raise make_fault(what, where=str(file)) from None


class Matrix:
    """A matrix or a list of integers in an HDF5 file, read by rows.

    Args:
        file: the open HDF5 file.
        name: of the matrix, a CSR group or a plain data set. A list, such as ``mask``, may be a
            matrix with one row or column, or a plain data set of one dimension.

    Raises:
        DataError: the file has no such matrix, or its arrays contradict each other.
    """

    def __init__(self, file: Any, name: str) -> None:
        self.place = f"{file.filename}, {name}"  # for errors
        try:
            stored = file[name]
            self.is_sparse = hasattr(stored, "keys")  # a group; a plain data set has no keys
            if self.is_sparse:
                # ``data`` has the stored elements of all rows, one row after the other, ``indices``
                # the column of each, and ``indptr`` the index in both at which each row begins.
                self.shape = tuple(np.ravel(stored.attrs["h5sparse_shape"]).tolist())
                self.data = stored["data"]
                self.indices = stored["indices"]
                self.starts = stored["indptr"][()].astype(np.int64)
                # Such a matrix has the format CSR. Rows of a CSC matrix, which is stored by
                # columns, could not be read on demand.
                is_valid = _read_format(stored) == "csr" and len(self.shape) == 2
            else:
                self.shape = stored.shape
                self.data = stored
                is_valid = len(self.shape) in {1, 2}  # a list or a matrix
        except (KeyError, ValueError) as error:  # absent, or ``indptr`` does not contain numbers
            what = f"the matrix cannot be read by rows: {error.args[0]}"
            raise make_fault(what, where=self.place) from None
        if not is_valid:
            raise make_fault("the matrix cannot be read by rows", where=self.place)
        if self.is_sparse:
            _refuse_invalid_starts(
                self.starts,
                num_parts=self.shape[0],
                num_data=len(self.data),
                num_indices=len(self.indices),
                place=self.place,
            )

    def read_all_rows(self) -> Numbers:
        """Return the whole matrix as int64; elements that are not stored are 0."""
        return self.read_rows(0, self.shape[0])

    def read_rows(self, first: int, end: int) -> Numbers:
        """Return rows ``first`` to ``end - 1`` as int64; elements that are not stored are 0."""
        if not self.is_sparse:
            return np.asarray(self.data[first:end], np.int64)
        # CSR: ``data`` has the stored elements of all rows, one row after the other, ``indices``
        # the column of each, and ``starts`` the index in both at which each row begins.
        starts = self.starts[first : end + 1]
        elements = slice(int(starts[0]), int(starts[-1]))  # those of all these rows
        dense = np.zeros((len(starts) - 1, self.shape[1]), np.int64)
        rows = np.repeat(np.arange(len(dense)), np.diff(starts))  # row of each element
        columns = self.indices[elements].astype(np.int64)
        _refuse_invalid_columns(
            rows, columns, num_columns=self.shape[1], first_row=first, place=self.place
        )
        dense[rows, columns] = self.data[elements]
        return dense


def _refuse_invalid_starts(
    starts: Numbers, *, num_parts: int, num_data: int, num_indices: int, place: str
) -> None:
    """Refuse an ``indptr`` that does not divide ``data`` and ``indices`` into rows or columns.

    A part is a row of a CSR matrix or a column of a CSC matrix. The errors say "row" in both cases.

    Args:
        starts: the ``indptr``: the index at which each part begins, and the end of the last part.
        num_parts: number of rows of a CSR matrix, or of columns of a CSC matrix.
        num_data, num_indices: lengths of ``data`` and ``indices``.
        place: file and matrix, for the error.
    """
    rule = (
        "indptr must ascend from 0 to the length of data and indices, and must have one entry more "
        "than there are rows"
    )
    if num_data != num_indices:
        raise make_fault(
            f"data has {num_data} entries, but indices has {num_indices}", where=place, rule=rule
        )
    if len(starts) != num_parts + 1:
        raise make_fault(
            f"indptr has {len(starts)} entries for {num_parts} rows", where=place, rule=rule
        )
    if starts[0] != 0 or starts[-1] != num_data:
        what = f"indptr goes from {starts[0]} to {starts[-1]}, but data has {num_data} entries"
        raise make_fault(what, where=place, rule=rule)
    ends_before_begin = np.diff(starts) < 0
    if ends_before_begin.any():
        part = int(ends_before_begin.argmax())  # the first one
        begin, end = starts[part], starts[part + 1]
        what = f"row {part} (counted from 0) begins at {begin} and ends at {end}"
        raise make_fault(what, where=place, rule=rule)


def _refuse_invalid_columns(
    rows: Numbers, columns: Numbers, *, num_columns: int, first_row: int, place: str
) -> None:
    """Refuse columns outside the matrix, and columns that are stored twice in a row.

    Args:
        rows: row of each stored element, counted from ``first_row``, ascending (elements,).
        columns: column of each stored element (elements,).
        num_columns: of the matrix.
        first_row: number of the first row in the matrix, for the error.
        place: file and matrix, for the error.
    """
    rule = f"a row must store each column at most once; columns must be in [0, {num_columns})"
    outside = (columns < 0) | (columns >= num_columns)
    if outside.any():
        element = int(outside.argmax())  # the first one
        row = first_row + rows[element]
        what = f"row {row} (counted from 0) has an entry in column {columns[element]}"
        raise make_fault(what, where=place, rule=rule)
    cells = rows * num_columns + columns  # a number for each pair of row and column
    # If the numbers ascend, none repeats. Otherwise count each number, which takes longer: columns
    # that are only unsorted are valid.
    if (np.diff(cells) <= 0).any():
        distinct_cells, counts = np.unique(cells, return_counts=True)
        if counts.max() > 1:
            row, column = divmod(int(distinct_cells[counts.argmax()]), num_columns)
            what = f"row {first_row + row} (counted from 0) stores column {column} twice"
            raise make_fault(what, where=place, rule=rule)


def _read_format(group: Any) -> str:
    """Return the sparse format of a group, ``csr`` or ``csc``; empty if it has none."""
    form = group.attrs.get("h5sparse_format", "")  # bytes or text, as the writer stored it
    return form.decode("utf-8", "replace") if isinstance(form, bytes) else str(form)


def copy_as_csr(source: Path, target: Path) -> None:
    """Write a copy of a file with CSC matrices converted to CSR, which can be read by rows.

    One matrix at a time is in memory, which takes about 10 GB for the published training split.
    """
    h5py = import_extra("h5py", where=source)
    with open_file(source) as raw, h5py.File(target, "w") as output:
        for name, matrix in raw.items():
            # A sparse matrix is a group of data sets, which has keys. Plain data sets and CSR
            # groups are copied as they are.
            if not hasattr(matrix, "keys") or _read_format(matrix) != "csc":
                raw.copy(name, output)
                continue
            _convert_to_csr(matrix, output.create_group(name), place=f"{source}, {name}")


def _convert_to_csr(matrix: Any, output: Any, *, place: str) -> None:
    """Convert a matrix that is stored by columns (CSC) to one that is stored by rows (CSR).

    Args:
        matrix: the HDF5 group of the CSC matrix. ``data`` has the elements of all columns, one
            column after the other, ``indices`` the row of each, and ``indptr`` the index in both at
            which each column begins.
        output: the empty HDF5 group for the CSR matrix.
        place: file and matrix, for errors.

    Raises:
        DataError: an array or the shape is missing, or they contradict each other.
    """
    try:
        num_rows, num_columns = np.ravel(matrix.attrs["h5sparse_shape"]).tolist()
        data = matrix["data"]
        rows = matrix["indices"][()]  # row of each element; ``[()]`` reads the whole array
        starts = matrix["indptr"][()].astype(np.int64)
    except (KeyError, ValueError) as error:  # absent, or not of two numbers, or not numbers
        what = f"the matrix cannot be converted: {error.args[0]}"
        raise make_fault(what, where=place) from None
    output.attrs["h5sparse_format"] = "csr"
    output.attrs["h5sparse_shape"] = (num_rows, num_columns)
    _refuse_invalid_starts(
        starts,
        num_parts=num_columns,
        num_data=len(data),
        num_indices=len(rows),
        place=place,
    )
    if len(rows) and not 0 <= rows.min() <= rows.max() < num_rows:
        raise make_fault(
            f"the row numbers range from {rows.min()} to {rows.max()}",
            where=place,
            rule=f"row numbers must be in [0, {num_rows})",
        )
    # Column of each element.
    columns = np.repeat(np.arange(num_columns, dtype=np.int32), np.diff(starts))
    order = np.argsort(rows, kind="stable")  # stable: the columns of a row stay sorted
    output["data"] = data[()][order]
    output["indices"] = columns[order]
    # The index at which the elements of each row begin, and their total number at the end.
    output["indptr"] = compute_starts(np.bincount(rows, minlength=num_rows))
