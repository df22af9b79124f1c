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
    from collections.abc import Iterable, Iterator, Sequence
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
        tokenizer: turns text into ids. A special token that is spelled out in a text is encoded as
            ordinary characters, so no passage can forge a gap.
        tokens: the special tokens around context and answer.
    """

    file: Path
    tokenizer: Tokenizer
    tokens: BlockTokens

    def encode(self, texts: list[str]) -> list[list[int]]:
        """Return the ids of every text, without special tokens."""
        encodings = self.tokenizer.encode_batch_fast(texts, add_special_tokens=False)
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
    # plain: special tokens that are spelled out in a text are encoded as ordinary characters.
    tokenizer = open_wordpiece(file, FAULT, plain=True)
    size = tokenizer.get_vocab_size(with_added_tokens=True)  # including added special tokens
    piece_ids = []
    for token in (PIECE_START, PIECE_END):
        token_id = tokenizer.token_to_id(token)
        if token_id is None:  # the file does not contain it: it follows the last token
            token_id = size
            size += 1
        piece_ids.append(token_id)
    piece_start, piece_end = piece_ids
    if vocab_size is not None and size > vocab_size:
        raise DataError(
            f"the vocabulary has {size} tokens, including {PIECE_START} and {PIECE_END}",
            where=str(file),
            rule=f"the vocabulary must fit into the recipe's vocab_size ({vocab_size})",
            fix=f"set vocab_size to at least {size}, or {FIX}",
        )
    if vocab_size is not None:
        padded_size = -(-size // PADDED_TO) * PADDED_TO  # rounded up to a multiple
        refuse_short_vocabulary(
            file,
            entries=size,
            vocab_size=vocab_size,
            size_source="the recipe",
            multiple=PADDED_TO,  # the model may pad its table to a multiple of this
            fix=f"set vocab_size to at most {padded_size}, or {FIX}",
        )
    ids = tokenizer.get_vocab()  # ``open_wordpiece`` has refused a file without these tokens
    tokens = BlockTokens(
        first=ids["[CLS]"],
        mask=ids["[MASK]"],
        end=ids["[PAD]"],  # GLM ends the context with the padding token
        piece_start=piece_start,
        piece_end=piece_end,
    )
    return Vocabulary(file, tokenizer, tokens)


BLOCK_PASSAGES = 512  # number of passages that are in memory as text at a time
FORMAT = 1  # of the arrays and of how text becomes tokens


@dataclass(frozen=True, slots=True)
class Passages:
    """P passages with Q questions and M names, tokenised.

    Args:
        texts: tokens of the passages, P rows.
        names: tokens of all names, M rows; those of a passage are consecutive, entities first.
        query_halves: tokens of each question before its gap and after it, as two rows, 2 Q rows.
        answers: the right names of each question as rows of ``names``, Q rows.
        first_name_of_passage: row in ``names`` at which the names of each passage begin, then M,
            int64 (P + 1,).
        first_question_of_passage: number of the first question of each passage, then Q, int64
            (P + 1,).
        num_entities: number of entities among the names of each passage, int64 (P,).
        lines: line of each passage in its file, from 1, int64 (P,).
        tokens: the special tokens around context and answer.
    """

    texts: Ragged
    names: Ragged
    query_halves: Ragged
    answers: Ragged
    first_name_of_passage: NDArray[np.int64]
    first_question_of_passage: NDArray[np.int64]
    num_entities: NDArray[np.int64]
    lines: NDArray[np.int64]
    tokens: BlockTokens

    @property
    def num_questions(self) -> int:
        """Number of questions of all passages."""
        # The array has the number of each passage's first question, and the total at the end.
        return int(self.first_question_of_passage[-1])

    def find_passage(self, question: int) -> int:
        """Return the number of the passage that a question belongs to."""
        return int(np.searchsorted(self.first_question_of_passage, question, side="right")) - 1

    def list_entities(self, question: int) -> range:
        """Return the numbers of the rows of ``names`` with the entities of a question's passage."""
        # The names of a passage are its entities, then the right answers that are no entities.
        passage = self.find_passage(question)
        first = int(self.first_name_of_passage[passage])
        return range(first, first + int(self.num_entities[passage]))

    def describe_place(self, question: int) -> str:
        """Return the place of a question in its file, for an error."""
        passage = self.find_passage(question)
        number = question - self.first_question_of_passage[passage]
        return f"line {self.lines[passage]}, question {number} (counted from 0)"

    def list_arrays(self) -> list[NDArray[Any]]:
        """Return all fields but ``tokens`` as arrays, in the order of ``from_arrays``."""
        arrays: list[NDArray[Any]] = []
        for field in (self.texts, self.names, self.query_halves, self.answers):
            arrays += [field.values, field.starts]
        return [
            *arrays,
            self.first_name_of_passage,
            self.first_question_of_passage,
            self.num_entities,
            self.lines,
        ]

    @classmethod
    def from_arrays(cls, arrays: Sequence[NDArray[Any]], tokens: BlockTokens) -> Self:
        """Return the passages whose ``list_arrays`` returned ``arrays``."""
        return cls(
            texts=Ragged(values=arrays[0], starts=arrays[1]),
            names=Ragged(values=arrays[2], starts=arrays[3]),
            query_halves=Ragged(values=arrays[4], starts=arrays[5]),
            answers=Ragged(values=arrays[6], starts=arrays[7]),
            first_name_of_passage=arrays[8],
            first_question_of_passage=arrays[9],
            num_entities=arrays[10],
            lines=arrays[11],
            tokens=tokens,
        )


