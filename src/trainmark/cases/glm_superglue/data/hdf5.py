"""The published preprocessed ReCoRD, one sparse HDF5 file a split: its batches as they are.

Owns the names in the file and the layout of its matrices. ``text``, ``target`` and
``logit_mask`` have one row a sequence, ``position`` two: position ids and block position ids.
``mask`` holds each sequence's separator, ``choice_start_end`` each sample's sequences,
``answer_start_end`` and ``answer_idx`` each evaluation sample's right candidates. A matrix is
a CSR group in the layout of the h5sparse package, or a plain data set. The publisher's program
stores CSC groups: ``write_rows`` turns them once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from trainmark.data.splits import library, starts_of
from trainmark.errors import DataError

from .examples import ChoiceSequence, Examples

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from ..case import GlmRecipe

    Numbers = NDArray[np.int64]

RULE = (
    "matrices are groups data, indices, indptr with h5sparse_format csr and h5sparse_shape, or "
    "data sets; prepare turns csc into csr"
)
AGAIN = "fetch and unpack glm_train_dataset.zip again, or use ReCoRD's .jsonl files"


class SparseExamples(Examples):
    """One split, read from its file as it is asked for.

    Args:
        evaluation: the file says which candidates are right; in training the first is.

    Raises:
        DataError: the file or a group of it cannot be read, or sequences are longer than the
            recipe's.
        EnvironmentFault: the library that reads HDF5 is not installed.
    """

    def __init__(self, file: Path, recipe: GlmRecipe, *, evaluation: bool) -> None:
        self.file, self.seq_length, self.trim = file, recipe.seq_length, recipe.trim_padding
        self.vocab_size = recipe.vocab_size
        opened = _open(file)
        self.text, self.position, self.target, self.logit_mask = (
            _Matrix(opened, name) for name in ("text", "position", "target", "logit_mask")
        )
        if self.text.shape[1] > self.seq_length:
            raise DataError(
                f"sequences of {self.text.shape[1]} tokens", where=f"{file}, text",
                rule=f"they are never cut again; the recipe's seq_length is {self.seq_length}",
                remedy=f"set seq_length={self.text.shape[1]}",
            )  # fmt: skip
        self.separators = _Matrix(opened, "mask").rows(0, None).reshape(-1)
        self.samples = _Matrix(opened, "choice_start_end").rows(0, None)
        counts = np.diff(self.samples).reshape(-1)
        self.answers: list[Numbers] | None = None
        if evaluation:
            answers = _Matrix(opened, "answer_idx").rows(0, None).reshape(-1)
            bounds = _Matrix(opened, "answer_start_end").rows(0, None).tolist()
            self.answers = [answers[first:last] for first, last in bounds]
        most = counts.max(initial=0) if evaluation else 1 + recipe.max_wrong_choices
        self.num_choices = np.minimum(counts, most)

    def sequences(self, row: int) -> list[ChoiceSequence]:
        """Return the sequences of one sample, one a candidate."""
        first = int(self.samples[row, 0])
        last = first + int(self.num_choices[row])
        text, target = self.text.rows(first, last), self.target.rows(first, last)
        positions, scored = (
            self.position.rows(2 * first, 2 * last),
            self.logit_mask.rows(first, last),
        )
        right = [0] if self.answers is None else self.answers[row].tolist()
        if not 0 <= text.min() <= text.max() < self.vocab_size or not scored.any(1).all():
            raise DataError(
                f"tokens {text.min()} to {text.max()}",
                where=f"{self.file}, sample {row} (counted from 0)",
                rule=f"a token id lies in [0, {self.vocab_size}), the recipe's vocab_size, and "
                "every sequence has a target",
                remedy=f"set vocab_size to the model's, or {AGAIN}",
            )
        found = []
        for number in range(last - first):
            targets = np.flatnonzero(scored[number])
            of = slice(0, int(targets[-1]) + 1)
            found.append(ChoiceSequence(
                text[number, of], positions[2 * number, of], positions[2 * number + 1, of],
                int(self.separators[first + number]), targets, target[number, targets],
                number in right,
            ))  # fmt: skip
        return found


def _open(file: Path) -> Any:
    h5py = library("h5py", where=file)
    try:
        return h5py.File(file, "r", locking="best-effort")  # some file systems know no locks
    except OSError as error:
        what = f"not readable as HDF5: {str(error).splitlines()[0]}"
        raise DataError(what, where=str(file), rule=RULE, remedy=AGAIN) from None


class _Matrix:
    """A matrix of whole numbers of which rows are read."""

    def __init__(self, file: Any, name: str) -> None:
        try:
            found = file[name]
            self.sparse = hasattr(found, "keys")
            if self.sparse:
                self.shape = tuple(np.ravel(found.attrs["h5sparse_shape"]).tolist())
                self.data, self.indices = found["data"], found["indices"]
                self.starts = found["indptr"][()].astype(np.int64)
                sound = _format(found) == "csr" and len(self.starts) == self.shape[0] + 1
            else:
                self.data, self.shape, sound = found, found.shape, True
        except (KeyError, ValueError) as error:
            sound, file = False, f"{file.filename} ({error})"
        if not sound:
            where = f"{getattr(file, 'filename', file)}, {name}"
            raise DataError("no matrix of rows", where=where, rule=RULE, remedy=AGAIN)

    def rows(self, first: int, last: int | None) -> Numbers:
        """Return rows, int64; what is not stored is 0."""
        if not self.sparse:
            return np.asarray(self.data[first:last], np.int64)
        starts = self.starts[first : None if last is None else last + 1]
        stored = slice(int(starts[0]), int(starts[-1]))
        dense = np.zeros((len(starts) - 1, self.shape[1]), np.int64)
        owner = np.repeat(np.arange(len(dense)), np.diff(starts))
        dense[owner, self.indices[stored]] = self.data[stored]
        return dense


def _format(group: Any) -> str:
    form = group.attrs.get("h5sparse_format", "")
    return form.decode("utf-8", "replace") if isinstance(form, bytes) else str(form)


def write_rows(source: Path, target: Path) -> None:
    """Write a copy of a file with CSR groups in place of CSC ones.

    One matrix at a time is in memory: some 10 GB for the published training split.
    """
    import h5py

    with _open(source) as raw, h5py.File(target, "w") as made:
        for name, matrix in raw.items():
            if not hasattr(matrix, "keys") or _format(matrix) != "csc":
                raw.copy(name, made)
                continue
            rows, columns = np.ravel(matrix.attrs["h5sparse_shape"]).tolist()
            group = made.create_group(name)
            group.attrs["h5sparse_format"], group.attrs["h5sparse_shape"] = "csr", (rows, columns)
            row = matrix["indices"][()]
            column = np.repeat(np.arange(columns, dtype=np.int32), np.diff(matrix["indptr"]))
            order = np.argsort(row, kind="stable")  # within a row the columns ascend, as before
            group["data"], group["indices"] = matrix["data"][()][order], column[order]
            group["indptr"] = starts_of(np.bincount(row, minlength=rows))
