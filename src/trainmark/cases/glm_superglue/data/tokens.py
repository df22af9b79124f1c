"""The vocabulary of GLM: BERT's WordPiece and the tokens that bound an answer block.

Owns which token ends a context, begins and ends an answer, and the ids of the two that
BERT's vocabulary lacks. Must not know passages or questions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainmark.data.model_config import open_wordpiece, refuse_short, tokenizer_file
from trainmark.errors import DataError

if TYPE_CHECKING:
    from pathlib import Path

    from tokenizers import Tokenizer

PIECE_START, PIECE_END = "<|startofpiece|>", "<|endofpiece|>"
PADDED_TO = 128  # the published table has 30592 rows for 30524 tokens
REMEDY = (
    "put the vocab.txt (or tokenizer.json) of bert-large-uncased, which the published "
    "GLM-large was trained with, into model/"
)


@dataclass(frozen=True, slots=True)
class BlockTokens:
    """Ids of the tokens around context and answer.

    Args:
        first: begins the context, ``[CLS]``.
        mask: stands for the answer, ``[MASK]``.
        end: ends the context, ``[PAD]``; also the padding.
        piece_start: begins the answer block.
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
        library: turns text into ids. Text that spells a special token is encoded as the
            characters that it is, so no passage can forge a gap.
        size: ids are below it.
        tokens: the tokens around a text.
    """

    library: Tokenizer
    size: int
    tokens: BlockTokens

    def encode(self, texts: list[str]) -> list[list[int]]:
        """Return the ids of every text, nothing put around them."""
        encodings = self.library.encode_batch_fast(texts, add_special_tokens=False)
        return [encoding.ids for encoding in encodings]


def vocabulary_file(folder: Path) -> Path:
    """Return the vocabulary of a model folder; see ``model_config.tokenizer_file``."""
    return tokenizer_file(folder, remedy=REMEDY)


def open_vocabulary(file: Path, vocab_size: int | None = None) -> Vocabulary:
    """Open a vocabulary file.

    ``<|startofpiece|>`` and ``<|endofpiece|>`` have the ids that the file gives them, or
    else follow its last token, as in the published model: 30522 and 30523.

    Args:
        vocab_size: rows of the model's embedding table; none: not compared.

    Raises:
        DataError: the file cannot be read, has more tokens than ``vocab_size``, or so few
            that padding does not explain it.
    """
    library = open_wordpiece(file, remedy=REMEDY)
    library.encode_special_tokens = True  # the name misleads: spell them out, do not match them
    size = library.get_vocab_size(with_added_tokens=True)
    bounds = []
    for token in (PIECE_START, PIECE_END):
        number = library.token_to_id(token)
        if number is None:
            number, size = size, size + 1
        bounds.append(number)
    if vocab_size is not None and size > vocab_size:
        raise DataError(
            f"{size} tokens, {PIECE_START} and {PIECE_END} counted",
            where=str(file),
            rule=f"the recipe's vocab_size is {vocab_size}",
            remedy=f"set vocab_size to at least {size}, or: {REMEDY}",
        )
    if vocab_size is not None:
        refuse_short(
            file, entries=size, vocab_size=vocab_size, of="the recipe", multiple=PADDED_TO,
            remedy=f"set vocab_size to at most {-(-size // PADDED_TO) * PADDED_TO}, or: {REMEDY}",
        )  # fmt: skip
    first, mask, end = (library.token_to_id(name) for name in ("[CLS]", "[MASK]", "[PAD]"))
    assert first is not None
    assert mask is not None
    assert end is not None
    return Vocabulary(library, size, BlockTokens(first, mask, end, *bounds))
