"""A page and its blocks on a terminal.

Owns widths and colours. Text from records is
never taken as rich's markup and carries no control characters.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from rich import box
from rich.cells import cell_len, chop_cells
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from trainmark.pages import cells
from trainmark.pages.document import (
    Bars,
    Block,
    Code,
    Document,
    Facts,
    Paragraph,
    Strip,
    Table,
    Tiles,
)
from trainmark.pages.texts import Tone, join, say, t

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_STYLES: dict[Tone, str] = {
    "plain": "", "muted": "dim", "good": "bold green", "warn": "yellow", "bad": "bold red",
    "heading": "bold",
}  # fmt: skip

Extent = Literal["head", "screen", "all"]
_PAGES_ONLY = ("facts", "environment", "references", "provenance")  # sections with long lists
_ON_SCREEN = ("cause",)  # sections of one run that the first screen has
_MIN_WIDTH, _MAX_TURNED_ROWS = 60, 2
# A word, or one Chinese character with the punctuation that must not be parted from it.
_WIDE = "\u2e80-\uffef"
_TOKEN = re.compile(rf"\s+|[（“《]*[{_WIDE}][，。；：、）！？”》]*|[^\s{_WIDE}]+")


def columns() -> int:
    """Return the columns that this process prints on; 80 when no terminal."""
    return max(shutil.get_terminal_size().columns, _MIN_WIDTH) if sys.stdout.isatty() else 80


def wrap(text: str, width: int) -> list[str]:
    """Return a text in lines; a line ends inside a word only if the word is wider than ``width``.

    A line may also end between Chinese characters.
    """
    lines, line, blank = list[str](), "", ""
    for token in _TOKEN.findall(text):
        if token.isspace():
            blank = " " if line else ""
            continue
        if line and cell_len(line + blank + token) > width:
            lines.append(line)
            line, blank = "", ""
        line += blank + token
        blank = ""
        if cell_len(line) > width:
            *full, line = chop_cells(line, width)
            lines += full
    return [*lines, line]


def show(
    blocks: Sequence[Block], lang: str = "en", *, width: int = 0, colour: bool | None = None
) -> str:
    """Return a document's blocks as text: paragraphs are lines, tables stand apart.

    No line is wider than the screen, but for those of code: a path cannot be folded without harm.
    Charts are left out.

    Args:
        width: of the screen; 0: what this process prints on.
        colour: whether colours show; None: on a terminal, unless NO_COLOR is set.
    """
    if colour is None:
        colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    console = Console(
        width=width or columns(), markup=False, highlight=False, emoji=False,
        color_system="standard" if colour else None, force_terminal=colour, legacy_windows=False,
    )  # fmt: skip
    with console.capture() as printed:
        for block in (part for one in blocks for part in _plain(one)):
            match block:
                case Paragraph():
                    lines = wrap(cells.clean(say(block.text, lang)), console.width)
                    console.print(Text("\n".join(lines), style=_STYLES[block.tone]))
                case Table():
                    for part in rich_tables(block, console.width, lang):
                        console.print("", part, sep="\n")
                    console.print("")
                case Code():
                    line = Text(cells.clean(say(block.text, lang)))
                    console.print(line, no_wrap=True, crop=False, overflow="ignore")
    text = "\n".join(line.rstrip() for line in printed.get().strip("\n").split("\n"))
    return re.sub(r"\n{3,}", "\n\n", text)


def _plain(block: Block) -> Iterator[Paragraph | Table | Code]:
    """Yield what a terminal shows in place of a block."""
    match block:
        case Facts():
            yield from (Paragraph(join(pair, "colon")) for pair in block.items)
        case Tiles():
            yield Table(("", "", "", ""), tuple(
                (one.name, join((one.value, one.unit), "space"), one.code, one.note)
                for one in block.items
            ))  # fmt: skip
        case Bars():
            yield block.table
            yield from [Paragraph(block.said)] if block.said else []
        case Strip():
            yield Paragraph(join((block.title, block.said), "colon"))
        case Paragraph() | Table() | Code():
            yield block


def show_page(
    page: Document, lang: str = "en", *, width: int = 0, extent: Extent = "screen"
) -> str:
    """Return a page as text.

    Args:
        extent: ``head``: its first lines; ``screen``: what fits on a screen, and the names of
            the sections left out; ``all``: all sections that a terminal shows.
    """
    marks = join((page.badge, page.verification))
    blocks: list[Block] = [Paragraph(page.title, "heading"), Paragraph(marks, page.tone)]
    blocks += [Paragraph(line) for line in (page.sentence, page.key_figures) if line]
    blocks += [Paragraph(line, "warn") for line in page.reasons]
    if extent != "head":
        blocks += page.lead
    left_out = []
    for section in page.sections:
        if section.anchor in _PAGES_ONLY or not section.has_text:
            continue
        if extent == "all" or section.anchor in _ON_SCREEN or not section.folded:
            blocks += [Paragraph(""), Paragraph(section.heading, "heading"), *section.blocks]
        else:
            left_out.append(section.heading)
    if left_out and extent == "screen":
        more = t("terminal.more", sections=join(left_out))
        blocks += [Paragraph(""), Paragraph(more, "muted")]
    return show(blocks, lang, width=width)


@dataclass(frozen=True, slots=True)
class _Grid:
    """A table's cells as text, by column with its header first, and the widths they need.

    Attributes:
        words: width of the longest word of each column; below, words are cut.
        lines: width of the longest cell of each column.
    """

    columns: tuple[tuple[str, ...], ...]
    words: tuple[int, ...]
    lines: tuple[int, ...]

    @classmethod
    def of(cls, block: Table, lang: str) -> _Grid:
        """Return the grid of a table in a language."""
        rows = [block.headers, *block.rows]
        texts = [[cells.clean(say(cell, lang)) for cell in row] for row in rows]
        columns = tuple(zip(*texts, strict=True))
        words = (
            max((cell_len(word) for cell in column for word in _words(cell)), default=0)
            for column in columns
        )
        return cls(columns, tuple(words), tuple(max(map(cell_len, x)) for x in columns))

    def part(self, places: Sequence[int]) -> _Grid:
        """Return the columns at ``places``."""
        return _Grid(
            tuple(self.columns[place] for place in places),
            tuple(self.words[place] for place in places),
            tuple(self.lines[place] for place in places),
        )

    @property
    def min_width(self) -> int:
        """The width below which words are cut; a blank stands between two columns."""
        return sum(self.words) + len(self.words) - 1

    def split(self, width: int) -> Iterator[_Grid]:
        """Yield parts with the first column and as many others as fit, one at least."""
        places = list(range(1, len(self.columns)))
        while places:
            chosen = [0, places.pop(0)]
            while places and self.part([*chosen, places[0]]).min_width <= width:
                chosen.append(places.pop(0))
            yield self.part(chosen)

    def widths(self, room: int) -> list[int]:
        """Return the columns' widths: the widest give way first, if they can without cuts."""
        for shortest in (self.words, (1,) * len(self.words)):
            for most in range(max([*self.lines, 1]), 0, -1):
                widths = [max(least, min(line, most), 1)
                          for least, line in zip(shortest, self.lines, strict=True)]  # fmt: skip
                if sum(widths) <= room:
                    return widths
        return [1] * len(self.words)


