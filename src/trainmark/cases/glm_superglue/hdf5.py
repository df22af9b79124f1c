"""The published preprocessed ReCoRD: one sparse HDF5 file a split, read as it is asked for.

Owns the names in the file, what a row means, and the rules that hold between groups. Must
not know text.

``text``, ``target`` and ``logit_mask`` have one row a sequence, ``position`` two: position
ids and block position ids. ``mask`` holds each sequence's separator, ``choice_start_end``
each sample's sequences, ``answer_start_end`` and ``answer_idx`` each evaluation sample's
right candidates. Zeros are not stored; a sequence ends with its last target.
"""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from trainmark.errors import DataError

from .examples import ChoiceSequence, Examples
from .hdf5_groups import AGAIN, SparseRows, open_file, read_dense
from .ragged import Ragged, starts_of

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from .hdf5_content import Extremes

ROWS_A_SEQUENCE = {"text": 1, "position": 2, "target": 1, "logit_mask": 1}


class SparseExamples(Examples):
    """One split. Opening it reads where rows begin and what is small, no token.

    Args:
        file: the split's HDF5 file.
        evaluation: the file says which candidates are right; in training the first is.
        seq_length: tokens that sequences are padded to, at least the file's columns.
        max_wrong_choices: in training, sequences past these and the first are left out.

    Raises:
        DataError: a group is missing, or something in it breaks a rule.
    """

    def __init__(
        self, file: Path, *, evaluation: bool, seq_length: int, max_wrong_choices: int
    ) -> None:
        self.file, self.seq_length = file, seq_length
        opened = open_file(file)
        self.groups = {name: SparseRows.open(opened, name) for name in ROWS_A_SEQUENCE}
        self._refuse_shapes()
        self.separators = read_dense(opened, "mask").reshape(-1)
        bounds = read_dense(opened, "choice_start_end")
        self._refuse_bounds(bounds, "choice_start_end", len(self.groups["text"]), "no candidate")
        self.first, self.last = bounds.T
        self._refuse_separators()
        self._refuse_unscored()
        self.num_choices = self.last - self.first
        self.answers: Ragged | None = None
        if evaluation:
            answers = read_dense(opened, "answer_idx").reshape(-1)
            bounds = read_dense(opened, "answer_start_end")
            self._refuse_bounds(bounds, "answer_start_end", len(answers), "no answer")
            self.answers = self._answers(answers, bounds)
        else:
            self.num_choices = np.minimum(self.num_choices, 1 + max_wrong_choices)

    def sequences(self, row: int) -> list[ChoiceSequence]:
        """Return the sequences of one sample, one a candidate."""
        first, count = int(self.first[row]), int(self.num_choices[row])
        held = {
            name: self.groups[name].read(first * each, (first + count) * each)
            for name, each in ROWS_A_SEQUENCE.items()
        }
        right = [0] if self.answers is None else self.answers.row(row)
        found = []
        for number in range(count):
            rows = np.sort(held["logit_mask"][1].row(number)).astype(np.int64)
            length = int(rows[-1]) + 1
            found.append(
                ChoiceSequence(
                    _dense(held["text"], number, length),
                    _dense(held["position"], 2 * number, length),
                    _dense(held["position"], 2 * number + 1, length),
                    int(self.separators[first + number]),
                    rows,
                    _dense(held["target"], number, length)[rows],
                    number in right,
                )
            )
        return found

    def small_digest(self) -> bytes:
        """Return a sha256 over what lies beside the groups: separators, samples, answers."""
        digest = sha256()
        small = [self.separators, self.first, self.last]
        small += [self.answers.values, self.answers.starts] if self.answers is not None else []
        for array in small:
            digest.update(np.ascontiguousarray(array).data)
        return digest.digest()

    def place(self, sequence: int) -> str:
        """Say which sample a sequence of the file belongs to."""
        holds = (self.first <= sequence) & (sequence < self.last)
        samples = np.flatnonzero(holds)
        of = f"sample {samples[0]}, " if len(samples) else ""
        return f"{of}sequence {sequence} (counted from 0)"

    def refuse_values(self, content: dict[str, Extremes], vocab_size: int) -> None:
        """Refuse numbers that the model has no row for, and separators past the last target.

        Args:
            content: what reading every byte found, by group and part.
        """
        ids = f"a token id lies in [0, {vocab_size}), the recipe's vocab_size"
        place = f"a position lies in [0, {self.seq_length}], the recipe's seq_length"
        for name, low, high, rule in (
            ("text", 0, vocab_size - 1, ids),
            ("target", 0, vocab_size - 1, ids),
            ("position", 0, self.seq_length, place),
            ("logit_mask", 1, 1, "a scored position holds 1"),
        ):
            group = self.groups[name]
            for part, bounds in (("data", (low, high)), ("indices", (0, group.columns - 1))):
                found = content[f"{name}/{part}"]
                for value, at in (
                    (found.smallest, found.smallest_at), (found.largest, found.largest_at),
                ):  # fmt: skip
                    if not bounds[0] <= value <= bounds[1]:
                        column = f"a column lies in [0, {group.columns})"
                        row = int(np.searchsorted(group.starts, at, side="right")) - 1
                        self._refuse(
                            f"{value} is outside", f"{name}/{part}",
                            row // ROWS_A_SEQUENCE[name], rule if part == "data" else column,
                        )  # fmt: skip
        self._refuse_late_separators()

    def _refuse(self, what: str, name: str, sequence: int | None, rule: str) -> NoReturn:
        where = f"{self.file}, {name}"
        if sequence is not None:
            where += f", {self.place(sequence)}"
        raise DataError(what, where=where, rule=rule, remedy=AGAIN)

    def _refuse_shapes(self) -> None:
        count, columns = len(self.groups["text"]), self.groups["text"].columns
        for name, each in ROWS_A_SEQUENCE.items():
            group = self.groups[name]
            if len(group) != count * each or group.columns != columns:
                self._refuse(
                    f"{len(group)} x {group.columns}", name, None,
                    f"text is {count} x {columns}, so {name} is {count * each} x {columns}",
                )  # fmt: skip
        if columns > self.seq_length:
            raise DataError(
                f"{columns} columns, the recipe's seq_length is {self.seq_length}",
                where=f"{self.file}, text",
                rule="preprocessed sequences are never cut",
                remedy=f"set seq_length={columns}",
            )

    def _refuse_bounds(self, bounds: NDArray[np.int64], name: str, total: int, empty: str) -> None:
        """Hold a matrix of first and last to ranges, none of them empty, within ``total``."""
        if bounds.ndim != 2 or bounds.shape[1] != 2 or len(bounds) == 0:
            shape = " x ".join(map(str, bounds.shape))
            self._refuse(f"{shape} numbers", name, None, "one row of first and last a sample")
        bad = (bounds[:, 0] < 0) | (bounds[:, 1] <= bounds[:, 0]) | (bounds[:, 1] > total)
        if bad.any():
            at = int(bad.argmax())
            first, last = bounds[at].tolist()
            raise DataError(
                f"{empty}: from {first} to {last}" if last <= first else f"from {first} to {last}",
                where=f"{self.file}, {name}, sample {at} (counted from 0)",
                rule=f"a sample has at least one, and there are {total}",
                remedy=AGAIN,
            )

    def _refuse_separators(self) -> None:
        count, columns = len(self.groups["text"]), self.groups["text"].columns
        if len(self.separators) != count:
            self._refuse(
                f"{len(self.separators)} separators", "mask", None, f"there are {count} sequences"
            )
        bad = (self.separators < 0) | (self.separators >= columns)
        if bad.any():
            at = int(bad.argmax())
            self._refuse(
                f"separator {self.separators[at]}", "mask", at,
                f"the answer block begins within the sequence's {columns} positions",
            )  # fmt: skip

    def _refuse_late_separators(self) -> None:
        """Refuse a separator behind the answer, which attention would then see whole."""
        scored = self.groups["logit_mask"]
        last = np.maximum.reduceat(scored.indices[:], scored.starts[:-1])
        bad = self.separators > last
        if bad.any():
            at = int(bad.argmax())
            self._refuse(
                f"separator {self.separators[at]}", "mask", at,
                f"the answer block begins at its last target, {last[at]}, or before",
            )  # fmt: skip

    def _refuse_unscored(self) -> None:
        bad = np.diff(self.groups["logit_mask"].starts) == 0
        if bad.any():
            rule = "a sequence has at least one scored position"
            self._refuse("no target", "logit_mask", int(bad.argmax()), rule)

    def _answers(self, answers: NDArray[np.int64], bounds: NDArray[np.int64]) -> Ragged:
        """Return the right candidates of each sample, counted from its first."""
        if len(bounds) != len(self.first):
            self._refuse(
                f"{len(bounds)} samples", "answer_start_end", None,
                f"choice_start_end has {len(self.first)}",
            )  # fmt: skip
        counts = bounds[:, 1] - bounds[:, 0]
        found = Ragged(
            np.concatenate([answers[first:last] for first, last in bounds.tolist()]),
            starts_of(counts),
        )
        choices = np.repeat(self.num_choices, counts)
        bad = (found.values < 0) | (found.values >= choices)
        if bad.any():
            at = int(bad.argmax())
            sample = int(np.searchsorted(found.starts, at, side="right")) - 1
            raise DataError(
                f"an answer that is not among the candidates: {found.values[at]}",
                where=f"{self.file}, answer_idx, sample {sample} (counted from 0)",
                rule=f"the sample has {choices[at]} candidates, counted from 0",
                remedy=AGAIN,
            )
        return found


def _dense(held: tuple[Ragged, Ragged], row: int, length: int) -> NDArray[np.int64]:
    """Return the first ``length`` numbers of a sparse row."""
    values, columns = held[0].row(row), held[1].row(row)
    within = columns < length
    dense = np.zeros(length, np.int64)
    dense[columns[within]] = values[within]
    return dense
