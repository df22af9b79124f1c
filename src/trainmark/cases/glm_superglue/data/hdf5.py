"""Read the published preprocessed ReCoRD, an HDF5 file with sparse matrices for each split.

The matrices ``text``, ``target`` and ``logit_mask`` have one row per sequence, ``position`` has
two: position ids and block position ids. ``mask`` has each sequence's separator,
``choice_start_end`` the range of each sample's sequences, ``answer_start_end`` and ``answer_idx``
the right candidates of each evaluation sample.

The arrays must be consistent: opening a file compares their lengths and bounds, and
``scan_sequences`` checks every number.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from trainmark.data.cache import Extremes
from trainmark.data.splits import translate_read_errors
from trainmark.digests import hash_stream
from trainmark.errors import DataError

from .examples import ChoiceSequence, Examples
from .hdf5_matrices import DOWNLOAD_AGAIN, Matrix, make_fault, open_file

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from ..case import GlmRecipe

    Numbers = NDArray[np.int64]

BLOCK_SEQUENCES = 4096  # number of sequences that are scanned at a time
_TARGET_RULE = "every sequence must have a target"


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
        hdf5_file = open_file(file)
        # Each row is a sequence: the context with a gap, then the answer block that fills the gap.
        self.text = Matrix(hdf5_file, "text")  # token ids, 0 after the end of the sequence
        # Two rows for each sequence: the place of each token in the context, then its place in the
        # answer block.
        self.position = Matrix(hdf5_file, "position")
        self.target = Matrix(hdf5_file, "target")  # the token id to predict at each position
        self.logit_mask = Matrix(hdf5_file, "logit_mask")  # 1 where ``target`` counts, else 0
        # The file calls ``mask`` what the other modules call separator: the index in each sequence
        # at which its answer block begins.
        self.separators = Matrix(hdf5_file, "mask").read_all_rows().reshape(-1)
        # A sample is consecutive sequences, one for each candidate: the first sequence of each
        # sample, and the one after its last (samples, 2).
        self.sample_bounds = Matrix(hdf5_file, "choice_start_end").read_all_rows()
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
            raise make_fault(
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
                raise make_fault(
                    f"the shape is {shape}, but text has {sequences} sequences of {columns} "
                    f"tokens, which require the shape {expected}",
                    where=f"{self.file}, {name}",
                )
        # A separator at ``columns``, behind all tokens, is left to ``scan_sequences``. That refuses
        # it like any other that is behind the last target of its sequence.
        outside = (self.separators < 0) | (self.separators > columns)
        if outside.any():
            number = int(outside.argmax())  # the first one
            raise make_fault(
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
        answers = Matrix(hdf5_file, "answer_idx").read_all_rows().reshape(-1)
        bounds = Matrix(hdf5_file, "answer_start_end").read_all_rows()
        if bounds.shape != (len(num_choices), 2):
            raise make_fault(
                f"the shape is {bounds.shape} for {len(num_choices)} samples",
                where=f"{self.file}, answer_start_end",
            )
        _refuse_gaps_and_overlaps(bounds, len(answers), f"{self.file}, answer_start_end")
        answer_lists = [answers[first:end] for first, end in bounds.tolist()]
        # No list is empty, because no range is: that has just been checked.
        for sample, (indices, count) in enumerate(zip(answer_lists, num_choices, strict=True)):
            if indices.min() < 0 or indices.max() >= count:
                raise make_fault(
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
        with translate_read_errors(self.file, make_fault), self.file.open("rb") as stream:
            # ``Extremes`` has a digest of what was scanned: that of the file, for both results.
            digest = hash_stream(stream).hexdigest()
        token_extremes: list[int] = []  # minima and maxima of all blocks
        position_extremes: list[int] = []
        for first in range(0, len(self.separators), BLOCK_SEQUENCES):
            end = min(first + BLOCK_SEQUENCES, len(self.separators))
            is_target = self.logit_mask.read_rows(first, end).astype(bool)  # (sequences, columns)
            has_target = is_target.any(1)
            if not has_target.all():
                raise make_fault(
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
                raise make_fault(
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
            raise make_fault(
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
            raise make_fault(
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


def _refuse_gaps_and_overlaps(bounds: Numbers, total: int, place: str) -> None:
    """Refuse ranges that do not cover each of 0 to ``total - 1`` once; they may be in any order.

    Args:
        bounds: begin of each range, and the number after its end (ranges, 2).
        place: file and array, for the error.
    """
    rule = f"the ranges must cover each index from 0 to {total - 1} once, and must not be empty"
    if not len(bounds):
        raise make_fault("the array is empty", where=place, rule=rule)
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
        raise make_fault(
            f"a range begins at {begins[first_wrong]} and ends before {ends[first_wrong]}",
            where=place,
            rule=rule,
        )
