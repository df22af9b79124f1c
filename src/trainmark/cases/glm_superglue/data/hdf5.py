"""Read the published preprocessed ReCoRD, a sparse HDF5 file for each split.

The matrices ``text``, ``target`` and ``logit_mask`` have one row per sequence, ``position`` has
two: position ids and block position ids. ``mask`` has each sequence's separator,
``choice_start_end`` the range of each sample's sequences, ``answer_start_end`` and ``answer_idx``
the right candidates of each evaluation sample. A matrix is a CSR group in the layout of the
h5sparse package, or a plain data set. The publisher's program stores CSC groups, which
``copy_as_csr`` converts.

The arrays must be consistent: opening a file compares their lengths and bounds, and
``scan_sequences`` checks every number.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from trainmark.data.cache import Extremes
from trainmark.data.splits import compute_starts, translate_read_errors
from trainmark.digests import hash_stream
from trainmark.errors import DataError
from trainmark.extras import import_extra

from .examples import ChoiceSequence, Examples

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from ..case import GlmRecipe

    Numbers = NDArray[np.int64]

RULE = (
    "a matrix must be a dataset, or a group with data, indices and indptr and the attributes "
    "h5sparse_format=csr and h5sparse_shape; `trainmark prepare` converts csc to csr"
)
DOWNLOAD_AGAIN = "download and unpack glm_train_dataset.zip again, or use ReCoRD's .jsonl files"
BLOCK_SEQUENCES = 4096  # number of sequences that are scanned at a time
_TARGET_RULE = "every sequence must have a target"
_make_fault = partial(DataError, rule=RULE, fix=DOWNLOAD_AGAIN)


class SparseFile:
    """The sequences of one file, read on demand.

    Args:
        evaluation: whether the file lists the right candidates; in training the first is right.

    Raises:
        DataError: the file or a group of it cannot be read, or its arrays contradict each other.
        EnvironmentFault: the library that reads HDF5 is not installed.
    """

    def __init__(self, file: Path, *, evaluation: bool) -> None:
        self.file = file
        hdf5_file = _open_file(file)
        # Each row is a sequence: the context with a gap, then the answer block that fills the gap.
        self.text = _Matrix(hdf5_file, "text")  # token ids, 0 after the end of the sequence
        # Two rows for each sequence: the place of each token in the context, then its place in the
        # answer block.
        self.position = _Matrix(hdf5_file, "position")
        self.target = _Matrix(hdf5_file, "target")  # the token id to predict at each position
        self.logit_mask = _Matrix(hdf5_file, "logit_mask")  # 1 where ``target`` counts, else 0
        # The file calls ``mask`` what the other modules call separator: the index in each sequence
        # at which its answer block begins.
        self.separators = _Matrix(hdf5_file, "mask").read_all_rows().reshape(-1)
        # A sample is consecutive sequences, one for each candidate: the first sequence of each
        # sample, and the one after its last (samples, 2).
        self.sample_bounds = _Matrix(hdf5_file, "choice_start_end").read_all_rows()
        self._refuse_contradictions()
        self.num_choices: Numbers = np.diff(self.sample_bounds).reshape(-1)
        # The indices of each sample's right candidates, which only the file of the evaluation split
        # lists. None: the file is that of the training split, where the first candidate is right.
        self.answers = self._read_answers(hdf5_file, self.num_choices) if evaluation else None

    def _refuse_contradictions(self) -> None:
        """Refuse arrays that contradict each other.

        All must have the shape that the number of sequences in ``text`` requires. A separator, the
        index at which the answer block begins, must not be behind the end of its sequence. Each
        sequence must belong to exactly one sample.
        """
        if len(self.text.shape) != 2:  # a list, which is valid only for other arrays
            raise _make_fault(
                f"the shape is {self.text.shape}, but must be (sequences, tokens)",
                where=f"{self.file}, text",
            )
        sequences, columns = self.text.shape
        for name, shape, expected in (
            ("target", self.target.shape, (sequences, columns)),
            ("logit_mask", self.logit_mask.shape, (sequences, columns)),
            ("position", self.position.shape, (2 * sequences, columns)),  # two rows per sequence
            ("mask", self.separators.shape, (sequences,)),
            # The number of samples is not known otherwise: only the number of columns is checked.
            ("choice_start_end", self.sample_bounds.shape, (len(self.sample_bounds), 2)),
        ):
            if shape != expected:
                raise _make_fault(
                    f"the shape is {shape}, but text has {sequences} sequences of {columns} "
                    f"tokens, which require the shape {expected}",
                    where=f"{self.file}, {name}",
                )
        # A separator at ``columns``, behind all tokens, is left to ``scan_sequences``. That refuses
        # it like any other that is behind the last target of its sequence.
        outside = (self.separators < 0) | (self.separators > columns)
        if outside.any():
            number = int(outside.argmax())  # the first one
            raise _make_fault(
                f"sequence {number} (counted from 0) has its separator at "
                f"{self.separators[number]}",
                where=f"{self.file}, mask",
                rule=f"a separator must be at a position from 0 to {columns}, the number of tokens",
            )
        _refuse_gaps_and_overlaps(self.sample_bounds, sequences, f"{self.file}, choice_start_end")

    def _read_answers(self, hdf5_file: Any, num_choices: Numbers) -> list[Numbers]:
        """Return the indices of each sample's right candidates.

        Args:
            hdf5_file: the open file.
            num_choices: number of candidates of each sample (samples,).
        """
        # The answers of all samples, one after the other, and the range of each sample's answers:
        # its begin and the index after its end.
        answers = _Matrix(hdf5_file, "answer_idx").read_all_rows().reshape(-1)
        bounds = _Matrix(hdf5_file, "answer_start_end").read_all_rows()
        if bounds.shape != (len(num_choices), 2):
            raise _make_fault(
                f"the shape is {bounds.shape} for {len(num_choices)} samples",
                where=f"{self.file}, answer_start_end",
            )
        _refuse_gaps_and_overlaps(bounds, len(answers), f"{self.file}, answer_start_end")
        answer_lists = [answers[first:end] for first, end in bounds.tolist()]
        # No list is empty, because no range is: that has just been checked.
        for sample, (indices, count) in enumerate(zip(answer_lists, num_choices, strict=True)):
            if indices.min() < 0 or indices.max() >= count:
                raise _make_fault(
                    f"sample {sample} (counted from 0) has the answers {indices.tolist()}",
                    where=f"{self.file}, answer_idx",
                    rule=(
                        f"an answer must be one of the {count} candidates of the sample, counted "
                        "from 0"
                    ),
                )
        return answer_lists

    def scan_sequences(self) -> dict[str, Extremes]:
        """Check every sequence; return the smallest and largest token id and position id.

        Returns:
            ``text``: the extremes of the token ids, which include those to be predicted.
            ``position``: the extremes of the position ids.

        Raises:
            DataError: a sequence has no target, or its answer block begins behind its last target,
                or a row of a matrix is invalid.
        """
        with translate_read_errors(self.file, _make_fault), self.file.open("rb") as stream:
            # ``Extremes`` has a digest of what was scanned: that of the file, for both results.
            digest = hash_stream(stream).hexdigest()
        token_extremes: list[int] = []  # minima and maxima of all blocks
        position_extremes: list[int] = []
        for first in range(0, len(self.separators), BLOCK_SEQUENCES):
            end = min(first + BLOCK_SEQUENCES, len(self.separators))
            is_target = self.logit_mask.read_rows(first, end).astype(bool)  # (sequences, columns)
            has_target = is_target.any(1)
            if not has_target.all():
                raise _make_fault(
                    f"sequence {first + int(has_target.argmin())} (counted from 0) has no target",
                    where=f"{self.file}, logit_mask",
                    rule=_TARGET_RULE,
                )
            # ``argmax`` returns the first target in the reversed row, which is the last in the row.
            last_targets = is_target.shape[1] - 1 - is_target[:, ::-1].argmax(1)
            # A separator is the index at which the answer block of a sequence begins.
            is_behind = self.separators[first:end] > last_targets
            if is_behind.any():
                number = first + int(is_behind.argmax())
                raise _make_fault(
                    f"sequence {number} (counted from 0) has its separator at "
                    f"{self.separators[number]}, after its last target",
                    where=f"{self.file}, mask",
                    rule=(
                        "the tokens before the separator attend to each other, so the separator "
                        "must not come after the answer"
                    ),
                )
            text = self.text.read_rows(first, end)
            target = self.target.read_rows(first, end)
            position = self.position.read_rows(2 * first, 2 * end)  # two rows per sequence
            token_extremes += [text.min(), target.min(), text.max(), target.max()]
            position_extremes += [position.min(), position.max()]
        return {
            "text": Extremes(digest, int(min(token_extremes)), int(max(token_extremes))),
            "position": Extremes(digest, int(min(position_extremes)), int(max(position_extremes))),
        }


class SparseExamples(Examples):
    """One split, read from its file on demand.

    Args:
        evaluation: whether the file lists the right candidates; in training the first is right.

    Raises:
        DataError: see ``SparseFile``, or the sequences are longer than the recipe's.
        EnvironmentFault: the library that reads HDF5 is not installed.
    """

    def __init__(self, file: Path, recipe: GlmRecipe, *, evaluation: bool) -> None:
        self.file = file
        self.seq_length = recipe.seq_length  # number of tokens that sequences are padded to
        self.trim = recipe.trim_padding  # pad only to the longest sequence of a batch
        self.vocab_size = recipe.vocab_size
        self.stored = SparseFile(file, evaluation=evaluation)
        columns = self.stored.text.shape[1]  # number of tokens of a stored sequence
        if columns > self.seq_length:
            raise DataError(
                f"the sequences have {columns} tokens each",
                where=f"{file}, text",
                rule=f"a sequence must have at most seq_length={self.seq_length} tokens; shorter "
                "sequences are padded to seq_length",
                fix=f"set seq_length={columns}",
            )
        self.num_choices = self.stored.num_choices
        # A training sample is its first candidate, which is right, and as many of the wrong ones
        # after it as the recipe allows. An evaluation sample is all candidates.
        if not evaluation:
            self.num_choices = np.minimum(self.num_choices, 1 + recipe.max_wrong_choices)

    def refuse_ids_outside_tables(self, extremes_by_name: Mapping[str, Extremes]) -> None:
        """Refuse ids that are outside the embedding tables of the recipe's model.

        Args:
            extremes_by_name: the smallest and largest token id (``text``) and position id
                (``position``) of the file, as ``scan_sequences`` returns them.

        Raises:
            DataError: there is such an id; the error has the smallest and the largest id.
        """
        for name in ("text", "position"):
            extremes = extremes_by_name[name]
            self._refuse_range(
                name, extremes.smallest, extremes.largest, where=f"{self.file}, {name}"
            )

    def _refuse_range(self, name: str, smallest: int, largest: int, *, where: str) -> None:
        """Refuse ids that are outside the embedding table of their kind.

        Args:
            name: of the matrix: ``position`` has position ids, the others have token ids.
            smallest, largest: of the ids.
            where: file and matrix, for the error.
        """
        if name == "position":
            last_row = self.seq_length  # a position table has ``seq_length + 1`` rows
            rule = "position ids must be at least 0 and at most the recipe's seq_length "
            rule += f"({self.seq_length})"
        else:
            last_row = self.vocab_size - 1
            rule = "token ids must be at least 0 and less than the recipe's vocab_size "
            rule += f"({self.vocab_size})"
        if smallest < 0 or largest > last_row:
            raise _make_fault(
                f"the numbers range from {smallest} to {largest}",
                where=where,
                rule=rule,
                fix=f"set the recipe's sizes to those of the model, or {DOWNLOAD_AGAIN}",
            )

    def build_sequences(self, row: int) -> list[ChoiceSequence]:
        """Return the sequences of one sample, one for each candidate."""
        stored = self.stored
        # The sequences of the sample's candidates. In training, ``num_choices`` may be less than
        # the number in the file: then the last ones are not read.
        first = int(stored.sample_bounds[row, 0])
        end = first + int(self.num_choices[row])
        text = stored.text.read_rows(first, end)
        target = stored.target.read_rows(first, end)
        positions = stored.position.read_rows(2 * first, 2 * end)  # two rows per sequence
        is_target = stored.logit_mask.read_rows(first, end)  # 1 where ``target`` counts, else 0
        # The file of the training split lists no answers: the first candidate is right.
        right_candidates = [0] if stored.answers is None else stored.answers[row].tolist()
        # The check before the run has scanned the file, but a rank reads it later, when it may have
        # changed.
        sample = f"sample {row} (counted from 0)"
        for name, ids in (("text", text), ("target", target), ("position", positions)):
            self._refuse_range(
                name, int(ids.min()), int(ids.max()), where=f"{self.file}, {name}, {sample}"
            )
        if not is_target.any(1).all():
            raise _make_fault(
                f"a sequence of {sample} has no target",
                where=f"{self.file}, logit_mask",
                rule=_TARGET_RULE,
            )
        sequences = []
        for number in range(end - first):
            target_rows = np.flatnonzero(is_target[number])  # positions in the sequence
            length = int(target_rows[-1]) + 1  # what follows the last target is padding
            sequences.append(
                ChoiceSequence(
                    ids=text[number, :length],
                    # Of the two rows, one is the place in the context, one in the answer block.
                    positions=positions[2 * number, :length],
                    block_positions=positions[2 * number + 1, :length],
                    separator=int(stored.separators[first + number]),
                    target_rows=target_rows,
                    target_ids=target[number, target_rows],
                    correct=number in right_candidates,
                )
            )
        return sequences


def _open_file(file: Path) -> Any:
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
        raise _make_fault(what, where=str(file)) from None


class _Matrix:
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
            raise _make_fault(what, where=self.place) from None
        if not is_valid:
            raise _make_fault("the matrix cannot be read by rows", where=self.place)
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
        raise _make_fault(
            f"data has {num_data} entries, but indices has {num_indices}", where=place, rule=rule
        )
    if len(starts) != num_parts + 1:
        raise _make_fault(
            f"indptr has {len(starts)} entries for {num_parts} rows", where=place, rule=rule
        )
    if starts[0] != 0 or starts[-1] != num_data:
        what = f"indptr goes from {starts[0]} to {starts[-1]}, but data has {num_data} entries"
        raise _make_fault(what, where=place, rule=rule)
    ends_before_begin = np.diff(starts) < 0
    if ends_before_begin.any():
        part = int(ends_before_begin.argmax())  # the first one
        begin, end = starts[part], starts[part + 1]
        what = f"row {part} (counted from 0) begins at {begin} and ends at {end}"
        raise _make_fault(what, where=place, rule=rule)


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
        raise _make_fault(what, where=place, rule=rule)
    cells = rows * num_columns + columns  # a number for each pair of row and column
    # If the numbers ascend, none repeats. Otherwise count each number, which takes longer: columns
    # that are only unsorted are valid.
    if (np.diff(cells) <= 0).any():
        distinct_cells, counts = np.unique(cells, return_counts=True)
        if counts.max() > 1:
            row, column = divmod(int(distinct_cells[counts.argmax()]), num_columns)
            what = f"row {first_row + row} (counted from 0) stores column {column} twice"
            raise _make_fault(what, where=place, rule=rule)


def _refuse_gaps_and_overlaps(bounds: Numbers, total: int, place: str) -> None:
    """Refuse ranges that do not cover each of 0 to ``total - 1`` once; they may be in any order.

    Args:
        bounds: begin of each range, and the number after its end (ranges, 2).
        place: file and array, for the error.
    """
    rule = f"the ranges must cover each index from 0 to {total - 1} once, and must not be empty"
    if not len(bounds):
        raise _make_fault("the array is empty", where=place, rule=rule)
    ascending = bounds[np.argsort(bounds[:, 0], kind="stable")]
    begins, ends = ascending[:, 0], ascending[:, 1]
    # The first range must begin at 0, each other one where the one before it ends, and none may be
    # empty.
    expected_begins = np.append(0, ends[:-1])
    is_wrong = (begins != expected_begins) | (ends <= begins)
    # The last range must end at ``total``.
    if ends[-1] != total:
        is_wrong[-1] = True
    if is_wrong.any():
        first_wrong = int(is_wrong.argmax())
        raise _make_fault(
            f"a range begins at {begins[first_wrong]} and ends before {ends[first_wrong]}",
            where=place,
            rule=rule,
        )


def _read_format(group: Any) -> str:
    """Return the sparse format of a group, ``csr`` or ``csc``; empty if it has none."""
    form = group.attrs.get("h5sparse_format", "")  # bytes or text, as the writer stored it
    return form.decode("utf-8", "replace") if isinstance(form, bytes) else str(form)


def copy_as_csr(source: Path, target: Path) -> None:
    """Write a copy of a file with CSC matrices converted to CSR, which can be read by rows.

    One matrix at a time is in memory, which takes about 10 GB for the published training split.
    """
    h5py = import_extra("h5py", where=source)
    with _open_file(source) as raw, h5py.File(target, "w") as output:
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
        raise _make_fault(what, where=place) from None
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
        raise _make_fault(
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
