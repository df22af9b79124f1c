"""A document's blocks on a terminal, and what ``trainmark run`` prints when a run has ended.

Owns widths, colours and the fallback for terminals without UTF-8. Text from records is
never taken as rich's markup and carries no control characters.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from trainmark.errors import escaped
from trainmark.pages import cells, telemetry
from trainmark.pages.conditions import cause_text, hang_table, label_text, remedy, verdict
from trainmark.pages.declared import table as table_of
from trainmark.pages.document import Bars, Block, Code, Grid, Paragraph, Table, Tone
from trainmark.pages.environment import nodes_line
from trainmark.pages.listing import sentence, tone_of, trust_paragraph
from trainmark.pages.summary import remarks, summary, summary_table
from trainmark.pages.tables import (
    PERFORMANCE,
    device_configuration,
    performance_table,
)
from trainmark.pages.texts import text
from trainmark.pages.waterfall import can_show, text_waterfall
from trainmark.plan.overrides import fix_hp_text
from trainmark.record import figures as figures_of
from trainmark.record.record import RECORD_FILE

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from trainmark.record.record import Record
    from trainmark.spec import Message

_STYLES: dict[Tone, str] = {
    "plain": "", "muted": "dim", "good": "bold green", "warn": "yellow", "bad": "bold red",
}  # fmt: skip
_WIDEST_CHANGE = 20  # columns that a changed hyper-parameter has to itself, no fold within
_COLOUR = re.compile(r"(\x1b\[[0-9;]*m)")  # rich's; what records hold was escaped before
# Reasons of figures that nobody misses; pages name them.
_UNSAID = ("not_sampled", "devices_unmonitored", "counter_untold", "target_not_reached")
_ASCII = str.maketrans({"–": "-", "·": "-", "≥": ">=", "×": "x", "µ": "u", "…": "...", "°": ""})


@dataclass(frozen=True, slots=True, kw_only=True)
class Screen:
    """What is printed on: columns, whether colours show, whether block characters do."""

    width: int = 80
    colour: bool = False
    unicode: bool = True

    @classmethod
    def of_stdout(cls) -> Screen:
        """Return what this process prints on; 80 columns without colour when no terminal."""
        terminal = sys.stdout.isatty()
        return cls(
            width=max(shutil.get_terminal_size().columns, 60) if terminal else 80,
            colour=terminal and not os.environ.get("NO_COLOR"),
            unicode=can_show(sys.stdout.encoding),
        )

    def console(self) -> Console:
        """Return a console that collects its text."""
        return Console(
            file=io.StringIO(),
            width=self.width,
            color_system="standard" if self.colour else None,
            force_terminal=self.colour,
            markup=False,
            highlight=False,
            emoji=False,
            legacy_windows=False,
        )

    def text(self, console: Console) -> str:
        """Return what was printed, without trailing blanks and last newline."""
        assert isinstance(console.file, io.StringIO)
        lines = console.file.getvalue().rstrip().split("\n")
        printed = "".join(
            part if _COLOUR.fullmatch(part) and self.colour else escaped(part)
            for part in _COLOUR.split("\n".join(line.rstrip() for line in lines))
        )
        if self.unicode:
            return printed
        return printed.translate(_ASCII).encode("ascii", "replace").decode("ascii")


def _change_lines(value: str) -> list[str]:
    """Return changed fields a line each; one too wide for that is broken after its sign."""
    lines: list[str] = []
    for change in value.replace(",", ",\n").split("\n"):
        name, sign, rest = change.strip().partition("=")
        wide = cell_len(change) > _WIDEST_CHANGE
        lines += [name + sign, rest] if wide and sign else [change.strip()]
    return lines


def rich_table(table: Table, screen: Screen) -> RichTable:
    """Return a table whose cells fold rather than lose characters, changes at commas only."""
    columns = [[cells.clean(cell) for cell in column] for column in zip(*table.rows, strict=True)]
    if not table.headers:
        return _without_head(columns)
    for place, head in enumerate(table.headers):
        if head == "fix_hp":
            columns[place] = ["\n".join(_change_lines(cell)) for cell in columns[place]]
    widths = [
        max(cell_len(line) for cell in (cells.clean(head), *column) for line in cell.split("\n"))
        for head, column in zip(table.headers, columns, strict=True)
    ]
    roomy = screen.unicode and sum(widths) + 3 * (len(widths) - 1) <= screen.width
    drawn = RichTable(
        box=box.SIMPLE_HEAD if screen.unicode else box.ASCII_DOUBLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=(0, 1) if roomy else (0, 0),
    )
    for head, width in zip(table.headers, widths, strict=True):
        least = min(width, _WIDEST_CHANGE) if head == "fix_hp" else None
        drawn.add_column(Text(cells.clean(head)), overflow="fold", min_width=least)
    for row in zip(*columns, strict=True):
        drawn.add_row(*(Text(cell) for cell in row))
    return drawn


def _without_head(columns: Sequence[Sequence[str]]) -> RichTable:
    """Return names, numbers, units and remarks in columns, the remarks folded."""
    drawn = RichTable(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    drawn.add_column(no_wrap=True)
    drawn.add_column(justify="right", no_wrap=True)
    drawn.add_column(no_wrap=True)
    drawn.add_column(overflow="fold", style="dim")
    for row in zip(*columns, strict=True):
        drawn.add_row(*(Text(cell) for cell in row))
    return drawn


def show(blocks: Sequence[Block], screen: Screen) -> str:
    """Return a document's blocks as text: paragraphs are lines, tables and bars stand apart.

    No line is wider than the screen, but for those of code: a path cannot be folded without harm.
    """
    console = screen.console()
    stood_apart = False
    for place, block in enumerate(blocks):
        stands_apart = isinstance(block, Grid | Bars)
        if place and (stands_apart or stood_apart):
            console.print()
        stood_apart = stands_apart
        match block:
            case Paragraph(text=words, tone=tone):
                console.print(Text(cells.clean(words), style=_STYLES[tone]))
            case Grid(table=table):
                console.print(rich_table(table, screen))
            case Bars(text=words):
                console.print(Text(words), no_wrap=True, crop=False)
            case Code(text=words):
                line = Text(cells.clean(words))
                console.print(line, no_wrap=True, crop=False, overflow="ignore")
            case _:
                raise AssertionError(f"a terminal shows no {block.kind}")
    return screen.text(console)


def _further(record: Record, lang: str) -> Grid:
    """Return the further figures with their units, the reason where there is no value."""
    rows = []
    for name, spec in figures_of.specs(record.plan.about.page).items():
        entry = record.figures.get(name)
        if entry is None or spec.detail or name in PERFORMANCE:
            continue
        if entry.value is None:
            if entry.reason is not None and entry.reason.code in _UNSAID:
                continue
            rows.append((name, "–", "", sentence(record, entry.reason, lang)))
        else:
            (value,), unit = cells.scaled([entry.value], entry.unit)
            rows.append((name, value, unit, sentence(record, entry.note, lang)))
    return Grid(Table((), tuple(rows)))


def run_table(
    record: Record, *, run_dir: Path | None = None, screen: Screen | None = None, lang: str = "en"
) -> str:
    """Return the end of a run: verdict, figures, waterfall, labels, notes, path of the record."""
    screen = screen or Screen.of_stdout()
    table = performance_table([record], lang=lang, columns=PERFORMANCE)
    bare = Table(table.headers[1:], tuple(row[1:] for row in table.rows))
    waterfall = text_waterfall(record, width=screen.width, unicode=screen.unicode, lang=lang)
    told = [
        found
        for spec in record.plan.about.page.tables
        if spec.rows and (found := table_of(record, spec, lang)) is not None
    ]
    blocks: list[Block] = [
        *_head(record, lang),
        Grid(bare),
        _further(record, lang),
        *(Grid(found) for found in told),
        *telemetry.blocks(record, lang),
        Bars(waterfall),
        *_tail(record, lang),
    ]
    if run_dir is not None:
        colon = text("sep.colon", lang)
        blocks.append(Code(f"{text('terminal.record', lang)}{colon}{run_dir / RECORD_FILE}"))
    return show(blocks, screen)


def _head(record: Record, lang: str) -> list[Block]:
    """Return status and configuration, trust, the verdict, and the cause of a failure."""
    status = text(f"status.{record.status}", lang).upper()
    name = device_configuration(record, lang=lang)
    return [
        Paragraph(f"{status} {record.plan.case} · {name}", tone_of(record)),
        trust_paragraph(record.trust, lang),
        Paragraph(verdict(record, lang)),
        *_cause(record, lang),
    ]


def _cause(record: Record, lang: str) -> list[Block]:
    """Return why the run did not pass, and the way out."""
    found = record.cause
    if found is None:
        return []
    where = [f"rank {found.rank}"] if found.rank is not None else []
    where += [found.place] if found.place else []
    head, colon = text("sep.comma", lang).join([found.kind, *where]), text("sep.colon", lang)
    return [
        Paragraph(f"{head}{colon}{cause_text(record, lang)}"),
        Paragraph(f"{text('cause.remedy', lang)}{colon}{remedy(record, lang)}"),
        *([Grid(hang_table(found.hang, lang))] if found.hang else ()),
    ]


def _tail(record: Record, lang: str) -> list[Paragraph]:
    """Return labels, findings and notes, those of the figures' steadiness among them."""
    colon = text("sep.colon", lang)
    lines = []
    if record.environment.get("nodes"):
        lines.append(Paragraph(text("env.nodes", lang) + colon + nodes_line(record, lang)))
    if record.labels:
        labels = text("sep.comma", lang).join(label_text(label, lang) for label in record.labels)
        lines.append(Paragraph(f"{text('terminal.labels', lang)}{colon}{labels}"))
    if record.extra:
        changed = text("terminal.open", lang, changed=fix_hp_text(record.extra))
        lines.append(Paragraph(changed, "warn"))
    said: tuple[tuple[str, Tone, Sequence[Message]], ...] = (
        (text("terminal.finding", lang), "bad", record.findings),
        (text("terminal.note", lang), "warn", record.notes),
    )
    for kind, tone, items in said:
        lines += [Paragraph(f"{kind}{colon}{sentence(record, x, lang)}", tone) for x in items]
    return lines


def repeats_table(
    records: Sequence[Record], *, screen: Screen | None = None, lang: str = "en"
) -> str:
    """Return the figures over repeated launches of the same work, with their remarks.

    Raises:
        RecordError: the launches are not of the same work.
    """
    found = summary(records)
    head = f"{text('section.repeats', lang)}{text('sep.colon', lang)}{found.case_key}"
    blocks: list[Block] = [Paragraph(head), trust_paragraph(found.trust, lang)]
    if found.figures:
        blocks.append(Grid(summary_table(found, lang=lang)))
    blocks += [Paragraph(line) for line in remarks(found, lang=lang)]
    return show(blocks, screen or Screen.of_stdout())
