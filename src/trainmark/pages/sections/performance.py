"""The performance table in the founding form, what its columns mean, and published rows.

Owns which columns exist and how a record fills them. A column set is a tuple of column
names, so that a case's ``reference.toml`` can ask for another set by naming its headers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainmark.errors import RecordError
from trainmark.pages import cells
from trainmark.pages.document import Block, Facts, Paragraph, Section, Table, table
from trainmark.pages.phrases import (
    configuration,
    definition,
    record_configuration,
    sentence,
)
from trainmark.pages.texts import GLOSSARY, Phrase, join, known, say, t
from trainmark.plan.overrides import fix_hp_text
from trainmark.record.figures import FIGURES
from trainmark.spec import message

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trainmark.plan.reference import Reference, References
    from trainmark.record.record import Record

QUALITY = "<quality>"
PERFORMANCE = ("precision", "fix_hp", "e2e_time", "p_whole", "p_train", "p_core", QUALITY, "mem")
_SHOWN_UNITS = {"mem": "GiB"}  # of cells that are printed in another unit than records hold


def precision_label(record: Record) -> str:
    """Return the precision as the case's published pages call it: ``amp`` for fp16, say."""
    precision = str(record.plan.recipe["precision"])
    return record.plan.about.precision_labels.get(precision, precision)


def _figure(name: str, shown: Callable[[float | None], str]) -> Callable[[Record], str]:
    return lambda record: shown(record.figure(name))


COLUMNS: dict[str, Callable[[Record], str]] = {
    "precision": precision_label,
    "fix_hp": lambda record: fix_hp_text(record.fix_hp),
    **{name: _figure(name, cells.seconds) for name in ("e2e_time", "train_time")},
    **{x: _figure(x, cells.number) for x in ("p_whole", "p_train", "p_core", "token/p/s")},
    "loss": _figure("loss", lambda loss: cells.NOTHING if loss is None else f"{loss:.3f}"),
    "mem": lambda record: cells.memory(record.figure("mem"), record.figure("mem_total")),
    "MFU": _figure("MFU", cells.percent),
    QUALITY: lambda record: cells.quality_and_target(record.quality.value, record.quality.target),
}


def column_set(references: References) -> tuple[str, ...]:
    """Return the columns a case's references are printed with; without any, the usual ones.

    Raises:
        RecordError: more than one header that no column is called.
    """
    names = tuple(name if name in COLUMNS else QUALITY for name in references.columns)
    if names.count(QUALITY) > 1:
        strange = [name for name in references.columns if name not in COLUMNS]
        rule = f"besides the quality, columns are {', '.join(sorted(COLUMNS))}"
        what = f"unknown columns {', '.join(strange)}"
        raise RecordError(what, where="reference.toml", rule=rule)
    return names or PERFORMANCE


def quality_header(record: Record) -> str:
    """Return the quality's header as the references print it, else the metric's name."""
    printed = record.plan.about.references.columns
    return next((name for name in printed if name not in COLUMNS), record.quality.metric)


def performance_table(
    records: Sequence[Record], *, columns: Sequence[str] = PERFORMANCE, metric: str | None = None
) -> Table:
    """Return a row a record of one case, in their order; ``/`` where nothing was measured."""
    metric = metric or (records[0].quality.metric if records else QUALITY)
    return table(
        (t("head.configuration"), *(metric if name == QUALITY else name for name in columns)),
        (
            (
                (f"[{place}] " if len(records) > 1 else "", record_configuration(record)),
                *(COLUMNS[name](record) for name in columns),
            )
            for place, record in enumerate(records, start=1)
        ),
    )


def performance(records: Sequence[Record], columns: Sequence[str], metric: str) -> Section:
    """Return the performance table, a row a launch, and why cells of it are empty."""
    blocks: list[Block] = [performance_table(records, columns=columns, metric=metric)]
    reasons = {str(one): one for record in records for one in _reasons(record, columns, metric)}
    if reasons:
        blocks.append(Paragraph(("/ ", join(reasons.values(), "semicolon")), "muted"))
    return Section(t("section.performance"), "performance", tuple(blocks), folded=True)


