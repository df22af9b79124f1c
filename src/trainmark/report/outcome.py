"""The page's second half: every figure of the records, how it came about, and its evidence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainmark.measure import figures as figures_of
from trainmark.measure.figures import FIGURES
from trainmark.planning.reference import implied_passes, same_work
from trainmark.report import cells
from trainmark.report.charts import (
    bucket_steps,
    launches_plot,
    loss_chart,
    step_time_chart,
    step_time_title,
)
from trainmark.report.document import Block, Facts, Grid, Paragraph, Picture, Section, Table, Tiles
from trainmark.report.listing import listed, sentence, shared
from trainmark.report.summary import groups, remarks, summary, summary_table
from trainmark.report.tables import (
    QUALITY,
    definition,
    numbers,
    performance_table,
    reference_table,
    shortened_rows,
    value_heads,
)
from trainmark.report.texts import GLOSSARY, has, text
from trainmark.report.waterfall import svg_waterfall, text_waterfall
from trainmark.results.readings import value_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainmark.planning.plan import PlannedCase
    from trainmark.planning.reference import References
    from trainmark.results.record import Record
    from trainmark.spec import FigureSpec

_PAGE_COLUMNS = 96  # of the text waterfall in a page
_UTILISATIONS = ("MFU", "MAMFU")
_SHOWN_WITH = {"mem_total"}  # printed in the cell of another figure


def tiles(records: Sequence[Record], lang: str, *, columns: Sequence[str], metric: str) -> Tiles:
    """Return the few figures that most readers look for first.

    For one record, its own figures; for several launches of the same work, the medians over
    those that passed. Figures of a run that did not pass are marked as not a valid result.
    """
    first, passed = records[0], any(record.passed for record in records)
    speed = "token/p/s" if "token/p/s" in columns else "p_train"
    used = next((name for name in _UTILISATIONS if value_of(first, name) is not None), "MFU")
    values: dict[str, float | None]
    if len(records) == 1:
        values = {name: value_of(first, name) for name in (speed, used, "e2e_time")}
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


def repeats(records: Sequence[Record], lang: str) -> list[Section]:
    """Return the figures over the launches of each piece of work that was launched repeatedly."""
    return [
        _launches(members, lang, ident=f"repeats{place}")
        for place, members in enumerate(groups(records), start=1)
        if len(members) > 1
    ]


def _launches(records: Sequence[Record], lang: str, *, ident: str) -> Section:
    found = summary(records)
    blocks: list[Block] = [Paragraph(line) for line in remarks(found, lang=lang)]
    if found.figures:
        plot = launches_plot(records, lang=lang, ident=ident)
        pictures = [] if plot is None else [Picture(plot, None, text("chart.launches", lang))]
        blocks = [*pictures, Grid(summary_table(found, lang=lang)), *blocks]
    ids = ", ".join(record.run_id for record in records)
    blocks.append(Paragraph(text("foot.run", lang) + text("sep.colon", lang) + ids, "muted"))
    return Section(text("section.repeats", lang), 2, ident, tuple(blocks))


def typical(records: Sequence[Record]) -> Record:
    """Return the launch whose throughput is the median of those that passed."""
    passed = [record for record in records if record.passed] or list(records)
    ordered = sorted(passed, key=lambda record: value_of(record, "p_train") or 0.0)
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
        values, shown_unit = cells.scaled([value_of(record, name) for record in records], unit)
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


def spans(record: Record, lang: str, *, number: str, ident: str) -> Section:
    """Return where the wall time went."""
    found = record.spans
    heading = text("section.spans", lang) + number
    if found.rank is None or not found.by_name_ns:
        return Section(heading, 2, ident, (Paragraph(text("spans.none", lang), "muted"),))
    named = cells.NOTHING if found.reconciled is None else f"{100 * found.reconciled:.1f}%"
    caption = text(
        "spans.caption", lang, wall=cells.spent(found.wall_ns or 0), rank=found.rank, named=named
    )
    bars = Picture(
        svg_waterfall(record, lang=lang, ident=ident),
        text_waterfall(record, width=_PAGE_COLUMNS, lang=lang),
    )
    return Section(heading, 2, ident, (Paragraph(caption, "muted"), bars))


def steps(record: Record, lang: str, *, number: str, ident: str) -> Section | None:
    """Return the charts; they exist in HTML only, so that Markdown shows nothing for them."""
    charts = (
        (text("chart.loss", lang), loss_chart(record, lang=lang, ident=f"{ident}-loss")),
        (step_time_title(record, lang), step_time_chart(record, lang=lang, ident=f"{ident}-time")),
    )
    pictures = tuple(Picture(chart, None, title) for title, chart in charts if chart is not None)
    if not pictures:
        return None
    blocks: tuple[Block, ...] = pictures
    stretch = bucket_steps(len(record.steps.time_ns))
    if stretch > 1:
        note = text("chart.note", lang, stretch=f"{stretch:,}")
        blocks = (*pictures, Paragraph(note, "muted"))
    heading = text("section.steps", lang) + number
    return Section(heading, 2, ident, blocks, pictures_only=True)


def per_record(records: Sequence[Record], lang: str) -> list[Section]:
    """Return waterfall and charts of each record; of several launches of the typical one."""
    shown = list(enumerate(zip(numbers(records), records, strict=True), start=1))
    if same_launches(records):
        chosen = typical(records)
        shown = [item for item in shown if item[1][1] is chosen]
    found: list[Section] = []
    for place, (number, record) in shown:
        found.append(spans(record, lang, number=number, ident=f"spans{place}"))
        charts = steps(record, lang, number=number, ident=f"steps{place}")
        if charts is not None:
            found.append(charts)
    return found


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


def _other_work(records: Sequence[Record], lang: str) -> list[Block]:
    """Return warnings where the runs are of other work than the published rows."""
    by_key: dict[str, dict[str, None]] = {}
    for record in records:
        name = cells.clean(record.plan.recipe_name)
        if record.plan.data.origin == "generated":
            by_key.setdefault("reference.other", {})[name] = None
        elif name.split("-")[0] not in ("standard", "published"):
            by_key.setdefault("reference.unlike", {})[name] = None
    return [
        Paragraph(text(key, lang, recipes=", ".join(names)), "warn")
        for key, names in by_key.items()
    ]


def references(records: Sequence[Record], about: PlannedCase, lang: str) -> Section | None:
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
    """Return the program's version, the runs, and the evidence files."""

    def made_by(record: Record) -> dict[str, str]:
        commit = record.environment.get("commit") or text("fact.unknown", lang)
        found = {
            "suite": f"{record.suite.name} {record.suite.version}",
            "commit": commit,
            "run": record.run_id,
            "key": record.case_key,
        }
        return {text(f"foot.{name}", lang): value for name, value in found.items()}

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
        listed(records, made_by),
        Paragraph(text("foot.content", lang), "muted"),
        Grid(Table(tuple(heads), shortened_rows(rows, lang))),
    )
    return Section(text("section.footer", lang), 2, "provenance", blocks)


def glossary(lang: str) -> Section:
    """Return the glossary for readers who do not train models."""
    items = tuple((word.in_language(lang), means.in_language(lang)) for word, means in GLOSSARY)
    return Section(text("section.glossary", lang), 2, "glossary", (Facts(items),))
