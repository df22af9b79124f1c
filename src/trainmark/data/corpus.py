"""Indexed tokens as a language model needs them: their digest, and every id in the vocabulary.

Owns the scan of all tokens, which is kept beside them. Must not know models. No torch.
"""

from __future__ import annotations

from hashlib import file_digest
from typing import TYPE_CHECKING

import numpy as np

from trainmark.data.cache import Extremes, cached_scan, extremes
from trainmark.data.indexed import IndexedReader, bin_file, idx_file, readable
from trainmark.data.model_config import refuse_short
from trainmark.data.prepared import MANIFEST, read_manifest
from trainmark.errors import DataError

if TYPE_CHECKING:
    from pathlib import Path

PADDED_TO = 128  # as Megatron pads: 50257 tokens of GPT-2, a table of 50304
BLOCK_BYTES = 16 << 20
CONTENT = "tokens"  # what the findings of a scan are called


def checked_tokens(reader: IndexedReader, place: Path, *, vocab_size: int) -> Extremes:
    """Return what the bytes of a pair are, after refusing ids outside the vocabulary.

    Args:
        place: folder that keeps the findings of the scan.

    Raises:
        DataError: an id outside the vocabulary, or a vocabulary larger than the tokenizer's.
    """
    content = scan(reader, place)
    _refuse_ids(reader, content, vocab_size)
    _refuse_short_vocabulary(reader.prefix.parent, vocab_size)
    return content


def scan(reader: IndexedReader, place: Path) -> Extremes:
    """Return what the bytes of a pair, index and tokens, are; kept in ``place``."""
    index, tokens = idx_file(reader.prefix), bin_file(reader.prefix)

    def read() -> dict[str, Extremes]:
        with readable(index), index.open("rb") as stream:
            digest = file_digest(stream, "sha256")
        step = BLOCK_BYTES // reader.dtype.itemsize
        blocks = (reader.tokens[at : at + step] for at in range(0, reader.num_tokens, step))
        return {CONTENT: extremes(blocks, digest=digest)}

    with readable(tokens):
        return cached_scan(
            place / "content.json", {file.name: file for file in (index, tokens)}, read
        )[CONTENT]


def _refuse_ids(reader: IndexedReader, content: Extremes, vocab_size: int) -> None:
    """Refuse ids outside the vocabulary, naming the document of the worst one."""
    worst = ((content.smallest, content.smallest_at), (content.largest, content.largest_at))
    for token, at in worst:
        if 0 <= token < vocab_size:
            continue
        noted = _noted_vocab_size(reader.prefix.parent) or "that"
        starts = reader.token_starts(range(reader.num_documents))
        document = int(np.searchsorted(starts, at, side="right")) - 1
        raise DataError(
            f"token id {token}",
            where=f"{bin_file(reader.prefix)}, document {document}, "
            f"token {at - starts[document]} (both counted from 0)",
            rule=f"a token id lies in [0, {vocab_size}), the recipe's vocab_size",
            remedy=f"set vocab_size to {noted} of the tokenizer "
            "the data was made with, or prepare the data again",
        )


def _noted_vocab_size(folder: Path) -> int | None:
    """Return the entries of the vocabulary that ``prepare`` noted beside the data."""
    noted = read_manifest(folder).get("vocab_size")  # none: made by another program
    return noted if isinstance(noted, int) else None


def _refuse_short_vocabulary(folder: Path, vocab_size: int) -> None:
    """Refuse a model with more entries than the tokenizer, padding allowed, where it is known."""
    noted = _noted_vocab_size(folder)
    if noted is not None:
        refuse_short(
            folder / MANIFEST, entries=noted, vocab_size=vocab_size, of="the recipe",
            multiple=PADDED_TO, remedy=f"set vocab_size={noted}",
        )  # fmt: skip