def _reasons(record: Record, columns: Sequence[str], metric: str) -> list[Phrase]:
    """Return why cells of the performance table are empty, each reason once."""
    by_reason: dict[str, tuple[Phrase, list[str]]] = {}
    for name in columns:
        entry = record.quality if name == QUALITY else record.figures.get(name)
        if entry is not None and entry.value is None:
            why = sentence(record, entry.reason, "?")
            shown = metric if name == QUALITY else name
            by_reason.setdefault(str(entry.reason), (why, []))[1].append(shown)
    return [join((", ".join(names), why), "colon") for why, names in by_reason.values()]


def glossary(record: Record, columns: Sequence[str], metric: str) -> Section:
    """Return what the columns of the table and the other words of the page mean."""
    items: dict[Phrase, Phrase] = {}
    for name in columns if "precision" in columns else ("precision", *columns):
        called, meaning = _column(name, record)
        items[metric if name == QUALITY else name] = join((called, meaning), "colon")
    more = ((word, means) for word, means in GLOSSARY if say(word, "en") not in items)
    facts = Facts((*items.items(), *more))
    return Section(t("section.glossary"), "glossary", (facts,), folded=True, in_terminal=False)


def precision_note(record: Record) -> Phrase:
    """Return what the precision means for weights and matmuls.

    A case whose frozen weights may be held in 16 bits says so in a field ``weights_dtype``.
    """
    recipe = record.plan.recipe
    held = str(recipe.get("weights_dtype", "fp32"))
    if held != "fp32":
        return message("weights_held_in", dtype=held)
    return message(f"precision_{recipe['precision']}")


def _column(name: str, record: Record) -> tuple[Phrase, Phrase]:
    """Return what a column of the performance table is called and what it means."""
    if name == QUALITY:
        return t("name.quality"), record.plan.about.metric_note
    if name == "precision":
        return t("name.precision"), t("def.precision", precisions=precision_note(record))
    if name == "fix_hp":
        return t("name.fix_hp"), t("def.fix_hp", standards=record.plan.compared_with)
    spec = FIGURES[name]
    meaning, unit = definition(spec, record), _SHOWN_UNITS.get(name, spec.unit)
    if unit:
        meaning = t("figure.in_unit", meaning=meaning, unit=unit)
    length = record.plan.recipe.get("seq_length")
    if name == "p_core" and length is not None:  # as the founding pages do: ``(seq_length=512)``
        meaning = (meaning, t("def.seq_length", lengths=length))
    return spec.label, meaning


def reference_table(references: References) -> Table:
    """Return published rows under their own headers: in Chinese cell by cell as printed."""
    return table(
        (t("head.configuration"), *references.columns),
        ((reference_configuration(row), *reference_cells(row)) for row in references.rows),
    )


def reference_configuration(row: Reference) -> Phrase:
    """Return a reference's configuration: as printed in Chinese, in our words in English."""
    ours = configuration(row.device, nnodes=row.nnodes, nproc=row.nproc)
    return t("reference.as_printed", printed=row.configuration, ours=ours)


def reference_cells(row: Reference) -> list[Phrase]:
    """Return a reference's cells as printed; in English those that are not English translated."""
    return [
        t("reference.as_printed", printed=cell, ours=row.cells_en.get(name, cell))
        if name in row.cells_en else cell
        for name, cell in row.cells.items()
    ]  # fmt: skip


def published(record: Record) -> Section | None:
    """Return published rows as printed, whether a run compares with them, and their sources."""
    found = record.plan.about.references
    if not found.rows:
        return None
    recipe = record.plan.recipe_name
    other = "other" if record.plan.data.origin == "generated" else "unlike"
    blocks: list[Block] = [reference_table(found), sources(found)]
    if other == "other" or recipe.split("-")[0] not in ("standard", "published"):
        blocks.insert(1, Paragraph(t(f"reference.{other}", recipes=recipe), "warn"))
    return Section(t("section.references"), "references", tuple(blocks), folded=True,
                   in_terminal=False)  # fmt: skip


def sources(found: References) -> Facts:
    """Return where published rows come from."""
    items: list[tuple[Phrase, Phrase]] = []
    for source in {row.source.id: row.source for row in found.rows}.values():
        items += [
            (t("reference.source"), source.text),
            *([("URL", source.url)] if source.url else ()),
            (t("reference.date"), known(source.date)),
            (t("reference.evidence"), t(f"evidence.{source.evidence}")),
            *([(t("reference.remark"), source.remark)] if source.remark else ()),
        ]
    return Facts(tuple(items))
