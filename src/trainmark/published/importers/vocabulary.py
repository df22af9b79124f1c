"""Know the words of other people's tables, and compare printed texts with them.

``columns.toml`` lists the words.
"""

from __future__ import annotations

import html
import re
from functools import cache
from pathlib import Path
from typing import Any

from trainmark.published.audit.qualities import split_words
from trainmark.toml_file import read_toml

WORDS: dict[str, Any] = read_toml(Path(__file__).with_name("columns.toml"))
PHRASES: dict[str, list[str]] = WORDS["phrases"]  # by which names are recognised, by kind
# Unicode has a full-width form of each visible ASCII character at a fixed distance, and of a space.
_FULL_WIDTH_CODES = range(0xFF01, 0xFF5F)
_FULL_WIDTH_SPACE = 0x3000
_FULL_WIDTH_DISTANCE = 0xFEE0
_HALF_WIDTH = {code: code - _FULL_WIDTH_DISTANCE for code in _FULL_WIDTH_CODES} | {
    _FULL_WIDTH_SPACE: " "
}
_EMPHASIS = re.compile(r"(\*{1,3}|_{1,2}|`)([^*_`].*)\1")
_ESCAPE = re.compile(r"\\([!-/:-@\[-`{-~])")  # Markdown's, of any ASCII punctuation
_TAG = re.compile(r"</?[A-Za-z][^<>]*>")
_LINK = re.compile(r"\[([^\[\]]+)\]\([^()\s]*\)")
_OUT_OF_MEMORY = set(WORDS["out_of_memory"])
_WITHOUT_VALUE = set(WORDS["nothing"]) | _OUT_OF_MEMORY


def strip_markup(text: str) -> str:
    """Return ``text`` without marks of Markdown and HTML, full-width forms as half-width ones.

    The marks are HTML's tags, addresses of links, backslashes before characters, and emphasis.
    """
    # Unicode's NFKC would also turn superscripts into digits, and `361²` is not 3612.
    printed = _TAG.sub(" ", html.unescape(text)).translate(_HALF_WIDTH).strip()
    # Only emphasis around the whole text is removed, because a lone star says something: as a cell,
    # that there is no value. The second group is the text within.
    if _EMPHASIS.fullmatch(printed):
        printed = _EMPHASIS.sub(r"\2", printed)
    # The first groups: the text of a link, and the character behind a backslash.
    return _ESCAPE.sub(r"\1", _LINK.sub(r"\1", printed)).strip()


def normalize_word(text: str) -> str:
    """Return ``text`` as words are compared.

    It is in lower case, without markup, spaces and backquotes, and without stars around it.
    """
    word = re.sub(r"[\s`]+", "", strip_markup(text)).casefold()
    # Of a text of stars alone one is left: `columns.toml` lists `*` as a cell without a value.
    return word.strip("*") or word[:1]


def normalize_header(text: str) -> str:
    """Return a header as headers are compared: like words, and without ``_ - # . :``."""
    return re.sub(r"[_\-#.:]+", "", normalize_word(text))


def is_without_value(text: str) -> bool:
    """Tell whether a cell is empty, or says that there is no value: ``-``, ``n/a``, ``OOM``."""
    return normalize_word(text) in _WITHOUT_VALUE


def is_number(text: str) -> bool:
    """Tell whether a cell begins like a number."""
    return re.match(r"[+-]?[0-9.]", strip_markup(text)) is not None


def is_out_of_memory(text: str) -> bool:
    """Tell whether a cell says that the run did not fit."""
    return normalize_word(text) in _OUT_OF_MEMORY


def has_phrase(text: str, phrases: list[str]) -> bool:
    """Tell whether a text has one of the phrases, as whole words; Chinese ones anywhere."""
    spaced = f" {' '.join(split_words(text))} "
    for phrase in phrases:
        if phrase.isascii():
            if _space_words(phrase) in spaced:
                return True
        elif phrase in text:
            return True
    return False


@cache
def _space_words(phrase: str) -> str:
    """Return the words of a phrase with a space before and after each.

    So a search for them finds whole words only.
    """
    return f" {' '.join(split_words(phrase))} "


def find_only_precision(text: str) -> str | None:
    """Return the only precision that a text names; None: it names none or several.

    Mixed precision, ``amp``, does not count beside another one: ``bf16 AMP`` is ``bf16``.
    """
    names = find_precisions(text)
    exact_names = [name for name in names if name != "amp"]
    candidates = exact_names or names
    return candidates[0] if len(candidates) == 1 else None


def find_precisions(text: str) -> list[str]:
    """Return the precisions that a text names, in the words of ``columns.toml``, in that order."""
    return [name for name, phrases in WORDS["precision"].items() if has_phrase(text, phrases)]
