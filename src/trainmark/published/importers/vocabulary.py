"""The words of other people's tables, ``columns.toml``, and how printed texts are compared."""

from __future__ import annotations

import html
import re
from functools import cache
from pathlib import Path
from typing import Any

from trainmark.published.audit.qualities import split_words
from trainmark.toml_file import read_toml

WORDS: dict[str, Any] = read_toml(Path(__file__).with_name("columns.toml"))
_HALF_WIDTH = {code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)} | {0x3000: " "}
_EMPHASIS = re.compile(r"(\*{1,3}|_{1,2}|`)([^*_`].*)\1")
_ESCAPE = re.compile(r"\\([!-/:-@\[-`{-~])")  # Markdown's, of any ASCII punctuation
_TAG = re.compile(r"</?[A-Za-z][^<>]*>")
_LINK = re.compile(r"\[([^\[\]]+)\]\([^()\s]*\)")
_OUT_OF_MEMORY = {*WORDS["out_of_memory"]}
_NOTHING = {*WORDS["nothing"], *_OUT_OF_MEMORY}


def plain(text: str) -> str:
    """Return ``text`` without marks of Markdown and HTML, full-width forms as half-width ones."""
    # Not NFKC, which makes digits of superscripts: `361²` is not 3612.
    printed = _TAG.sub(" ", html.unescape(text)).translate(_HALF_WIDTH).strip()
    if _EMPHASIS.fullmatch(printed):
        printed = _EMPHASIS.sub(r"\2", printed)
    return _ESCAPE.sub(r"\1", _LINK.sub(r"\1", printed)).strip()


def folded(text: str) -> str:
    """Return ``text`` as marks are compared: no case, spaces or emphasis."""
    word = re.sub(r"[\s`]+", "", plain(text)).casefold()
    return word.strip("*") or word[:1]


def header_key(text: str) -> str:
    """Return a header as headers are compared: ``folded``, without ``_``, ``-``, ``#``, ``.``."""
    return re.sub(r"[_\-#.:]+", "", folded(text))


def is_nothing(text: str) -> bool:
    """Tell whether a cell says that there is no figure."""
    return folded(text) in _NOTHING


def is_out_of_memory(text: str) -> bool:
    """Tell whether a cell says that the run did not fit."""
    return folded(text) in _OUT_OF_MEMORY


def has_phrase(text: str, phrases: list[str]) -> bool:
    """Tell whether a text has one of some phrases, at word boundaries; Chinese ones anywhere."""
    spaced = f" {' '.join(split_words(text))} "
    for phrase in phrases:
        if phrase.isascii():
            if _spaced(phrase) in spaced:
                return True
        elif phrase in text:
            return True
    return False


@cache
def _spaced(phrase: str) -> str:
    return f" {' '.join(split_words(phrase))} "


def precision_of(text: str) -> str | None:
    """Return the precision that a text names; of mixed precision with another one, the other."""
    named = [name for name in precisions(text) if name != "amp"] or precisions(text)
    return named[0] if len(named) == 1 else None


def precisions(text: str) -> list[str]:
    """Return the precisions that a text names, in the words of ``columns.toml``, in that order."""
    return [name for name, phrases in WORDS["precision"].items() if has_phrase(text, phrases)]
