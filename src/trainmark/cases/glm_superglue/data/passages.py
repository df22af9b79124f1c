"""Passages, questions and names of a split as token ids: the one form that training reads.

Owns the form in memory and on disk, and how text becomes it: a passage is held once, however
many questions and candidates it has. Must not know sequences or which candidates are drawn.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass
from hashlib import file_digest, sha256
from itertools import chain
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from trainmark.data.cache import cached_arrays, read_arrays
from trainmark.errors import DataError

from .record_jsonl import read_passages, readable
from .tokens import BlockTokens, open_vocabulary

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from .record_jsonl import Passage
    from .tokens import Vocabulary

BLOCK_PASSAGES = 512  # tokenised at a time: the texts of no more are in memory
FORMAT = 1  # of the arrays and of how text becomes tokens


@dataclass(frozen=True, slots=True)
class Ragged:
    """Rows of unequal length one after another.

    Args:
        values: all rows' values (total,).
        starts: where each row begins in ``values``, int64 (rows + 1,).
    """

    values: NDArray[Any]
    starts: NDArray[np.int64]

    @classmethod
    def of(cls, rows: Sequence[Sequence[int]]) -> Self:
        """Build from rows, int32."""
        lengths = np.fromiter(map(len, rows), np.int64, len(rows))
        values = np.fromiter(chain.from_iterable(rows), np.int32, int(lengths.sum()))
        return cls(values, starts_of(lengths))

    @classmethod
    def joined(cls, parts: Sequence[Ragged]) -> Self:
        """Return the rows of all parts in order."""
        values = np.concatenate([part.values for part in parts])
        return cls(values, starts_of(np.concatenate([part.lengths for part in parts])))

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Values of each row."""
        return np.diff(self.starts)

    def row(self, number: int) -> NDArray[Any]:
        """Return one row without a copy."""
        return self.values[self.starts[number] : self.starts[number + 1]]


