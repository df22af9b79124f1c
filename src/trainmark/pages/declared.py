"""The tables and lists that a case declares in its ``page.toml``, filled from records."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trainmark.pages.document import Block, Grid, Section, Table
from trainmark.pages.listing import in_words, joined, listed
from trainmark.pages.texts import text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainmark.record.record import Record
    from trainmark.spec import TableSpec


def declared(records: Sequence[Record], lang: str) -> list[Section]:
    """Return a section for each list and table of the case; none for a table without rows."""
    found = []
    for place, spec in enumerate(records[0].plan.about.page.tables, start=1):
        blocks: list[Block]
        if spec.rows:
            tables = dict.fromkeys(table(record, spec, lang) for record in records)
            blocks = [Grid(item) for item in tables if item is not None]
        else:
            blocks = [listed(records, lambda record, spec=spec: _entries(record, spec, lang))]  # type: ignore[misc]
        if blocks:
            heading = spec.heading.in_language(lang)
            found.append(Section(heading, 3, f"own{place}", tuple(blocks)))
    return found


def table(record: Record, spec: TableSpec, lang: str) -> Table | None:
    """Return the table of the rows that a run's job reported; None without rows."""
    told = (record.environment.get("job") or {}).get(spec.rows)
    rows = [row for row in told if isinstance(row, dict)] if isinstance(told, list) else []
    if not rows:
        return None
    return Table(
        tuple(entry.name.in_language(lang) for entry in spec.entries),
        tuple(
            tuple(_shown(row.get(entry.value), entry.form, lang) for entry in spec.entries)
            for row in rows
        ),
    )


def _entries(record: Record, spec: TableSpec, lang: str) -> dict[str, str]:
    """Return the values of a list by their names."""
    plan = record.plan
    a_rank = plan.recipe["micro_batch_size"] * plan.recipe["grad_accum_steps"]
    places = {
        "job": record.environment.get("job") or {},
        "recipe": plan.recipe,
        "run": {"global_batch_size": a_rank * plan.world_size},
    }
    return {
        entry.name.in_language(lang): _value(places, entry.value, entry.form, lang)
        for entry in spec.entries
    }


def _value(places: dict[str, Any], place: str, form: str, lang: str) -> str:
    """Return the value at a path, as text; "not known" if the run ended before reporting it."""
    found: Any = places
    for name in place.split("."):
        if found is None:  # the strategy of one rank, say: none, and so is all that is in it
            break
        if not isinstance(found, dict) or name not in found:
            return text("fact.unknown", lang)
        found = found[name]
    return _shown(found, form, lang)


def _shown(value: Any, form: str, lang: str) -> str:
    if isinstance(value, dict):
        return joined(value, lang)
    if form and isinstance(value, int | float):
        return format(value, form)
    return in_words(value, lang)
