"""The published preprocessed ReCoRD, one sparse HDF5 file a split, as passages and questions.

Owns the names in the file, the layout of its matrices, and the proof that training on the
tokens is training on the file: every sequence is put together again and compared. Must not
know text.

``text``, ``target`` and ``logit_mask`` have one row a sequence, ``position`` two: position ids
and block position ids. ``mask`` holds each sequence's separator, ``choice_start_end`` each
sample's sequences, ``answer_start_end`` and ``answer_idx`` each evaluation sample's right
candidates. A matrix is a group in the layout of the h5sparse package, or a plain data set.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from trainmark.errors import DataError, EnvironmentFault

from ..data.cloze import ClozeExamples, Drawn
from ..data.passages import Builder
from ..data.tokens import BlockTokens

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from ..data.passages import Passages

    Numbers = NDArray[np.int64]

ROWS_A_SEQUENCE = {"text": 1, "position": 2, "target": 1, "logit_mask": 1}
BLOCK = 2_048  # sequences in memory at a time, and candidates of a sample at most
MOST_COLUMNS = 2_048  # of a sequence
LARGEST = 1 << 26  # numbers of a matrix that is read whole
LARGEST_TOKEN = int(np.iinfo(np.int32).max)
MATRIX = (
    "a matrix is a group of whole numbers data, indices and indptr with the attributes "
    "h5sparse_format (csr or csc) and h5sparse_shape (rows, columns)"
)
AGAIN = "fetch and unpack glm_train_dataset.zip again, or prepare ReCoRD's .jsonl files"


def read_hdf5(file: Path, *, evaluation: bool) -> Passages:
    """Return a split as tokens, each sample as a passage with one question.

    Args:
        evaluation: the file says which candidates are right; in training the first is.

    Raises:
        DataError: a group is missing or damaged, or a sequence is not what training makes of
            its tokens.
        EnvironmentFault: the library that reads HDF5 is not installed.
    """
    try:
        import h5py
    except ImportError:
        raise EnvironmentFault(
            "h5py is not installed",
            where=str(file),
            rule="the published HDF5 files are read with h5py",
            remedy="pip install 'trainmark[prepare]', or prepare ReCoRD's .jsonl files",
        ) from None
    try:
        opened = h5py.File(file, "r", locking="best-effort")  # some file systems know no locks
    except OSError as error:
        raise DataError(
            f"not readable as HDF5: {str(error).splitlines()[0]}", where=str(file), remedy=AGAIN
        ) from None
    with opened:
        return _Split(file, opened, evaluation=evaluation).passages()


class Matrix:
    """A matrix of whole numbers whose rows are read in order, a block at a time.

    Raises:
        DataError: no matrix has this name, or it is damaged.
    """

    def __init__(self, file: Any, name: str) -> None:
        import h5py

        self.place = f"{file.filename}, {name}"
        found = file.get(name)
        if found is None:
            _refuse(self.place, "no such group", f"there are: {', '.join(sorted(file)) or 'none'}")
        if isinstance(found, h5py.Dataset):
            self.form, self.parts = "dense", {name: found}
            shape = found.shape if found.ndim == 2 else (1, found.size)
        else:
            form = found.attrs.get("h5sparse_format")
            self.form = form.decode("utf-8", "replace") if isinstance(form, bytes) else str(form)
            shape = np.ravel(found.attrs.get("h5sparse_shape", ())).tolist()
            self.parts = {part: found.get(part) for part in ("data", "indices", "indptr")}
        sound = self.form in ("dense", "csr", "csc") and len(shape) == 2
        sound &= all(
            isinstance(part, h5py.Dataset) and part.dtype.kind in "iub"
            for part in self.parts.values()
        )
        if not sound:
            parts = [f"{key} {getattr(x, 'dtype', 'absent')}" for key, x in self.parts.items()]
            _refuse(self.place, f"format {self.form}, shape {shape}, {', '.join(parts)}", MATRIX)
        self.shape: tuple[int, int] = int(shape[0]), int(shape[1])
        self.next_row = 0
        if self.form == "csc" and self.shape[1] <= LARGEST:
            starts = self.parts["indptr"][()].astype(np.int64)
            self.cursors, self.ends = starts[:-1].copy(), starts[1:]

    def whole(self) -> Numbers:
        """Return all numbers of a small matrix, int64 (rows, columns)."""
        if self.shape[0] * self.shape[1] > LARGEST:
            _refuse(
                self.place, f"{self.shape[0]} x {self.shape[1]} numbers",
                f"at most {LARGEST} are read whole",
            )  # fmt: skip
        return self.rows(self.shape[0])

    def rows(self, count: int) -> Numbers:
        """Return the next ``count`` rows, int64 (count, columns); what is not stored is 0."""
        first = self.next_row
        self.next_row += count
        try:
            if self.form == "dense":
                (held,) = self.parts.values()
                held = held[first : self.next_row] if held.ndim == 2 else held[()]
                return np.asarray(held, np.int64).reshape(count, self.shape[1])
            dense = np.zeros((count, self.shape[1]), np.int64)
            fill = self._fill_rows if self.form == "csr" else self._fill_columns
            fill(dense, first)
        except (IndexError, ValueError) as error:  # numpy's, of numbers that contradict each other
            _refuse(self.place, f"damaged from row {first} on: {error}", MATRIX)
        return dense

    def _fill_rows(self, dense: Numbers, first: int) -> None:
        starts = self.parts["indptr"][first : first + len(dense) + 1].astype(np.int64)
        lengths = np.diff(starts)
        if len(lengths) != len(dense) or starts[0] < 0 or lengths.max() > self.shape[1]:
            raise ValueError("indptr rises by a row's numbers, one step a row")
        stored = slice(int(starts[0]), int(starts[-1]))
        columns = self.parts["indices"][stored]
        if columns.min(initial=0) < 0:
            raise IndexError(f"column {columns.min()}")
        dense[np.repeat(np.arange(len(dense)), lengths), columns] = self.parts["data"][stored]

    def _fill_columns(self, dense: Numbers, first: int) -> None:
        """Return each column's entries in these rows; row numbers ascend in a column."""
        for column, (cursor, end) in enumerate(
            zip(self.cursors.tolist(), self.ends.tolist(), strict=True)
        ):
            rows = self.parts["indices"][cursor : min(end, cursor + len(dense))].astype(np.int64)
            rows = rows[: np.searchsorted(rows, self.next_row)] - first
            stop = cursor + len(rows)
            left_over = self.next_row == self.shape[0] and stop != end
            if left_over or rows.min(initial=0) < 0 or (np.diff(rows) <= 0).any():
                raise ValueError(f"row numbers of column {column} rise within the matrix")
            dense[rows, column] = self.parts["data"][cursor:stop]
            self.cursors[column] = stop


