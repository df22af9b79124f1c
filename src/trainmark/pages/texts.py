"""Words of the pages and tables in English and in Chinese, looked up by key; see ``texts.toml``."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from trainmark.errors import nearest
from trainmark.record.figures import FIGURES
from trainmark.spec import Text

LANGUAGES = ("en", "zh")


def _read() -> tuple[dict[str, Text], list[tuple[Text, Text]]]:
    """Return the texts by ``kind.name``, and the glossary's words with what they mean."""
    tables = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    words = tables.pop("glossary")
    texts = {
        f"{kind}.{name}": Text(**words)
        for kind, table in tables.items()
        for name, words in table.items()
    }
    return texts, [_explained(item, texts["figure.in_unit"]) for item in words]


def _explained(item: dict[str, Any], in_unit: Text) -> tuple[Text, Text]:
    """Return a word of the glossary and what it means."""
    if "figure" not in item:
        return Text(**item["word"]), Text(**item["means"])
    spec = FIGURES[item["figure"]]
    en, zh = (
        in_unit.in_language(lang).format(meaning=spec.definition.in_language(lang), unit=spec.unit)
        for lang in LANGUAGES
    )
    return Text(spec.name, spec.name), Text(en, zh)


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
