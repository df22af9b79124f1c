"""Words of the pages and tables in English and in Chinese, looked up by key; see ``texts.toml``."""

from __future__ import annotations

import tomllib
from pathlib import Path

from trainmark.errors import nearest
from trainmark.spec import Text

LANGUAGES = ("en", "zh")


def _read() -> tuple[dict[str, Text], list[tuple[Text, Text]]]:
    """Return the texts by ``kind.name``, and the glossary's words with what they mean."""
    tables = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    glossary = [(Text(**item["word"]), Text(**item["means"])) for item in tables.pop("glossary")]
    texts = {
        f"{kind}.{name}": Text(**words)
        for kind, table in tables.items()
        for name, words in table.items()
    }
    return texts, glossary


TEXTS, GLOSSARY = _read()


def text(key: str, lang: str, **values: object) -> str:
    """Return the text called ``key`` in ``lang``, its places filled with ``values``."""
    assert key in TEXTS, f"no text {key!r}: {nearest(key, TEXTS)}"
    found = TEXTS[key].in_language(lang)
    return found.format(**values) if values else found


def has(key: str) -> bool:
    """Tell whether there is a text called ``key``."""
    return key in TEXTS


def term(name: str, lang: str) -> str:
    """Return what a device or an evaluation calls ``name``; as it is where no word is known."""
    return text(f"term.{name}", lang) if has(f"term.{name}") else name
