"""Passages, questions and names of a split as token ids.

Owns the compact form in memory and on disk: a passage is held once, however many
questions and candidates it has. Must not know sequences or which candidates are drawn.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from .ragged import Ragged, starts_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from numpy.typing import NDArray

    from .record_jsonl import Passage
    from .tokens import Vocabulary

BLOCK_PASSAGES = 512  # tokenised at a time: the texts of no more are in memory


@dataclass(frozen=True, slots=True)
class Passages:
    """P passages with Q questions and M names, tokenised.

    Args:
        texts: tokens of the passages, P rows.
        names: tokens of their names, M rows; a passage's lie together, entities first.
        queries: tokens left and right of each gap, 2 Q rows.
        answers: the right names of each question as rows of ``names``, Q rows.
        names_of: the names of each passage begin here, int64 (P + 1,).
        questions_of: the questions of each passage begin here, int64 (P + 1,).
        num_entities: how many of a passage's names are entities, int64 (P,).
        lines: line of each passage in its file, from 1, int64 (P,).
    """

    texts: Ragged
    names: Ragged
    queries: Ragged
    answers: Ragged
    names_of: NDArray[np.int64]
    questions_of: NDArray[np.int64]
    num_entities: NDArray[np.int64]
    lines: NDArray[np.int64]

    @property
    def num_questions(self) -> int:
        """Q."""
        return int(self.questions_of[-1])

    def passage(self, question: int) -> int:
        """Return the passage that a question is about."""
        return int(np.searchsorted(self.questions_of, question, side="right")) - 1

    def entities(self, question: int) -> range:
        """Return the entities of a question's passage as rows of ``names``."""
        passage = self.passage(question)
        first = int(self.names_of[passage])
        return range(first, first + int(self.num_entities[passage]))

    def place(self, question: int) -> str:
        """Say where a question lies in its file."""
        passage = self.passage(question)
        number = question - self.questions_of[passage]
        return f"line {self.lines[passage]}, question {number} (from 0)"

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return all arrays by name, as ``of_arrays`` takes them."""
        found: dict[str, NDArray[Any]] = {}
        for name in self.__slots__:
            value = getattr(self, name)
            if isinstance(value, Ragged):
                found |= {f"{name}.values": value.values, f"{name}.starts": value.starts}
            else:
                found[name] = value
        return found

    @classmethod
    def of_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Self:
        """Build from what ``arrays`` returned."""

        def rows(name: str) -> Ragged:
            return Ragged(arrays[f"{name}.values"], arrays[f"{name}.starts"])

        return cls(
            rows("texts"), rows("names"), rows("queries"), rows("answers"), arrays["names_of"],
            arrays["questions_of"], arrays["num_entities"], arrays["lines"],
        )  # fmt: skip


def tokenise(passages: Iterable[Passage], vocabulary: Vocabulary) -> Passages:
    """Return a split as tokens; the library uses all cores where it may."""
    builder, block = _Builder(vocabulary), []
    for passage in passages:
        block.append(passage)
        if len(block) == BLOCK_PASSAGES:
            builder.add(block)
            block = []
    if block:
        builder.add(block)
    return builder.finished()


class _Builder:
    """A split on its way: rows of each kind in blocks, counts by passage."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self.rows: dict[str, list[Ragged]] = {
            name: [] for name in ("texts", "names", "queries", "answers")
        }
        self.names: list[int] = []
        self.entities: list[int] = []
        self.questions: list[int] = []
        self.lines: list[int] = []

    def add(self, block: list[Passage]) -> None:
        questions = [question for passage in block for question in passage.questions]
        texts = {
            "texts": [passage.text for passage in block],
            "names": [name for passage in block for name in passage.names],
            "queries": [text for question in questions for text in (question.left, question.right)],
        }
        for kind, found in texts.items():
            self.rows[kind].append(Ragged.of(self.vocabulary.encode(found)))
        self.rows["answers"].append(Ragged.of([question.answers for question in questions]))
        for passage in block:
            self.names.append(len(passage.names))
            self.entities.append(passage.num_entities)
            self.questions.append(len(passage.questions))
            self.lines.append(passage.line)

    def finished(self) -> Passages:
        rows = {kind: Ragged.joined(parts) for kind, parts in self.rows.items()}
        names_of = starts_of(np.array(self.names, np.int64))
        answers = rows.pop("answers")
        passage_of = np.repeat(np.arange(len(self.names)), self.questions)
        first_name = names_of[np.repeat(passage_of, answers.lengths)]
        return Passages(
            **rows,
            answers=Ragged(answers.values + first_name, answers.starts),
            names_of=names_of,
            questions_of=starts_of(np.array(self.questions, np.int64)),
            num_entities=np.array(self.entities, np.int64),
            lines=np.array(self.lines, np.int64),
        )
