"""A page independent of format and language: sections of blocks, whose texts are phrases.

Renderers translate the phrases and escape them for their format.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, ClassVar

from trainmark.pages.texts import Phrase, Tone, phrase

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

# A short table of more rows than the limit has so many of its first and of its last rows.
_MAX_SHORT_ROWS = 40
_NUM_FIRST_ROWS = 24
_NUM_LAST_ROWS = 4


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


def list_known_facts(values: Mapping[str, Phrase]) -> Facts:
    """Return facts, each a name with a value, without those whose value is None.

    Args:
        values: of the facts, by the key of the fact's name in texts.toml.
    """
    return Facts(tuple((phrase(key), value) for key, value in values.items() if value is not None))


@dataclass(frozen=True, slots=True)
class KeyFacts:
    """The few facts that a reader needs beside the figures, side by side."""

    kind: ClassVar[str] = "key_facts"
    items: tuple[tuple[Phrase, Phrase], ...]


@dataclass(frozen=True, slots=True)
class Callout:
    """A sentence with its heading; in a frame, or ``is_quiet``."""

    kind: ClassVar[str] = "callout"
    heading: Phrase
    text: Phrase
    is_quiet: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """Headers and rows of cells."""

    kind: ClassVar[str] = "table"
    headers: tuple[Phrase, ...]
    rows: tuple[tuple[Phrase, ...], ...]


def build_table(
    headings: Iterable[Phrase], rows: Iterable[Iterable[Phrase]], *, short: bool = False
) -> Table:
    """Return a table.

    Args:
        headings: of the columns.
        rows: the cells of each row, in the order of the columns.
        short: show only the first and the last of very many rows, with a row between them that
            says how many were left out.
    """
    table_rows = [tuple(row) for row in rows]
    if short and len(table_rows) > _MAX_SHORT_ROWS:
        num_left_out = len(table_rows) - _NUM_FIRST_ROWS - _NUM_LAST_ROWS
        empty_cells = [""] * (len(table_rows[0]) - 1)
        note_row = (phrase("head.left_out", n=f"{num_left_out:,}"), *empty_cells)
        table_rows = [*table_rows[:_NUM_FIRST_ROWS], note_row, *table_rows[-_NUM_LAST_ROWS:]]
    return Table(tuple(headings), tuple(table_rows))


@dataclass(frozen=True, slots=True)
class Code:
    """Text whose lines and columns matter; ``copied``: a command of one line, to be copied."""

    kind: ClassVar[str] = "code"
    text: Phrase
    copied: bool = False


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart that ``rendering`` draws with Vega-Lite.

    ``name``: letters, digits, ``-`` and ``_``; unique in a page, names files and anchors.
    ``description``: text in place of the picture.
    ``spec``: Vega-Lite 6 with phrases for titles and colours as ``var(--accent)``; its data are
    ``{"name": X}``. ``data``: the datasets by name, thinned; null if a value is missing.
    ``table``: the values as a table; None: the page has them in a table of its own.
    ``note``: how the data were thinned, beside the table.
    """

    kind: ClassVar[str] = "chart"
    name: str
    title: Phrase
    description: Phrase
    spec: dict[str, Any]
    data: dict[str, list[dict[str, Any]]]
    table: Table | None = None
    note: Phrase = ""


@dataclass(frozen=True, slots=True)
class Tile:
    """A figure at a glance: its name in plain words, value, unit, code name, what stands below.

    ``arithmetic``: how it was computed, shown on hover.
    """

    name: Phrase
    value: Phrase
    unit: Phrase
    code: str
    note: Phrase = ""
    arithmetic: Phrase = ""


