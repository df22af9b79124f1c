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

from rich.console import Console
from rich.text import Text

from trainmark.errors import escape_controls, to_one_line
from trainmark.pages.document import (
    Bars,
    Block,
    Callout,
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
    "plain": "", "muted": "dim", "good": "bold green", "warn": "yellow", "doubt": "bold yellow",
    "bad": "bold red", "heading": "bold",
}  # fmt: skip

Extent = Literal["head", "screen", "all"]
_PAGES_ONLY = ("facts", "environment", "references", "provenance")  # sections with long lists
_ON_SCREEN = ("cause",)  # sections of one run that the first screen has
_MIN_WIDTH = 60


def count_columns() -> int:
    """Return the columns that this process prints on; 80 when no terminal."""
    return max(shutil.get_terminal_size().columns, _MIN_WIDTH) if sys.stdout.isatty() else 80


def show(
    blocks: Sequence[Block], lang: str = "en", *, width: int = 0, colour: bool | None = None
) -> str:
    """Return a document's blocks as text: paragraphs are lines, tables stand apart.

    No line is wider than the screen, except code: a path cannot be folded without harm.
    Charts are left out.

    Args:
        width: of the screen; 0: what this process prints on.
        colour: whether colours show; None: on a terminal, unless NO_COLOR is set.
    """
    if colour is None:
        colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    console = Console(
        width=width or count_columns(),
        markup=False,
        highlight=False,
        emoji=False,
        color_system="standard" if colour else None,
        force_terminal=colour,
        legacy_windows=False,
    )
    with console.capture() as printed:
        for block in (part for whole in blocks for part in _list_plain_lines(whole)):
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
                        console.print(text, no_wrap=True, crop=False, overflow="ignore")
    shown = "\n".join(line.rstrip() for line in printed.get().strip("\n").split("\n"))
    return re.sub(r"\n{3,}", "\n\n", shown)


def _list_plain_lines(block: Block) -> Iterator[Paragraph | Table | Code]:
    """Yield what a terminal shows in place of a block."""
    match block:
        case Facts():
            yield from (Paragraph(join(pair, "colon")) for pair in block.items)
        case Tiles():
            yield Table(
                ("", "", "", ""),
                tuple(
                    (item.name, join((item.value, item.unit), "space"), item.code, item.note)
                    for item in block.items
                ),
            )
        case Bars():
            yield block.table
            yield from [Paragraph(block.said)] if block.said else []
        case Strip():
            yield Paragraph(join((block.title, block.said), "colon"))
        case HeatMap():
            pass  # a table stands beside it
        case KeyFacts():
            facts = (join((name, value), "space") for name, value in block.items)
            yield Paragraph(join(facts, "dot"), "muted")
        case Callout():
            yield Paragraph(join((block.heading, block.text), "colon"))
        case Columns():
            for item in block.blocks:
                yield from _list_plain_lines(item)
        case Paragraph() | Table() | Code():
            yield block


def show_page(
    page: Document,
    lang: str = "en",
    *,
    width: int = 0,
    colour: bool | None = None,
    extent: Extent = "screen",
) -> str:
    """Return a page as text.

    Args:
        colour: as ``show`` takes it.
        extent: ``head``: its first lines alone; ``screen``: what fits on a screen, and the names of
            the sections left out; ``all``: all sections that a terminal shows.
    """
    marks = join((page.badge, page.verification))
    blocks: list[Block] = [Paragraph(page.title, "heading"), Paragraph(marks, page.tone)]
    blocks += [Paragraph(line) for line in (page.sentence, page.key_figures) if line]
    blocks += [Paragraph(line, "warn") for line in page.reasons]
    if extent != "head":
        blocks += page.lead
    left_out = []
    for section in page.sections if extent != "head" else ():
        if section.anchor in _PAGES_ONLY or not section.has_text:
            continue
        if extent == "all" or section.anchor in _ON_SCREEN or not section.folded:
            blocks += [Paragraph(""), Paragraph(section.heading, "heading"), *section.blocks]
        else:
            left_out.append(section.heading)
    if left_out and extent == "screen":
        more = phrase("terminal.more", sections=join(left_out))
        blocks += [Paragraph(""), Paragraph(more, "muted")]
    return show(blocks, lang, width=width, colour=colour)


def has_room(block: Table, width: int, lang: str = "en") -> bool:
    """Return whether a table fits into ``width`` columns as it is, without a cut word."""
    return fits(_translate_cells(block, lang), width)


def _translate_cells(block: Table, lang: str) -> list[list[str]]:
    return [
        [to_one_line(translate(cell, lang)) for cell in row] for row in (block.headers, *block.rows)
    ]
