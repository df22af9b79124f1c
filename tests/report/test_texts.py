"""Texts: complete in both languages, each in its own script."""

import re
import string
from pathlib import Path

import pytest

import trainmark.report
from trainmark.report.texts import TEXTS, text

CJK = re.compile(r"[\u3000-\u9fff\uff00-\uffef]")
PREFIXES = (
    "status.", "rules.", "label.", "origin.", "figure.", "count.", "span.", "evidence.",
    "cause.", "head.", "trust.", "term.",
)  # fmt: skip


def places(sentence):
    return sorted(name for _, name, _, _ in string.Formatter().parse(sentence) if name)


@pytest.mark.parametrize("key", TEXTS)
def test_every_text_is_there_twice_with_the_same_places(key):
    found = TEXTS[key]
    assert found.en
    assert found.zh
    assert not CJK.search(found.en)
    assert places(found.en) == places(found.zh)


def test_headings_are_chinese_in_chinese():
    headings = [key for key in TEXTS if key.startswith("section.")]
    assert len(headings) == 23
    assert [key for key in headings if not CJK.search(text(key, "zh"))] == []


def test_every_text_is_used():
    folder = Path(trainmark.report.__file__).parent
    source = "".join(path.read_text(encoding="utf-8") for path in folder.glob("*.py"))
    unused = [
        key
        for key in TEXTS
        if not key.startswith(PREFIXES) and f'"{key}"' not in source and f"'{key}'" not in source
    ]
    assert unused == []


def test_an_unknown_text_is_a_bug_of_ours():
    with pytest.raises(AssertionError, match=r"section\.run"):
        text("section.rum", "en")
