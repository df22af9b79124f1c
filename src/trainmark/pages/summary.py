"""Figures over several launches of the same work.

Owns which launches count: only those that passed. The others are counted and named, never
averaged in.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainmark.errors import RecordError
from trainmark.pages import cells
from trainmark.pages.document import table
from trainmark.pages.texts import Phrase, join, t
from trainmark.record import figures as figures_of
from trainmark.record.stats import Launches, over_launches
from trainmark.record.trust import of_repeats
from trainmark.record.work import differing, each_once, work

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainmark.pages.document import Table
    from trainmark.record.record import Record, Trust


@dataclass(frozen=True, slots=True)
class RepeatSummary:
    """Each figure over the launches that passed, with its unit; ``failed`` is run id and status."""

    case_key: str
    launches: int
    failed: tuple[tuple[str, str], ...]
    figures: dict[str, Launches]
    units: dict[str, str]
    quality: Launches | None
    metric: str
    trust: Trust

    @property
    def passed(self) -> int:
        """Return the number of launches that the figures are over."""
        return self.launches - len(self.failed)

    @property
    def descriptive(self) -> bool:
        """Tell whether any interval is over too few launches to infer anything from it."""
        return any(found.descriptive for found in self.figures.values())

    @property
    def is_range(self) -> bool:
        """Tell whether every interval is the range of its launches."""
        return all(found.is_range for found in self.figures.values())


def summary(records: Sequence[Record]) -> RepeatSummary:
    """Return median, 95% interval and CV of every figure over ``records``.

    Raises:
        RecordError: no record, or work that differs, naming what.
        UsageError: a run given twice.
    """
    if not records:
        raise RecordError("no record to sum up", remedy="name one run or more")
    first = work(records[0])
    for record in records[1:]:
        other = work(record)
        for key in differing(first, other):
            what = f"{key} is {other.get(key)!r}, elsewhere {first.get(key)!r}"
            rule = "repeats are launches of the same work"
            raise RecordError(what, where=record.run_id, rule=rule)
    each_once(record.run_id for record in records)
    passed = [record for record in records if record.passed]
    figures, units = {}, {}
    for name, spec in figures_of.specs(records[0].plan.about.page).items():
        having = [] if spec.detail else [x for x in passed if x.figure(name) is not None]
        if having:
            figures[name] = over_launches([one.figure(name) or 0.0 for one in having])
            units[name] = having[0].figures[name].unit
    qualities = [record.quality.value for record in passed if record.quality.value is not None]
    return RepeatSummary(
        case_key=records[0].case_key,
        launches=len(records),
        failed=tuple((item.run_id, item.status) for item in records if not item.passed),
        figures=figures,
        units=units,
        quality=over_launches(qualities) if qualities else None,
        metric=records[0].quality.metric,
        trust=of_repeats(records),
    )


def summary_table(found: RepeatSummary) -> Table:
    """Return a row a figure: median, unit, interval, CV and the launches it is over.

    Of few launches the interval is no more than least and greatest, and is headed so.
    """
    rows = []
    for name, item in [*found.figures.items(), (found.metric, found.quality)]:
        if item is None:
            continue
        values = [item.median, item.low, item.high]
        (median, low, high), unit = cells.scaled(values, found.units.get(name, ""))
        if item is found.quality:
            median, low, high = map(cells.quality, values)
        cv = cells.percent(None if item.cv is None else 100 * item.cv, digits=2)
        rows.append((name, median, unit, f"{low} – {high}", cv, item.launches))
    interval = "range" if found.is_range else "interval"
    names = ("name", "median", "unit", interval, "cv", "launches")
    return table((t(f"head.{name}") for name in names), rows)


def remarks(found: RepeatSummary) -> list[Phrase]:
    """Return what must be said beside the table: how many passed, which did not, how few."""
    lines: list[Phrase] = [t("repeats.counted", passed=found.passed, all=found.launches)]
    if found.failed:
        runs = join((run, " (", t(f"status.{status}"), ")") for run, status in found.failed)
        lines.append(t("repeats.left_out", runs=runs))
    if found.descriptive:
        lines.append(t("repeats.descriptive"))
    elif found.is_range and found.figures:
        lines.append(t("repeats.is_range"))
    return lines
