"""Lay out a table or a text in columns of characters: what folds, what is split, how wide it is.

Knows no colour and no language, and imports nothing heavy: `trainmark list` starts with it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainmark.pages.cells import NUMBER

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_WIDE = "\u2e80-\uffef"  # Chinese characters and punctuation
# A word, or one Chinese character with the punctuation that must not be parted from it.
_TOKEN = re.compile(rf"\s+|[（“《]*[{_WIDE}][，。；：、）！？”》]*|[^\s{_WIDE}]+")
_ROOMY = 3  # blanks between columns if there is room, else one


def measure_width(text: str) -> int:
    """Return the columns that a text takes on a terminal; two for a Chinese character."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def wrap(text: str, width: int) -> list[str]:
    """Return a text in lines; a line ends inside a word only if the word is wider than ``width``.

    A line may also end between Chinese characters.
    """
    lines, line, blank = list[str](), "", ""
    for token in _TOKEN.findall(text):
        if token.isspace():
            blank = " " if line else ""
            continue
        if line and measure_width(line + blank + token) > width:
            lines.append(line)
            line, blank = "", ""
        line += blank + token
        blank = ""
        while measure_width(line) > width and len(line) > 1:
            end = _count_fitting_characters(line, width)
            lines.append(line[:end])
            line = line[end:]
    return [*lines, line]


def _count_fitting_characters(text: str, width: int) -> int:
    """Return how many characters of a text fit into ``width`` columns, one at least."""
    end = 1
    while end < len(text) and measure_width(text[: end + 1]) <= width:
        end += 1
    return end


@dataclass(frozen=True, slots=True)
class Grid:
    """A table's cells as text, by column with its header first, and the widths they need.

    Attributes:
        words: width of the longest word of each column; below, words are cut.
        lines: width of the longest cell of each column.
    """

    columns: tuple[tuple[str, ...], ...]
    words: tuple[int, ...]
    lines: tuple[int, ...]

    @classmethod
    def of(cls, rows: Sequence[Sequence[str]]) -> Grid:
        """Return the grid of rows of clean text, the first of which has the headers."""
        columns = tuple(zip(*rows, strict=True))
        words = (
            max(
                (measure_width(x) for cell in column for x in _TOKEN.findall(cell) if x.strip()),
                default=0,
            )
            for column in columns
        )
        return cls(columns, tuple(words), tuple(max(map(measure_width, x)) for x in columns))

    @property
    def min_width(self) -> int:
        """The width below which words are cut; a blank stands between two columns."""
        return sum(self.words) + len(self.words) - 1

    def turned(self) -> Grid:
        """Return the grid with its columns as rows."""
        return Grid.of(self.columns)

    def part(self, places: Sequence[int]) -> Grid:
        """Return the columns at ``places``."""
        return Grid(
            tuple(self.columns[place] for place in places),
            tuple(self.words[place] for place in places),
            tuple(self.lines[place] for place in places),
        )

    def split(self, width: int) -> Iterator[Grid]:
        """Yield parts with the first column and as many others as fit, one at least."""
        places = list(range(1, len(self.columns)))
        while places:
            chosen = [0, places.pop(0)]
            while places and self.part([*chosen, places[0]]).min_width <= width:
                chosen.append(places.pop(0))
            yield self.part(chosen)

    def laid_out(self, width: int) -> tuple[list[str], list[str]]:
        """Return the lines of the header, none if it is empty, and those of the rows.

        Columns of numbers are aligned to the right. The widest columns give way first.
        """
        between = (len(self.columns) - 1) * _ROOMY
        gap = _ROOMY if sum(self.lines) + between <= width else 1
        widths = self._widths(width - gap * (len(self.columns) - 1))
        sides = [_is_numeric(column[1:]) for column in self.columns]
        head, *rows = (
            _wrap_row(row, widths, sides, gap) for row in zip(*self.columns, strict=True)
        )
        has_head = any(column[0] for column in self.columns)
        return (head if has_head else []), [line for row in rows for line in row]

    def _widths(self, room: int) -> list[int]:
        for shortest in (self.words, (1,) * len(self.words)):
            for max_lines in range(max([*self.lines, 1]), 0, -1):
                widths = [
                    max(min_width, min(line, max_lines), 1)
                    for min_width, line in zip(shortest, self.lines, strict=True)
                ]
                if sum(widths) <= room:
                    return widths
        return [1] * len(self.words)


def _is_numeric(cells: Sequence[str]) -> bool:
    filled = [cell for cell in cells if cell]
    return bool(filled) and all(NUMBER.fullmatch(cell) for cell in filled)


def _wrap_row(
    row: Sequence[str], widths: Sequence[int], is_right: Sequence[bool], gap: int
) -> list[str]:
    """Return the lines of a row, whose cells are wrapped to the widths of their columns."""
    wrapped = [wrap(cell, width) for cell, width in zip(row, widths, strict=True)]
    lines = []
    for place in range(max(map(len, wrapped))):
        parts = []
        for cell, width, right in zip(wrapped, widths, is_right, strict=True):
            text = cell[place] if place < len(cell) else ""
            blanks = " " * (width - measure_width(text))
            parts.append(blanks + text if right else text + blanks)
        lines.append((" " * gap).join(parts).rstrip())
    return lines


def split_into_tables(rows: Sequence[Sequence[str]], width: int) -> list[Grid]:
    """Return rows as a grid whose cells fold at blanks; parts of it if its words do not fit.

    Of one or two rows it then stands on its side. Of more it is split into grids that each begin
    with the first column.

    Args:
        rows: the first has the headers.
    """
    grid = Grid.of(rows)
    if grid.min_width <= width or len(grid.columns) < 3:
        return [grid]
    if len(rows) <= 3 < len(grid.columns):
        return split_into_tables(grid.columns, width)
    return [*grid.split(width)]
