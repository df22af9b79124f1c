"""Words of pages in English and Chinese, and phrases, which get a language when they are shown.

A phrase is a string, a number, a text by its key (``t``), a message, or several of them together.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainmark.pages.cells import NOTHING
from trainmark.record.messages import MESSAGES, render
from trainmark.spec import Message, Text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

LANGUAGES = ("en", "zh")
Phrase = object


@dataclass(frozen=True, slots=True)
class T:
    """The text called ``key``, its places filled with ``values``."""

    key: str
    values: dict[str, Phrase]


@dataclass(frozen=True, slots=True)
class Joined:
    """Phrases with a separator of ``[sep]`` between them."""

    parts: tuple[Phrase, ...]
    by: str


@dataclass(frozen=True, slots=True)
class Link:
    """A phrase that leads to an address, in HTML."""

    text: Phrase
    href: str


def _read() -> dict[str, Text]:
    """Return the texts by ``kind.name``."""
    tables = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    texts = {f"{kind}.{name}": Text(**x) for kind, of in tables.items() for name, x in of.items()}
    return texts | {code: text for code, text in MESSAGES.items() if code.startswith("status.")}


TEXTS = _read()


def t(key: str, **values: Phrase) -> T:
    """Return the text called ``key``, its places filled with ``values``."""
    assert key in TEXTS, f"no text {key!r}"
    return T(key, values)


def term(kind: str, name: str) -> Phrase:
    """Return the text ``kind.name``; the name where there is none."""
    return t(f"{kind}.{name}") if f"{kind}.{name}" in TEXTS else name


def join(parts: Iterable[Phrase], by: str = "comma") -> Joined:
    """Return phrases with a separator between them: ``comma``, ``colon``, ``semicolon``."""
    return Joined(tuple(parts), by)


def say(phrase: Phrase, lang: str) -> str:  # noqa: PLR0911 - a kind each
    """Return a phrase in a language."""
    match phrase:
        case str():
            return phrase
        case None:
            return NOTHING
        case bool():
            return say(t(f"fact.{'yes' if phrase else 'no'}"), lang)
        case T():
            found = TEXTS[phrase.key].in_language(lang)
            values = {
                name: value if isinstance(value, int | float) else say(value, lang)
                for name, value in phrase.values.items()
            }
            return found.format(**values) if values else found
        case Joined():
            separator = TEXTS[f"sep.{phrase.by}"].in_language(lang)
            return separator.join(say(part, lang) for part in phrase.parts)
        case tuple():
            return "".join(say(part, lang) for part in phrase)
        case Text():
            return phrase.in_language(lang)
        case Message():
            return render(phrase, lang)
        case Link():
            return say(phrase.text, lang)
    return str(phrase)


def known(value: Phrase) -> Phrase:
    """Return a value, or that it is not known."""
    return t("fact.unknown") if value in (None, "") else value


def worded(value: Phrase) -> Phrase:
    """Return a value, or that there is none."""
    return t("fact.none") if value in (None, "", {}) else value


def pairs(values: Mapping[str, Any] | None) -> Phrase:
    """Return names and values in a row, none where there are none."""
    return worded(values and join((name, " ", worded(value)) for name, value in values.items()))
