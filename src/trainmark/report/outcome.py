"""The page's second half: every figure of the records, how it came about, and its evidence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainmark.report import cells
from trainmark.report.charts import loss_chart, step_time_chart
from trainmark.report.document import Block, Facts, Grid, Paragraph, Picture, Section, Tiles
from trainmark.report.listing import shared
from trainmark.report.sentences import sentence
from trainmark.report.summary import groups, remarks, summary, summary_table
from trainmark.report.tables import (
    QUALITY,
    Table,
    numbers,
    performance_row,
    performance_table,
    reference_table,
    value_heads,
)
from trainmark.report.texts import has, text
from trainmark.report.waterfall import svg_waterfall, text_waterfall
from trainmark.results.readings import value_of
from trainmark.results.reference import implied_passes, same_work

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainmark.report.about import About
    from trainmark.results.record import Record
    from trainmark.results.reference import References

_PAGE_COLUMNS = 96  # of the text waterfall in a page
TILES = ("p_core", "token/p/s", "e2e_time", QUALITY, "mem")
_TILE_UNITS = {"e2e_time": "s", "p_core": "samples/s", "token/p/s": "tokens/s", "mem": "GiB"}
_SHOWN_WITH = {"mem_total"}  # printed in the cell of another figure


def tiles(record: Record, lang: str, *, columns: Sequence[str], metric: str) -> Tiles:
    """Return the few figures that most readers look for first."""
    row = performance_row(record, lang=lang, columns=columns)
    chosen = [name for name in TILES if name in columns]
    return Tiles(
        tuple(
            (metric if name == QUALITY else name, row.cells[name], _TILE_UNITS.get(name, ""))
            for name in chosen
        )
    )


def median_tiles(
    records: Sequence[Record], lang: str, *, columns: Sequence[str], metric: str
) -> Tiles:
    """Return the tiles of several launches of the same work: the medians of those that passed."""
    found = summary(records)
    total = next((value_of(record, "mem_total") for record in records if record.passed), None)
    items = []
    for name in TILES:
        if name not in columns:
            continue
        over = found.quality if name == QUALITY else found.figures.get(name)
        value = None if over is None else over.median
        if name == QUALITY:
            shown = cells.quality(value, target=records[0].quality.target)
        elif name == "mem":
            shown = cells.memory(value, total)
        else:
            shown = cells.seconds(value) if name == "e2e_time" else cells.number(value)
        title = text("repeats.median", lang, name=metric if name == QUALITY else name)
        items.append((title, shown, _TILE_UNITS.get(name, "")))
    return Tiles(tuple(items))


def performance(
    records: Sequence[Record], lang: str, *, columns: Sequence[str], metric: str
) -> list[Section]:
    """Return the performance table, numbered when there are several rows, and the repeats.

    Where all records are repeats of each other, their summary begins the page instead.
    """
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
    found = [Section(text("section.performance", lang), 3, "performance", tuple(blocks))]
    if not same_launches(records):
        found += [repeats(members, lang) for members in groups(records) if len(members) > 1]
    return found


def _by_sequences(record: Record, lang: str) -> str:
    """Return ``p_train`` in sequences and tokens where a sample is not one sequence."""
    entry = record.figures.get("p_train_sequences")
    if entry is None or entry.value is None:
        return ""
    return text(
        "performance.sequences",
        lang,
        sequences=cells.number(entry.value),
        tokens=cells.number(value_of(record, "p_train_tokens")),
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


def repeats(records: Sequence[Record], lang: str, *, level: int = 3) -> Section:
    """Return the figures over several launches of the same work."""
    found = summary(records)
    blocks: list[Block] = [Paragraph(line) for line in remarks(found, lang=lang)]
    if found.figures:
        blocks.insert(0, Grid(summary_table(found, lang=lang)))
    blocks.append(Paragraph(", ".join(record.run_id for record in records), "muted"))
    return Section(text("section.repeats", lang), level, "repeats", tuple(blocks))


def _figure_remark(record: Record, name: str, lang: str) -> str:
    entry = record.figures.get(name)
    if entry is None:
        return ""
    if entry.value is None:
        return text("figure.null", lang, reason=sentence(record, entry.reason, lang, none="?"))
    return sentence(record, entry.note, lang)


def further(records: Sequence[Record], lang: str, *, columns: Sequence[str]) -> Section:
    """Return the figures that the performance table has no column for, with unit or reason."""
    names = dict.fromkeys(
        name
        for record in records
        for name in record.figures
        if name not in columns and name not in _SHOWN_WITH
    )
    if any(figure in columns and figure == "mem" for figure in columns):
        names.pop("mem", None)
    rows = []
    for name in names:
        unit = next(record.figures[name].unit for record in records if name in record.figures)
        values, shown_unit = cells.scaled([value_of(record, name) for record in records], unit)
        remark = shared(records, lambda record, name=name: _figure_remark(record, name, lang))  # type: ignore[misc]
        meaning = text(f"figure.{name}", lang) if has(f"figure.{name}") else ""
        parts = [part for part in (meaning, remark) if part]
        rows.append((name, *values, shown_unit, text("sep.semicolon", lang).join(parts)))
    values_heads = tuple(value_heads(records, lang))
    heads = (
        text("head.name", lang),
        *values_heads,
        text("head.unit", lang),
        text("head.remark", lang),
    )
    return Section(text("section.further", lang), 3, "further", (Grid(Table(heads, tuple(rows))),))


def spans(record: Record, lang: str, *, number: str, ident: str) -> Section:
    """Return where the wall time went."""
    found = record.spans
    heading = text("section.spans", lang) + number
    if found.rank is None or not found.by_name_ns:
        return Section(heading, 3, ident, (Paragraph(text("spans.none", lang), "muted"),))
    named = cells.NOTHING if found.reconciled is None else f"{100 * found.reconciled:.1f}%"
    caption = text(
        "spans.caption", lang, wall=cells.spent(found.wall_ns or 0), rank=found.rank, named=named
    )
    bars = Picture(
        svg_waterfall(record, lang=lang, ident=ident),
        text_waterfall(record, width=_PAGE_COLUMNS, lang=lang),
    )
    return Section(heading, 3, ident, (Paragraph(caption, "muted"), bars))


def steps(record: Record, lang: str, *, number: str, ident: str) -> Section | None:
    """Return the charts; they exist in HTML only, so that Markdown shows nothing for them."""
    charts = {
        "chart.loss": loss_chart(record, lang=lang, ident=f"{ident}-loss"),
        "chart.step_time": step_time_chart(record, lang=lang, ident=f"{ident}-time"),
    }
    pictures = tuple(
        Picture(chart, None, text(key, lang)) for key, chart in charts.items() if chart is not None
    )
    if not pictures:
        return None
    blocks: tuple[Block, ...] = (*pictures, Paragraph(text("chart.note", lang), "muted"))
    heading = text("section.steps", lang) + number
    return Section(heading, 3, ident, blocks, pictures_only=True)


def per_record(records: Sequence[Record], lang: str) -> list[Section]:
    """Return waterfall and charts of each record."""
    found: list[Section] = []
    for place, (number, record) in enumerate(zip(numbers(records), records, strict=True), start=1):
        found.append(spans(record, lang, number=number, ident=f"spans{place}"))
        charts = steps(record, lang, number=number, ident=f"steps{place}")
        if charts is not None:
            found.append(charts)
    return found


def counts(records: Sequence[Record], lang: str) -> Section:
    """Return what was really trained, and how many passes over the data that is."""
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


def _other_work(records: Sequence[Record], lang: str) -> list[Block]:
    """Return warnings where the runs are of other work than the published rows."""
    by_key: dict[str, dict[str, None]] = {}
    for record in records:
        name = cells.clean(record.plan.recipe_name)
        if record.plan.data.origin == "generated":
            by_key.setdefault("reference.other", {})[name] = None
        elif name.split("-")[0] != "standard":
            by_key.setdefault("reference.unlike", {})[name] = None
    return [
        Paragraph(text(key, lang, recipes=", ".join(names)), "warn")
        for key, names in by_key.items()
    ]


def references(records: Sequence[Record], about: About, lang: str) -> Section | None:
    """Return published rows as printed, what their own figures imply, and their provenance."""
    found = about.references
    if not found.rows:
        return None
    table = reference_table(found, lang=lang)
    blocks = _other_work(records, lang)
    if found.samples_per_pass is None:
        blocks.append(Grid(table))
    else:
        blocks.append(Grid(with_passes(table, found, lang=lang)))
        rows = cells.count(found.samples_per_pass)
        blocks.append(Paragraph(text("reference.audit", lang, rows=rows)))
        same = same_work(found)
        if same is not None:
            tone, key = ("plain", "reference.same") if same else ("warn", "reference.differ")
            blocks.append(Paragraph(text(key, lang), tone))  # type: ignore[arg-type]
    for source in {row.source.id: row.source for row in found.rows}.values():
        items = [
            (text("reference.source", lang), source.text.in_language(lang)),
            (text("reference.date", lang), source.date or text("fact.unknown", lang)),
            (text("reference.evidence", lang), text(f"evidence.{source.evidence}", lang)),
        ]
        if source.url:
            items.insert(1, ("URL", source.url))
        if source.remark:
            items.append((text("reference.remark", lang), source.remark.in_language(lang)))
        blocks.append(Facts(tuple(items)))
    return Section(text("section.references", lang), 3, "references", tuple(blocks))


def with_passes(table: Table, found: References, *, lang: str) -> Table:
    """Return the printed table with one more column: the passes each row's figures imply."""
    assert found.samples_per_pass is not None
    rows = []
    for printed, row in zip(table.rows, found.rows, strict=True):
        passes = implied_passes(row, samples_per_pass=found.samples_per_pass)
        rows.append((*printed, cells.NOTHING if passes is None else f"{passes:.1f}"))
    return Table((*table.headers, text("head.passes", lang)), tuple(rows))


def footer(records: Sequence[Record], lang: str) -> Section:
    """Return what measured, which runs, and the files that prove it."""
    items = (
        (text("foot.suite", lang), shared(records, lambda r: f"{r.suite.name} {r.suite.version}")),
        (
            text("foot.commit", lang),
            shared(records, lambda r: r.environment.get("commit") or text("fact.unknown", lang)),
        ),
        (text("foot.run", lang), shared(records, lambda r: r.run_id)),
        (text("foot.key", lang), shared(records, lambda r: r.case_key)),
    )
    several = len(records) > 1
    rows = []
    for place, record in enumerate(records, start=1):
        for file in record.evidence:
            row = (file.name, cells.count(file.bytes), file.sha256)
            rows.append((f"[{place}]", *row) if several else row)
    heads = [text("head.file", lang), text("head.bytes", lang), "SHA-256"]
    if several:
        heads.insert(0, text("head.run", lang))
    blocks = (
        Facts(items),
        Paragraph(text("foot.content", lang), "muted"),
        Grid(Table(tuple(heads), tuple(rows))),
    )
    return Section(text("section.footer", lang), 2, "provenance", blocks)
