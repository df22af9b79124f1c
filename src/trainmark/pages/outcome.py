"""The page's figures: the table, tiles, repeats, and what the table has no column for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainmark.pages import cells
from trainmark.pages.charts import launches, of_record
from trainmark.pages.document import Block, Grid, Paragraph, Section, Table, Tiles
from trainmark.pages.listing import sentence, shared
from trainmark.pages.summary import remarks, summary, summary_table
from trainmark.pages.tables import (
    QUALITY,
    definition,
    numbers,
    performance_table,
    value_heads,
)
from trainmark.pages.texts import has, text
from trainmark.record import figures as figures_of
from trainmark.record.figures import FIGURES
from trainmark.record.work import groups

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trainmark.record.record import Record
    from trainmark.spec import FigureSpec

_UTILISATIONS = ("MFU", "MAMFU")
_SHOWN_WITH = {"mem_total"}  # printed in the cell of another figure


def tiles(records: Sequence[Record], lang: str, *, columns: Sequence[str], metric: str) -> Tiles:
    """Return the few figures that most readers look for first.

    For one record, its own figures; for several launches of the same work, the medians over
    those that passed. Figures of a run that did not pass are marked as not a valid result.
    """
    first, passed = records[0], any(record.passed for record in records)
    speed = "token/p/s" if "token/p/s" in columns else "p_train"
    used = next((name for name in _UTILISATIONS if first.figure(name) is not None), "MFU")
    values: dict[str, float | None]
    if len(records) == 1:
        values = {name: first.figure(name) for name in (speed, used, "e2e_time")}
        quality = first.quality.value
    else:
        found = summary(records)
        values = {name: item.median for name, item in found.figures.items()}
        quality = None if found.quality is None else found.quality.median
    items = (
        (f"{speed}, {first.plan.recipe['precision']}", cells.number(values.get(speed)), speed),
        (used, cells.number(values.get(used)), used),
        (metric, cells.quality(quality, target=first.quality.target), ""),
        ("e2e_time", cells.seconds(values.get("e2e_time")), "e2e_time"),
    )
    name_of = "{}" if len(records) == 1 else text("repeats.median", lang, name="{}")
    return Tiles(
        tuple(
            (name_of.format(name), value, FIGURES[figure].unit if figure else "")
            for name, value, figure in items
        ),
        not_a_result="" if passed else text("tiles.not_a_result", lang),
    )


def performance(
    records: Sequence[Record], lang: str, *, columns: Sequence[str], metric: str
) -> Section:
    """Return the performance table, its rows numbered when there are several."""
    table = performance_table(records, lang=lang, columns=columns, metric=metric)
    if len(records) > 1:
        rows = tuple(
            (f"[{place}] {row[0]}", *row[1:]) for place, row in enumerate(table.rows, start=1)
        )
        table = Table(table.headers, rows)
    blocks: list[Block] = [Grid(table)]
    for number, record in zip(numbers(records), records, strict=True):
        sizes = _by_sequences(record, lang)
        if sizes:
            blocks.append(Paragraph(f"{number} {sizes}".strip()))
        reasons = _reasons(record, lang, columns=columns, metric=metric)
        if reasons:
            blocks.append(Paragraph(f"{number} / {reasons}".strip(), "muted"))
    return Section(text("section.performance", lang), 2, "performance", tuple(blocks))


def _by_sequences(record: Record, lang: str) -> str:
    """Return ``p_train`` in sequences and tokens where a sample is not one sequence."""
    entry = record.figures.get("p_train_sequences")
    if entry is None or entry.value is None:
        return ""
    return text(
        "performance.sequences",
        lang,
        sequences=cells.number(entry.value),
        tokens=cells.number(record.figure("p_train_tokens")),
        note=sentence(record, entry.note, lang),
    )


def same_launches(records: Sequence[Record]) -> bool:
    """Tell whether the records are several launches of one piece of work."""
    return len(records) > 1 and len(groups(records)) == 1


def _reasons(record: Record, lang: str, *, columns: Sequence[str], metric: str) -> str:
    """Return why cells of the performance table are empty, each reason once.

    Args:
        metric: how the table's head calls the quality.
    """
    by_reason: dict[str, list[str]] = {}
    for name in columns:
        entry = record.quality if name == QUALITY else record.figures.get(name)
        if entry is not None and entry.value is None:
            shown = metric if name == QUALITY else name
            by_reason.setdefault(sentence(record, entry.reason, lang, none="?"), []).append(shown)
    return text("sep.semicolon", lang).join(
        ", ".join(names) + text("sep.colon", lang) + reason for reason, names in by_reason.items()
    )


def repeats(records: Sequence[Record], lang: str) -> list[Section]:
    """Return the figures over the launches of each piece of work that was launched repeatedly."""
    return [
        _launches(members, lang, f"repeats{place}")
        for place, members in enumerate(groups(records), start=1)
        if len(members) > 1
    ]


def _launches(records: Sequence[Record], lang: str, anchor: str) -> Section:
    found = summary(records)
    blocks: list[Block] = [Paragraph(line) for line in remarks(found, lang=lang)]
    if found.figures:
        plot = launches.chart(records, lang, name=anchor)
        plots = [] if plot is None else [plot]
        blocks = [*plots, Grid(summary_table(found, lang=lang)), *blocks]
    ids = ", ".join(record.run_id for record in records)
    blocks.append(Paragraph(text("foot.run", lang) + text("sep.colon", lang) + ids, "muted"))
    return Section(text("section.repeats", lang), 2, anchor, tuple(blocks))


def typical(records: Sequence[Record]) -> Record:
    """Return the launch whose throughput is the median of those that passed."""
    passed = [record for record in records if record.passed] or list(records)
    ordered = sorted(passed, key=lambda record: record.figure("p_train") or 0.0)
    return ordered[(len(ordered) - 1) // 2]


def _figure_remark(record: Record, name: str, lang: str) -> str:
    entry = record.figures.get(name)
    if entry is None:
        return ""
    if entry.value is None:
        return text("figure.null", lang, reason=sentence(record, entry.reason, lang, none="?"))
    return sentence(record, entry.note, lang)


def _meaning(spec: FigureSpec, records: Sequence[Record], lang: str) -> str:
    called, means = spec.label.in_language(lang), definition(spec, records, lang)
    return text("columns.form", lang, name=called, meaning=means)


def further(records: Sequence[Record], lang: str, *, columns: Sequence[str]) -> Section:
    """Return the figures that the performance table has no column for, with unit or reason."""
    names = dict.fromkeys(
        name
        for record in records
        for name in record.figures
        if name not in columns and name not in _SHOWN_WITH
    )
    specs = figures_of.specs(records[0].plan.about.page)
    rows = []
    for name in names:
        unit = next(record.figures[name].unit for record in records if name in record.figures)
        values, shown_unit = cells.scaled([record.figure(name) for record in records], unit)
        # Plans of earlier versions do not declare the figures of a case, so they have no text.
        meaning = _meaning(specs[name], records, lang) if name in specs else ""
        remark = shared([_figure_remark(record, name, lang) for record in records])
        if meaning.endswith(text("sep.colon", lang) + remark):  # a note may say the same
            remark = ""
        parts = [part for part in (meaning, remark) if part]
        rows.append((name, *values, shown_unit, text("sep.semicolon", lang).join(parts)))
    ends = (text("head.unit", lang), text("head.remark", lang))
    heads = (text("head.name", lang), *value_heads(records, lang), *ends)
    return Section(text("section.further", lang), 3, "further", (Grid(Table(heads, tuple(rows))),))


def shown(records: Sequence[Record]) -> list[tuple[int, str, Record]]:
    """Return the records whose charts a page shows, each with place and number.

    Of several launches of the same work it is the typical one.
    """
    places = range(1, len(records) + 1)
    found = list(zip(places, numbers(records), records, strict=True))
    chosen = typical(records) if same_launches(records) else None
    return [item for item in found if chosen is None or item[2] is chosen]


def per_record(records: Sequence[Record], lang: str) -> Iterator[Section]:
    """Yield the charts of each record that is shown."""
    chosen = shown(records)
    for place, number, record in chosen:
        ident = f"run{place}-" if len(chosen) > 1 else ""
        for section in of_record(record, lang):
            yield section.of_several(ident, number)


def counts(records: Sequence[Record], lang: str) -> Section:
    """Return the counts of the training, and the passes over the data."""
    names = type(records[0].counts).model_fields
    rows = []
    for name in names:
        values = [getattr(record.counts, name) for record in records]
        shown = [cells.NOTHING if value is None else cells.count(value) for value in values]
        label = text(f"count.{name}", lang) if has(f"count.{name}") else name
        rows.append((label, *shown))
    passes = [f"{record.counts.samples / record.plan.data.train_samples:.2f}" for record in records]
    rows.append((text("count.passes", lang), *passes))
    heads = value_heads(records, lang)
    table = Table((text("head.count", lang), *heads), tuple(rows))
    return Section(text("section.counts", lang), 3, "counts", (Grid(table),))
