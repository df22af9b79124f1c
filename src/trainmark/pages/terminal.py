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
from typing import TYPE_CHECKING, Literal

from rich import box
from rich.bar import Bar
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from trainmark.errors import escaped
from trainmark.pages import cells
from trainmark.pages.charts.spans import spans
from trainmark.pages.document import Block, Code, Paragraph, Table, Tone, table
from trainmark.pages.phrases import (
    device_configuration,
    hang_table,
    heads,
    label_text,
    sentence,
    status_tone,
    trust_paragraph,
    verdict,
)
from trainmark.pages.sections.conditions import declared_table
from trainmark.pages.sections.environment import nodes_line
from trainmark.pages.sections.figures import telemetry_blocks
from trainmark.pages.sections.performance import PERFORMANCE, performance_table
from trainmark.pages.summary import remarks, summary, summary_table
from trainmark.pages.texts import Phrase, join, say, t
from trainmark.plan.overrides import fix_hp_text
from trainmark.record import figures as figures_of
from trainmark.record.messages import way_out
from trainmark.record.record import RECORD_FILE
from trainmark.record.trust import verification_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from trainmark.record.record import Record

_STYLES: dict[Tone, str] = {
    "plain": "", "muted": "dim", "good": "bold green", "warn": "yellow", "bad": "bold red",
}  # fmt: skip
_WIDEST_CHANGE = 20  # columns that a changed hyper-parameter has to itself, no fold within
_LEAST_BAR, _MOST_BAR = 8, 60  # columns; narrower, bars say nothing
_COLOUR = re.compile(r"(\x1b\[[0-9;]*m)")  # rich's; what records hold was escaped before
# Reasons of figures that nobody misses; pages name them.
_UNSAID = ("not_sampled", "devices_unmonitored", "counter_untold", "target_not_reached")
_ASCII = str.maketrans({"–": "-", "·": "-", "≥": ">=", "×": "x", "µ": "u", "…": "...", "°": ""})
_ASCII |= str.maketrans(dict.fromkeys("█▉▊▋▌▐", "#") | dict.fromkeys("▍▎▏▕", " "))


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
        encoding = (sys.stdout.encoding or "").lower().replace("-", "").replace("_", "")
        return cls(
            width=max(shutil.get_terminal_size().columns, 60) if terminal else 80,
            colour=terminal and not os.environ.get("NO_COLOR"),
            unicode=encoding in ("utf8", "cp65001"),
        )

    def console(self) -> Console:
        """Return a console that collects its text."""
        return Console(
            file=io.StringIO(), width=self.width, markup=False, highlight=False, emoji=False,
            color_system="standard" if self.colour else None, force_terminal=self.colour,
            legacy_windows=False,
        )  # fmt: skip

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


def show(blocks: Sequence[Block], screen: Screen | None = None, lang: str = "en") -> str:
    """Return a document's blocks as text: paragraphs are lines, tables stand apart.

    No line is wider than the screen, but for those of code: a path cannot be folded without harm.
    """
    screen = screen or Screen.of_stdout()
    console = screen.console()
    stood_apart = False
    for place, block in enumerate(blocks):
        stands_apart = isinstance(block, Table)
        if place and (stands_apart or stood_apart):
            console.print()
        stood_apart = stands_apart
        match block:
            case Paragraph():
                words = cells.clean(say(block.text, lang))
                console.print(Text(words, style=_STYLES[block.tone]))
            case Table():
                console.print(rich_table(block, screen, lang))
            case Code():
                line = Text(cells.clean(say(block.text, lang)))
                console.print(line, no_wrap=True, crop=False, overflow="ignore")
            case _:
                raise AssertionError(f"a terminal shows no {block.kind}")
    return screen.text(console)


def rich_table(block: Table, screen: Screen, lang: str) -> RichTable:
    """Return a table whose cells fold rather than lose characters, changes at commas only."""
    names = [cells.clean(say(head, lang)) for head in block.headers]
    columns = [
        [cells.clean(say(cell, lang)) for cell in column]
        for column in zip(*block.rows, strict=True)
    ] or [[] for _ in names]
    for place, head in enumerate(names):
        if head == "fix_hp":
            columns[place] = ["\n".join(_change_lines(cell)) for cell in columns[place]]
    widths = [
        max(cell_len(line) for cell in (head, *column) for line in cell.split("\n"))
        for head, column in zip(names, columns, strict=True)
    ]
    room = min(screen.width - sum(widths) - 3 * len(widths), _MOST_BAR)
    bars = bool(block.bars) and room >= _LEAST_BAR
    taken = sum(widths) + 3 * (len(widths) - 1) + (room + 3 if bars else 0)
    roomy = screen.unicode and taken <= screen.width
    drawn = RichTable(
        box=box.SIMPLE_HEAD if screen.unicode else box.ASCII_DOUBLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=(0, 1) if roomy else (0, 0),
    )
    for head, width, column in zip(names, widths, columns, strict=True):
        least = min(width, _WIDEST_CHANGE) if head == "fix_hp" else None
        numbers = all(cells.NUMBER.fullmatch(cell) for cell in column if cell)
        side: Literal["right", "left"] = "right" if numbers and any(column) else "left"
        drawn.add_column(Text(head), overflow="fold", min_width=least, justify=side)
    if bars:
        drawn.add_column("")
    for place, row in enumerate(zip(*columns, strict=True)):
        ends = [Bar(1.0, *block.bars[place], width=room)] if bars else []
        drawn.add_row(*map(Text, row), *ends)
    return drawn


