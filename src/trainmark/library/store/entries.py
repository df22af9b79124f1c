"""What the index holds of a record, and of a row that others printed.

Text is stored with control characters escaped, and cut: the index is for finding, the record
has the whole of it.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic_core import to_json

from trainmark.errors import escaped
from trainmark.pages.exports.tables import COLUMNS, column_name
from trainmark.record import figures as figures_of
from trainmark.record.work import work

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from numpy.typing import NDArray

    from trainmark.record.record import FigureEntry, Record
    from trainmark.record.rows import Reading, Row
    from trainmark.spec import FigureSpec

MOST_TEXT = 1000  # characters
SERIES_POINTS = 32
_OF_ROWS = ("case", "vendor", "device", "nnodes", "nproc", "precision", "configuration")

Fact = tuple[str, str | None, float | None]  # name; text or number


@dataclass(slots=True)
class Entry:
    """The rows of one run, table by table, without its id.

    Args:
        names: the figures' rows in ``figure_names``.
        figures: values by the id of their name.
    """

    run: dict[str, Any]
    names: list[dict[str, Any]] = field(default_factory=list)
    figures: dict[int, float] = field(default_factory=dict)
    environment: list[Fact] = field(default_factory=list)
    series: tuple[int, bytes] | None = None
    marks: list[dict[str, Any]] = field(default_factory=list)


def stored(value: Any) -> Any:
    """Return a value as the index holds it."""
    if not isinstance(value, str) or (len(value) <= MOST_TEXT and value.isprintable()):
        return value
    return escaped(value[:MOST_TEXT])[:MOST_TEXT]


def digest(value: Any) -> bytes:
    """Return 8 bytes that identify a value."""
    return hashlib.blake2b(to_json(value), digest_size=8).digest()


def identity(value: Any) -> int:
    """Return ``digest`` as a number that every database holds."""
    return int.from_bytes(digest(value), "big", signed=True)


def of_record(record: Record) -> Entry:
    """Return what the index holds of a record."""
    facts, measured = _facts(record)
    run = {name: stored(column(record)) for name, column in COLUMNS.items()}
    run |= {"kind": "record", "world": record.plan.world_size, "environment_id": identity(facts)}
    entry = Entry(run | {"work": digest(work(record)).hex()}, series=reduced_series(record))
    entry.environment = facts
    _add_figures(entry, record.figures, figures_of.specs(record.plan.about.page))
    for name, value in measured.items():
        _add_figure(entry, f"env.{name}", "", "", value)
    entry.marks = _marks("label", record.labels)
    entry.marks += _marks("note", (x.code for x in record.notes))
    entry.marks += _marks("finding", (x.code for x in record.findings))
    return entry


def of_row(row: Row) -> Entry:
    """Return what the index holds of a row that others printed."""
    run = {name: stored(getattr(row, name)) for name in _OF_ROWS}
    run |= {"kind": "row", "world": row.world_size, "quality_metric": stored(row.metric)}
    run |= {"quality_value": row.figure(row.metric) if row.metric else None}
    entry = Entry(
        run | {"document": row.model_dump_json()}, marks=_marks("note", (x.code for x in row.notes))
    )
    _add_figures(entry, row.figures, figures_of.FIGURES)
    return entry


def _add_figures(
    entry: Entry,
    figures: Mapping[str, FigureEntry] | Mapping[str, Reading],
    specs: Mapping[str, FigureSpec],
) -> None:
    for name, figure in figures.items():
        if figure.value is not None:
            column = specs[name].column if name in specs else ""
            _add_figure(entry, name, figure.unit, column, figure.value)


def _add_figure(entry: Entry, name: str, unit: str, column: str, value: float) -> None:
    row = _figure_name(name, unit, column)
    entry.names.append(row)
    entry.figures[row["id"]] = value


@lru_cache(1024)
def _figure_name(name: str, unit: str, column: str) -> dict[str, Any]:
    column = column or column_name(name, unit, None)
    row = {"name": stored(name), "unit": stored(unit), "csv_column": stored(column)}
    return row | {"id": identity(row)}


def _marks(kind: str, values: Iterable[str]) -> list[dict[str, Any]]:
    return [{"kind": kind, "value": stored(value)} for value in values]


def _facts(record: Record) -> tuple[list[Fact], dict[str, float]]:
    """Return the environment's facts, each once, and apart from them its measured numbers.

    What is measured differs from run to run; without it, runs of one machine share their facts.
    """
    facts: dict[Fact, None] = {}
    measured: dict[str, float] = {}
    for name, value in _flat(record.environment, ""):
        if isinstance(value, float):
            measured[stored(name)] = value
        else:
            facts[_fact(name, value)] = None
    return list(facts), measured


@lru_cache(4096, typed=True)
def _fact(name: str, value: str | int | bool) -> Fact:
    if isinstance(value, int) and not isinstance(value, bool):
        return stored(name), None, float(value)
    return stored(name), stored(str(value).lower() if isinstance(value, bool) else value), None


def _flat(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Yield the leaves of a document under dotted names; those of a list under the list's."""
    if isinstance(value, dict):
        for key, below in value.items():
            yield from _flat(below, f"{name}.{key}" if name else key)
    elif isinstance(value, list):
        for below in value:
            yield from _flat(below, name)
    elif value is not None:
        yield name, value[:MOST_TEXT] if isinstance(value, str) else value


@lru_cache(256)
def _stretches(steps: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    edges = np.linspace(0, steps, min(steps, SERIES_POINTS) + 1).astype(np.int64)
    return edges[:-1], np.diff(edges)


def reduced_series(record: Record) -> tuple[int, bytes] | None:
    """Return the number of steps and at most 32 points of them, as bytes; None without steps.

    A point is a stretch of steps, all as long as each other but for one step: their mean time in
    seconds, then their mean loss (NaN where no loss is known), as little-endian 32-bit floats;
    first all times, then all losses.
    """
    steps = len(record.steps.time_ns)
    if not steps:
        return None
    starts, counts = _stretches(steps)
    times = np.add.reduceat(np.array(record.steps.time_ns, np.float64), starts) / counts / 1e9
    losses = np.array(record.steps.loss, np.float64)
    known = np.isfinite(losses)
    with np.errstate(invalid="ignore", over="ignore"):
        total = np.add.reduceat(np.where(known, losses, 0.0), starts)
        means = total / np.add.reduceat(known.astype(np.float64), starts)
        return steps, np.concatenate([times, means]).astype("<f4").tobytes()
