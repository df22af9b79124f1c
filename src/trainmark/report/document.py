"""A page before it has a format: sections of blocks.

Owns the blocks that both templates know. Strings in blocks are plain text; escaping is the
templates' work, so that no block can be shown unescaped by oversight.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

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
    """Text whose lines and columns matter."""

    kind: ClassVar[str] = "code"
    text: str


@dataclass(frozen=True, slots=True)
class Picture:
    """A generated SVG, and the text for formats without pictures."""

    kind: ClassVar[str] = "picture"
    svg: str
    text: str | None
    caption: str = ""


@dataclass(frozen=True, slots=True)
class Tiles:
    """A few figures at a glance: name, value, unit. Markdown leaves them to the tables.

    ``not_a_result`` is a warning if the run did not pass; the figures are then struck out.
    """

    kind: ClassVar[str] = "tiles"
    items: tuple[tuple[str, str, str], ...]
    not_a_result: str = ""


Block = Paragraph | Facts | Grid | Code | Picture | Tiles


@dataclass(frozen=True, slots=True)
class Section:
    """A heading and its blocks; level 2 is the page's highest.

    ``pictures_only``: the section has only pictures, so Markdown omits it.
    """

    heading: str
    level: int
    anchor: str
    blocks: tuple[Block, ...] = ()
    pictures_only: bool = False


@dataclass(frozen=True, slots=True)
class Page:
    """A whole page."""

    title: str
    lang: str
    badge: str
    tone: Tone
    verdict: str
    trust: str
    trust_tone: Tone
    lead: tuple[Block, ...]
    sections: tuple[Section, ...]
