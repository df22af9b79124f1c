"""Sections of a page: all figures with spans, evaluations, ranks, findings; and how works scale."""

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
    describe_quality,
    get_definition,
    join,
    phrase,
    term,
    translate,
    translate_headings,
    translate_message,
)
from trainmark.record import figures as record_figures
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

_MIN_SPAN_NS = 1_000_000  # shorter spans are not listed
_MAX_EVALUATIONS = 5  # that a page lists; the record has all
# The columns of readings of a device, and which extreme of the readings stands beside the mean.
_READING_COLUMNS = {
    "utilization_percent": "highest",
    "power_w": "highest",
    "temperature_c": "highest",
    "clock_mhz": "lowest",
}
# The figure over all ranks to which a column belongs; it has the reason if nothing was measured.
_FIGURE_OF_COLUMN = {
    "step_ms": "step_time_p50", "wait_ms": "step_time_p50", "tflops": "matmul_flops_per_device",
    "memory": "mem", "utilization_percent": "utilization", "power_w": "power",
    "temperature_c": "temperature", "clock_mhz": "utilization", "throttled": "utilization",
}  # fmt: skip
_RANK_COLUMNS = (
    "rank",
    "node",
    "step_ms",
    "wait_ms",
    "tflops",
    "memory",
    *_READING_COLUMNS,
    "throttled",
)


def build_figures(record: Record, cost: Tile | None = None, launches: int = 1) -> Section:
    """Return all figures with their definitions, counts, spans, and what was not measured.

    Args:
        record: of a launch; its figures may be means over several launches.
        cost: of a million samples or tokens, with its arithmetic; None: the price of an hour is not
            known.
        launches: number of launches over which the figures are means; counts and spans, the parts
            of the run's time, are those of ``record`` alone.
    """
    rows: list[list[Phrase]] = []
    unmeasured: list[tuple[Phrase, Phrase]] = []  # name and reason of each; "" without a reason
    # The declarations of the figures: `about.page` has those that only this case has.
    specs = record_figures.list_specs(record.plan.about.page)
    for name, entry in record.figures.items():
        if entry.value is None:
            unmeasured.append((name, translate_message(record, entry.reason)))
            continue
        (value,), unit = cells.scale_to_unit([entry.value], entry.unit)
        remark: list[Phrase] = []
        spec = specs.get(name)
        if spec is not None:  # an imported record may have figures that nobody declared
            remark.append(join((spec.label, get_definition(spec, record)), "colon"))
        if entry.note is not None:  # what a reader must know of this value
            remark.append(translate_message(record, entry.note))
        rows.append([name, value, unit, join(remark, "semicolon")])
    quality = record.quality
    if quality.value is None:
        unmeasured.append((quality.metric, translate_message(record, quality.reason)))
    else:
        reached = cells.format_quality_and_target(quality.value, quality.target)
        # `metric_note`: what the case says of its metric.
        rows.append([quality.metric, reached, "", record.plan.about.metric_note])
    if cost is not None:
        rows.append([cost.name, cost.value, cost.unit, cost.arithmetic])
    rows += _list_count_rows(record)
    rows += _list_span_rows(record)
    note: Phrase = ""
    if launches > 1:  # which values are means, and which are those of one launch
        note = phrase("figure.means", n=launches, run=record.run_id)
    table = build_table(translate_headings("name", "value", "unit", "remark"), rows)
    num_measured = sum(entry.value is not None for entry in record.figures.values())
    gist = phrase("gist.figures", n=num_measured)  # shown while the section is folded
    return build_folded_section(
        "figures", table, describe_unmeasured(unmeasured), note=note, gist=gist
    )


def _list_count_rows(record: Record) -> list[list[Phrase]]:
    """Return the row of each count that is known, such as steps, samples and tokens.

    The cells are the name, the count, no unit, and a note if ``TEXTS`` has one for this count.
    """
    rows: list[list[Phrase]] = []
    for name, count in record.counts:  # each field of the counts; None: not known
        if count is not None:
            note_key = f"count_note.{name}"
            note = phrase(note_key) if note_key in TEXTS else ""
            rows.append([term("count", name), cells.format_integer(count), "", note])
    return rows


def _list_span_rows(record: Record) -> list[list[Phrase]]:
    """Return the row of each span of time that is not too short, with its share of the run.

    ``record.spans`` has the wall time of the rank that ended last, divided into spans such as
    set-up, measured steps and evaluation. The cells are name, seconds, unit and share.
    """
    wall_ns = record.spans.wall_ns  # the spans add up to it
    if not wall_ns:  # None: no rank started, so all spans are 0
        return []
    rows: list[list[Phrase]] = []
    for name, ns in record.spans.by_name_ns.items():
        if ns < _MIN_SPAN_NS:
            continue
        share: Phrase = f"{ns / wall_ns:.1%}"
        if not rows:  # the first row says of what the share is, and names the rank
            share = phrase("spans.share", share=share, rank=record.spans.rank)
        rows.append([term("span", name), f"{ns / 1e9:.3f}", "s", share])
    return rows


