"""Passages, questions and names of a split as token ids: the one form that training reads.

Owns the form in memory and on disk, and how text becomes it: a passage is held once, however
many questions and candidates it has. Must not know sequences or which candidates are drawn.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass
from hashlib import file_digest, sha256
from itertools import islice
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from trainmark.data.cache import cached_arrays
from trainmark.data.split import Ragged, starts_of

from .record_jsonl import read_passages, readable
from .tokens import BlockTokens, open_vocabulary

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from .record_jsonl import Passage
    from .tokens import Vocabulary

BLOCK_PASSAGES = 512  # tokenised at a time: the texts of no more are in memory
FORMAT = 1  # of the arrays and of how text becomes tokens


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
        tokens: the tokens around context and answer.
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
            BlockTokens(*arrays["tokens"].tolist()),
        )  # fmt: skip


def digest_of(*files: Path) -> str:
    """Return a sha256 over the files' contents, in this order."""
    digest = sha256(f"glm_superglue {FORMAT}".encode())
    for file in files:
        with readable(file), file.open("rb") as stream:
            digest.update(file_digest(stream, "sha256").digest())
    return digest.hexdigest()


def read_jsonl(file: Path, vocabulary: Path, place: Path) -> Passages:
    """Return a split as tokens: as cached in ``place``, or tokenised now and cached there.

    Raises:
        DataError: a line or the vocabulary breaks a rule.
    """

    def build() -> dict[str, NDArray[Any]]:
        return tokenise(read_passages(file), open_vocabulary(vocabulary)).arrays()

    name = f"{file.stem}-{digest_of(file, vocabulary)[:16]}.npz"
    return Passages.of_arrays(cached_arrays(place / name, build))


def tokenise(passages: Iterable[Passage], vocabulary: Vocabulary) -> Passages:
    """Return a split as tokens; the library uses all cores where it may."""
    encode, source = vocabulary.encode, iter(passages)
    blocks: dict[str, list[Ragged]] = {"texts": [], "names": [], "queries": [], "answers": []}
    counts: list[tuple[int, int, int, int]] = []
    while block := list(islice(source, BLOCK_PASSAGES)):
        questions = [question for passage in block for question in passage.questions]
        gaps = [text for question in questions for text in (question.left, question.right)]
        for kind, found in (
            ("texts", encode([passage.text for passage in block])),
            ("names", encode([name for passage in block for name in passage.names])),
            ("queries", encode(gaps)),
            ("answers", [question.answers for question in questions]),
        ):
            blocks[kind].append(Ragged.of(found))
        counts += [(len(x.names), x.num_entities, len(x.questions), x.line) for x in block]
    rows = {
        kind: Ragged(
            np.concatenate([part.values for part in parts]),
            starts_of(np.concatenate([part.lengths for part in parts])),
        )
        for kind, parts in blocks.items()
    }
    names, entities, questions_of, lines = np.array(counts, np.int64).T
    names_of, answers = starts_of(names), rows.pop("answers")
    # Answers are counted from a passage's first name.
    first_name = names_of[
        np.repeat(np.repeat(np.arange(len(names)), questions_of), answers.lengths)
    ]
    return Passages(
        **rows, answers=Ragged(answers.values + first_name, answers.starts),
        names_of=names_of, questions_of=starts_of(questions_of), num_entities=entities,
        lines=lines, tokens=vocabulary.tokens,
    )  # fmt: skip