def compute_digest(*files: Path) -> str:
    """Return a sha256 of ``FORMAT`` and of the contents of the files, in this order."""
    # Cached arrays have this digest in their name. With ``FORMAT`` in it, arrays that an earlier
    # version of this program cached in another form are not read.
    digest = sha256(f"glm_superglue {FORMAT}".encode())
    for file in files:
        with translate_read_errors(file), file.open("rb") as stream:
            digest.update(hash_stream(stream).digest())
    return digest.hexdigest()


def read_jsonl(file: Path, vocabulary: Vocabulary, cache_folder: Path) -> Passages:
    """Return a tokenised split, from ``cache_folder`` if it is cached there.

    Raises:
        DataError: a line of the file is invalid.
    """
    # Another split or vocabulary has another digest, so its tokens are in another folder. The
    # tokens depend on no other file: ``open_vocabulary`` compares ``tokenizer_config.json`` with
    # the vocabulary file, and refuses other settings instead of following them.
    folder = cache_folder / f"{file.stem}-{compute_digest(file, vocabulary.file)[:16]}"
    arrays = load_or_build_arrays(
        folder, lambda: tokenize(read_passages(file), vocabulary).list_arrays()
    )
    return Passages.from_arrays(arrays, vocabulary.tokens)


def tokenize(passages: Iterable[Passage], vocabulary: Vocabulary) -> Passages:
    """Tokenise the passages of a split; at most ``BLOCK_PASSAGES`` are in memory as text.

    Args:
        passages: at least one passage.
    """
    # Each has one item for each block of passages, with the rows of this block.
    texts: list[Ragged] = []
    names: list[Ragged] = []
    query_halves: list[Ragged] = []
    answers: list[Ragged] = []
    # Each has one item for each passage.
    num_names: list[int] = []
    num_entities: list[int] = []
    num_questions: list[int] = []
    lines: list[int] = []
    for block in _cut_into_blocks(passages):
        questions = [question for passage in block for question in passage.questions]
        halves: list[str] = []  # of each question, the text before its gap and that after it
        for question in questions:
            halves += [question.left, question.right]
        names_of_block = [name for passage in block for name in passage.names]
        # The tokeniser encodes the texts of a call with several threads.
        texts.append(Ragged.from_rows(vocabulary.encode([passage.text for passage in block])))
        names.append(Ragged.from_rows(vocabulary.encode(names_of_block)))
        query_halves.append(Ragged.from_rows(vocabulary.encode(halves)))
        answers.append(Ragged.from_rows([question.answers for question in questions]))
        for passage in block:
            num_names.append(len(passage.names))
            num_entities.append(passage.num_entities)
            num_questions.append(len(passage.questions))
            lines.append(passage.line)
    first_name_of_passage = compute_starts(np.array(num_names, np.int64))
    return Passages(
        texts=_concatenate(texts),
        names=_concatenate(names),
        query_halves=_concatenate(query_halves),
        # So far the answers are indices into the names of their passage. They become indices into
        # the names of the whole split.
        answers=_renumber_answers(_concatenate(answers), first_name_of_passage, num_questions),
        first_name_of_passage=first_name_of_passage,
        first_question_of_passage=compute_starts(np.array(num_questions, np.int64)),
        num_entities=np.array(num_entities, np.int64),
        lines=np.array(lines, np.int64),
        tokens=vocabulary.tokens,
    )


def _cut_into_blocks(passages: Iterable[Passage]) -> Iterator[list[Passage]]:
    """Yield the passages in lists of ``BLOCK_PASSAGES``; the last one may be shorter."""
    remaining_passages = iter(passages)
    block = list(islice(remaining_passages, BLOCK_PASSAGES))
    while block:  # empty after the last passage
        yield block
        block = list(islice(remaining_passages, BLOCK_PASSAGES))


def _concatenate(blocks: list[Ragged]) -> Ragged:
    """Return the rows of all blocks, in order."""
    lengths = np.concatenate([block.lengths for block in blocks])
    return Ragged(np.concatenate([block.values for block in blocks]), compute_starts(lengths))


def _renumber_answers(
    answers: Ragged, first_name_of_passage: NDArray[np.int64], num_questions: list[int]
) -> Ragged:
    """Return the answers of Q questions as indices into the names of the whole split.

    The names of the split are the names of its P passages, one passage after the other.

    Args:
        answers: the answers of each question, as indices into the names of its passage, Q rows.
        first_name_of_passage: index of each passage's first name among the names of the split, then
            their total (P + 1,).
        num_questions: number of questions of each passage (P,).
    """
    passage_of_question = np.repeat(np.arange(len(num_questions)), num_questions)
    passage_of_answer = np.repeat(passage_of_question, answers.lengths)
    return Ragged(answers.values + first_name_of_passage[passage_of_answer], answers.starts)
