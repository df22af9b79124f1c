"""Passages, questions and names of a split as token ids, in memory and cached on disk.

A passage is stored once, however many questions and candidates it has. This module does not know
sequences or which candidates are drawn.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from trainmark.data.cache import load_or_build_arrays
from trainmark.data.splits import Ragged, compute_starts
from trainmark.data.tokenizer import find_tokenizer_file, open_wordpiece, refuse_short_vocabulary
from trainmark.digests import hash_stream
from trainmark.errors import DataError

from .record_jsonl import read_passages, translate_read_errors

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from numpy.typing import NDArray
    from tokenizers import Tokenizer
    from typing_extensions import Self

    from .record_jsonl import Passage

PIECE_START, PIECE_END = "<|startofpiece|>", "<|endofpiece|>"
PADDED_TO = 128  # the published table has 30592 rows for 30524 tokens
FIX = (
    "put the vocab.txt (or tokenizer.json) of bert-large-uncased, which the published "
    "GLM-large uses, into model/"
)
FAULT = partial(
    DataError, fix=FIX, rule="questions must be tokenised with the vocabulary of the model"
)


@dataclass(frozen=True, slots=True)
class BlockTokens:
    """Ids of the tokens around context and answer.

    Args:
        first: starts the context, ``[CLS]``.
        mask: replaces the answer in the context, ``[MASK]``.
        end: ends the context, ``[PAD]``; also used as padding.
        piece_start: starts the answer block.
        piece_end: the last target.
    """

    first: int
    mask: int
    end: int
    piece_start: int
    piece_end: int


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """An open tokenizer.

    Args:
        file: the vocabulary file.
        library: turns text into ids. A special token that is spelled out in a text is encoded as
            ordinary characters, so no passage can forge a gap.
        tokens: the special tokens around context and answer.
    """

    file: Path
    library: Tokenizer
    tokens: BlockTokens

    def encode(self, texts: list[str]) -> list[list[int]]:
        """Return the ids of every text, without special tokens."""
        encodings = self.library.encode_batch_fast(texts, add_special_tokens=False)
        return [encoding.ids for encoding in encodings]


def find_vocabulary_file(folder: Path) -> Path:
    """Return the vocabulary file of a model folder; see ``find_tokenizer_file``."""
    return find_tokenizer_file(folder, FAULT)


def open_vocabulary(file: Path, vocab_size: int | None = None) -> Vocabulary:
    """Open a vocabulary file.

    ``<|startofpiece|>`` and ``<|endofpiece|>`` have their ids in the file. If it does not contain
    them, they follow its last token, as in the published model: 30522 and 30523.

    Args:
        vocab_size: rows of the model's embedding table; None: do not compare.

    Raises:
        DataError: the file cannot be read, or its number of tokens does not fit ``vocab_size``.
    """
    library = open_wordpiece(file, FAULT, plain=True)
    size = library.get_vocab_size(with_added_tokens=True)
    bounds = []
    for token in (PIECE_START, PIECE_END):
        number = library.token_to_id(token)
        if number is None:
            number, size = size, size + 1
        bounds.append(number)
    if vocab_size is not None and size > vocab_size:
        raise DataError(
            f"{size} tokens, including {PIECE_START} and {PIECE_END}",
            where=str(file),
            rule=f"the recipe's vocab_size is {vocab_size}",
            fix=f"set vocab_size to at least {size}, or: {FIX}",
        )
    if vocab_size is not None:
        refuse_short_vocabulary(
            file,
            entries=size,
            vocab_size=vocab_size,
            of="the recipe",
            multiple=PADDED_TO,
            fix=f"set vocab_size to at most {-(-size // PADDED_TO) * PADDED_TO}, or: {FIX}",
        )
    ids = library.get_vocab()
    tokens = BlockTokens(ids["[CLS]"], ids["[MASK]"], ids["[PAD]"], *bounds)
    return Vocabulary(file, library, tokens)


BLOCK_PASSAGES = 512  # number of passages that are in memory as text at a time
FORMAT = 1  # of the arrays and of how text becomes tokens


@dataclass(frozen=True, slots=True)
class Passages:
    """P passages with Q questions and M names, tokenised.

    Args:
        texts: tokens of the passages, P rows.
        names: tokens of all names, M rows; those of a passage are consecutive, entities first.
        queries: tokens before and after the gap of each question, 2 Q rows.
        answers: the right names of each question as rows of ``names``, Q rows.
        names_of: row in ``names`` at which the names of each passage begin, int64 (P + 1,).
        questions_of: number of the first question of each passage, int64 (P + 1,).
        num_entities: number of entities among the names of each passage, int64 (P,).
        lines: line of each passage in its file, from 1, int64 (P,).
        tokens: the special tokens around context and answer.
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
        """Number of questions of all passages."""
        return int(self.questions_of[-1])

    def find_passage(self, question: int) -> int:
        """Return the number of the passage that a question belongs to."""
        return int(np.searchsorted(self.questions_of, question, side="right")) - 1

    def list_entities(self, question: int) -> range:
        """Return the entities of a question's passage as rows of ``names``."""
        passage = self.find_passage(question)
        first = int(self.names_of[passage])
        return range(first, first + int(self.num_entities[passage]))

    def describe_place(self, question: int) -> str:
        """Return the place of a question in its file, for an error."""
        passage = self.find_passage(question)
        number = question - self.questions_of[passage]
        return f"line {self.lines[passage]}, question {number} (from 0)"

    def list_arrays(self) -> list[NDArray[Any]]:
        """Return all fields but ``tokens`` as arrays, in the order of ``from_arrays``."""
        ragged_fields = (self.texts, self.names, self.queries, self.answers)
        arrays = [array for field in ragged_fields for array in (field.values, field.starts)]
        return [*arrays, self.names_of, self.questions_of, self.num_entities, self.lines]

    @classmethod
    def from_arrays(cls, arrays: Sequence[NDArray[Any]], tokens: BlockTokens) -> Self:
        """Return the passages whose ``list_arrays`` returned ``arrays``."""
        texts, names, queries, answers = (
            Ragged(*arrays[index : index + 2]) for index in range(0, 8, 2)
        )
        names_of, questions_of, num_entities, lines = arrays[8:]
        return cls(
            texts, names, queries, answers, names_of, questions_of, num_entities, lines, tokens
        )


