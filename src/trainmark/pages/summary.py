"""What a reader sees first of one run or of several launches of the same work.

Owns which launches count: only those that passed. The others are counted and named, never
averaged in. Tiles have three significant digits; tables have the rest.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from trainmark.errors import RecordError, UsageError
from trainmark.library.store.columns import short_device
from trainmark.pages import cells
from trainmark.pages.document import Block, Callout, Doubt, Paragraph, Tile, Tiles, table
from trainmark.pages.sections.limits import comparison_line, dominant_limit, summarize_figure
from trainmark.pages.sections.provenance import precision_label
from trainmark.pages.texts import (
    TONES,
    Missing,
    Phrase,
    counted,
    devices,
    has_cards,
    headings,
    interval_text,
    join,
    phrase,
    sentence,
    speed_name,
    term,
    translate,
    unit_of,
    verdict,
)
from trainmark.record import figures as figures_of
from trainmark.record.advice import advise
from trainmark.record.messages import in_short
from trainmark.record.stats import INTERVAL_MIN_LAUNCHES, Launches, over_launches
from trainmark.record.trust import graded, of_repeats, trust_of, verification_of, worst_grade
from trainmark.record.work import are_same_size, differing, each_once, num_parameters, work

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainmark.pages.texts import Tone
    from trainmark.record.record import Record, Trust
    from trainmark.record.work import Result

_PRICE = re.compile(r"(\D*?)(\d+(?:\.\d+)?)(\D*)")
_TINY = 10_000_000  # parameters; below, a device is never busy and its peak is beside the point


@dataclass(frozen=True, slots=True)
class Price:
    """What an hour on all devices of a run costs, in a currency as given."""

    per_hour: float
    currency: str

    @classmethod
    def of(cls, text: str) -> Price:
        """Return the price in ``12.5 USD`` or ``$12.5``; a UsageError where there is none."""
        found = _PRICE.fullmatch(text.strip())
        if found is None:
            raise UsageError(f"no price: {text}", where="--price-per-hour", rule="12.5 USD")
        return cls(float(found[2]), (found[1] or found[3]).strip())


@dataclass(frozen=True, slots=True)
class RepeatSummary:
    """Launches of the same work, and each figure and the quality over those that passed."""

    records: tuple[Record, ...]
    passed: tuple[Record, ...]
    figures: dict[str, Launches]
    trust: Trust


def summary(records: Sequence[Record]) -> RepeatSummary:
    """Return geometric mean, 95% interval and CV of every figure over ``records``.

    Raises:
        RecordError: no record, or work that differs, naming what.
        UsageError: a run given twice.
    """
    if not records:
        raise RecordError("no record to sum up", fix="name one run or more")
    first = work(records[0])
    for record in records[1:]:
        other = work(record)
        for key in differing(first, other):
            what = f"{key} is {other.get(key)!r}, elsewhere {first.get(key)!r}"
            rule = "repeats are launches of the same work"
            raise RecordError(what, where=record.run_id, rule=rule)
    each_once(record.run_id for record in records)
    passed = tuple(record for record in records if record.passed)
    specs = figures_of.specs(records[0].plan.about.page)
    figures = {
        name: summarize_figure(passed, name) for name, spec in specs.items() if not spec.detail
    }
    qualities = [x.quality.value for x in passed if x.quality.value is not None]
    figures[records[0].quality.metric] = over_launches(qualities) if qualities else None
    told = {name: x for name, x in figures.items() if x}
    return RepeatSummary(tuple(records), passed, told, of_repeats(records))


def repeats(found: RepeatSummary) -> list[Block]:
    """Return a row a figure, then how many passed, which did not, how few they are.

    Of fewer than five launches the interval is the range, and is headed so.
    """
    rows, known = [], found.records[0].figures
    for name, item in found.figures.items():
        unit = known[name].unit if name in known else ""
        (mean, low, high), unit = cells.scaled([item.mean, item.low, item.high], unit)
        cv = None if item.cv is None else f"{item.cv:.2%}"
        rows.append((name, mean, unit, f"{low} – {high}", cv, item.launches))
    few = len(found.passed) < INTERVAL_MIN_LAUNCHES
    names = headings("name", "mean", "unit", "range" if few else "interval", "cv", "launches")
    lines = [phrase("repeats.counted", passed=len(found.passed), all=len(found.records))]
    if failed := [x for x in found.records if not x.passed]:
        runs = join((x.run_id, " (", phrase(f"status.{x.status}"), ")") for x in failed)
        lines.append(phrase("repeats.left_out", runs=runs))
    lines += [phrase("repeats.descriptive")] if few else []
    return [*([table(names, rows)] if rows else []), *map(Paragraph, lines)]


def median_launch(records: Sequence[Record]) -> Record:
    """Return the launch whose curves and facts stand for all: the median by speed."""
    having = [one for one in records if one.passed] or list(records)
    ordered = sorted(having, key=lambda one: one.figure("p_train") or 0.0)
    return ordered[(len(ordered) - 1) // 2]


def with_mean_figures(records: Sequence[Record]) -> Record:
    """Return the launch that stands for all, of several with the means of their figures."""
    record, passed = median_launch(records), [one for one in records if one.passed]
    if len(records) == 1:
        return record
    means = {name: summarize_figure(passed, name) for name in record.figures}
    figures = {
        name: one.model_copy(update={"value": mean.mean}) if (mean := means[name]) else one
        for name, one in record.figures.items()
    }
    return record.model_copy(update={"figures": figures})


def title(record: Record) -> Phrase:
    """Return the work, the machine with its count and memory, the precision, nodes or ranks.

    A model of another size than the case's standard one is named by its size: its speed says
    nothing of that one. Changes beyond the closed rules are named.
    """
    plan, name = record.plan, devices(record)
    work: Phrase = plan.about.title
    size = num_parameters(record)
    if size is not None and not are_same_size(size, plan.about.references.parameters):
        work = phrase("first.sized", title=work, size=cells.short_count(size))
    first = (record.environment.get("devices") or [None])[0] or {}
    memory = first.get("memory_total_bytes") if has_cards(record) else None
    if memory and "GB" not in short_device(record):
        name = (name, f" {memory / cells.GIB:.0f} GiB")
    nodes = [counted("nodes", plan.nnodes)] if plan.nnodes > 1 else []
    division = [phrase(f"division.{plan.rules}")] if plan.rules == "open" else []
    return join([work, name, precision_label(record), *nodes, *division], "dot")


def badge(*works: Sequence[Record]) -> tuple[Phrase, Tone]:
    """Return the badge of the worst run: passed, not to be quoted or failed; with its tone.

    Of several works, or if a launch failed, it also has how many passed.

    Args:
        works: launches of each work.
    """
    launches = [record for records in works for record in records]
    passed = sum(record.passed for record in launches)
    if not passed:
        return phrase("badge.failed"), "bad"
    grade = worst_grade(trust_of(records).grade for records in works)
    tone = TONES[grade] if passed == len(launches) else "bad"
    if len(works) == 1 and passed == len(launches):
        return phrase(f"badge.{grade}"), tone
    words: list[Phrase] = [phrase("repeats.counted", passed=passed, all=len(launches))]
    if grade == "do_not_quote":
        words.append(phrase("trust.do_not_quote"))
    return join(words), tone


def doubts(records: Sequence[Record]) -> tuple[Doubt, ...]:
    """Return why the figures are doubtful, the gravest reason first.

    A run that failed has no figures to doubt.
    """
    launches = [record for record in records if record.passed]
    found = []
    for reason in trust_of(records).reasons if launches else ():
        if reason.code == "trust_not_passed":  # in the badge
            continue
        full = sentence(records[0], reason)
        holding = sum(any(x.code == reason.code for x in one.trust.reasons) for one in launches)
        if 0 < holding < len(launches):
            full = phrase("doubt.of_launches", text=full, n=holding, all=len(launches))
        is_grave = graded([reason]).grade == "do_not_quote"
        found.append(Doubt(in_short(reason), full, is_grave))
    return tuple(found)


def reasons(records: Sequence[Record]) -> tuple[Phrase, ...]:
    """Return in a line each why figures must not be quoted and why they are noisy, if they are.

    A run that failed has no figures to doubt.
    """
    if not any(record.passed for record in records):
        return ()
    trust = trust_of(records)
    lines: list[Phrase] = []
    for grade in ("do_not_quote", "noisy"):
        found = [
            in_short(x)
            for x in trust.reasons
            if x.code != "trust_not_passed" and graded([x]).grade == grade
        ]
        if found:
            lines.append(phrase(f"first.{grade}", reasons=join(found, "semicolon")))
    return tuple(lines)


def key_figures(records: Sequence[Record]) -> Phrase:
    """Return the main figures with their units in a line; of launches their means, labelled so."""
    launches = [one for one in records if one.passed]

    def value_of(name: str) -> float | None:
        mean = summarize_figure(launches, name)
        return mean.mean if mean else None

    parts: list[Phrase] = []
    time, mfu = value_of("e2e_time"), value_of("MFU")
    if time is not None:
        parts.append(f"e2e_time {cells.duration(time)}")
    tokens = value_of("token/p/s")
    if tokens is not None and speed_name(records[0]) == "token/p/s":
        parts.append(("token/p/s ", cells.number(tokens), " tokens/s"))
    rates = {name: value_of(name) for name in ("p_whole", "p_train", "p_core")}
    known = [f"{name} {cells.number(rate)}" for name, rate in rates.items() if rate is not None]
    if known:
        parts.append((", ".join(known), " samples/s"))
    if mfu is not None:
        parts.append(f"MFU {mfu:.1f}%")
    if memory := memory_line(value_of("mem"), value_of("mem_total")):
        parts.append(memory)
    row = join(parts, "dot")
    return join((phrase("head.mean"), row), "colon") if parts and len(records) > 1 else row


def memory_line(used_bytes: float | None, total_bytes: float | None) -> Phrase:
    """Return the memory in use and the total with their unit; empty if it is not known."""
    if used_bytes is None:
        return ""
    used = f"{used_bytes / cells.GIB:.1f}"
    if total_bytes is None:
        return phrase("first.memory_used", used=used)
    return phrase("first.memory", used=used, total=f"{total_bytes / cells.GIB:.1f}")


def first_sentence(records: Sequence[Record]) -> Phrase:
    """Return speed, quality and time in a sentence; of a run that failed, what happened where."""
    record = median_launch(records)
    quality = record.quality
    if record.status == "target_missed":
        return verdict(record)
    if record.cause is not None:
        return failure(record)
    launches = [one for one in records if one.passed]
    name = speed_name(record)
    speed, time = summarize_figure(launches, name), summarize_figure(launches, "e2e_time")
    said: list[Phrase] = [(cells.rounded(speed.mean), " ", unit_of(name))] if speed else []
    took = cells.duration(time.mean) if time else ""
    if quality.value is not None:
        said.append(
            phrase(
                f"first.{'reached' if quality.reached else 'no_target'}",
                metric=quality.metric,
                value=cells.quality(quality.value, target=quality.target),
                time=took,
                target="" if quality.target is None else f"{quality.target:g}",
            )
        )
    elif took:
        said.append(phrase("first.took", time=took))
    return join(said, "semicolon")


def tiles(records: Sequence[Record], price: Price | None = None) -> Tiles:
    """Return what most readers look for first: speed, time, use of the device, memory, energy.

    A figure that no launch has is left out, but for the use of the device: it has a reason.
    """
    record, launches = median_launch(records), [one for one in records if one.passed]
    time_name = "to_target" if record.quality.reached else "whole"
    speed = speed_name(record)
    found = [
        _tile(launches, speed, "speed"),
        _tile(launches, "e2e_time", time_name),
        _use_tile(record, launches),
        _memory_tile(launches),
        _tile(launches, "energy_per_sample", "energy")
        or _tile(launches, "estimated_energy_per_sample", "estimated"),
        cost(records, price),
    ]
    return Tiles(tuple(one for one in found if one is not None))


def _tile(launches: Sequence[Record], name: str, title: str, note: Phrase = "") -> Tile | None:
    """Return the tile of a figure; its speed has the interval over launches; None without one."""
    mean = summarize_figure(launches, name)
    if mean is None:
        return None
    value, unit = cells.rounded(mean.mean), unit_of(name)
    if name == "e2e_time":
        value, unit = cells.duration(mean.mean), ""
    if title == "speed":
        note = counted("launches", mean.launches)
        if mean.launches > 1:
            note = join((interval_text(mean, cells.rounded), note))
    return Tile(phrase(f"tile.{title}"), value, unit, name, note)


def _use_tile(record: Record, launches: Sequence[Record]) -> Tile | None:
    """Return the share of the peak, or else of the measured matmul rate, or else why neither."""
    if not launches:
        return None
    of_matmul = summarize_figure(launches, "MAMFU")
    of_peak = _tile(launches, "MFU", "MFU")
    if of_peak is not None:
        if of_matmul is not None:
            of_peak = replace(
                of_peak, note=phrase("tile.of_matmul", share=_percent(of_matmul.mean))
            )
        return of_peak
    if of_matmul is not None:
        small = (num_parameters(record) or _TINY) < _TINY
        note = phrase("tile.small_model") if small else ""
        return _tile(launches, "MAMFU", "MAMFU", note)
    entry = record.figures.get("MFU")
    reason = sentence(record, entry.reason if entry else None, phrase("fact.unknown"))
    return Tile(phrase("tile.MFU"), Missing(reason), "", "MFU", reason)


def _percent(value: float) -> str:
    return f"{cells.rounded(value)}%"


def _memory_tile(launches: Sequence[Record]) -> Tile | None:
    """Return the memory in use and the total."""
    used, total = summarize_figure(launches, "mem"), summarize_figure(launches, "mem_total")
    if used is None:
        return None
    unit: Phrase = "GiB"
    if total is not None:
        unit = phrase("tile.memory_of", total=f"{total.mean / cells.GIB:.1f}")
    return Tile(phrase("tile.memory"), f"{used.mean / cells.GIB:.1f}", unit, "mem")


def cost(records: Sequence[Record], price: Price | None) -> Tile | None:
    """Return what a million samples or tokens cost, with its arithmetic; None without a price."""
    record, launches = median_launch(records), [one for one in records if one.passed]
    rate, work = summarize_figure(launches, speed_name(record)), record.plan.about.work_unit
    if price is None or rate is None:
        return None
    count = record.plan.world_size if work == "tokens" else 1  # of devices whose rates add up
    per_second = rate.mean * count
    how = f"{price.per_hour:g} / 3600 s / {per_second:,.1f} {work}/s x 1,000,000"
    shown = cells.rounded(price.per_hour / 3600 / per_second * 1e6)
    return Tile(phrase(f"cost.{work}"), shown, price.currency, "", "", how)


def failure(record: Record) -> Phrase:
    """Return how and where a run failed, and why, in a sentence."""
    cause = record.cause
    assert cause is not None
    what: Phrase = phrase(f"status.{record.status}")
    if cause.place:
        what = phrase("first.failed", what=what, place=term("place", cause.place))
    # The only rank there is needs no name.
    rank = [f"rank {cause.rank}"] if cause.rank is not None and record.plan.world_size > 1 else []
    return join((join((what, *rank)), sentence(record, cause.message)), "colon")


def what_to_try(record: Record) -> Callout:
    """Return what to do about a run that failed."""
    steps = (sentence(record, message) for message in advise(record))
    return Callout(phrase("cause.fix"), join(steps, "semicolon"))


def first_lines(
    records: Sequence[Record], against: Sequence[Result] = (), lang: str = "en"
) -> list[str]:
    """Return title, badge, sentence, key figures, launches, reasons, ruler, limit: a line each.

    Of a run that failed, what to try in place of the last three.
    """
    record, passed = median_launch(records), [one for one in records if one.passed]
    marks = join((badge(records)[0], phrase(f"trust.{verification_of(records)}")))
    lines: list[Phrase] = [title(record), marks, first_sentence(records), key_figures(records)]
    if len(records) > 1:
        counted = phrase("repeats.counted", passed=len(passed), all=len(records))
        mean = summarize_figure(passed, name := speed_name(record))
        said = [(name, " ", interval_text(mean, cells.number))] if mean else []
        lines.append(join([counted, *said], "semicolon"))
    failed = next((one for one in records if one.cause is not None), None)
    if failed is not None:
        lines += [] if failed is record else [failure(failed)]
        advice = what_to_try(failed)
        lines.append(join((advice.heading, advice.text), "colon"))
    else:
        lines += [*reasons(records), comparison_line(records, against), dominant_limit(record)]
    return [line for one in lines if (line := cells.clean(translate(one, lang)))]
