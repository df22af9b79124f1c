"""Read the published preprocessed ReCoRD, a sparse HDF5 file for each split.

The matrices ``text``, ``target`` and ``logit_mask`` have one row per sequence, ``position`` has
two: position ids and block position ids. ``mask`` has each sequence's separator,
``choice_start_end`` the range of each sample's sequences, ``answer_start_end`` and ``answer_idx``
the right candidates of each evaluation sample. A matrix is a CSR group in the layout of the
h5sparse package, or a plain data set. The publisher's program stores CSC groups, which
``write_rows`` converts.

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
    "a matrix must be a group of data, indices and indptr with h5sparse_format csr and "
    "h5sparse_shape, or a dataset; prepare converts csc to csr"
)
AGAIN = "download and unpack glm_train_dataset.zip again, or use ReCoRD's .jsonl files"
BLOCK_SEQUENCES = 4096  # number of sequences that are scanned at a time
_fault = partial(DataError, rule=RULE, fix=AGAIN)


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
        opened = _open_file(file)
        self.text, self.position, self.target, self.logit_mask = (
            _Matrix(opened, name) for name in ("text", "position", "target", "logit_mask")
        )
        self.separators = _Matrix(opened, "mask").read_rows(0, None).reshape(-1)
        self.samples = _Matrix(opened, "choice_start_end").read_rows(0, None)
        self._refuse_other_lengths()
        self.num_choices: Numbers = np.diff(self.samples).reshape(-1)
        self.answers = self._read_answers(opened, self.num_choices) if evaluation else None

    def _refuse_other_lengths(self) -> None:
        """Refuse arrays with different numbers of sequences, or samples that do not cover them."""
        sequences, columns = self.text.shape
        shapes = {
            "target": (self.target.shape, (sequences, columns)),
            "logit_mask": (self.logit_mask.shape, (sequences, columns)),
            "position": (self.position.shape, (2 * sequences, columns)),
            "mask": (self.separators.shape, (sequences,)),
            "choice_start_end": (self.samples.shape, (len(self.samples), 2)),
        }
        for name, (shape, expected) in shapes.items():
            if shape != expected:
                raise _fault(
                    f"the shape is {shape}, but text has {sequences} sequences of {columns} "
                    f"tokens: {expected}",
                    where=f"{self.file}, {name}",
                )
        outside = (self.separators < 0) | (self.separators > columns)
        if outside.any():
            number = int(outside.argmax())
            raise _fault(
                f"sequence {number} has its separator at {self.separators[number]}",
                where=f"{self.file}, mask",
                rule=f"a separator must be a position in a sequence, 0 to {columns}",
            )
        _refuse_other_parts(self.samples, sequences, f"{self.file}, choice_start_end")

    def _read_answers(self, opened: Any, counts: Numbers) -> list[Numbers]:
        """Return the indices of each sample's right candidates."""
        answers = _Matrix(opened, "answer_idx").read_rows(0, None).reshape(-1)
        bounds = _Matrix(opened, "answer_start_end").read_rows(0, None)
        if bounds.shape != (len(counts), 2):
            raise _fault(
                f"the shape is {bounds.shape} for {len(counts)} samples",
                where=f"{self.file}, answer_start_end",
            )
        _refuse_other_parts(bounds, len(answers), f"{self.file}, answer_start_end")
        answer_lists = [answers[first:last] for first, last in bounds.tolist()]
        for sample, (right, count) in enumerate(zip(answer_lists, counts, strict=True)):
            if right.min() < 0 or right.max() >= count:
                raise _fault(
                    f"sample {sample} (from 0) has the answers {right.tolist()}",
                    where=f"{self.file}, answer_idx",
                    rule=(
                        f"an answer must be one of the {count} candidates of the sample, counted "
                        "from 0"
                    ),
                )
        return answer_lists

    def scan_sequences(self) -> dict[str, Extremes]:
        """Check every sequence; return the extremes of token ids and of position ids.

        Raises:
            DataError: a sequence has no target, or a row of a matrix is invalid.
        """
        with translate_read_errors(self.file, _fault), self.file.open("rb") as stream:
            digest = hash_stream(stream).hexdigest()
        minima_maxima: dict[str, list[int]] = {"text": [], "position": []}
        for first in range(0, len(self.separators), BLOCK_SEQUENCES):
            last = min(first + BLOCK_SEQUENCES, len(self.separators))
            has_target = self.logit_mask.read_rows(first, last).any(1)
            if not has_target.all():
                raise _fault(
                    f"sequence {first + int(has_target.argmin())} (from 0) has no target",
                    where=f"{self.file}, logit_mask",
                    rule="every sequence must have a target",
                )
            text, target = self.text.read_rows(first, last), self.target.read_rows(first, last)
            position = self.position.read_rows(2 * first, 2 * last)
            minima_maxima["text"] += [text.min(), target.min(), text.max(), target.max()]
            minima_maxima["position"] += [position.min(), position.max()]
        return {
            name: Extremes(digest, int(min(values)), int(max(values)))
            for name, values in minima_maxima.items()
        }