def compute_digest(*files: Path) -> str:
    """Return the sha256 of the contents of files, in this order."""
    digest = sha256(f"glm_superglue {FORMAT}".encode())
    for file in files:
        with translate_read_errors(file), file.open("rb") as stream:
            digest.update(hash_stream(stream).digest())
    return digest.hexdigest()


def read_jsonl(file: Path, vocabulary: Vocabulary, place: Path) -> Passages:
    """Return a tokenised split, from the cache in ``place`` if it is there.

    Raises:
        DataError: a line of the file is invalid.
    """
    folder = place / f"{file.stem}-{compute_digest(file, vocabulary.file)[:16]}"
    built = load_or_build_arrays(
        folder, lambda: tokenize(read_passages(file), vocabulary).list_arrays()
    )
    return Passages.from_arrays(built, vocabulary.tokens)


def tokenize(passages: Iterable[Passage], vocabulary: Vocabulary) -> Passages:
    """Tokenise the passages of a split, in blocks; the library uses several threads."""
    encode, source = vocabulary.encode, iter(passages)
    blocks: dict[str, list[Ragged]] = {"texts": [], "names": [], "queries": [], "answers": []}
    counts: list[tuple[int, int, int, int]] = []  # of each passage
    while block := list(islice(source, BLOCK_PASSAGES)):
        questions = [question for passage in block for question in passage.questions]
        gaps = [text for question in questions for text in (question.left, question.right)]
        for kind, rows_of_block in (
            ("texts", encode([passage.text for passage in block])),
            ("names", encode([name for passage in block for name in passage.names])),
            ("queries", encode(gaps)),
            ("answers", [question.answers for question in questions]),
        ):
            blocks[kind].append(Ragged.from_rows(rows_of_block))
        for passage in block:
            num_names, num_questions = len(passage.names), len(passage.questions)
            counts.append((num_names, passage.num_entities, num_questions, passage.line))
    fields = {
        kind: Ragged(
            np.concatenate([part.values for part in parts]),
            compute_starts(np.concatenate([part.lengths for part in parts])),
        )
        for kind, parts in blocks.items()
    }
    num_names, num_entities, num_questions, lines = np.array(counts, np.int64).T
    names_of, answers = compute_starts(num_names), fields.pop("answers")
    # So far, answers are counted from the first name of their passage.
    passage_of_question = np.repeat(np.arange(len(num_names)), num_questions)
    first_name = names_of[np.repeat(passage_of_question, answers.lengths)]
    return Passages(
        **fields,
        answers=Ragged(answers.values + first_name, answers.starts),
        names_of=names_of,
        questions_of=compute_starts(num_questions),
        num_entities=num_entities,
        lines=lines,
        tokens=vocabulary.tokens,
    )