class _Split:
    """An open file: its matrices, and the places of each sample's sequences."""

    def __init__(self, file: Path, opened: Any, *, evaluation: bool) -> None:
        self.file, self.evaluation = file, evaluation
        self.matrices = {name: Matrix(opened, name) for name in ROWS_A_SEQUENCE}
        count, self.columns = self.matrices["text"].shape
        for name, matrix in self.matrices.items():
            wanted = count * ROWS_A_SEQUENCE[name], self.columns
            if matrix.shape != wanted or self.columns > MOST_COLUMNS:
                _refuse(
                    matrix.place, f"shape {matrix.shape}",
                    f"text is {count} x {self.columns}, so it is {wanted[0]} x {wanted[1]}; "
                    f"at most {MOST_COLUMNS} columns",
                )  # fmt: skip
        self.separators = Matrix(opened, "mask").whole().reshape(-1)
        if len(self.separators) != count:
            what = f"{len(self.separators)} separators"
            _refuse(f"{file}, mask", what, f"there are {count} sequences")
        self.samples = self._bounds(Matrix(opened, "choice_start_end"), count)
        self.answers = [np.zeros(1, np.int64)] * len(self.samples)
        if evaluation:
            answers = Matrix(opened, "answer_idx").whole().reshape(-1)
            bounds = self._bounds(Matrix(opened, "answer_start_end"), len(answers))
            self.answers = [answers[first:last] for first, last in bounds.tolist()]
            self._refuse_answers()

    def _bounds(self, matrix: Matrix, total: int) -> Numbers:
        """Return first and last of each sample, each right behind the one before."""
        bounds = matrix.whole()
        if bounds.shape[1] != 2 or len(bounds) == 0:
            _refuse(matrix.place, f"shape {bounds.shape}", "a row of first and last a sample")
        begin, count = np.append(0, bounds[:-1, 1]), np.diff(bounds).reshape(-1)
        bad = (bounds[:, 0] != begin) | (count < 1) | (count > BLOCK) | (bounds[:, 1] > total)
        bad[-1] |= bounds[-1, 1] != total
        if bad.any():
            at = int(bad.argmax())
            _refuse(
                f"{matrix.place}, sample {at} (counted from 0)",
                "from {} to {}".format(*bounds[at]),
                f"a sample has 1 to {BLOCK} and begins where the one before ends, here at "
                f"{begin[at]}; there are {total}",
            )
        return bounds

    def _refuse_answers(self) -> None:
        if len(self.answers) != len(self.samples):
            _refuse(
                f"{self.file}, answer_start_end", f"{len(self.answers)} samples",
                f"choice_start_end has {len(self.samples)}",
            )  # fmt: skip
        for sample, (answers, (first, last)) in enumerate(
            zip(self.answers, self.samples.tolist(), strict=True)
        ):
            for answer in answers:
                if not 0 <= answer < last - first:
                    _refuse(
                        f"{self.file}, answer_idx, sample {sample} (counted from 0)",
                        f"an answer that is not among the candidates: {answer}",
                        f"the sample has {last - first} candidates, counted from 0",
                    )

    def passages(self) -> Passages:
        """Read every sequence; return the samples as tokens."""
        whole: Builder | None = None
        for samples in self._blocks():
            first, last = int(self.samples[samples[0], 0]), int(self.samples[samples[-1], 1])
            held = {
                name: matrix.rows(ROWS_A_SEQUENCE[name] * (last - first))
                for name, matrix in self.matrices.items()
            }
            held["mask"] = self.separators[first:last, None]
            self._refuse_tokens(held["text"], first)
            whole = whole or Builder(self._tokens(held), self.columns)
            part = Builder(whole.tokens, self.columns)
            for builder in (whole, part):
                self._add(builder, samples, held)
            self._compare(held, part.finished(), first)
        assert whole is not None
        return whole.finished()

    def _blocks(self) -> Iterator[range]:
        """Yield samples that have at most ``BLOCK`` sequences together."""
        first = 0
        while first < len(self.samples):
            most = self.samples[first, 0] + BLOCK
            last = int(np.searchsorted(self.samples[:, 1], most, side="right"))
            yield range(first, last)
            first = last

    def _add(self, builder: Builder, samples: range, held: dict[str, Numbers]) -> None:
        """Add samples as passages, taken to be what a cloze sequence consists of."""
        text, rows = held["text"], np.arange(len(held["text"]))
        separators, gaps, ends = self._bounds_of_sequences(held)
        first = self.samples[samples[0], 0]
        kinds: dict[str, list[Any]] = {"texts": [], "names": [], "queries": [], "answers": []}
        for sample in samples:
            of = rows[slice(*(self.samples[sample] - first))]
            longest = of[gaps[of].argmax()]
            before = text[longest, 1 : gaps[longest]]
            shared = min(_common_end(text[row, 1 : gaps[row]], before) for row in of)
            builder.count(names=len(of), entities=len(of), questions=1, line=sample)
            kinds["texts"].append(before[: len(before) - shared])
            kinds["queries"].append(before[len(before) - shared :])
            kinds["queries"].append(text[longest, gaps[longest] + 1 : separators[longest] - 1])
            kinds["names"] += [text[row, separators[row] + 1 : ends[row]] for row in of]
            kinds["answers"].append(self.answers[sample])
        builder.add(**kinds)

    def _bounds_of_sequences(self, held: dict[str, Numbers]) -> tuple[Numbers, Numbers, Numbers]:
        """Return separator, gap and end of each sequence, brought within its row."""
        rows, columns = np.arange(len(held["text"])), np.arange(self.columns)
        separators = np.clip(held["mask"][:, 0], 1, self.columns - 1)
        gaps = np.clip(held["position"][::2][rows, separators], 0, separators - 1)
        ends = ((held["logit_mask"] != 0) * (columns + 1)).max(1)
        return separators, gaps, ends

    def _tokens(self, held: dict[str, Numbers]) -> BlockTokens:
        """Return the tokens around context and answer, as the first sequence has them."""
        separators, gaps, ends = self._bounds_of_sequences(held)
        text, separator = held["text"][0], separators[0]
        return BlockTokens(
            first=int(text[0]), mask=int(text[gaps[0]]), end=int(text[separator - 1]),
            piece_start=int(text[separator]), piece_end=int(held["target"][0, ends[0] - 1]),
        )  # fmt: skip

    def _compare(self, held: dict[str, Numbers], passages: Passages, first: int) -> None:
        """Refuse what is not what training makes of ``passages``."""
        if self.evaluation:
            drawn = Drawn.for_evaluation(passages)
        else:
            drawn = Drawn.for_training(passages, BLOCK)
        examples = ClozeExamples(
            passages, drawn, seq_length=self.columns, vocab_size=LARGEST_TOKEN + 1, file=self.file
        )
        batch = examples.batch(range(len(examples)))
        positions = np.stack([batch.positions, batch.block_positions], 1)
        wanted = {
            "mask": batch.separators[:, None], "logit_mask": np.zeros_like(batch.ids),
            "position": positions.reshape(-1, self.columns), "text": batch.ids,
            "target": np.zeros_like(batch.ids),
        }  # fmt: skip
        wanted["logit_mask"].reshape(-1)[batch.target_rows] = 1
        wanted["target"].reshape(-1)[batch.target_rows] = batch.target_ids
        for name, numbers in wanted.items():
            bad = held[name] != numbers
            if bad.any():
                row, column = map(int, np.argwhere(bad)[0])
                self._refuse_sequence(
                    name, first + row // ROWS_A_SEQUENCE.get(name, 1),
                    f"{held[name][row, column]} at position {column}",
                    f"as a cloze sequence it has {numbers[row, column]} there",
                )  # fmt: skip

    def _refuse_tokens(self, text: Numbers, first: int) -> None:
        bad = (text < 0) | (text > LARGEST_TOKEN)
        if bad.any():
            row, column = map(int, np.argwhere(bad)[0])
            self._refuse_sequence(
                "text", first + row, f"{text[row, column]} at position {column}",
                f"a token id lies in [0, {LARGEST_TOKEN}]",
            )  # fmt: skip

    def _refuse_sequence(self, name: str, sequence: int, what: str, rule: str) -> NoReturn:
        sample = int(np.searchsorted(self.samples[:, 1], sequence, side="right"))
        where = f"{self.file}, {name}, sample {sample}, sequence {sequence} (counted from 0)"
        _refuse(where, what, rule)


def _common_end(shorter: Numbers, longer: Numbers) -> int:
    """Return how many tokens the ends of two contexts share, 0 where they are as long."""
    if len(shorter) == len(longer):
        return len(longer)
    differs = shorter != longer[len(longer) - len(shorter) :]
    return int(differs[::-1].argmax()) if differs.any() else len(shorter)


def _refuse(where: str, what: str, rule: str) -> NoReturn:
    raise DataError(what, where=where, rule=rule, remedy=AGAIN)