def describe_unmeasured(figures: Sequence[tuple[Phrase, Phrase]]) -> Paragraph | None:
    """Return the names of figures without a value in one paragraph, grouped by the reason.

    Figures that share a reason stand together. None if there are no figures.

    Args:
        figures: name and reason of each; an empty reason: none is known.
    """
    # By the reason in English, because phrases cannot be keys of a dict.
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
    """Return the quality of a run: a chart, a sentence and a table; None: it made no evaluation.

    The sentence compares the quality with the target. The table has the last evaluations.

    Args:
        record: ``record.quality`` has the case's metric, its target, and each evaluation as a point
            of ``history``.
        address: of the record, which has all evaluations; empty: the page has no link to it.
    """
    history = record.quality.history
    if not history:
        return None
    rows = (
        (
            point.epoch + 1,  # records count epochs from 0
            cells.format_integer(point.step),
            # With so many decimals that rounding does not hide a missed target.
            cells.format_quality(point.value, target=record.quality.target),
            cells.format_integer(point.samples),
        )
        for point in history[-_MAX_EVALUATIONS:]
    )
    names = [
        *translate_headings("epoch", "step"),
        record.quality.metric,
        *translate_headings("samples"),
    ]
    blocks: list[Block] = [Paragraph(describe_quality(record)), build_table(names, rows)]
    if len(history) > _MAX_EVALUATIONS:
        earlier = phrase("quality.earlier", n=len(history) - _MAX_EVALUATIONS)
        blocks.append(Paragraph(Link(earlier, address) if address else earlier, "muted"))
    return build_folded_section(
        "quality",
        charts.chart_quality(record),
        *blocks,
        gist=count_in_words("evaluations", len(history)),
    )


def build_printed_speeds(record: Record) -> Section | None:
    """Return the speeds that a user's program printed, each beside the measured speed.

    The first cell is the unit, which tells what was printed, such as tokens per second. A row also
    has the relative difference of the measured speed from the printed one, the reason for it, if
    one is known, and the number of printed lines with the speed. Below the table is the first of
    these lines, as it was printed, of the first row. None if no speed was printed; only a user's
    own program prints any, not a case of ours.
    """
    comparisons = compare_printed(Measurement.from_record(record), record.figures)
    if not comparisons:
        return None
    rows = [
        (
            comparison.unit,
            cells.format_rate(comparison.reported),
            cells.format_rate(comparison.measured),
            # Without a measured speed the change is not known.
            cells.NOTHING if comparison.measured is None else f"{comparison.change:+.1%}",
            "" if comparison.reason is None else translate_message(record, comparison.reason),
            cells.format_integer(comparison.speed.lines),
        )
        for comparison in comparisons
    ]
    names = translate_headings("unit", "reported", "measured", "difference", "reason", "lines")
    printed_line = Code(comparisons[0].speed.raw)  # a line of the program's output, unchanged
    return build_folded_section(
        "printed", build_table(names, rows), printed_line, gist=count_in_words("rows", len(rows))
    )


def build_ranks(record: Record) -> Section | None:
    """Return a row for each rank with the readings of its device, the slowest first.

    Times are the median of a step and the mean wait for data in a step, in ms. Then come the rate
    of matmuls that was measured before the training, in TFLOP/s, the memory in use, and the
    readings. Readings are those of the training, or of the whole run if there was no training.
    None if there are no readings and fewer than two ranks have a step time.
    """
    telemetry = record.telemetry
    interval: IntervalName = "run"
    if telemetry and "train" in telemetry.intervals_s:
        interval = "train"
    use_by_rank: dict[int, Use | None] = {}
    devices = telemetry.devices if telemetry else []
    for device in devices:
        for rank in device.ranks:
            use_by_rank[rank] = device.over.get(interval)  # `over`: the readings by interval
    if not use_by_rank and sum(entry.step_ns is not None for entry in record.ranks) < 2:
        return None
    rows = []
    # A rank without measured steps comes last.
    for entry in sorted(record.ranks, key=lambda entry: entry.step_ns or 0, reverse=True):
        matmul_rate = entry.matmul_flops_per_second
        memory = None
        if entry.used_bytes is not None:
            memory = cells.format_memory(entry.used_bytes, total_bytes=None)  # the use alone
        rank_cells: list[Phrase] = [
            entry.rank,
            entry.rank // record.plan.nproc,  # the node
            None if entry.step_ns is None else f"{entry.step_ns / 1e6:.4g}",
            None if entry.wait_ns is None else f"{entry.wait_ns / 1e6:.4g}",
            None if matmul_rate is None else f"{matmul_rate / 1e12:.4g}",
            memory,
            *_format_readings(use_by_rank.get(entry.rank)),
        ]
        rows.append(
            [
                _format_with_reason(record, name, cell)
                for name, cell in zip(_RANK_COLUMNS, rank_cells, strict=True)
            ]
        )
    headings = translate_headings(*(f"ranks.{name}" for name in _RANK_COLUMNS))
    table = build_table(headings, rows, short=True)  # of very many ranks, the first and the last
    note = None  # which interval the readings are of, and how long it was
    if telemetry and interval in telemetry.intervals_s:
        start_s, end_s = telemetry.intervals_s[interval]
        interval_text = phrase(f"telemetry.{interval}", seconds=f"{end_s - start_s:.1f}")
        note = Paragraph(interval_text, "muted")
    # While the section is folded, its heading shows the number of ranks.
    return build_folded_section("ranks", table, note, gist=str(record.plan.world_size))


