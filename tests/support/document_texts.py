"""Texts of blocks of a page in a language, and contents of an HTML page."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any

from trainmark.pages import rendering
from trainmark.pages.document import Chart, Facts, Paragraph, Table
from trainmark.pages.page import build_documents
from trainmark.pages.rendering import to_html, to_markdown
from trainmark.pages.texts import translate

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from trainmark.record.record import Record


def render_html(records: Sequence[Record], lang: str = "en") -> str:
    """Return the page of records as one HTML file."""
    return to_html(build_documents(records), lang)


def render_markdown(records: Sequence[Record], lang: str = "en") -> str:
    """Return the page of records as Markdown."""
    return to_markdown(build_documents(records), lang)


def translate_rows(table: Table, lang: str = "en") -> list[tuple[str, ...]]:
    """Return the cells of a table."""
    return [tuple(translate(cell, lang) for cell in row) for row in table.rows]


def translate_headers(table: Table, lang: str = "en") -> list[str]:
    """Return the headers of a table."""
    return [translate(head, lang) for head in table.headers]


def read_datasets(chart: Chart | None, lang: str = "en") -> dict[str, Any]:
    """Return the datasets of a chart as they are drawn, by their names.

    They are what the chart's script on an HTML page in the language ``lang`` gets.
    """
    assert chart is not None
    datasets: dict[str, Any] = rendering.build_script_chart(chart, lang)["datasets"]
    return datasets


def list_charts(blocks: Iterable[Any]) -> dict[str, Chart]:
    """Return the charts among blocks by name."""
    return {block.name: block for block in blocks if isinstance(block, Chart)}


def list_paragraphs(blocks: Iterable[Any], lang: str = "en") -> list[str]:
    """Return the texts of the paragraphs among blocks."""
    return [translate(block.text, lang) for block in blocks if isinstance(block, Paragraph)]


def list_facts(blocks: Iterable[Any], lang: str = "en") -> dict[str, str]:
    """Return the values of the facts in all ``Facts`` blocks, by the fact's name.

    ``blocks`` are the parts of a page. A ``Facts`` block has pairs of a name and a value, which are
    translated into the language ``lang``.
    """
    pairs = (item for block in blocks if isinstance(block, Facts) for item in block.items)
    return {translate(name, lang): translate(value, lang) for name, value in pairs}


class Reader(HTMLParser):
    """Collects elements, attributes and text of a page; fails where elements are not nested."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []  # each tag and its attributes
        self.attributes: list[tuple[str, str | None]] = []  # of all elements, in order
        self.texts: list[str] = []
        self.open: list[str] = []  # tags of the elements around the current place
        self.feed(page)
        assert self.open == []  # every element was closed

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self.attributes += attrs
        if tag not in {"meta", "br", "hr", "img", "link", "input"}:  # these have no end tag
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    @property
    def tags(self) -> list[str]:
        return [tag for tag, _ in self.elements]

    def list_values(self, tag: str, key: str) -> list[Any]:
        """Return the values of the attribute ``key`` of all elements with this tag that have it."""
        return [
            attributes_of_element[key]
            for tag_of_element, attributes_of_element in self.elements
            if tag_of_element == tag and key in attributes_of_element
        ]

    def list_attributes(self, *names: str) -> list[Any]:
        """Return the values of these attributes of all elements."""
        return [value for name, value in self.attributes if name in names]
