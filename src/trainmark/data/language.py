"""Generate text in an artificial language whose entropy rate is known.

The next symbol depends on the last two: with equal probability, it is drawn from the table of the
last symbol or from the table of the one before it. A model that uses only the last symbol, or none,
stays well above the entropy rate, so a run that comes close to it has learned to attend. The text
is written in the on-disk form of real corpora. No torch.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from trainmark.data.indexed import choose_dtype, write_pair
from trainmark.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray


SYMBOLS = 64  # each is one token
CHANCES = (0.6, 0.25, 0.1, 0.05)  # probabilities of the symbols that may follow in a table's row
DOCUMENTS = 1024
DOCUMENT_TOKENS = 1024
PREFIX = "generated_text_document"
_LANGUAGE_SEED = 20_210_906  # the language is the same for every seed of a recipe
_NUM_DROPPED = 32  # symbols before a document, so that it starts in the stationary state


@cache
def build_tables() -> NDArray[np.float64]:
    """Return the two tables that define the artificial language, (2, SYMBOLS, SYMBOLS).

    The first is P(next symbol | last symbol), the second P(next symbol | the one before the last).
    The next symbol is drawn from one of them, chosen with equal probability. The tables are the
    same in every call.
    """
    rng = np.random.default_rng(_LANGUAGE_SEED)
    tables = np.zeros((2, SYMBOLS, SYMBOLS))
    for table in tables:
        for row in table:  # few symbols may follow, with the probabilities ``CHANCES``
            row[rng.choice(SYMBOLS, len(CHANCES), replace=False)] = CHANCES
    return tables


@cache
def compute_entropy_rate() -> float:
    """Return the language's entropy in nats per symbol, from its stationary distribution.

    The next symbol depends on the last symbol and on the one before it, called ``before`` here.
    Each symbol is one token, so no model reaches a lower loss per token on generated text.
    """
    # P(next | last) and P(next | before); the next symbol comes from either with equal probability.
    last_table, before_table = build_tables()
    pairs = np.full((SYMBOLS, SYMBOLS), SYMBOLS**-2.0)  # P(last, before), at first uniform
    # Each pass moves the pairs on by one symbol, until their distribution stays the same.
    for _ in range(1000):
        # P(last, next), summed over ``before``
        following = (pairs.sum(1)[:, None] * last_table + pairs @ before_table) / 2
        # Transposed: the next symbol becomes the last one, and the last the one before it.
        if np.abs(following.T - pairs).max() < 1e-15:
            break
        pairs = following.T
    # P(next | last, before), with the axes last, before, next
    chances = (last_table[:, None, :] + before_table[None, :, :]) / 2
    # 0 for what cannot follow: it adds nothing to the mean.
    information = -np.log(chances, where=chances > 0, out=np.zeros_like(chances))
    # The mean over all last (l), before (b) and next symbols (n).
    return float(np.einsum("lb,lbn,lbn->", pairs, chances, information))


def draw_symbols(*, documents: int, length: int, seed: int) -> NDArray[np.int64]:
    """Draw documents of the artificial language, symbols (documents, length).

    Each symbol is drawn from the table of the last symbol or from that of the one before it, chosen
    with equal probability.

    Args:
        documents: number of documents.
        length: number of symbols of each document.
        seed: of the text; the tables are the same for every seed.
    """
    rng = np.random.default_rng(seed)
    cumulative = build_tables().cumsum(-1)
    # Positions are the first axis, so that each step of the loop below writes a row.
    text = np.empty((_NUM_DROPPED + length, documents), np.int64)
    text[:2] = rng.integers(0, SYMBOLS, (2, documents))  # the first symbols have no context
    table_choices = rng.integers(0, 2, text.shape)
    chances = rng.random(text.shape)
    columns = np.arange(documents)
    for position in range(2, len(text)):
        table = table_choices[position]  # 0: of the last symbol; 1: of the one before it
        context = text[position - 1 - table, columns]
        rows = cumulative[table, context]  # (documents, SYMBOLS)
        # Draw from the row: the symbol is the number of its cumulative probabilities that are not
        # above a uniform random number.
        passed = rows <= chances[position][:, None]
        text[position] = passed.sum(1).clip(max=SYMBOLS - 1)  # a sum may round to less than 1
    # Without the first symbols, which do not follow the language's distribution yet.
    symbols: NDArray[np.int64] = text[_NUM_DROPPED:].T  # (documents, length)
    return symbols


def generate(
    folder: Path, *, vocab_size: int, seed: int, prefix: str = PREFIX, documents: int = DOCUMENTS
) -> None:
    """Write documents of an artificial language as one pair of ``.bin`` and ``.idx`` files.

    The ``.bin`` has the tokens, the ``.idx`` the lengths of the documents. Each symbol of the
    language is one token; the ids of the symbols are spread evenly over the vocabulary.

    Args:
        folder: the folder to write into.
        vocab_size: number of ids of the vocabulary.
        seed: of the text; the language is the same for every seed.
        prefix: name of both files without ending.
        documents: number of documents, of ``DOCUMENT_TOKENS`` tokens each.

    Raises:
        UsageError: the vocabulary has fewer ids than the language has symbols.
    """
    if vocab_size < SYMBOLS:
        raise UsageError(
            f"vocab_size={vocab_size} is too small for generated data",
            where="recipe field vocab_size",
            rule=(
                f"vocab_size must be at least {SYMBOLS}, the number of symbols in the "
                "generated language"
            ),
            fix=f"use {SYMBOLS} or more",
        )
    text = draw_symbols(documents=documents, length=DOCUMENT_TOKENS, seed=seed)
    ids = text * (vocab_size // SYMBOLS)
    sizes = np.full(documents, DOCUMENT_TOKENS, np.int32)
    write_pair(folder / prefix, ids.ravel(), sizes, choose_dtype(vocab_size))
