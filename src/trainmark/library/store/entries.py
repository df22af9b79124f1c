"""The row of the index that a record makes, and figures that others printed.

Text is stored with control characters escaped, and cut: the index is for finding, the record
has the whole of it.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic_core import to_json

from trainmark.errors import escaped
from trainmark.library.store.columns import COLUMNS, column_name
from trainmark.record import figures as figures_of
from trainmark.record.figures import FIGURES
from trainmark.record.work import work

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from trainmark.record.record import FigureEntry, Record
    from trainmark.record.rows import Reading, Row
    from trainmark.spec import FigureSpec, Message

MOST_TEXT = 1000  # characters


class Entry(NamedTuple):
    """A row of ``RUNS``, and what it shares with others.

    Args:
        facts: the environment's values by dotted names, without what was measured.
        names: of figures of the case's own, with units and columns.
    """

    row: dict[str, Any]
    facts: dict[str, list[str | int]] | None = None
    names: frozenset[tuple[str, str, str]] = frozenset()


def stored(value: Any) -> Any:
    """Return a value as the index holds it."""
    if not isinstance(value, str) or (len(value) <= MOST_TEXT and value.isprintable()):
        return value
    return escaped(value[:MOST_TEXT])[:MOST_TEXT]


def _digest(value: Any) -> bytes:
    return hashlib.blake2b(to_json(value), digest_size=8).digest()


def of_record(record: Record) -> Entry:
    """Return what the index holds of a record."""
    facts: dict[str, dict[str | int, None]] = {}
    measured: dict[str, float] = {}  # differs from run to run; without it, machines share facts
    for name, value in _flat(record.environment, ""):
        if isinstance(value, float):
            measured[f"env.{stored(name)}"] = value
        else:
            fact = str(value).lower() if isinstance(value, bool) else stored(value)
            facts.setdefault(stored(name), {})[fact] = None
    listed = {name: list(values) for name, values in facts.items()}
    row = {name: stored(column(record)) for name, column in COLUMNS.items()}
    row |= {
        "kind": "record",
        "world": record.plan.world_size,
        "work": _digest(work(record)).hex(),
        "environment_id": int.from_bytes(_digest(listed), "big", signed=True),
        "label": lines(record.labels),
        "note": lines(x.code for x in (*record.notes, *record.findings)),
    }
    own, names = _figures(row, record.figures, figures_of.specs(record.plan.about.page))
    names |= {(name, "", name) for name in measured}
    return Entry(row | {"more": {"figures": own | measured}}, listed, frozenset(names))


def of_row(row: Row) -> Entry:
    """Return what the index holds of a row that others printed."""
    same = ("case", "vendor", "device", "nnodes", "nproc", "precision", "configuration")
    made = {name: stored(getattr(row, name)) for name in same}
    made |= {"kind": "row", "world": row.world_size, "quality_metric": stored(row.metric)}
    made |= {"quality_value": row.figure(row.metric) if row.metric else None}
    made |= {"note": lines(x.code for x in row.notes)}
    own, names = _figures(made, row.figures, FIGURES)
    more = {"figures": own, "row": row.model_dump(mode="json")}
    return Entry(made | {"more": more}, names=frozenset(names))


def of_unread(reason: Message) -> Entry:
    """Return what the index holds of a file, or a line of one, that cannot be read."""
    return Entry({"kind": "unread", "more": {"reason": reason.as_dict()}})


def lines(values: Iterable[str]) -> str:
    """Return a line a value, each after a line break; control characters in them are escaped."""
    return "".join(f"\n{stored(value)}" for value in sorted(set(values))) + "\n"


def _figures(
    row: dict[str, Any],
    figures: Mapping[str, FigureEntry] | Mapping[str, Reading],
    specs: Mapping[str, FigureSpec],
) -> tuple[dict[str, float], set[tuple[str, str, str]]]:
    """Add the figures of every case to ``row``; return values and names of the case's own."""
    own, names = {}, set()
    for name, figure in figures.items():
        if name in FIGURES:
            row[name] = figure.value
        elif figure.value is not None:
            key = stored(name)
            own[key] = figure.value
            column = column_name(key, figure.unit, specs.get(name))
            names.add((key, stored(figure.unit), stored(column)))
    return own, names


def _flat(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Yield the leaves of a document under dotted names; those of a list under the list's."""
    if isinstance(value, dict):
        for key, below in value.items():
            yield from _flat(below, f"{name}.{key}" if name else key)
    elif isinstance(value, list):
        for below in value:
            yield from _flat(below, name)
    elif value is not None:
        yield name, value
