"""Several launches of the same work as one: their means, their median launch, their table.

Only launches that passed, and that their evidence does not contradict, are averaged. The others are
counted and named.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainmark.errors import RecordError
from trainmark.pages import cells
from trainmark.pages.document import Block, Paragraph, build_table
from trainmark.pages.texts import join, phrase, translate_headings
from trainmark.record import figures as record_figures
from trainmark.record.stats import INTERVAL_MIN_LAUNCHES, LaunchSummary, summarize_launches
from trainmark.record.trust import grade_repeats, is_counted
from trainmark.record.work import describe_work, find_differences, reject_duplicates

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainmark.pages.texts import Phrase
    from trainmark.record.record import Record, Trust
    from trainmark.record.work import Result


@dataclass(frozen=True, slots=True)
class RepeatSummary:
    """Launches of the same work, and each figure and the quality over those that count."""

    records: tuple[Record, ...]
    passed: tuple[Record, ...]
    figures: dict[str, LaunchSummary]
    trust: Trust


def build_summary(records: Sequence[Record]) -> RepeatSummary:
    """Return geometric mean, 95% interval and CV of figures over the launches that count.

    A launch counts if it passed and its evidence does not contradict it; see ``select_counted``.
    The quality is among the figures, under the name of its metric. Figures whose declaration says
    that they are details are left out; they appear only in the table of all figures. The summary
    also has all records, those that passed, and the trust in them together.

    Args:
        records: one for each launch of the same work.

    Raises:
        RecordError: there is no record, or the launches are of different work; the error names the
            first difference.
        UsageError: a run is given twice.
    """
    if not records:
        raise RecordError("no record to summarize", fix="choose at least one run")
    first = describe_work(records[0])
    for record in records[1:]:
        other = describe_work(record)
        differing_keys = find_differences(first, other)
        if differing_keys:
            key = differing_keys[0]
            what = f"{key} is {other.get(key)!r}, but {first.get(key)!r} in the first launch"
            rule = "repeats must be launches of the same work"
            raise RecordError(what, where=record.run_id, rule=rule)
    reject_duplicates(record.run_id for record in records)
    passed = tuple(record for record in records if record.passed)
    counted = select_counted(records)
    # The declarations of the figures: `about.page` has those that only this case has.
    specs = record_figures.list_specs(records[0].plan.about.page)
    figures: dict[str, LaunchSummary] = {}
    for name, spec in specs.items():
        if spec.detail:
            continue
        launch_summary = summarize_figure(counted, name)
        if launch_summary is not None:  # None: no launch has a value
            figures[name] = launch_summary
    qualities = [x.quality.value for x in counted if x.quality.value is not None]
    if qualities:
        figures[records[0].quality.metric] = summarize_launches(qualities)
    return RepeatSummary(tuple(records), passed, figures, grade_repeats(records))


def summarize_figure(results: Sequence[Result], figure: str) -> LaunchSummary | None:
    """Return mean and interval of a figure over the results that have it; None if none has.

    Args:
        results: launches or published rows.
        figure: its name, such as ``p_train``.
    """
    values = []
    for result in results:
        value = result.figure(figure)
        if value is not None:
            values.append(value)
    return summarize_launches(values) if values else None


def build_repeats(repeat_summary: RepeatSummary) -> list[Block]:
    """Return a row for each figure, then how many launches passed, and which do not count.

    A row has the mean of the figure and its 95% interval. With fewer than five launches that
    count, the lowest and the highest value replace the interval, and the heading says so. If only
    a figure has fewer than five launches with a value, its cell says so.

    Args:
        repeat_summary: the records of all launches, and each figure over those that count, by its
            name: mean, ends of the interval, coefficient of variation, number of launches.
    """
    rows = []
    is_range = len(select_counted(repeat_summary.records)) < INTERVAL_MIN_LAUNCHES
    # The figures of a record by name, each with its unit.
    known_figures = repeat_summary.records[0].figures
    for name, figure_summary in repeat_summary.figures.items():
        # The quality, which is no figure, has no unit.
        unit = known_figures[name].unit if name in known_figures else ""
        (mean, low, high), readable_unit = cells.scale_to_unit(
            [figure_summary.mean, figure_summary.low, figure_summary.high], unit
        )
        cv = None if figure_summary.cv is None else f"{figure_summary.cv:.2%}"
        ends: Phrase = f"{low} – {high}"
        if figure_summary.is_range and not is_range:  # under the heading of intervals
            ends = phrase("ends.range", low=low, high=high)
        rows.append((name, mean, readable_unit, ends, cv, figure_summary.launches))
    columns = translate_headings(
        "name", "mean", "unit", "range" if is_range else "interval", "cv", "launches"
    )
    blocks: list[Block] = []
    if rows:
        blocks.append(build_table(columns, rows))
    passed_text = phrase(
        "repeats.counted", passed=len(repeat_summary.passed), all=len(repeat_summary.records)
    )
    blocks.append(Paragraph(passed_text))
    left_out = describe_left_out(repeat_summary.records)
    if left_out:
        blocks.append(Paragraph(left_out))
    if is_range:
        blocks.append(Paragraph(phrase("repeats.descriptive")))
    return blocks


def find_median_launch(records: Sequence[Record]) -> Record:
    """Return the launch whose curves and facts stand for all: the median by speed.

    Only launches that count are candidates; if none counts, those that passed; else all.
    """
    candidates = select_counted(records) or select_passed(records) or list(records)
    # `p_train` is the throughput of the training. A launch without it counts as the slowest.
    ordered = sorted(candidates, key=lambda record: record.figure("p_train") or 0.0)
    return ordered[(len(ordered) - 1) // 2]  # of an even number the slower of the two in the middle


def select_passed(records: Sequence[Record]) -> list[Record]:
    """Return the launches that passed."""
    return [record for record in records if record.passed]


def select_counted(records: Sequence[Record]) -> list[Record]:
    """Return the launches that count: only these are averaged.

    These passed, and their evidence does not contradict them. A single launch has no mean, so it
    counts if it passed: its page shows its figures, and says that they are contradicted.
    """
    if len(records) == 1:
        return select_passed(records)
    return [record for record in records if is_counted(record)]


def describe_left_out(records: Sequence[Record]) -> Phrase:
    """Return the launches that are in no mean, each with the reason; empty if all count."""
    counted_ids = {record.run_id for record in select_counted(records)}
    left_out = [record for record in records if record.run_id not in counted_ids]
    if not left_out:
        return ""
    # A launch that passed is left out only if its evidence contradicts it.
    runs = join(
        (
            record.run_id,
            " (",
            phrase("trust.contradicted" if record.passed else f"status.{record.status}"),
            ")",
        )
        for record in left_out
    )
    return phrase("repeats.left_out", runs=runs)


def average_figures(records: Sequence[Record]) -> Record:
    """Return the median launch, with the means of all launches that count as its figures.

    A figure that no launch has a value for is that of the median launch.
    """
    record = find_median_launch(records)
    if len(records) == 1:
        return record
    launches = select_counted(records)
    figures = dict(record.figures)
    for name, entry in record.figures.items():
        launch_summary = summarize_figure(launches, name)
        if launch_summary is not None:  # None: no launch that counts has a value
            figures[name] = entry.model_copy(update={"value": launch_summary.mean})
    return record.model_copy(update={"figures": figures})
