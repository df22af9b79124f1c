"""The generated language has the entropy it claims, and needs both symbols of context."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

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