@dataclass(frozen=True, slots=True)
class Tiles:
    """A few figures side by side."""

    kind: ClassVar[str] = "tiles"
    items: tuple[Tile, ...]


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar of ``Bars``.

    ``start``, ``end``: from 0 to 1 of the width. ``colour``: a class of the page's style, such as
    ``own`` or ``other``. ``shown``: the figure beside the bar. ``hover``: text on hover.
    """

    label: Phrase
    start: float
    end: float
    colour: str
    shown: Phrase
    hover: Phrase = ""


@dataclass(frozen=True, slots=True)
class Bars:
    """Bars below each other, or ``stacked`` as parts of one, with a sentence below.

    ``sentence``: empty for none. ``arithmetic``: how its figures were computed.
    """

    kind: ClassVar[str] = "bars"
    title: Phrase
    items: tuple[Bar, ...]
    sentence: Phrase = ""
    arithmetic: Phrase = ""
    stacked: bool = False

    @property
    def table(self) -> Table:
        """Return a table of the bars, for formats without pictures: the label and figure of each.

        The figure is the text that stands beside the bar.
        """
        return Table((self.title, ""), tuple((item.label, item.shown) for item in self.items))


@dataclass(frozen=True, slots=True)
class Strip:
    """A cell for each rank, in groups by node; or for each device or node, in one group.

    ``nodes``: of each group its cells, each as its tone and its text on hover. ``sentence``:
    about the cells that stand out.
    """

    kind: ClassVar[str] = "strip"
    title: Phrase
    nodes: tuple[tuple[tuple[Tone, Phrase], ...], ...]
    sentence: Phrase


@dataclass(frozen=True, slots=True)
class HeatMap:
    """A square of cells, with a row and a column for each name.

    ``rows``: of each cell a share, by which it is coloured; its tone, ``muted`` without a value;
    and what hovering tells.
    """

    kind: ClassVar[str] = "heat_map"
    title: Phrase
    names: tuple[str, ...]
    rows: tuple[tuple[tuple[float | None, Tone, Phrase], ...], ...]


@dataclass(frozen=True, slots=True)
class Columns:
    """Blocks side by side where the screen is wide."""

    kind: ClassVar[str] = "columns"
    blocks: tuple[Block, ...]

    @property
    def has_text(self) -> bool:
        """Whether a block of the columns is not a chart, so that a terminal can show it."""
        return any(not isinstance(block, Chart) for block in self.blocks)


def build_columns(*blocks: Block | None) -> Columns | None:
    """Return the blocks that are not None side by side; None if all are None."""
    present = tuple(block for block in blocks if block is not None)
    return Columns(present) if present else None


Block = (
    Paragraph
    | Facts
    | KeyFacts
    | Callout
    | Table
    | Code
    | Chart
    | Tiles
    | Bars
    | Strip
    | HeatMap
    | Columns
)


def find_charts(block: Block) -> list[Chart]:
    """Return the charts of a block, in their order."""
    if isinstance(block, Chart):
        return [block]
    if isinstance(block, Columns):
        return [chart for part in block.blocks for chart in find_charts(part)]
    return []


@dataclass(frozen=True, slots=True)
class Doubt:
    """A reason why figures are noisy, or must not be quoted (``is_grave``)."""

    short: Phrase
    full: Phrase
    is_grave: bool


@dataclass(frozen=True, slots=True)
class Section:
    """A heading and its blocks; ``folded`` away until a reader opens it.

    ``note``: how to read its charts, below them. ``gist``: its content in a few words, beside the
    heading of a folded section. ``is_open``: a page shows it unfolded at first.
    """

    heading: Phrase
    anchor: str
    blocks: tuple[Block, ...] = ()
    folded: bool = False
    note: Phrase = ""
    gist: Phrase = ""
    is_open: bool = False

    @property
    def has_text(self) -> bool:
        """Whether a block of the section is not a chart, so that a terminal can show it."""
        return any(not isinstance(block, Chart) for block in self.blocks)


def build_folded_section(
    name: str,
    *blocks: Block | None,
    note: Phrase = "",
    gist: Phrase = "",
    is_open: bool = False,
) -> Section:
    """Return a folded section of the blocks that are not None.

    Args:
        name: the section's anchor; its heading is the text ``section.<name>``.
        note: how to read its charts, as a sentence below them; empty: there is none.
        gist: its content in a few words, beside its heading; empty: there are none.
        is_open: whether a page shows it unfolded at first.
    """
    present = tuple(block for block in blocks if block is not None)
    return Section(
        phrase(f"section.{name}"),
        anchor=name,
        blocks=present,
        folded=True,
        note=note,
        gist=gist,
        is_open=is_open,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A whole page; ``anchor_prefix`` begins its anchors where several pages are in one file.

    ``verification``: whether the record agrees with its events; ``verified_by`` says how that
    was checked. ``key_figures``, ``reasons``: the main figures in a line, and all reasons of the
    grade, as a terminal shows them.
    """

    title: Phrase
    badge: Phrase
    tone: Tone
    verification: Phrase
    sentence: Phrase
    verified_by: Phrase = ""
    doubts: tuple[Doubt, ...] = ()
    key_figures: Phrase = ""
    reasons: tuple[Phrase, ...] = ()
    lead: tuple[Block, ...] = ()
    sections: tuple[Section, ...]
    anchor_prefix: str = ""

    @property
    def charts(self) -> list[Chart]:
        """The charts of the page, in their order: those of its lead, then of its sections."""
        blocks = [*self.lead, *(block for section in self.sections for block in section.blocks)]
        return [chart for block in blocks for chart in find_charts(block)]

    @property
    def groups(self) -> list[tuple[bool, list[Section]]]:
        """Groups of neighbouring sections, each with whether a page lays them out as a grid.

        A section is closed at first if it is ``folded`` and not ``is_open``: a page then shows only
        its heading, until a reader opens it. Neighbours that are closed form a grid of headings;
        neighbours that are not are shown whole, below each other.
        """
        groups = groupby(self.sections, lambda section: section.folded and not section.is_open)
        return [(is_closed, list(sections)) for is_closed, sections in groups]
