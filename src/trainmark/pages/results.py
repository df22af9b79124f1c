"""What is printed of an index: tables and charts for people, documents and files for programs."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from trainmark.errors import UsageError
from trainmark.library.store.query import listing
from trainmark.pages import cells
from trainmark.pages.document import Block, Paragraph
from trainmark.pages.document import table as table_of
from trainmark.pages.exports.tables import csv_text
from trainmark.pages.terminal import Screen, show
from trainmark.record.messages import render

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trainmark.library.store.index import Index
    from trainmark.library.store.query import Listing
    from trainmark.spec import Message

    Unread = Sequence[tuple[str, int, Message]]

_WORK = ("case", "recipe", "device", "world", "precision", "work")
_POINT = ("started_utc", "status", "trust", "path")


def document(found: Listing, failed: Unread) -> dict[str, Any]:
    """Return a listing as JSON: how many there are, the runs, and what could not be read."""
    return {
        "total": found.total,
        "runs": found.documents(),
        "unread": [{"file": path, "line": line, "reason": asdict(x)} for path, line, x in failed],
    }


def _screen() -> Screen:
    # Whatever reads a pipe reads lines: nothing is folded there.
    return Screen.of_stdout() if sys.stdout.isatty() else Screen(width=10_000)


def table(found: Listing, *, screen: Screen | None = None) -> str:
    """Return a listing as a table; figures in a readable unit, ``/`` where there is none."""
    screen = screen or _screen()
    heads, columns = shown(found)
    return show([table_of(heads, zip(*columns, strict=True))], screen)


def shown(found: Listing) -> tuple[list[str], list[list[str]]]:
    """Return the heads of the columns with their units, and the texts of each column."""
    heads, columns = [], []
    for at, (key, unit) in enumerate(zip(found.columns, found.units, strict=True)):
        values = [row[at] for row in found.rows]
        if unit:
            texts, scale = cells.scaled(values, unit)
        else:
            texts, scale = [_cell(value) for value in values], ""
        heads.append(f"{key} {scale}".strip())
        columns.append(texts)
    return heads, columns


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.0f}" if value.is_integer() else cells.number(value)
    if isinstance(value, list):
        return ", ".join(map(_cell, value)) or cells.NOTHING
    return cells.NOTHING if value is None else str(value)


def remarks(found: Listing, failed: Unread, lang: str = "en") -> Iterator[str]:
    """Yield what a reader of the table must know besides: runs left out, files not read."""
    if len(found.rows) < found.total:
        yield f"{len(found.rows)} of {cells.count(found.total)} runs; --limit 0 shows all"
    for path, line, reason in failed:
        yield f"{path}{f':{line}' if line else ''}: {render(reason, lang)}"


def history(database: Index, figure: str, words: Sequence[str]) -> list[dict[str, Any]]:
    """Return a figure's values over time, the oldest first, for each piece of work.

    Raises:
        UsageError: an unknown figure or key, or not a filter.
    """
    asked = [*_WORK, *_POINT, "run_id", figure]
    found = listing(database, ["kind=record", *words], columns=asked)
    if any(isinstance(row[-1], str | bool) for row in found.rows):
        raise UsageError(f"{figure} is no figure", where=figure, rule="history FIGURE, as p_core")
    pieces: dict[str, dict[str, Any]] = {}
    for run in reversed(found.documents()):
        if run[figure] is None:
            continue
        head = {name: run[name] for name in _WORK}
        head |= {"figure": figure, "unit": found.units[-1], "points": []}
        point = {name: run[name] for name in (*_POINT, "run_id")} | {"value": run[figure]}
        pieces.setdefault(run["work"], head)["points"].append(point)
    return list(pieces.values())


def history_text(pieces: Sequence[dict[str, Any]], *, screen: Screen | None = None) -> str:
    """Return a heading and a table for each piece of work."""
    blocks: list[Block] = []
    for piece in pieces:
        points = piece["points"]
        shown, unit = cells.scaled([point["value"] for point in points], piece["unit"])
        blocks.append(Paragraph(" ".join(str(piece[name]) for name in _WORK)))
        rows = [
            (value, *(_cell(point[name]) for name in _POINT))
            for value, point in zip(shown, points, strict=True)
        ]
        blocks.append(table_of((f"{piece['figure']} {unit}".strip(), *_POINT), rows))
    return show(blocks, screen or _screen())


def to_csv(found: Listing) -> str:
    """Return a listing as ``export --to csv`` prints it."""
    return csv_text(found.heads, found.rows)
