"""What blocks of a page say in a language, for tests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trainmark.pages.charts import drawing
from trainmark.pages.document import Chart, Facts, Paragraph, Table
from trainmark.pages.texts import say

if TYPE_CHECKING:
    from collections.abc import Iterable


def rows(table: Table, lang: str = "en") -> list[tuple[str, ...]]:
    """Return the cells of a table."""
    return [tuple(say(cell, lang) for cell in row) for row in table.rows]


def heads(table: Table, lang: str = "en") -> list[str]:
    """Return the headers of a table."""
    return [say(head, lang) for head in table.headers]


def data(chart: Chart | None, lang: str = "en") -> dict[str, Any]:
    """Return the datasets of a chart as they are drawn."""
    assert chart is not None
    found: dict[str, Any] = drawing.document(chart, lang)["datasets"]
    return found


def charts(blocks: Iterable[Any]) -> dict[str, Chart]:
    """Return the charts among blocks by name."""
    return {block.name: block for block in blocks if isinstance(block, Chart)}


def paragraphs(blocks: Iterable[Any], lang: str = "en") -> list[str]:
    """Return the texts of the paragraphs among blocks."""
    return [say(block.text, lang) for block in blocks if isinstance(block, Paragraph)]


def facts(blocks: Iterable[Any], lang: str = "en") -> dict[str, str]:
    """Return the facts that lists among blocks have, by name."""
    pairs = (item for block in blocks if isinstance(block, Facts) for item in block.items)
    return {say(name, lang): say(value, lang) for name, value in pairs}
