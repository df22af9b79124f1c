"""The glossary at a page's foot, and the pages that explain the same words."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainmark.pages.provenance import glossary
from trainmark.pages.texts import GLOSSARY

ROOT = Path(__file__).parents[2]
WORDS = {"en": "docs/words.md", "zh": "docs/words.zh.md"}


def explained(lang: str) -> dict[str, str]:
    """Return what the tables of a page say of each word, without its marks."""
    lines = (ROOT / WORDS[lang]).read_text(encoding="utf-8").splitlines()
    rows = (line.strip("| ").split(" | ") for line in lines if line.startswith("| "))
    return {row[0].strip("`"): row[1].strip() for row in rows if len(row) == 2}


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_the_documentation_explains_a_word_as_the_result_page_does(lang: str) -> None:
    documented = explained(lang)
    items = {word.in_language(lang): means.in_language(lang) for word, means in GLOSSARY}
    shared = items.keys() & documented.keys()
    assert {"e2e_time", "p_whole", "p_train", "p_core", "MFU", "MAMFU"} < shared
    assert {word: documented[word] for word in shared} == {word: items[word] for word in shared}


def test_the_glossary_is_short_and_each_word_stands_once() -> None:
    for lang in ("en", "zh"):
        (facts,) = glossary(lang).blocks
        words = [word for word, _ in facts.items]
        assert 8 <= len(words) <= 12
        assert len(set(words)) == len(words)
