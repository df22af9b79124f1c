"""Figures over several launches of the same work.

Owns which launches count: only those that passed. The others are counted and named, never
averaged in.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainmark.errors import RecordError
from trainmark.pages import cells
from trainmark.pages.document import Table
from trainmark.pages.texts import text
from trainmark.record import figures as figures_of
from trainmark.record.stats import Launches, over_launches
from trainmark.record.trust import of_repeats
from trainmark.record.work import differing, each_once, work

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainmark.record.record import Record, Trust


@dataclass(frozen=True, slots=True)
class RepeatSummary:
    """Each figure over the launches that passed, with its unit; ``failed`` is run id and status.

    ``descriptive``: too few launches passed for an interval to infer anything from.
    """

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
        """Tell whether any interval is over too few launches."""
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
        names = differing(first, other)
        if names:
            key = names[0]
            raise RecordError(
                f"{key} is {other.get(key)!r}, elsewhere {first.get(key)!r}",
                where=record.run_id,
                rule="repeats are launches of the same work",
            )
    each_once(record.run_id for record in records)
    passed = [record for record in records if record.passed]
    figures, units = {}, {}
    for name, spec in figures_of.specs(records[0].plan.about.page).items():
        if spec.detail:
            continue
        told = [(value, one) for one in passed if (value := one.figure(name)) is not None]
        if told:
            figures[name] = over_launches([value for value, _ in told])
            units[name] = told[0][1].figures[name].unit
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


def _cv(found: Launches) -> str:
    return cells.NOTHING if found.cv is None else f"{100 * found.cv:.2f}%"


def summary_table(found: RepeatSummary, *, lang: str = "en") -> Table:
    """Return a row a figure: median, unit, interval, CV and the launches it is over.

    Of few launches the interval is no more than least and greatest, and is headed so.
    """
    rows = []
    for name, item in found.figures.items():
        (median, low, high), unit = cells.scaled(
            [item.median, item.low, item.high], found.units[name]
        )
        rows.append((name, median, unit, f"{low} – {high}", _cv(item), str(item.launches)))
    if found.quality is not None:
        item = found.quality
        median, low, high = (cells.quality(value) for value in (item.median, item.low, item.high))
        rows.append((found.metric, median, "", f"{low} – {high}", _cv(item), str(item.launches)))
    interval = "range" if found.is_range else "interval"
    names = ("name", "median", "unit", interval, "cv", "launches")
    return Table(tuple(text(f"head.{name}", lang) for name in names), tuple(rows))


def remarks(found: RepeatSummary, *, lang: str = "en") -> list[str]:
    """Return what must be said beside the table: how many passed, which did not, how few."""
    lines = [text("repeats.counted", lang, passed=found.passed, all=found.launches)]
    if found.failed:
        runs = text("sep.comma", lang).join(
            f"{run} ({text(f'status.{status}', lang)})" for run, status in found.failed
        )
        lines.append(text("repeats.left_out", lang, runs=runs))
    if found.descriptive:
        lines.append(text("repeats.descriptive", lang))
    elif found.is_range and found.figures:
        lines.append(text("repeats.is_range", lang))
    return lines
