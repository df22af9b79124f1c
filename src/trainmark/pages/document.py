"""A page before it has a form or a language: sections of blocks, whose texts are phrases.

Renderers put phrases into a language and escape them, so that no block escapes anything itself.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from trainmark.pages.texts import Phrase, t

if TYPE_CHECKING:
    from collections.abc import Iterable

Tone = Literal["plain", "muted", "good", "bad", "warn"]
_MOST, _FIRST, _LAST = 40, 24, 4  # of what a page lists for each rank, device or file


@dataclass(frozen=True, slots=True)
class Paragraph:
    """One or more sentences."""

    kind: ClassVar[str] = "paragraph"
    text: Phrase
    tone: Tone = "plain"


@dataclass(frozen=True, slots=True)
class Facts:
    """Names with their values, as a list."""

    kind: ClassVar[str] = "facts"
    items: tuple[tuple[Phrase, Phrase], ...]


@dataclass(frozen=True, slots=True)
class Table:
    """Headers and rows of cells; ``bars``: start and end of a bar in each row, of 1; terminals."""

    kind: ClassVar[str] = "table"
    headers: tuple[Phrase, ...]
    rows: tuple[tuple[Phrase, ...], ...]
    bars: tuple[tuple[float, float], ...] = ()


def table(
    heads: Iterable[Phrase], rows: Iterable[Iterable[Phrase]], *, short: bool = False
) -> Table:
    """Return a table; a ``short`` one has of very many rows the first and the last."""
    found = tuple(tuple(row) for row in rows)
    if short and len(found) > _MOST:
        gap = (
            t("head.left_out", n=f"{len(found) - _FIRST - _LAST:,}"),
            *[""] * (len(found[0]) - 1),
        )
        found = (*found[:_FIRST], gap, *found[-_LAST:])
    return Table(tuple(heads), found)


@dataclass(frozen=True, slots=True)
class Code:
    """Text whose lines and columns matter; ``copied``: a command of one line, to be copied."""

    kind: ClassVar[str] = "code"
    text: Phrase
    copied: bool = False


@dataclass(frozen=True, slots=True)
class Chart:
    """What Vega-Lite draws, and the table behind it; ``charts.drawing`` draws it.

    ``name``: letters, digits and ``-``; unique in a page, names files and anchors.
    ``spec``: Vega-Lite 6 with phrases for titles and colours as ``var(--accent)``; its data are
    ``{"name": X}``. ``data``: the datasets by name, thinned; null where a value is missing.
    ``in_text``: formats without pictures show its table; false where the page has it elsewhere.
    """

    kind: ClassVar[str] = "chart"
    name: str
    title: Phrase
    description: Phrase
    spec: dict[str, Any]
    data: dict[str, list[dict[str, Any]]]
    table: Table
    in_text: bool = True


@dataclass(frozen=True, slots=True)
class Tiles:
    """A few figures at a glance: name, value, unit; ``void``: why they are struck out."""

    kind: ClassVar[str] = "tiles"
    items: tuple[tuple[Phrase, Phrase, str], ...]
    void: Phrase = None


Block = Paragraph | Facts | Table | Code | Chart | Tiles


@dataclass(frozen=True, slots=True)
class Section:
    """A heading and its blocks; level 2 is the page's highest; ``drawer``: the line of a fold."""

    heading: Phrase
    anchor: str
    blocks: tuple[Block, ...] = ()
    level: int = 2
    drawer: Phrase = None

    def of_several(self, ident: str, number: str) -> Section:
        """Return the section of one of several records: names begin with ``ident``."""
        blocks = tuple(
            replace(block, name=ident + block.name) if isinstance(block, Chart) else block
            for block in self.blocks
        )
        heading, anchor = (self.heading, number), ident + self.anchor
        return replace(self, heading=heading, anchor=anchor, blocks=blocks)


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A whole page; ``ident`` begins its anchors where several pages are in one file."""

    title: Phrase
    badge: Phrase
    tone: Tone
    verdict: Phrase
    trust: Phrase
    trust_tone: Tone
    reasons: tuple[Phrase, ...] = ()
    lead: tuple[Block, ...] = ()
    sections: tuple[Section, ...]
    ident: str = ""

    @property
    def charts(self) -> list[Chart]:
        """Return the charts of all sections, in their order."""
        blocks = (block for section in self.sections for block in section.blocks)
        return [block for block in blocks if isinstance(block, Chart)]