class SparseExamples(Examples):
    """One split, read from its file on demand.

    Raises:
        DataError: see ``SparseFile``, or the sequences are longer than the recipe's.
        EnvironmentFault: the library that reads HDF5 is not installed.
    """

    def __init__(self, file: Path, recipe: GlmRecipe, *, evaluation: bool) -> None:
        self.file, self.seq_length, self.trim = file, recipe.seq_length, recipe.trim_padding
        self.vocab_size = recipe.vocab_size
        self.stored = SparseFile(file, evaluation=evaluation)
        columns = self.stored.text.shape[1]
        if columns > self.seq_length:
            raise DataError(
                f"sequences of {columns} tokens",
                where=f"{file}, text",
                rule=(
                    f"the sequences cannot be changed; the recipe's seq_length is {self.seq_length}"
                ),
                fix=f"set seq_length={columns}",
            )
        self.num_choices = self.stored.num_choices
        if not evaluation:
            self.num_choices = np.minimum(self.num_choices, 1 + recipe.max_wrong_choices)

    def refuse_outside(self, content: Mapping[str, Extremes]) -> None:
        """Refuse ids that are outside the tables of the recipe's model.

        Args:
            content: the result of ``scan_sequences``.

        Raises:
            DataError: an array has such an id; the error has its smallest and largest number.
        """
        for name, limit, rule in (
            ("text", self.vocab_size, "token ids must be in [0, vocab_size) of the recipe"),
            (
                "position",
                self.seq_length + 1,
                "position ids must be in [0, seq_length] of the recipe",
            ),
        ):
            extremes = content[name]
            if extremes.smallest < 0 or extremes.largest >= limit:
                raise _fault(
                    f"numbers from {extremes.smallest} to {extremes.largest}",
                    where=f"{self.file}, {name}",
                    rule=f"{rule}: below {limit}",
                    fix=f"set the recipe's sizes to those of the model, or {AGAIN}",
                )

    def build_sequences(self, row: int) -> list[ChoiceSequence]:
        """Return the sequences of one sample, one for each candidate."""
        stored = self.stored
        first = int(stored.samples[row, 0])
        last = first + int(self.num_choices[row])
        text = stored.text.read_rows(first, last)
        target = stored.target.read_rows(first, last)
        positions = stored.position.read_rows(2 * first, 2 * last)
        is_target = stored.logit_mask.read_rows(first, last)
        right = [0] if stored.answers is None else stored.answers[row].tolist()
        if not 0 <= text.min() <= text.max() < self.vocab_size or not is_target.any(1).all():
            raise DataError(
                f"tokens {text.min()} to {text.max()}",
                where=f"{self.file}, sample {row} (counted from 0)",
                rule=(
                    f"token ids must be in [0, {self.vocab_size}), the recipe's vocab_size, and "
                    "every sequence must have a target"
                ),
                fix=f"set vocab_size to that of the model, or {AGAIN}",
            )
        sequences = []
        for number in range(last - first):
            targets = np.flatnonzero(is_target[number])
            used = slice(0, int(targets[-1]) + 1)  # what follows the last target is padding
            sequences.append(
                ChoiceSequence(
                    text[number, used],
                    positions[2 * number, used],
                    positions[2 * number + 1, used],
                    int(stored.separators[first + number]),
                    targets,
                    target[number, targets],
                    number in right,
                )
            )
        return sequences


def _open_file(file: Path) -> Any:
    """Open an HDF5 file for reading; raise DataError if it is unreadable."""
    h5py = import_extra("h5py", where=file)
    try:
        return h5py.File(file, "r", locking="best-effort")  # some file systems have no locks
    except OSError as error:
        what = f"not readable as HDF5: {str(error).splitlines()[0]}"
        raise _fault(what, where=str(file)) from None


class _Matrix:
    """A matrix of integers in an HDF5 file, read by rows."""

    def __init__(self, file: Any, name: str) -> None:
        try:
            group = file[name]
            self.sparse = hasattr(group, "keys")
            if self.sparse:
                self.shape = tuple(np.ravel(group.attrs["h5sparse_shape"]).tolist())
                self.data, self.indices = group["data"], group["indices"]
                self.starts = group["indptr"][()].astype(np.int64)
                is_valid = _read_format(group) == "csr" and len(self.shape) == 2
            else:
                self.data, self.shape, is_valid = group, group.shape, True
        except (KeyError, ValueError) as error:
            where = f"{file.filename} ({error}), {name}"
            raise _fault("the matrix has no rows", where=where) from None
        if not is_valid:
            raise _fault("the matrix has no rows", where=f"{file.filename}, {name}")
        self.place = f"{file.filename}, {name}"
        if self.sparse:
            _refuse_other_starts(
                self.starts, self.shape[0], len(self.data), len(self.indices), self.place
            )

    def read_rows(self, first: int, last: int | None) -> Numbers:
        """Return rows as int64; elements that are not stored are 0."""
        if not self.sparse:
            return np.asarray(self.data[first:last], np.int64)
        starts = self.starts[first : None if last is None else last + 1]
        stored = slice(int(starts[0]), int(starts[-1]))
        dense = np.zeros((len(starts) - 1, self.shape[1]), np.int64)
        owner = np.repeat(np.arange(len(dense)), np.diff(starts))
        columns = self.indices[stored].astype(np.int64)
        _refuse_other_columns(owner, columns, self.shape[1], first, self.place)
        dense[owner, columns] = self.data[stored]
        return dense


