"""Questions about tokenised passages as cloze samples.

Owns which candidates a sample has, how a passage is shortened, and what a choice sequence
is made of. Must not know files or text. Numpy only.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from trainmark.data.splits import Ragged
from trainmark.errors import DataError

from .examples import ChoiceSequence, Examples

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray
    from typing_extensions import Self

    from .passages import Passages

DRAW_SEED = 42  # wrong candidates are the published setup's, whatever the recipe's seed
BOUND_TOKENS = 4  # the first token, the mask, the context's end and the answer block's start


@dataclass(frozen=True, slots=True)
class ClozeSamples:
    """The samples of a split: each a question and its candidates.

    Args:
        questions: int64 (samples,).
        choices: candidates as rows of the passages' names; the first is right.
    """

    questions: NDArray[np.int64]
    choices: Ragged

    @classmethod
    def draw_for_training(cls, passages: Passages, max_wrong_choices: int) -> Self:
        """Give every right answer a sample with at most so many wrong entities.

        Where there are more, they are drawn; one generator goes through the split.
        """
        draw = random.Random(DRAW_SEED)
        questions, choices = [], []
        for question in range(passages.num_questions):
            answers = passages.answers.get_row(question).tolist()
            wrong = [name for name in passages.list_entities(question) if name not in answers]
            for answer in answers:
                drawn = wrong
                if len(wrong) > max_wrong_choices:
                    drawn = list(wrong)
                    draw.shuffle(drawn)
                    drawn = drawn[:max_wrong_choices]
                questions.append(question)
                choices.append([answer, *drawn])
        return cls(np.array(questions, np.int64), Ragged.from_rows(choices))

    @classmethod
    def list_for_evaluation(cls, passages: Passages) -> Self:
        """Give every question one sample with all entities."""
        numbers = range(passages.num_questions)
        choices = Ragged.from_rows([passages.list_entities(question) for question in numbers])
        return cls(np.arange(passages.num_questions), choices)


class ClozeExamples(Examples):
    """One split, its sequences put together as they are asked for.

    Args:
        file: named where something is wrong.

    Raises:
        DataError: no question, or a question and a candidate
            that leave no room in the sequence.
    """

    def __init__(
        self,
        passages: Passages,
        drawn: ClozeSamples,
        *,
        seq_length: int,
        file: Path,
        trim: bool = False,
    ) -> None:
        self.passages, self.drawn, self.tokens = passages, drawn, passages.tokens
        self.seq_length, self.file, self.trim = seq_length, file, trim
        self.num_choices = drawn.choices.lengths
        if not passages.num_questions:
            raise DataError(
                "no question",
                where=str(file),
                rule="a split has at least one",
                fix="give a file with questions",
            )
        self._refuse_long()

    def _count_tokens_without_passage(self) -> NDArray[np.int64]:
        """Return what each sample's longest sequence takes without the passage."""
        choices = self.drawn.choices
        names = self.passages.names.lengths[choices.values]
        queries = self.passages.queries.lengths.reshape(-1, 2).sum(1)[self.drawn.questions]
        longest: NDArray[np.int64] = np.maximum.reduceat(names, choices.starts[:-1])
        needed: NDArray[np.int64] = queries + longest + BOUND_TOKENS
        return needed

    def compute_mean_tokens(self) -> float:
        """Return the tokens of a sample's longest sequence, on average."""
        return float(np.minimum(self._count_tokens_with_passage(), self.seq_length).mean())

    def _count_tokens_with_passage(self) -> NDArray[np.int64]:
        """Return what each sample's longest sequence takes with the whole passage."""
        first_questions = self.passages.questions_of
        passages = np.searchsorted(first_questions, self.drawn.questions, side="right") - 1
        whole: NDArray[np.int64] = (
            self.passages.texts.lengths[passages] + self._count_tokens_without_passage()
        )
        return whole

    def _refuse_long(self) -> None:
        needed = self._count_tokens_without_passage()
        example = int(needed.argmax())
        if needed[example] > self.seq_length:
            place = self.passages.describe_place(int(self.drawn.questions[example]))
            raise DataError(
                f"a question and a candidate take {needed[example]} tokens without the passage",
                where=f"{self.file}, {place}",
                rule=f"passages are shortened, questions are not; seq_length is {self.seq_length}",
                fix=f"set seq_length to more than {needed[example]}, or take the question out",
            )

    @property
    def shortened(self) -> int | None:
        """Samples with a candidate for which the passage is shortened."""
        return int((self._count_tokens_with_passage() > self.seq_length).sum())

    def build_sequences(self, row: int) -> list[ChoiceSequence]:
        """Return the sequences of one sample, one a candidate."""
        question = int(self.drawn.questions[row])
        text = self.passages.texts.get_row(self.passages.find_passage(question))
        left, right = (self.passages.queries.get_row(2 * question + side) for side in (0, 1))
        answers = set(self.passages.answers.get_row(question).tolist())
        return [
            self._build_sequence(
                text, left, right, self.passages.names.get_row(name), name in answers
            )
            for name in self.drawn.choices.get_row(row).tolist()
        ]

    def _build_sequence(
        self,
        text: NDArray[np.int32],
        left: NDArray[np.int32],
        right: NDArray[np.int32],
        name: NDArray[np.int32],
        correct: bool,
    ) -> ChoiceSequence:
        """Put one candidate behind its context; what does not fit is cut off the passage."""
        bounds = self.tokens
        room = self.seq_length - BOUND_TOKENS - len(left) - len(right) - len(name)
        text = text[:room]
        mask_at = 1 + len(text) + len(left)
        separator = mask_at + len(right) + 2
        ids = np.concatenate(
            [
                [bounds.first],
                text,
                left,
                [bounds.mask],
                right,
                [bounds.end, bounds.piece_start],
                name,
            ]
        )
        positions = np.arange(len(ids))
        positions[separator:] = mask_at
        blocks = np.zeros(len(ids), np.int64)
        blocks[separator:] = np.arange(1, len(name) + 2)
        target_rows = np.arange(separator, len(ids))
        target_ids = np.append(name, bounds.piece_end)
        return ChoiceSequence(ids, positions, blocks, separator, target_rows, target_ids, correct)