def _change_lines(value: str) -> list[str]:
    """Return changed fields a line each; one too wide for that is broken after its sign."""
    lines: list[str] = []
    for change in value.replace(",", ",\n").split("\n"):
        name, sign, rest = change.strip().partition("=")
        wide = cell_len(change) > _WIDEST_CHANGE
        lines += [name + sign, rest] if wide and sign else [change.strip()]
    return lines


def run_table(record: Record, *, run_dir: Path | None = None, screen: Screen | None = None) -> str:
    """Return the end of a run: verdict, figures, spans, labels, notes, path of the record."""
    performance, timeline = performance_table([record], columns=PERFORMANCE), spans(record)
    tables = (declared_table(record, x) for x in record.plan.about.page.tables if x.rows)
    blocks: list[Block] = [
        *_head(record),
        table(performance.headers[1:], (row[1:] for row in performance.rows)),
        _further(record),
        *(found for found in tables if found is not None),
        *telemetry_blocks(record),
        Paragraph(t("spans.none")) if timeline is None else timeline.table,
        *_tail(record),
    ]
    if run_dir is not None:
        blocks.append(Code(join((t("terminal.record"), str(run_dir / RECORD_FILE)), "colon")))
    return show(blocks, screen)


def _head(record: Record) -> list[Block]:
    """Return status and configuration, trust, the verdict, and the cause of a failure."""
    tone, name = status_tone(record.status), device_configuration(record)
    head = (say(t(f"status.{record.status}"), "en").upper(), f" {record.plan.case} · ", name)
    blocks: list[Block] = [
        Paragraph(head, tone),
        trust_paragraph(record.trust, record.verification),
        Paragraph(verdict(record)),
    ]
    found = record.cause
    if found is None:
        return blocks
    where = [] if found.rank is None else [f"rank {found.rank}"]
    where += [found.place] if found.place else []
    said = join((join([found.kind, *where]), sentence(record, found.message)), "colon")
    out = join((t("cause.remedy"), sentence(record, way_out(found))), "colon")
    return [*blocks, Paragraph(said), Paragraph(out),
            *([hang_table(found.hang)] if found.hang else ())]  # fmt: skip


def _further(record: Record) -> Table:
    """Return the further figures with their units, the reason where there is no value."""
    rows: list[tuple[Phrase, ...]] = []
    for name, spec in figures_of.specs(record.plan.about.page).items():
        entry = record.figures.get(name)
        if entry is None or spec.detail or name in PERFORMANCE:
            continue
        if entry.value is not None:
            (value,), unit = cells.scaled([entry.value], entry.unit)
            rows.append((name, value, unit, sentence(record, entry.note)))
        elif entry.reason is None or entry.reason.code not in _UNSAID:
            rows.append((name, "–", "", sentence(record, entry.reason)))
    return table(heads("name", "value", "unit", "remark"), rows)


def _tail(record: Record) -> list[Paragraph]:
    """Return labels, findings and notes, those of the figures' steadiness among them."""
    lines = []
    if record.environment.get("nodes"):
        lines.append(Paragraph(join((t("env.nodes"), nodes_line(record)), "colon")))
    if record.labels:
        labels = join(label_text(label) for label in record.labels)
        lines.append(Paragraph(join((t("terminal.labels"), labels), "colon")))
    if record.extra:
        lines.append(Paragraph(t("terminal.open", changed=fix_hp_text(record.extra)), "warn"))
    for kind, tone, items in (
        ("finding", "bad", record.findings), ("note", "warn", record.notes),
    ):  # fmt: skip
        lines += [
            Paragraph(join((t(f"terminal.{kind}"), sentence(record, x)), "colon"), tone)  # type: ignore[arg-type]
            for x in items
        ]
    return lines


def repeats_table(records: Sequence[Record], *, screen: Screen | None = None) -> str:
    """Return the figures over repeated launches of the same work, with their remarks.

    Raises:
        RecordError: the launches are not of the same work.
    """
    found = summary(records)
    blocks: list[Block] = [
        Paragraph(join((t("section.repeats"), found.case_key), "colon")),
        trust_paragraph(found.trust, verification_of(records)),
        *([summary_table(found)] if found.figures else ()),
        *(Paragraph(line) for line in remarks(found)),
    ]
    return show(blocks, screen)
