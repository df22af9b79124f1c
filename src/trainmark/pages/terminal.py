"""A page and its blocks on a terminal: widths and colours.

Text from records is never read as rich's markup, and its control characters are escaped.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from typing import TYPE_CHECKING, Literal

from rich.console import Console
from rich.text import Text

from trainmark.errors import escape_controls, to_one_line
from trainmark.pages.document import (
    Bars,
    Block,
    Callout,
    Chart,
    Code,
    Columns,
    Document,
    Facts,
    HeatMap,
    KeyFacts,
    Paragraph,
    Strip,
    Table,
    Tiles,
)
from trainmark.pages.terminal_tables import build_tables, fits
from trainmark.pages.texts import Tone, join, phrase, translate
from trainmark.pages.wrapping import wrap

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_STYLES: dict[Tone, str] = {
    "plain": "",
    "muted": "dim",
    "good": "bold green",
    "warn": "yellow",
    "doubt": "bold yellow",
    "bad": "bold red",
    "heading": "bold",
}

Extent = Literal["head", "screen", "all"]
# Anchors of sections that a terminal never shows, because their lists are long.
_SECTIONS_OF_PAGES = ("facts", "environment", "references", "provenance")
# Folded sections that the first screen shows, too: a reader of a failed run looks for its cause.
_SECTIONS_ON_FIRST_SCREEN = ("cause",)
_MIN_WIDTH = 60  # of the layout; a narrower terminal folds its lines


def count_columns() -> int:
    """Return the number of columns of the terminal on which this process prints; 80 without one."""
    if not sys.stdout.isatty():
        return 80
    # Pages are laid out for at least the minimum width; a narrower terminal folds their lines.
    return max(shutil.get_terminal_size().columns, _MIN_WIDTH)


def show(
    blocks: Sequence[Block], lang: str = "en", *, width: int = 0, colour: bool | None = None
) -> str:
    """Return a document's blocks as text: paragraphs as lines, tables between empty lines.

    No line is wider than the screen, except code, because a folded path cannot be copied. Charts
    are left out.

    Args:
        width: of the screen, in columns; 0: of the terminal on which this process prints.
        colour: whether to use colours; None: on a terminal, unless NO_COLOR is set.
    """
    if colour is None:
        colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")  # https://no-color.org
    console = Console(
        width=width or count_columns(),
        markup=False,
        highlight=False,
        emoji=False,
        color_system="standard" if colour else None,
        force_terminal=colour,  # rich writes colours only to what it takes for a terminal
        legacy_windows=False,
    )
    with console.capture() as printed:
        for block in blocks:
            for plain_block in _iterate_plain_blocks(block):
                _print_plain_block(console, plain_block, lang)
    shown = "\n".join(line.rstrip() for line in printed.get().strip("\n").split("\n"))
    # Between two tables there are the empty lines of both: one is enough.
    return re.sub(r"\n{3,}", "\n\n", shown)


def _print_plain_block(console: Console, block: Paragraph | Table | Code, lang: str) -> None:
    """Print a block that a terminal shows as it is."""
    match block:
        case Paragraph():
            lines = wrap(to_one_line(translate(block.text, lang)), console.width)
            console.print(Text("\n".join(lines), style=_STYLES[block.tone]))
        case Table():
            console.print()
            for table in build_tables(_translate_cells(block, lang), console.width):
                console.print(table)
                console.print()
        case Code():
            for code_line in translate(block.text, lang).splitlines():
                text = Text(escape_controls(code_line.expandtabs(4)).rstrip())
                # On one line, however long: a path or command that is folded cannot be copied.
                console.print(text, no_wrap=True, crop=False, overflow="ignore")


def _iterate_plain_blocks(block: Block) -> Iterator[Paragraph | Table | Code]:
    """Yield the blocks that a terminal shows in place of a block.

    Tiles and bars become tables, and a strip of cells becomes its sentence. A chart yields
    nothing, and neither does a heat map, because a table with the same values follows it.
    """
    match block:
        case Facts():
            yield from (Paragraph(join(pair, "colon")) for pair in block.items)
        case Tiles():
            rows = [
                (tile.name, join((tile.value, tile.unit), "space"), tile.code, tile.note)
                for tile in block.items
            ]
            # Without texts in its headers a table is shown without them.
            yield Table(headers=("", "", "", ""), rows=tuple(rows))
        case Bars():
            yield block.table
            if block.sentence:
                yield Paragraph(block.sentence)
        case Strip():
            yield Paragraph(join((block.title, block.sentence), "colon"))
        case Chart() | HeatMap():
            pass
        case KeyFacts():
            facts = (join((name, value), "space") for name, value in block.items)
            yield Paragraph(join(facts, "dot"), "muted")
        case Callout():
            yield Paragraph(join((block.heading, block.text), "colon"))
        case Columns():
            for column in block.blocks:
                yield from _iterate_plain_blocks(column)
        case Paragraph() | Table() | Code():
            yield block


def show_page(
    page: Document,
    lang: str = "en",
    *,
    width: int = 0,
    colour: bool | None = None,
    extent: Extent = "screen",
    name: str = "",
) -> str:
    """Return a page as text.

    Args:
        page: its title, its badge and its first lines; ``lead``, the blocks above the sections; and
            the sections.
        width: of the screen, in columns; 0: of the terminal on which this process prints.
        colour: whether to use colours; None: on a terminal, unless NO_COLOR is set.
        extent: ``head``: only its first lines; ``screen``: also the sections that cannot be
            folded, and the one with the cause of a failure, which a reader needs first, and the
            names of the others; ``all``: all sections that a terminal shows.
        name: name of the page's runs, which is printed before the title to tell several pages
            apart; empty: only the title.
    """
    title = join((name, page.title), "colon") if name else page.title
    status = join((page.badge, page.verification))
    blocks: list[Block] = [Paragraph(title, "heading"), Paragraph(status, page.tone)]
    blocks += [Paragraph(line) for line in (page.sentence, page.key_figures) if line]
    blocks += [Paragraph(line, "warn") for line in page.reasons]
    if extent != "head":
        blocks += page.lead
    left_out = []
    sections = () if extent == "head" else page.sections
    for section in sections:
        # A terminal leaves out sections with long lists, and sections that have only charts.
        if section.anchor in _SECTIONS_OF_PAGES or not section.has_text:
            continue
        if extent == "all" or section.anchor in _SECTIONS_ON_FIRST_SCREEN or not section.folded:
            blocks += [Paragraph(""), Paragraph(section.heading, "heading"), *section.blocks]
        else:
            left_out.append(section.heading)
    if left_out and extent == "screen":
        more = phrase("terminal.more", sections=join(left_out))
        blocks += [Paragraph(""), Paragraph(more, "muted")]
    return show(blocks, lang, width=width, colour=colour)


def has_room(block: Table, width: int, lang: str = "en") -> bool:
    """Tell whether a table fits into ``width`` columns as it is, without a cut word."""
    return fits(_translate_cells(block, lang), width)


def _translate_cells(block: Table, lang: str) -> list[list[str]]:
    """Return the rows of a table as clean text, the headers first."""
    return [
        [to_one_line(translate(cell, lang)) for cell in row] for row in (block.headers, *block.rows)
    ]
