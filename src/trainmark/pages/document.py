"""A page before it has a format: sections of blocks.

Owns the blocks that both templates know. Strings in blocks are plain text; escaping is the
templates' work, so that no block can be shown unescaped by oversight.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

if TYPE_CHECKING:
    from collections.abc import Callable

Tone = Literal["plain", "muted", "good", "bad", "warn"]


@dataclass(frozen=True, slots=True)
class Table:
    """Headers and rows of strings, neither escaped nor aligned."""

    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Paragraph:
    """One or more sentences."""

    kind: ClassVar[str] = "paragraph"
    text: str
    tone: Tone = "plain"


@dataclass(frozen=True, slots=True)
class Facts:
    """Names with their values, as a list."""

    kind: ClassVar[str] = "facts"
    items: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Grid:
    """A table; ``strong_row`` names the first cell of a row to stand out."""

    kind: ClassVar[str] = "grid"
    table: Table
    strong_row: str | None = None


@dataclass(frozen=True, slots=True)
class Code:
    """Text whose lines and columns matter; ``copied``: a command of one line, to be copied."""

    kind: ClassVar[str] = "code"
    text: str
    copied: bool = False


@dataclass(frozen=True, slots=True)
class Bars:
    """Bars of characters, for a terminal."""

    kind: ClassVar[str] = "bars"
    text: str


@dataclass(frozen=True, slots=True)
class Chart:
    """What Vega-Lite draws, and the table behind it; ``report.drawing`` draws it.

    ``name``: letters, digits and ``-``; unique in a page, names files and anchors.
    ``title`` and ``description`` are plain text; the description says what is to be seen.
    ``draws`` returns Vega-Lite 6 with colours as ``var(--accent)``, its data ``{"name": X}``. Many
    pages never ask for it.
    ``data``: the datasets by name, already thinned out; null where a value is missing.
    ``table``: shortened where it would be long, saying so.
    ``text``: for formats without pictures, in place of the table; empty where the page says the
    same elsewhere.
    """

    kind: ClassVar[str] = "chart"
    name: str
    title: str
    description: str
    draws: Callable[[], dict[str, Any]]
    data: dict[str, list[dict[str, Any]]]
    table: Table
    text: str | None = None

    @property
    def spec(self) -> dict[str, Any]:
        """Return what Vega-Lite draws."""
        return self.draws()


@dataclass(frozen=True, slots=True)
class Tiles:
    """A few figures at a glance: name, value, unit. Markdown leaves them to the tables.

    ``not_a_result`` is a warning if the run did not pass; the figures are then struck out.
    """

    kind: ClassVar[str] = "tiles"
    items: tuple[tuple[str, str, str], ...]
    not_a_result: str = ""


Block = Paragraph | Facts | Grid | Code | Bars | Chart | Tiles


@dataclass(frozen=True, slots=True)
class Section:
    """A heading and its blocks; level 2 is the page's highest.

    ``drawer``: HTML folds the blocks away under this line.
    """

    heading: str
    level: int
    anchor: str
    blocks: tuple[Block, ...] = ()
    drawer: str = ""

    def of_several(self, ident: str, number: str = "") -> Section:
        """Return the section of one of several records or groups of them.

        Args:
            ident: begins the names of anchor and charts.
            number: ends the heading.
        """
        blocks = tuple(
            replace(block, name=ident + block.name) if isinstance(block, Chart) else block
            for block in self.blocks
        )
        heading, anchor = self.heading + number, ident + self.anchor
        return replace(self, heading=heading, anchor=anchor, blocks=blocks)


@dataclass(frozen=True, slots=True)
class Page:
    """A whole page of one case; ``ident`` begins its anchors, which differ in a document.

    ``reasons``: of the trust, where it is one grade; otherwise ``trust`` says them.
    """

    title: str
    lang: str
    badge: str
    tone: Tone
    verdict: str
    trust: str
    trust_tone: Tone
    lead: tuple[Block, ...]
    sections: tuple[Section, ...]
    ident: str = ""
    reasons: tuple[str, ...] = ()

    @property
    def charts(self) -> list[Chart]:
        """Return the charts of all sections, in their order."""
        blocks = (block for section in self.sections for block in section.blocks)
        return [block for block in blocks if isinstance(block, Chart)]
