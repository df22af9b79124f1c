"""The performance table in the founding form, and published rows.

Owns which columns exist and how a record fills them. A case's ``reference.toml`` asks for another
set by naming its headers.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from trainmark.errors import RecordError
from trainmark.pages import cells
from trainmark.pages.document import Facts, Paragraph, Section, Table, folded, table
from trainmark.pages.phrases import (
    configuration,
    heads,
    record_configuration,
)
from trainmark.pages.texts import Phrase, known, t
from trainmark.plan.overrides import fix_hp_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trainmark.plan.reference import Reference, References
    from trainmark.record.record import Record

QUALITY = "<quality>"
PERFORMANCE = ("precision", "fix_hp", "e2e_time", "p_whole", "p_train", "p_core", QUALITY, "mem")


def precision_label(record: Record) -> str:
    """Return the precision as the case's published pages call it: ``amp`` for fp16, say."""
    precision = str(record.plan.recipe["precision"])
    return record.plan.about.precision_labels.get(precision, precision)


_SHOWN = {
    "e2e_time": cells.seconds, "train_time": cells.seconds, "loss": cells.loss,
    **dict.fromkeys(("p_whole", "p_train", "p_core", "token/p/s"), cells.number),
    "MFU": cells.percent,
}  # fmt: skip


def _figure(name: str, record: Record) -> str:
    return _SHOWN[name](record.figure(name))


COLUMNS: dict[str, Callable[[Record], str]] = {
    "precision": precision_label,
    "fix_hp": lambda record: fix_hp_text(record.fix_hp),
    "mem": lambda record: cells.memory(record.figure("mem"), record.figure("mem_total")),
    **{name: partial(_figure, name) for name in _SHOWN},
    QUALITY: lambda record: cells.quality_and_target(record.quality.value, record.quality.target),
}


def columns(references: References) -> tuple[str, ...]:
    """Return the columns a case's references are printed with; without any, the usual ones.

    Raises:
        RecordError: more than one header that no column is called.
    """
    strange = [name for name in references.columns if name not in COLUMNS]
    if len(strange) > 1:
        rule = f"besides the quality, columns are {', '.join(sorted(COLUMNS))}"
        what = f"unknown columns {', '.join(strange)}"
        raise RecordError(what, where="reference.toml", rule=rule)
    return tuple(QUALITY if x in strange else x for x in references.columns) or PERFORMANCE


def _head(name: str, record: Record) -> str:
    """Return a column's header; the quality's as the references print it, else the metric."""
    if name != QUALITY:
        return name
    printed = record.plan.about.references.columns
    return next((name for name in printed if name not in COLUMNS), record.quality.metric)


def performance_table(records: Sequence[Record]) -> Table:
    """Return a row a record of one case, in their order; ``/`` where nothing was measured."""
    names = columns(records[0].plan.about.references)
    rows = (
        (
            (f"[{place}] " if len(records) > 1 else "", record_configuration(record)),
            *(COLUMNS[name](record) for name in names),
        )
        for place, record in enumerate(records, start=1)
    )
    return table((t("head.configuration"), *(_head(name, records[0]) for name in names)), rows)


def reference_table(references: References) -> Table:
    """Return published rows: in Chinese cell by cell as printed, in English in our words."""

    def shown(row: Reference) -> list[Phrase]:
        ours = configuration(row.device, nnodes=row.nnodes, nproc=row.nproc)
        named = {"": row.configuration, **row.cells}
        english = {"": ours, **row.cells_en}
        return [
            t("reference.as_printed", printed=cell, ours=english.get(name, cell))
            for name, cell in named.items()
        ]

    return table((t("head.configuration"), *references.columns), map(shown, references.rows))


def published(record: Record) -> Section | None:
    """Return published rows as printed, whether a run compares with them, and their sources."""
    found, recipe = record.plan.about.references, record.plan.recipe_name
    if not found.rows:
        return None
    other = "other" if record.plan.data.origin == "generated" else "unlike"
    alike = other == "unlike" and recipe.startswith(("standard", "published"))
    warned = None if alike else Paragraph(t(f"reference.{other}", recipes=recipe), "warn")
    shown = reference_table(found), warned, sources(found)
    return folded("references", *shown)


def sources(found: References) -> Facts:
    """Return where published rows come from."""
    items: list[tuple[Phrase, Phrase]] = []
    for source in {row.source.id: row.source for row in found.rows}.values():
        level = t(f"evidence.{source.evidence}")
        told = (source.text, source.url, known(source.date), level, source.remark)
        names = heads(*(f"reference.{x}" for x in ("source", "url", "date", "evidence", "remark")))
        items += [(name, value) for name, value in zip(names, told, strict=True) if value]
    return Facts(tuple(items))
