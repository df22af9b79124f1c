"""Texts: complete in both languages, each in its own script."""

import re
import string
from pathlib import Path

import pytest

import trainmark
from trainmark.pages.texts import TEXTS, text

CJK = re.compile(r"[\u3000-\u9fff\uff00-\uffef]")


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
    """Used: as it stands, or as ``f"kind.{name}"``, ``"kind." ~ name`` by a name of the source."""
    root = Path(trainmark.__file__).parent
    rooms = list((root / "pages").rglob("*"))
    sources = [path for path in rooms if path.suffix in (".py", ".j2")]
    report = "".join(path.read_text("utf-8") for path in sources)
    words = set()
    for path in [*root.rglob("*.py"), *sources]:
        words |= set(re.findall(r"[\w-]+", path.read_text("utf-8")))
    unused = []
    for key in TEXTS:
        kind, _, name = key.partition(".")
        known = name in words or all(word in words for word in re.split("[ -]", name))
        composed = (f'f"{kind}.{{' in report or f'"{kind}." ~' in report) and known
        if not re.search(rf"""["']{re.escape(key)}["']""", report) and not composed:
            unused.append(key)
    assert unused == []


def test_an_unknown_text_is_a_bug_of_ours():
    with pytest.raises(AssertionError, match=r"section\.run"):
        text("section.rum", "en")
