"""Build cloze samples from questions about tokenised passages.

This module selects the candidates of a sample, shortens passages and builds the sequence of each
candidate: passage and question with a mask at the gap, then the answer block, which predicts the
candidate. It does not know files or text. Numpy only.
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

DRAW_SEED = 42  # of the published setup; wrong candidates do not depend on the recipe's seed
BOUND_TOKENS = 4  # first token, mask, end of the context and start of the answer block


@dataclass(frozen=True, slots=True)
class ClozeSamples:
    """The samples of a split: each is a question with its candidates.

    Args:
        questions: question numbers, int64 (samples,).
        choices: for each sample the candidates, as numbers of rows of ``Passages.names``, which has
            the tokens of every name; in training the first one is right.
    """

    questions: NDArray[np.int64]
    choices: Ragged

    @classmethod
    def draw_for_training(cls, passages: Passages, max_wrong_choices: int) -> Self:
        """Make a sample for every right answer of every question.

        The first candidate is the right answer. The other candidates are the entities of the
        passage that are no answers to the question. If there are more than ``max_wrong_choices``,
        this many of them are drawn at random.
        """
        # One generator for the whole split, with the seed of the published setup.
        generator = random.Random(DRAW_SEED)
        questions: list[int] = []
        choices: list[list[int]] = []
        for question in range(passages.num_questions):
            # Answers and entities are numbers of rows of ``passages.names``. An answer need not be
            # an entity.
            answers = passages.answers.get_row(question).tolist()
            wrong_entities = [
                entity for entity in passages.list_entities(question) if entity not in answers
            ]
            for answer in answers:
                wrong_choices = wrong_entities
                if len(wrong_entities) > max_wrong_choices:
                    shuffled = list(wrong_entities)
                    generator.shuffle(shuffled)
                    wrong_choices = shuffled[:max_wrong_choices]
                questions.append(question)
                choices.append([answer, *wrong_choices])
        return cls(np.array(questions, np.int64), Ragged.from_rows(choices))

    @classmethod
    def list_for_evaluation(cls, passages: Passages) -> Self:
        """Make one sample for every question; its candidates are all entities of its passage."""
        questions = range(passages.num_questions)
        # The candidates of each question, as numbers of rows of ``passages.names``.
        choices = Ragged.from_rows([passages.list_entities(question) for question in questions])
        return cls(np.arange(passages.num_questions), choices)


class ClozeExamples(Examples):
    """One split of tokenised passages; sequences are built on demand.

    Args:
        passages: the tokens of the split.
        samples: the question and the candidates of each sample.
        seq_length: maximum number of tokens of a sequence; longer passages are shortened.
        file: of the split, for errors.
        trim: pad only to the longest sequence of a batch; see ``Examples``.

    Raises:
        DataError: there is no question, or a question with a candidate is longer than a sequence.
    """

    def __init__(
        self,
        passages: Passages,
        samples: ClozeSamples,
        *,
        seq_length: int,
        file: Path,
        trim: bool = False,
    ) -> None:
        self.passages = passages  # the tokens of passages, questions and names
        self.samples = samples  # the question and the candidates of each sample
        self.special_tokens = passages.tokens
        self.seq_length = seq_length  # maximum number of tokens of a sequence
        self.file = file  # for errors
        self.trim = trim  # pad only to the longest sequence of a batch, not to ``seq_length``
        self.num_choices = samples.choices.lengths  # number of candidates of each sample
        if not passages.num_questions:
            raise DataError(
                "the split contains no questions",
                where=str(file),
                rule="a split must have at least one question",
                fix="use a file with questions",
            )
        self._refuse_long_questions()

    def _count_tokens_without_passage(self) -> NDArray[np.int64]:
        """Return the length of each sample's longest sequence without its passage (samples,)."""
        choices = self.samples.choices
        # ``choices.values`` has the candidates of all samples, one sample after the other, as
        # numbers of rows of ``names``. ``choices.starts`` has the index of each sample's first one.
        candidate_lengths = self.passages.names.lengths[choices.values]
        # The maximum over each sample's candidates, of which there is always at least one.
        longest_candidates = np.maximum.reduceat(candidate_lengths, choices.starts[:-1])
        # A question is stored as two rows: the halves before and after its gap.
        question_lengths = self.passages.query_halves.lengths.reshape(-1, 2).sum(1)
        num_tokens: NDArray[np.int64] = (
            question_lengths[self.samples.questions]
            + longest_candidates
            + BOUND_TOKENS  # the special tokens of every sequence, the mask included
        )
        return num_tokens

    def compute_mean_tokens(self) -> float:
        """Return the mean number of tokens of the samples' longest sequences."""
        return float(np.minimum(self._count_tokens_with_passage(), self.seq_length).mean())

    def _count_tokens_with_passage(self) -> NDArray[np.int64]:
        """Return the length of each sample's longest sequence with its whole passage (samples,)."""
        first_questions = self.passages.first_question_of_passage
        # Questions are numbered from passage to passage. So the passage of a question is the last
        # one whose first question has the same or a lower number.
        passage_of_sample = (
            np.searchsorted(first_questions, self.samples.questions, side="right") - 1
        )
        num_tokens: NDArray[np.int64] = (
            self.passages.texts.lengths[passage_of_sample] + self._count_tokens_without_passage()
        )
        return num_tokens

    def _refuse_long_questions(self) -> None:
        """Raise DataError if a question with a candidate does not fit into a sequence."""
        num_tokens = self._count_tokens_without_passage()
        longest = int(num_tokens.argmax())  # number of the sample that needs most tokens
        if num_tokens[longest] > self.seq_length:
            place = self.passages.describe_place(int(self.samples.questions[longest]))
            raise DataError(
                "a question and one of its candidates together take "
                f"{num_tokens[longest]} tokens, without the passage",
                where=f"{self.file}, {place}",
                rule=(
                    f"a question and a candidate must fit into seq_length={self.seq_length}; "
                    "only passages are shortened"
                ),
                fix=f"set seq_length to at least {num_tokens[longest]}, or remove the question",
            )

    @property
    def num_shortened(self) -> int:
        """Number of samples whose passage is shortened, for at least one candidate."""
        # The longest candidate of a sample needs most tokens, so its passage is shortened first.
        num_tokens = self._count_tokens_with_passage()  # (samples,)
        return int((num_tokens > self.seq_length).sum())

    def build_sequences(self, row: int) -> list[ChoiceSequence]:
        """Return the sequences of one sample, one for each candidate."""
        passages = self.passages
        question = int(self.samples.questions[row])
        # Answers and choices are numbers of rows of ``passages.names``.
        answers = set(passages.answers.get_row(question).tolist())
        return [
            self._build_sequence(
                text=passages.texts.get_row(passages.find_passage(question)),
                # Two rows for each question: the tokens before its gap and those after it.
                left=passages.query_halves.get_row(2 * question),
                right=passages.query_halves.get_row(2 * question + 1),
                name=passages.names.get_row(choice),
                correct=choice in answers,
            )
            for choice in self.samples.choices.get_row(row).tolist()
        ]

    def _build_sequence(
        self,
        *,
        text: NDArray[np.int32],
        left: NDArray[np.int32],
        right: NDArray[np.int32],
        name: NDArray[np.int32],
        correct: bool,
    ) -> ChoiceSequence:
        """Build the sequence of one candidate: a context, then an answer block.

        The context is the passage and the question, with a mask in its gap. The answer block is a
        start token and the candidate.

        Args:
            text: tokens of the passage; its end is cut off if the sequence would be too long.
            left, right: tokens of the question before and after its gap.
            name: tokens of the candidate.
            correct: whether the candidate is a right answer.
        """
        special = self.special_tokens
        # ``BOUND_TOKENS`` is the number of special tokens in ``ids``: first, mask, end and start of
        # the answer. ``__init__`` has checked that every sequence fits without its passage, so
        # ``max_text`` is not negative.
        max_text = self.seq_length - BOUND_TOKENS - len(left) - len(right) - len(name)
        text = text[:max_text]
        mask_position = 1 + len(text) + len(left)  # after the first token
        # Index at which the answer block begins: after the mask, ``right`` and the end token.
        separator = mask_position + 1 + len(right) + 1
        ids = np.concatenate(
            [
                [special.first],
                text,
                left,
                [special.mask],
                right,
                [special.end, special.piece_start],
                name,
            ]
        )
        # A token has two positions in GLM. The first is its index in the context; all tokens of the
        # answer block have that of the gap. The second is its place in the answer block, from 1; it
        # is 0 in the context.
        positions = np.arange(len(ids))
        positions[separator:] = mask_position
        block_positions = np.zeros(len(ids), np.int64)
        block_positions[separator:] = np.arange(1, len(name) + 2)
        return ChoiceSequence(
            ids=ids,
            positions=positions,
            block_positions=block_positions,
            separator=separator,
            # Each token of the answer block predicts the next one, the last one the end token.
            target_rows=np.arange(separator, len(ids)),
            target_ids=np.append(name, special.piece_end),
            correct=correct,
        )
