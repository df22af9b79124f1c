"""What ``trainmark run`` prints when a run has ended.

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
from trainmark.measure import figures as figures_of
from trainmark.planning.overrides import fix_hp_text
from trainmark.report import cells
from trainmark.report.conditions import cause_text, label_text, remedy, verdict
from trainmark.report.declared import table as table_of
from trainmark.report.document import Table
from trainmark.report.listing import sentence
from trainmark.report.summary import remarks, summary, summary_table
from trainmark.report.tables import (
    PERFORMANCE,
    device_configuration,
    performance_table,
)
from trainmark.report.texts import text
from trainmark.report.trust import trust_line
from trainmark.report.waterfall import can_show, text_waterfall
from trainmark.results.record import RECORD_FILE

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from trainmark.results.record import Record, Trust

_TONES = {"passed": "bold green", "target_missed": "bold yellow", "interrupted": "bold yellow"}
_GRADES = {"usable": "green", "noisy": "yellow", "do_not_quote": "bold red"}
_WIDEST_CHANGE = 20  # columns that a changed hyper-parameter has to itself, no fold within
_COLOUR = re.compile(r"(\x1b\[[0-9;]*m)")  # rich's; what records hold was escaped before
_ASCII = str.maketrans({"–": "-", "·": "-", "≥": ">=", "×": "x", "µ": "u", "…": "..."})


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


def _further(record: Record, lang: str) -> RichTable:
    """Return the further figures with their units, the reason where there is no value."""
    grid = RichTable(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(justify="right", no_wrap=True)
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for name, spec in figures_of.specs(record.plan.about.page).items():
        entry = record.figures.get(name)
        if entry is None or spec.detail or name in PERFORMANCE:
            continue
        if entry.value is None:
            value, unit = "–", ""
        else:
            (value,), unit = cells.scaled([entry.value], entry.unit)
        said = entry.reason if entry.value is None else entry.note
        remark = sentence(record, said, lang)
        grid.add_row(Text(name), Text(value), Text(unit), Text(remark, style="dim"))
    return grid


def _cause(record: Record, lang: str) -> list[Text]:
    """Return why the run did not pass, and the way out."""
    if record.cause is None:
        return []
    found = record.cause
    where = [f"rank {found.rank}"] if found.rank is not None else []
    where += [found.place] if found.place else []
    words = [found.kind, *where]
    head = cells.clean(text("sep.comma", lang).join(words))
    colon = text("sep.colon", lang)
    return [
        Text(f"{head}{colon}{cause_text(record, lang)}"),
        Text(f"{text('cause.remedy', lang)}{colon}{cells.clean(remedy(record, lang))}"),
    ]


def run_table(
    record: Record, *, run_dir: Path | None = None, screen: Screen | None = None, lang: str = "en"
) -> str:
    """Return the end of a run: verdict, figures, waterfall, labels, notes, path of the record.

    No line is wider than the screen, but for a path that cannot be folded without harm.
    """
    screen = screen or Screen.of_stdout()
    console = screen.console()
    for line in _head(record, lang):
        console.print(line)
    console.print()
    table = performance_table([record], lang=lang, columns=PERFORMANCE)
    bare = Table(table.headers[1:], tuple(row[1:] for row in table.rows))
    console.print(rich_table(bare, screen))
    console.print()
    console.print(_further(record, lang))
    console.print()
    for spec in record.plan.about.page.tables:
        told = table_of(record, spec, lang) if spec.rows else None
        if told is not None:
            console.print(rich_table(told, screen))
            console.print()
    waterfall = text_waterfall(record, width=screen.width, unicode=screen.unicode, lang=lang)
    console.print(Text(waterfall), no_wrap=True, crop=False)
    console.print()
    for line in _tail(record, lang):
        console.print(line)
    if run_dir is not None:
        place = cells.clean(run_dir / RECORD_FILE)
        line = Text(f"{text('terminal.record', lang)}{text('sep.colon', lang)}{place}")
        console.print(line, no_wrap=True, crop=False, overflow="ignore")
    return screen.text(console)


def _head(record: Record, lang: str) -> list[Text]:
    """Return status and configuration, the verdict, and the cause of a failure."""
    status = Text(text(f"status.{record.status}", lang).upper())
    status.stylize(_TONES.get(record.status, "bold red"))
    name = device_configuration(record, lang=lang)
    return [
        Text.assemble(status, f" {cells.clean(record.plan.case)} · {name}"),
        _trust(record.trust, lang),
        Text(cells.clean(verdict(record, lang))),
        *_cause(record, lang),
    ]


def _trust(trust: Trust, lang: str) -> Text:
    """Return how far the figures can be trusted."""
    line = text("trust.label", lang) + text("sep.colon", lang) + trust_line(trust, lang)
    return Text(line, style=_GRADES[trust.grade])


def _tail(record: Record, lang: str) -> list[Text]:
    """Return labels, findings and notes, those of the figures' steadiness among them."""
    colon = text("sep.colon", lang)
    labels = text("sep.comma", lang).join(label_text(label, lang) for label in record.labels)
    lines = []
    if labels:
        lines.append(Text(cells.clean(f"{text('terminal.labels', lang)}{colon}{labels}")))
    if record.extra:
        changed = text("terminal.open", lang, changed=fix_hp_text(record.extra))
        lines.append(Text(cells.clean(changed), style="yellow"))
    lines += [
        Text(f"{text('terminal.finding', lang)}{colon}{sentence(record, item, lang)}", "bold red")
        for item in record.findings
    ]
    lines += [
        Text(f"{text('terminal.note', lang)}{colon}{sentence(record, item, lang)}", "yellow")
        for item in record.notes
    ]
    return lines


def repeats_table(
    records: Sequence[Record], *, screen: Screen | None = None, lang: str = "en"
) -> str:
    """Return the figures over repeated launches of the same work, with their remarks.

    Raises:
        RecordError: the launches are not of the same work.
    """
    screen = screen or Screen.of_stdout()
    found = summary(records)
    console = screen.console()
    head = f"{text('section.repeats', lang)}{text('sep.colon', lang)}{found.case_key}"
    console.print(Text(cells.clean(head)))
    console.print(_trust(found.trust, lang))
    console.print()
    if found.figures:
        console.print(rich_table(summary_table(found, lang=lang), screen))
        console.print()
    for line in remarks(found, lang=lang):
        console.print(Text(cells.clean(line)))
    return screen.text(console)