def starts_of(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return where rows of these lengths begin, and where the last one ends."""
    starts = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=starts[1:])
    return starts


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
        lines: line of each passage in its file, from 1, or its sample, from 0, int64 (P,).
        tokens: the tokens around context and answer.
        drawn_length: 0 for text. Samples that were drawn before: what their sequences were
            cut to; each passage is then one sample, with its candidates in the drawn order.
    """

    texts: Ragged
    names: Ragged
    queries: Ragged
    answers: Ragged
    names_of: NDArray[np.int64]
    questions_of: NDArray[np.int64]
    num_entities: NDArray[np.int64]
    lines: NDArray[np.int64]
    tokens: BlockTokens
    drawn_length: int = 0

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
        """Return the place of a question in its file, for errors."""
        passage = self.passage(question)
        if self.drawn_length:
            return f"sample {self.lines[passage]} (counted from 0)"
        number = question - self.questions_of[passage]
        return f"line {self.lines[passage]}, question {number} (from 0)"

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return all by name as arrays, as ``of_arrays`` takes them."""
        found: dict[str, NDArray[Any]] = {}
        for name in self.__slots__:
            value = getattr(self, name)
            if isinstance(value, Ragged):
                found |= {f"{name}.values": value.values, f"{name}.starts": value.starts}
            else:
                found[name] = np.asarray(astuple(value) if name == "tokens" else value)
        return found

    @classmethod
    def of_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Self:
        """Build from what ``arrays`` returned.

        Raises:
            KeyError: an array is missing.
        """

        def rows(name: str) -> Ragged:
            return Ragged(arrays[f"{name}.values"], arrays[f"{name}.starts"])

        return cls(
            rows("texts"), rows("names"), rows("queries"), rows("answers"), arrays["names_of"],
            arrays["questions_of"], arrays["num_entities"], arrays["lines"],
            BlockTokens(*arrays["tokens"].tolist()), int(arrays["drawn_length"]),
        )  # fmt: skip


def digest_of(*files: Path) -> str:
    """Return a sha256 over the files' contents, in this order."""
    digest = sha256(f"glm_superglue {FORMAT}".encode())
    for file in files:
        with readable(file), file.open("rb") as stream:
            digest.update(file_digest(stream, "sha256").digest())
    return digest.hexdigest()


def cached_name(file: Path, vocabulary: Path) -> str:
    """Return the file name of a jsonl split's tokens, which says what they are made of."""
    return f"{file.stem}-{digest_of(file, vocabulary)[:16]}.npz"


def read_jsonl(file: Path, vocabulary: Path, place: Path) -> Passages:
    """Return a split as tokens: as kept in ``place``, or tokenised now and kept there.

    Raises:
        DataError: a line or the vocabulary breaks a rule.
    """

    def build() -> dict[str, NDArray[Any]]:
        return tokenise(read_passages(file), open_vocabulary(vocabulary)).arrays()

    return Passages.of_arrays(cached_arrays(place / cached_name(file, vocabulary), build))


def read_tokens(file: Path) -> Passages:
    """Return a split that ``prepare`` wrote as tokens.

    Raises:
        DataError: damaged, or not written by ``prepare``.
    """
    arrays = read_arrays(file)
    try:
        return Passages.of_arrays(arrays or {})
    except (KeyError, TypeError, ValueError):
        raise DataError(
            "damaged, or not written by prepare",
            where=str(file),
            rule="tokens/ holds what `trainmark prepare glm_superglue` wrote",
            remedy="prepare the data again",
        ) from None


def tokenise(passages: Iterable[Passage], vocabulary: Vocabulary) -> Passages:
    """Return a split as tokens; the library uses all cores where it may."""
    builder, block = Builder(vocabulary.tokens), []
    for passage in passages:
        block.append(passage)
        if len(block) == BLOCK_PASSAGES:
            _add_text(builder, block, vocabulary)
            block = []
    if block:
        _add_text(builder, block, vocabulary)
    return builder.finished()


def _add_text(builder: Builder, block: list[Passage], vocabulary: Vocabulary) -> None:
    questions = [question for passage in block for question in passage.questions]
    for passage in block:
        builder.count(
            names=len(passage.names), entities=passage.num_entities,
            questions=len(passage.questions), line=passage.line,
        )  # fmt: skip
    builder.add(
        texts=vocabulary.encode([passage.text for passage in block]),
        names=vocabulary.encode([name for passage in block for name in passage.names]),
        queries=vocabulary.encode(
            [text for question in questions for text in (question.left, question.right)]
        ),
        answers=[question.answers for question in questions],
    )


class Builder:
    """A split on its way: rows of each kind in blocks, counts by passage."""

    def __init__(self, tokens: BlockTokens, drawn_length: int = 0) -> None:
        self.tokens, self.drawn_length = tokens, drawn_length
        self.rows: dict[str, list[Ragged]] = {}
        self.counts: list[tuple[int, int, int, int]] = []

    def count(self, *, names: int, entities: int, questions: int, line: int) -> None:
        """Add a passage whose rows come with the next call of ``add``."""
        self.counts.append((names, entities, questions, line))

    def add(self, **rows: Sequence[Sequence[int]]) -> None:
        """Add rows of every kind; answers are counted from a passage's first name."""
        for kind, found in rows.items():
            self.rows.setdefault(kind, []).append(Ragged.of(found))

    def finished(self) -> Passages:
        """Return the whole split."""
        rows = {kind: Ragged.joined(parts) for kind, parts in self.rows.items()}
        names, entities, questions, lines = np.array(self.counts, np.int64).T
        names_of = starts_of(names)
        answers = rows.pop("answers")
        passage_of = np.repeat(np.arange(len(names)), questions)
        first_name = names_of[np.repeat(passage_of, answers.lengths)]
        return Passages(
            **rows, answers=Ragged(answers.values + first_name, answers.starts),
            names_of=names_of, questions_of=starts_of(questions), num_entities=entities,
            lines=lines, tokens=self.tokens, drawn_length=self.drawn_length,
        )  # fmt: skip
