"""A page and its blocks on a terminal.

Owns widths and colours. Text from records is
never taken as rich's markup and carries no control characters.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from typing import TYPE_CHECKING, Literal

from rich import box
from rich.cells import cell_len
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
from trainmark.pages.texts import Tone, join, say

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_STYLES: dict[Tone, str] = {
    "plain": "", "muted": "dim", "good": "bold green", "warn": "yellow", "bad": "bold red",
    "heading": "bold",
}  # fmt: skip

# Sections that pages alone have.
_PAGES_ALONE = ("facts", "environment", "references", "provenance")


def columns() -> int:
    """Return the columns that this process prints on; 80 when no terminal."""
    return max(shutil.get_terminal_size().columns, 60) if sys.stdout.isatty() else 80


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
                    words = cells.clean(say(block.text, lang))
                    console.print(Text(words, style=_STYLES[block.tone]))
                case Table():
                    console.print("", rich_table(block, console.width, lang), "", sep="\n")
                case Code():
                    line = Text(cells.clean(say(block.text, lang)))
                    console.print(line, no_wrap=True, crop=False, overflow="ignore")
    lines = "\n".join(line.rstrip() for line in printed.get().strip("\n").split("\n"))
    return re.sub(r"\n{3,}", "\n\n", lines)


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


def show_page(page: Document, lang: str = "en", *, width: int = 0) -> str:
    """Return a page as text: what is first on it, then the sections that a terminal shows."""
    marks = join((page.badge, page.verification))
    blocks: list[Block] = [
        Paragraph(page.title, page.tone), Paragraph(marks, page.tone),
        *([Paragraph(page.sentence)] if page.sentence else ()),
        *(Paragraph(doubt, "warn") for doubt in page.doubts), *page.lead,
    ]  # fmt: skip
    for section in page.sections:
        if section.anchor not in _PAGES_ALONE and section.has_text:
            blocks += [Paragraph(""), Paragraph(section.heading, "heading"), *section.blocks]
    return show(blocks, lang, width=width)


def rich_table(block: Table, width: int, lang: str) -> RichTable:
    """Return a table whose cells fold rather than lose characters, at blanks where they can.

    One of a row or two, whose words do not fit, stands on its side.
    """
    names = [cells.clean(say(head, lang)) for head in block.headers]
    shown = [
        [cells.clean(say(cell, lang)) for cell in column]
        for column in zip(*block.rows, strict=True)
    ] or [[] for _ in names]
    sizes = [
        [max(map(cell_len, [*parts, ""])) for parts in (text.split("\n"), text.split())]
        for text in ("\n".join(pair) for pair in zip(names, map("\n".join, shown), strict=True))
    ]
    if sum(word for _, word in sizes) + len(sizes) - 1 > width and len(block.rows) < 3 < len(names):
        turned = tuple(zip(block.headers, *block.rows, strict=True))
        return rich_table(Table(turned[0], turned[1:]), width, lang)
    roomy = sum(line for line, _ in sizes) + 3 * (len(sizes) - 1) <= width
    # The widest give way down to their longest word; where that is not enough, the longest words
    # are split.
    tries = ([max(min(word, longest), min(line, most)) for line, word in sizes]
             for longest, most in [*((width, x) for x in range(width, 0, -1)),
                                   *((x, x) for x in range(width, 0, -1))])  # fmt: skip
    fits = (x for x in tries if sum(x) + len(x) - 1 <= width)
    widths: Sequence[int | None] = next(fits, [None] * len(sizes))
    drawn = RichTable(
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=(0, 1) if roomy else (0, 0),
        show_header=any(names),
    )
    for head, column, of in zip(names, shown, widths, strict=True):
        numbers = all(cells.NUMBER.fullmatch(cell) for cell in column if cell)
        side: Literal["right", "left"] = "right" if numbers and any(column) else "left"
        drawn.add_column(Text(head), overflow="fold", justify=side, width=of)
    for row in zip(*shown, strict=True):
        drawn.add_row(*map(Text, row))
    return drawn