def _refuse_other_starts(
    starts: Numbers, lines: int, num_data: int, num_indices: int, place: str
) -> None:
    """Refuse an ``indptr`` that does not divide ``data`` and ``indices`` into ``lines`` parts."""
    rule = (
        "indptr must ascend from 0 to the length of data and of indices, with "
        "one more entry than rows"
    )
    if num_data != num_indices:
        raise _fault(
            f"data has {num_data} entries, but indices has {num_indices}", where=place, rule=rule
        )
    if len(starts) != lines + 1:
        raise _fault(f"indptr has {len(starts)} entries for {lines} rows", where=place, rule=rule)
    if starts[0] != 0 or starts[-1] != num_data:
        what = f"indptr goes from {starts[0]} to {starts[-1]}, but data has {num_data} entries"
        raise _fault(what, where=place, rule=rule)
    falling = np.diff(starts) < 0
    if falling.any():
        line = int(falling.argmax())
        what = f"row {line} (from 0) begins at {starts[line]} and ends at {starts[line + 1]}"
        raise _fault(what, where=place, rule=rule)


def _refuse_other_columns(
    owner: Numbers, columns: Numbers, width: int, first: int, place: str
) -> None:
    """Refuse columns outside the matrix, and columns that are stored twice in a row."""
    rule = f"each column of a row must be stored once; columns must be in [0, {width})"
    outside = (columns < 0) | (columns >= width)
    if outside.any():
        position = int(outside.argmax())
        what = f"row {first + owner[position]} (from 0) has the column {columns[position]}"
        raise _fault(what, where=place, rule=rule)
    cells = owner * width + columns
    if (np.diff(cells) <= 0).any():  # unsorted columns are rare, and valid if none repeats
        values, counts = np.unique(cells, return_counts=True)
        if counts.max(initial=1) > 1:
            row, column = divmod(int(values[counts.argmax()]), width)
            what = f"row {first + row} (from 0) has the column {column} twice"
            raise _fault(what, where=place, rule=rule)


def _refuse_other_parts(bounds: Numbers, total: int, place: str) -> None:
    """Refuse bounds (parts, 2) whose ranges do not cover 0 to ``total`` once, in any order."""
    order = bounds[np.argsort(bounds[:, 0], kind="stable")]
    begins, ends = order[:, 0], order[:, 1]
    expected = np.append(0, ends[:-1])
    wrong = (begins != expected) | (ends <= begins)
    if not len(bounds) or wrong.any() or ends[-1] != total:
        position = int(wrong.argmax()) if wrong.any() else len(order) - 1
        what = (
            f"a part goes from {begins[position]} to {ends[position]}" if len(bounds) else "no part"
        )
        raise _fault(
            what,
            where=place,
            rule=f"the parts must cover each of 0 to {total - 1} once, and none may be empty",
        )


def _read_format(group: Any) -> str:
    """Return the sparse format of a group, ``csr`` or ``csc``; empty if it has none."""
    form = group.attrs.get("h5sparse_format", "")
    return form.decode("utf-8", "replace") if isinstance(form, bytes) else str(form)


def write_rows(source: Path, target: Path) -> None:
    """Write a copy of a file with CSC groups converted to CSR.

    One matrix at a time is in memory, which takes about 10 GB for the published training split.
    """
    import h5py

    with _open_file(source) as raw, h5py.File(target, "w") as output:
        for name, matrix in raw.items():
            if not hasattr(matrix, "keys") or _read_format(matrix) != "csc":
                raw.copy(name, output)
                continue
            rows, columns = np.ravel(matrix.attrs["h5sparse_shape"]).tolist()
            group = output.create_group(name)
            group.attrs["h5sparse_format"] = "csr"
            group.attrs["h5sparse_shape"] = (rows, columns)
            row = matrix["indices"][()]
            starts = matrix["indptr"][()].astype(np.int64)
            place = f"{source}, {name}"
            _refuse_other_starts(starts, columns, len(matrix["data"]), len(row), place)
            if len(row) and not 0 <= row.min() <= row.max() < rows:
                raise _fault(
                    f"rows from {row.min()} to {row.max()}",
                    where=place,
                    rule=f"rows must be in [0, {rows})",
                )
            column = np.repeat(np.arange(columns, dtype=np.int32), np.diff(starts))
            order = np.argsort(row, kind="stable")  # stable: the columns of a row stay sorted
            group["data"], group["indices"] = matrix["data"][()][order], column[order]
            group["indptr"] = compute_starts(np.bincount(row, minlength=rows))