def _words(text: str) -> list[str]:
    return [token for token in _TOKEN.findall(text) if not token.isspace()]


def min_width(block: Table, lang: str = "en") -> int:
    """Return the columns of a terminal that a table needs without a cut word."""
    return _Grid.of(block, lang).min_width


def rich_tables(block: Table, width: int, lang: str) -> list[RichTable]:
    """Return a table whose cells fold at blanks; parts of it if its words do not fit.

    A table of one or two rows then stands on its side. A longer one is split into tables that
    each begin with its first column.
    """
    grid = _Grid.of(block, lang)
    if grid.min_width <= width or len(grid.columns) < 3:
        return [_draw(grid, width)]
    if len(block.rows) <= _MAX_TURNED_ROWS < len(grid.columns) - 1:
        first, *others = zip(block.headers, *block.rows, strict=True)
        return rich_tables(Table(first, tuple(others)), width, lang)
    return [_draw(part, width) for part in grid.split(width)]


def _draw(grid: _Grid, width: int) -> RichTable:
    gaps = len(grid.columns) - 1
    is_roomy = sum(grid.lines) + 3 * gaps <= width
    drawn = RichTable(
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=(0, 1) if is_roomy else (0, 0),
        show_header=any(column[0] for column in grid.columns),
    )
    wrapped = []
    for column, of in zip(grid.columns, grid.widths(width - gaps), strict=True):
        head, *body = ("\n".join(wrap(cell, of)) for cell in column)
        filled = [cell for cell in column[1:] if cell]
        is_numeric = bool(filled) and all(cells.NUMBER.fullmatch(cell) for cell in filled)
        side: Literal["right", "left"] = "right" if is_numeric else "left"
        drawn.add_column(Text(head), justify=side, width=of, no_wrap=True)
        wrapped.append(body)
    for row in zip(*wrapped, strict=True):
        drawn.add_row(*map(Text, row))
    return drawn
