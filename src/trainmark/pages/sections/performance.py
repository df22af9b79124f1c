"""The performance table in the founding form, what its columns mean, and published rows.

Owns which columns exist and how a record fills them. A column set is a tuple of column
names, so that a case's ``reference.toml`` can ask for another set by naming its headers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainmark.errors import RecordError
from trainmark.pages import cells
from trainmark.pages.document import Block, Facts, Paragraph, Section, Table, Tiles, table
from trainmark.pages.phrases import (
    configuration,
    definition,
    numbers,
    record_configuration,
    sentence,
)
from trainmark.pages.summary import summary
from trainmark.pages.texts import Phrase, join, known, t
from trainmark.plan.overrides import fix_hp_text
from trainmark.plan.reference import implied_passes, same_work
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
    "e2e_time": _figure("e2e_time", cells.seconds),
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
                ((number.strip(), " ") if number else "", record_configuration(record)),
                *(COLUMNS[name](record) for name in columns),
            )
            for number, record in zip(numbers(records), records, strict=True)
        ),
    )


def tiles(records: Sequence[Record], columns: Sequence[str], metric: str) -> Tiles:
    """Return the few figures that most readers look for first: of several launches, the medians.

    Those of a run that did not pass are marked as not a valid result.
    """
    first = records[0]
    speed = "token/p/s" if "token/p/s" in columns else "p_train"
    used = next((name for name in ("MFU", "MAMFU") if first.figure(name) is not None), "MFU")
    values = {name: first.figure(name) for name in (speed, used, "e2e_time")}
    quality = first.quality.value
    if len(records) > 1:
        found = summary(records)
        values = {name: of.median for name, of in found.figures.items()}
        quality = None if found.quality is None else found.quality.median
    items = (
        (f"{speed}, {first.plan.recipe['precision']}", cells.number(values.get(speed)), speed),
        (used, cells.number(values.get(used)), used),
        (metric, cells.quality(quality, target=first.quality.target), ""),
        ("e2e_time", cells.seconds(values.get("e2e_time")), "e2e_time"),
    )
    void = None if any(record.passed for record in records) else t("tiles.not_a_result")
    return Tiles(
        tuple(
            (
                t("repeats.median", name=name) if len(records) > 1 else name,
                value,
                FIGURES[figure].unit if figure else "",
            )
            for name, value, figure in items
        ),
        void,
    )


def performance(records: Sequence[Record], columns: Sequence[str], metric: str) -> Section:
    """Return the performance table, its rows numbered when there are several."""
    blocks: list[Block] = [performance_table(records, columns=columns, metric=metric)]
    for number, record in zip(numbers(records), records, strict=True):
        lead = (number.strip(), " ") if number else ""
        entry = record.figures.get("p_train_sequences")
        if entry is not None and entry.value is not None:
            sizes = t(
                "performance.sequences", sequences=cells.number(entry.value),
                tokens=cells.number(record.figure("p_train_tokens")),
                note=sentence(record, entry.note),
            )  # fmt: skip
            blocks.append(Paragraph((lead, sizes)))
        reasons = _reasons(record, columns, metric)
        if reasons:
            blocks.append(Paragraph((lead, "/ ", join(reasons, "semicolon")), "muted"))
    return Section(t("section.performance"), "performance", tuple(blocks))


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


def columns_meaning(records: Sequence[Record], columns: Sequence[str], metric: str) -> Section:
    """Return what each column of the performance table means."""
    items: list[tuple[Phrase, Phrase]] = []
    for name in columns if "precision" in columns else ("precision", *columns):
        printed = metric if name == QUALITY else name
        called, meaning = _column(name, records)
        items.append((printed, join((called, meaning), "colon")))
    names = join(name for name, _ in items)
    return Section(t("section.columns"), "columns", (Facts(tuple(items)),), 3, names)


def precision_note(record: Record) -> Phrase:
    """Return what the precision means for weights and matmuls.

    A case whose frozen weights may be held in 16 bits says so in a field ``weights_dtype``.
    """
    recipe = record.plan.recipe
    held = str(recipe.get("weights_dtype", "fp32"))
    if held != "fp32":
        return message("weights_held_in", dtype=held)
    return message(f"precision_{recipe['precision']}")


def _column(name: str, records: Sequence[Record]) -> tuple[Phrase, Phrase]:
    """Return what a column of the performance table is called and what it means."""
    if name == QUALITY:
        return t("name.quality"), records[0].plan.about.metric_note
    if name == "precision":
        used = {str(note): note for note in map(precision_note, records)}
        return t("name.precision"), t("def.precision", precisions=join(used.values()))
    if name == "fix_hp":
        standards = dict.fromkeys(record.plan.compared_with for record in records)
        return t("name.fix_hp"), t("def.fix_hp", standards=join(standards))
    spec = FIGURES[name]
    meaning, unit = definition(spec, records), _SHOWN_UNITS.get(name, spec.unit)
    if unit:
        meaning = t("figure.in_unit", meaning=meaning, unit=unit)
    if name == "p_core":  # as the founding pages do: ``(seq_length=512)``
        lengths = [record.plan.recipe.get("seq_length") for record in records]
        told = dict.fromkeys(str(length) for length in lengths if length is not None)
        meaning = (meaning, t("def.seq_length", lengths="/".join(told)) if told else "")
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


def published(records: Sequence[Record]) -> Section | None:
    """Return published rows as printed, what their own figures imply, and their provenance."""
    found = records[0].plan.about.references
    if not found.rows:
        return None
    printed, blocks = reference_table(found), [*_other_work(records)]
    per_pass = found.samples_per_pass
    if per_pass is None:
        blocks.append(printed)
    else:
        passes = (implied_passes(row, samples_per_pass=per_pass) for row in found.rows)
        implied = ("/" if one is None else f"{one:.1f}" for one in passes)
        rows = ((*row, one) for row, one in zip(printed.rows, implied, strict=True))
        blocks.append(table((*printed.headers, t("head.passes")), rows))
        blocks.append(Paragraph(t("reference.audit", rows=cells.count(per_pass))))
        same = same_work(found)
        if same is not None:
            blocks.append(Paragraph(t(f"reference.{'same' if same else 'differ'}"),
                                    "plain" if same else "warn"))  # fmt: skip
    blocks += [sources(found)]
    return Section(t("section.references"), "references", tuple(blocks), 3)


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


def _other_work(records: Sequence[Record]) -> list[Block]:
    """Return warnings where the runs are of other work than the published rows."""
    by_key: dict[str, dict[str, None]] = {}
    for record in records:
        name = record.plan.recipe_name
        if record.plan.data.origin == "generated":
            by_key.setdefault("other", {})[name] = None
        elif name.split("-")[0] not in ("standard", "published"):
            by_key.setdefault("unlike", {})[name] = None
    return [
        Paragraph(t(f"reference.{key}", recipes=", ".join(names)), "warn")
        for key, names in by_key.items()
    ]
