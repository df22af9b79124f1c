"""All figures of a run with its spans, evaluations, ranks, doubts; and how works scale."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainmark.judge.comparison.scaling import find_scaling
from trainmark.pages import cells, charts
from trainmark.pages.document import (
    Block,
    Code,
    Paragraph,
    Section,
    build_folded_section,
    build_table,
)
from trainmark.pages.judgements import build_scaling
from trainmark.pages.sections import limits
from trainmark.pages.texts import (
    TEXTS,
    Link,
    Missing,
    Phrase,
    count_in_words,
    describe_verdict,
    get_definition,
    join,
    phrase,
    term,
    translate,
    translate_headings,
    translate_message,
)
from trainmark.record import figures as figures_of
from trainmark.record.measurement import Measurement
from trainmark.record.printed import compare_printed
from trainmark.record.trust import get_trust
from trainmark.results.store.columns import get_device_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trainmark.pages.document import Tile
    from trainmark.record.record import Record
    from trainmark.spec import Message
    from trainmark.telemetry.summary import IntervalName, Use

_SHORTEST_NS = 1_000_000  # of a span that is listed
_EVALUATIONS = 5  # rows of the page; the record has all
# Columns of what was read of a device: which end of the range stands beside the mean.
_USE = {
    "utilization_percent": "highest", "power_w": "highest", "temperature_c": "highest",
    "clock_mhz": "lowest",
}  # fmt: skip
# The figure over all ranks of a column: it has the reason why nothing was measured.
_FIGURE_OF = {
    "step_ms": "step_time_p50", "wait_ms": "step_time_p50", "tflops": "matmul_flops_per_device",
    "memory": "mem", "utilization_percent": "utilization", "power_w": "power",
    "temperature_c": "temperature", "clock_mhz": "utilization", "throttled": "utilization",
}  # fmt: skip
_RANKS = ("rank", "node", "step_ms", "wait_ms", "tflops", "memory", *_USE, "throttled")


def build_figures(record: Record, cost: Tile | None = None, launches: int = 1) -> Section:
    """Return all figures with their definitions, counts, spans, and what was not measured.

    Args:
        cost: by the price of an hour.
        launches: over which the figures are means; counts and spans are of ``record`` alone.
    """
    rows: list[list[Phrase]] = []
    unmeasured: list[tuple[Phrase, Phrase]] = []
    specs, quality = figures_of.list_specs(record.plan.about.page), record.quality
    for name, entry in record.figures.items():
        if entry.value is None:
            unmeasured.append((name, translate_message(record, entry.reason)))
            continue
        (value,), unit = cells.scale_to_unit([entry.value], entry.unit)
        remark: list[Phrase] = []
        if spec := specs.get(name):  # a record of others may have figures that nobody declared
            remark.append(join((spec.label, get_definition(spec, record)), "colon"))
        if entry.note is not None:
            remark.append(translate_message(record, entry.note))
        rows.append([name, value, unit, join(remark, "semicolon")])
    if quality.value is None:
        unmeasured.append((quality.metric, translate_message(record, quality.reason)))
    else:
        reached = cells.format_quality_and_target(quality.value, quality.target)
        rows.append([quality.metric, reached, "", record.plan.about.metric_note])
    if cost is not None:
        rows.append([cost.name, cost.value, cost.unit, cost.arithmetic])
    for name, count in record.counts:
        if count is not None:
            note_key = f"count_note.{name}"
            note = phrase(note_key) if note_key in TEXTS else ""
            rows.append([term("count", name), cells.count(count), "", note])
    wall = record.spans.wall_ns or sum(record.spans.by_name_ns.values())
    spans = {name: ns for name, ns in record.spans.by_name_ns.items() if ns >= _SHORTEST_NS}
    for place, (name, ns) in enumerate(spans.items()):
        share: Phrase = f"{ns / wall:.1%}"
        if place == 0:  # the first row says what the share is of
            share = phrase("spans.share", share=share, rank=record.spans.rank)
        rows.append([term("span", name), f"{ns / 1e9:.3f}", "s", share])
    means = phrase("figure.means", n=launches, run=record.run_id) if launches > 1 else ""
    shown = build_table(translate_headings("name", "value", "unit", "remark"), rows)
    gist = phrase("gist.figures", n=len(record.figures) - len(unmeasured))
    return build_folded_section(
        "figures", shown, describe_unmeasured(unmeasured), note=means, gist=gist
    )


def describe_unmeasured(figures: Sequence[tuple[Phrase, Phrase]]) -> Paragraph | None:
    """Return the names of figures without a value in one paragraph, by the reason that they share.

    Args:
        figures: name and reason of each; an empty reason: none is known.
    """
    names: dict[str, list[Phrase]] = {}
    reasons: dict[str, Phrase] = {}
    for name, reason in figures:
        names.setdefault(translate(reason, "en"), []).append(name)
        reasons[translate(reason, "en")] = reason
    groups = [
        (join(group), " (", reasons[key], ")") if key else join(group)
        for key, group in names.items()
    ]
    if not groups:
        return None
    return Paragraph(phrase("figure.unmeasured", names=join(groups, "semicolon")), "muted")


def build_evaluations(record: Record, address: str = "") -> Section | None:
    """Return the last evaluations; None when there was none.

    Args:
        address: of the record, which has all.
    """
    history = record.quality.history
    if not history:
        return None
    rows = (
        (
            point.epoch + 1,
            cells.count(point.step),
            cells.format_quality(point.value, target=record.quality.target),
            cells.count(point.samples),
        )
        for point in history[-_EVALUATIONS:]
    )
    names = [
        *translate_headings("epoch", "step"),
        record.quality.metric,
        *translate_headings("samples"),
    ]
    blocks: list[Block] = [Paragraph(describe_verdict(record)), build_table(names, rows)]
    if len(history) > _EVALUATIONS:
        earlier = phrase("quality.earlier", n=len(history) - _EVALUATIONS)
        blocks.append(Paragraph(Link(earlier, address) if address else earlier, "muted"))
    return build_folded_section(
        "quality",
        charts.chart_quality(record),
        *blocks,
        gist=count_in_words("evaluations", len(history)),
    )


def build_printed_speeds(record: Record) -> Section | None:
    """Return what a program printed of its own speed beside what was measured; None of a case."""
    comparisons = compare_printed(Measurement.from_record(record), record.figures)
    if not comparisons:
        return None
    rows = [
        (
            comparison.unit,
            cells.format_rate(comparison.speed.mean),
            cells.format_rate(comparison.measured),
            cells.NOTHING if comparison.measured is None else f"{comparison.change:+.1%}",
            "" if comparison.reason is None else translate_message(record, comparison.reason),
            cells.count(comparison.speed.lines),
        )
        for comparison in comparisons
    ]
    names = translate_headings("unit", "reported", "measured", "difference", "reason", "lines")
    first = Code(comparisons[0].speed.raw)
    return build_folded_section(
        "printed", build_table(names, rows), first, gist=count_in_words("rows", len(rows))
    )


def build_ranks(record: Record) -> Section | None:
    """Return a row a rank with what was read of its device, the slowest first; None of one alone.

    Readings are of the training, or else of the run.
    """
    telemetry = record.telemetry
    over: IntervalName = "train" if telemetry and "train" in telemetry.intervals_s else "run"
    uses = {
        rank: x.over.get(over) for x in (telemetry.devices if telemetry else ()) for rank in x.ranks
    }
    if not uses and sum(rank_entry.step_ns is not None for rank_entry in record.ranks) < 2:
        return None
    rows = []
    for rank_entry in sorted(record.ranks, key=lambda rank_entry: -(rank_entry.step_ns or 0)):
        times = [
            None if ns is None else f"{ns / 1e6:.4g}"
            for ns in (rank_entry.step_ns, rank_entry.wait_ns)
        ]
        rate = rank_entry.matmul_flops_per_second
        cells_of_rank: list[Phrase] = [
            rank_entry.rank,
            rank_entry.rank // record.plan.nproc,
            *times,
            None if rate is None else f"{rate / 1e12:.4g}",
            None
            if rank_entry.used_bytes is None
            else cells.format_memory(rank_entry.used_bytes, None),
            *_format_readings(uses.get(rank_entry.rank)),
        ]
        rows.append(
            [
                _format_with_reason(record, name, cell)
                for name, cell in zip(_RANKS, cells_of_rank, strict=True)
            ]
        )
    shown = build_table(translate_headings(*(f"ranks.{name}" for name in _RANKS)), rows, short=True)
    if not telemetry or over not in telemetry.intervals_s:
        return build_folded_section("ranks", shown, gist=str(record.plan.world_size))
    start_s, end_s = telemetry.intervals_s[over]
    interval_text = phrase(f"telemetry.{over}", seconds=f"{end_s - start_s:.1f}")
    gist = str(record.plan.world_size)
    return build_folded_section("ranks", shown, Paragraph(interval_text, "muted"), gist=gist)


def _format_with_reason(record: Record, column: str, cell: Phrase) -> Phrase:
    """Return a cell of the ranks' table; if it is empty, the figure's reason to be null."""
    entry = record.figures.get(_FIGURE_OF.get(column, ""))
    if cell is not None or entry is None or entry.reason is None:
        return cell
    return Missing(translate_message(record, entry.reason))


def _format_readings(use: Use | None) -> list[Phrase]:
    """Return mean and peak, or mean and lowest, of each quantity, and throttling."""
    row: list[Phrase] = []
    for name, end in _USE.items():
        quantity = use.quantities.get(name) if use else None
        values = [] if quantity is None else [quantity.mean, getattr(quantity, end)]
        row.append("/".join(f"{x:.0f}" for x in values) or None)
    if use is None or use.throttled is None:
        return [*row, None]
    return [*row, ", ".join(f"{x:.0%} {why}" for why, x in use.throttled.items()) or "0%"]


def build_findings(records: Sequence[Record]) -> Section:
    """Return what was found that gives no reason to doubt the figures, and minor limits.

    A finding of several launches stands there once, as the first of them has it.
    """
    record = records[0]
    doubtful = {reason.code for reason in get_trust(records).reasons}
    first: dict[str, Message] = {}
    for finding_entry in (finding for launch in records for finding in launch.findings):
        if finding_entry.code not in doubtful:
            first.setdefault(finding_entry.code, finding_entry)
    blocks: list[Block] = [
        Paragraph(translate_message(record, finding_entry)) for finding_entry in first.values()
    ]
    blocks += limits.list_minor_limits(record)
    return build_folded_section("trust", *blocks, gist=str(len(blocks)))


def build_scaling_sections(works: Sequence[Sequence[Record]]) -> Iterator[Section]:
    """Yield a section for each work that several worlds did, the smallest world first.

    Args:
        works: launches of each work; those that did not pass do not count.
    """
    for place, (scaling_result, record) in enumerate(find_scaling(works), start=1):
        title = phrase("scaling.title", case=scaling_result.case, device=get_device_name(record))
        heading = join((title, phrase(f"scaling.{scaling_result.kind}")), "colon")
        yield Section(heading, f"scaling{place}", tuple(build_scaling(scaling_result)))