def _format_with_reason(record: Record, column: str, cell: Phrase) -> Phrase:
    """Return a cell of the table of ranks, with the reason if nothing was measured for it.

    ``_FIGURE_OF_COLUMN`` names a figure of the record for the column. The record has this figure
    over all ranks; the reason is the one why it is missing there.

    Args:
        column: the column's key, such as ``step_ms``.
        cell: None: nothing was measured.
    """
    figure = _FIGURE_OF_COLUMN.get(column)  # None: the column shows no figure of the record
    entry = None if figure is None else record.figures.get(figure)
    if cell is not None or entry is None or entry.reason is None:
        return cell
    return Missing(translate_message(record, entry.reason))


def _format_readings(use: Use | None) -> list[Phrase]:
    """Return the cells of a device's readings: each quantity, then why clocks were lowered.

    The cell of a quantity has its mean and its highest value, ``310/402``; that of the clock has
    its mean and its lowest value. ``_READING_COLUMNS`` says which. A cell is None if it was not
    reported.

    Args:
        use: readings of the device in one interval; None: there are none. ``throttled`` is the
            share of the interval with lowered clocks, by reason; None: not reported.
    """
    row: list[Phrase] = []
    for name, extreme_name in _READING_COLUMNS.items():
        quantity = use.quantities.get(name) if use else None
        if quantity is None:
            row.append(None)
            continue
        extreme = quantity.highest if extreme_name == "highest" else quantity.lowest
        row.append(f"{quantity.mean:.0f}/{extreme:.0f}")
    if use is None or use.throttled is None:
        row.append(None)
    else:
        reasons = [f"{share:.0%} {reason}" for reason, share in use.throttled.items()]
        row.append(", ".join(reasons) or "0%")  # "0%": clocks were never lowered
    return row


def build_findings(records: Sequence[Record], typical_launch: Record) -> Section:
    """Return the findings that give no reason to doubt the figures, and minor limits of the speed.

    A finding is what a reader must know about the figures of a launch. Those that lower the trust
    in the figures stand elsewhere on the page. If several launches have the same finding, only that
    of the first is shown. A minor limit is what slows the training down, but costs less than the
    dominant limit, which also stands elsewhere.

    Args:
        records: launches of the same work, which is of one case: the texts of its messages are the
            same in all.
        typical_launch: the one of them whose limits stand for all, here as elsewhere on the page.
    """
    codes_of_doubts = {reason.code for reason in get_trust(records).reasons}
    finding_by_code: dict[str, Message] = {}
    for launch in records:
        for finding in launch.findings:
            if finding.code not in codes_of_doubts:
                finding_by_code.setdefault(finding.code, finding)
    blocks: list[Block] = [
        Paragraph(translate_message(typical_launch, finding))
        for finding in finding_by_code.values()
    ]
    blocks += limits.list_minor_limits(typical_launch)
    # The anchor of the section, to which links may point; its heading is "Findings".
    return build_folded_section("trust", *blocks, gist=str(len(blocks)))


def build_scaling_sections(works: Sequence[Sequence[Record]]) -> Iterator[Section]:
    """Yield a section for each set of works that differ only in their number of ranks.

    It shows how the throughput scales with the ranks. In weak scaling (``kind``), the batch of each
    rank stays the same; in strong scaling, the batch of all ranks together does.

    Args:
        works: launches of each work; those that did not pass do not count.
    """
    # The record is one with the smallest number of ranks; only the name of its device is used.
    for place, (scaling_result, record) in enumerate(find_scaling(works), start=1):
        title = phrase("scaling.title", case=scaling_result.case, device=get_device_name(record))
        heading = join((title, phrase(f"scaling.{scaling_result.kind}")), "colon")
        anchor = f"scaling{place}"
        yield Section(heading, anchor, tuple(build_scaling(scaling_result)))
