"""Tables on a terminal, drawn by rich, which also chooses the widths of the columns.

Rich alone cuts a word if its column shrinks below it, and folds Chinese text before punctuation.
Here cells fold as ``wrap`` does, and a table whose words do not fit is turned or split.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.measure import Measurement
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from trainmark.pages.cells import are_numbers
from trainmark.pages.wrapping import measure_longest_word, measure_width, wrap

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import ConsoleOptions, RenderResult

    Rows = Sequence[Sequence[str]]  # of clean text; the first has the headers

_UNLIMITED = 1_000_000  # columns: wider than any table


@dataclass(frozen=True, slots=True)
class _Cell:
    """A text that rich measures and folds as ``wrap`` does; a plain string it folds its own way."""

    text: str

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(measure_longest_word(self.text), measure_width(self.text))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text("\n".join(wrap(self.text, options.max_width)))


def build_tables(rows: Rows, width: int) -> list[Table]:
    """Return rows as one table, or as several if its words do not fit into ``width`` columns.

    A table of one or two rows and more than three columns is then turned: its columns become rows.
    Any other is split into tables that each begin with the first column. A word is cut only if it
    does not fit into a table of two columns.

    Args:
        rows: texts of the cells; the first row has the headers.
    """
    table = _fit_table(rows, width)
    if table is not None:
        return [table]
    num_columns = len(rows[0])
    if num_columns < 3:  # neither turning nor splitting would make it narrower
        return [_build_table(rows, keep_words=False)]
    # A turned table has as many columns as the table has rows, with the headers: at most three. So
    # it has fewer columns, and is not turned again. A table of three columns is split instead.
    if len(rows) <= 3 < num_columns:
        return build_tables([*zip(*rows, strict=True)], width)
    return _split_table(rows, width)


def fits(rows: Rows, width: int) -> bool:
    """Tell whether rows fit into ``width`` columns as one table, without a cut word."""
    return _fit_table(rows, width) is not None


def _fit_table(rows: Rows, width: int) -> Table | None:
    """Return rows as a table that cuts no word and is no wider than ``width``; None if too wide.

    Args:
        rows: texts of the cells; the first row has the headers.
    """
    # The columns are further apart if the table then still fits without folding any cell.
    table = _build_table(rows, padding=1)
    console = Console(width=_UNLIMITED)
    if console.measure(table).maximum <= width:  # the width without a folded cell
        return table
    table = _build_table(rows)
    if console.measure(table).minimum > width:  # the width with one word on each line
        return None
    # Rich makes the widest columns equally narrow. A column whose longest word is wider than that
    # stays wider, so the drawn lines can be too long although the minimum fits.
    lines = Segment.split_lines(console.render(table, console.options.update(width=width)))
    return table if max(map(Segment.get_line_length, lines)) <= width else None


def _build_table(rows: Rows, *, padding: int = 0, keep_words: bool = True) -> Table:
    """Return rows as a table of rich, the columns of numbers aligned to the right.

    Args:
        rows: texts of the cells; the first row has the headers, all empty for a table without any.
        padding: two columns are one space apart; this many spaces are added before it and after it.
        keep_words: whether a column stays as wide as its longest word; else words may be cut.
    """
    headers, *body = rows
    table = Table(
        box=SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=(0, padding),
        show_header=any(headers),
        header_style="bold",
        border_style="dim",
    )
    # As a ``_Cell``, a text is measured and folded by this program's rules, not by those of rich.
    for column in zip(*rows, strict=True):
        longest_word = max(map(measure_longest_word, column))
        longest_cell = max(map(measure_width, column))
        table.add_column(
            _Cell(column[0]),
            justify="right" if are_numbers(column[1:]) else "left",
            min_width=longest_word if keep_words else None,
            # True if the longest cell is a single word. Then ``rich`` never folds the cells, and
            # need not try to make the column narrower than ``min_width``.
            no_wrap=keep_words and longest_word == longest_cell,
        )
    for row in body:
        table.add_row(*map(_Cell, row))
    return table


def _split_table(rows: Rows, width: int) -> list[Table]:
    """Return tables that each have the first column and as many others as fit, at least one.

    Args:
        rows: texts of the cells; the first row has the headers.
    """
    first, *others = zip(*rows, strict=True)  # columns; ``zip`` of columns gives rows again
    tables = []
    while others:
        columns = [first, others.pop(0)]
        while others and fits([*zip(*columns, others[0], strict=True)], width):
            columns.append(others.pop(0))
        # If even one column beside the first is too wide, ``build_tables`` cuts words.
        tables += build_tables([*zip(*columns, strict=True)], width)
    return tables
