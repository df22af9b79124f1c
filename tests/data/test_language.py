"""The generated language has the entropy it claims, and needs both symbols of context."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from trainmark import cases
from trainmark.data import language
from trainmark.data.indexed import IndexedReader
from trainmark.data.language import SYMBOLS
from trainmark.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path


def test_the_entropy_rate_is_that_of_sampled_text() -> None:
    text = language.symbols(documents=400, length=500, seed=7)
    last, before = language.tables()
    chances = (last[text[:, 1:-1]] + before[text[:, :-2]]) / 2
    information = -np.log(np.take_along_axis(chances, text[:, 2:, None], -1))
    error = information.std() / information.size**0.5
    assert abs(information.mean() - language.entropy_rate()) < 4 * error
    assert error < 0.003


def test_one_symbol_of_context_is_not_enough() -> None:
    text = language.symbols(documents=2_000, length=500, seed=3)
    assert set(np.unique(text)) == set(range(SYMBOLS))
    pairs = np.zeros((SYMBOLS, SYMBOLS))
    np.add.at(pairs, (text[:, :-1].ravel(), text[:, 1:].ravel()), 1)
    joint = pairs / pairs.sum()
    given = joint / joint.sum(1, keepdims=True)
    by_the_last_alone = -(joint * np.log(given, where=joint > 0, out=np.zeros_like(joint))).sum()
    target = cases.load("gpt_megatron").recipes["tiny"].target_value
    assert target is not None
    # The target lies within 5% of the best loss and far below what the last symbol gives.
    assert language.entropy_rate() < target <= 1.05 * language.entropy_rate()
    assert by_the_last_alone > 1.3 * target


@pytest.mark.parametrize("vocab_size", [SYMBOLS, 50257])
def test_text_is_spread_over_the_vocabulary(tmp_path: Path, vocab_size: int) -> None:
    language.generate(tmp_path, vocab_size=vocab_size, seed=4)
    reader = IndexedReader.open(tmp_path / language.PREFIX)
    assert reader.dtype == np.uint16
    assert (reader.num_documents, set(reader.sizes.tolist())) == (
        language.DOCUMENTS,
        {language.DOCUMENT_TOKENS},
    )
    step = vocab_size // SYMBOLS
    assert set(np.unique(reader.tokens)) == {step * symbol for symbol in range(SYMBOLS)}
    wanted = language.symbols(documents=language.DOCUMENTS, length=1024, seed=4) * step
    assert (np.asarray(reader.tokens) == wanted.ravel()).all()


def test_a_vocabulary_smaller_than_the_language_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="too small for generated data"):
        language.generate(tmp_path, vocab_size=10, seed=1)
    assert not list(tmp_path.iterdir())
