"""What a reader sees first of one run or of several launches of the same work.

Owns which launches count: only those that passed. The others are counted and named, never
averaged in. Tiles have three significant digits; tables have the rest.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from trainmark.errors import RecordError, UsageError, to_one_line
from trainmark.pages import cells
from trainmark.pages.document import Block, Callout, Doubt, Paragraph, Tile, Tiles, build_table
from trainmark.pages.sections.limits import (
    compare_with_bound,
    describe_comparison,
    describe_dominant_limit,
    summarize_figure,
)
from trainmark.pages.sections.provenance import format_precision
from trainmark.pages.texts import (
    TONES,
    Missing,
    Phrase,
    count_in_words,
    describe_devices,
    describe_verdict,
    format_interval,
    get_unit,
    has_cards,
    join,
    name_speed_figure,
    phrase,
    term,
    translate,
    translate_headings,
    translate_message,
)
from trainmark.record import figures as figures_of
from trainmark.record.advice import advise
from trainmark.record.messages import shorten
from trainmark.record.stats import INTERVAL_MIN_LAUNCHES, LaunchSummary, summarize_launches
from trainmark.record.trust import (
    combine_verifications,
    find_worst_grade,
    get_trust,
    grade_reasons,
    grade_repeats,
)
from trainmark.record.work import (
    count_parameters,
    describe_work,
    find_differences,
    is_same_size,
    reject_duplicates,
)
from trainmark.results.store.columns import get_device_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainmark.pages.texts import Tone
    from trainmark.record.record import Record, Trust
    from trainmark.record.work import Result
    from trainmark.spec import FigureSpec

_PRICE = re.compile(r"(\D*?)(\d+(?:\.\d+)?)(\D*)")
_SMALL_MODEL = 10_000_000  # parameters; a smaller model never keeps a device busy


@dataclass(frozen=True, slots=True)
class Price:
    """What an hour on all devices of a run costs, in a currency as given."""

    per_hour: float
    currency: str

    @classmethod
    def of(cls, text: str) -> Price:
        """Return the price in ``12.5 USD`` or ``$12.5``; a UsageError where there is none."""
        match = _PRICE.fullmatch(text.strip())
        if match is None:
            raise UsageError(f"no price: {text}", where="--price-per-hour", rule="12.5 USD")
        before, number, after = match.groups()
        return cls(float(number), (before or after).strip())


@dataclass(frozen=True, slots=True)
class RepeatSummary:
    """Launches of the same work, and each figure and the quality over those that passed."""

    records: tuple[Record, ...]
    passed: tuple[Record, ...]
    figures: dict[str, LaunchSummary]
    trust: Trust


def build_summary(records: Sequence[Record]) -> RepeatSummary:
    """Return geometric mean, 95% interval and CV of every figure over ``records``.

    Raises:
        RecordError: no record, or work that differs, naming what.
        UsageError: a run given twice.
    """
    if not records:
        raise RecordError("no record to sum up", fix="name one run or more")
    first = describe_work(records[0])
    for record in records[1:]:
        other = describe_work(record)
        for key in find_differences(first, other):
            what = f"{key} is {other.get(key)!r}, elsewhere {first.get(key)!r}"
            rule = "repeats are launches of the same work"
            raise RecordError(what, where=record.run_id, rule=rule)
    reject_duplicates(record.run_id for record in records)
    passed = tuple(record for record in records if record.passed)
    specs = figures_of.list_specs(records[0].plan.about.page)
    figures: dict[str, LaunchSummary] = {}
    for name, spec in specs.items():
        launches = None if spec.detail else summarize_figure(passed, name)
        if launches is not None:
            figures[name] = launches
    qualities = [x.quality.value for x in passed if x.quality.value is not None]
    if qualities:
        figures[records[0].quality.metric] = summarize_launches(qualities)
    return RepeatSummary(tuple(records), passed, figures, grade_repeats(records))


def build_repeats(repeat: RepeatSummary) -> list[Block]:
    """Return a row for each figure, then how many launches passed, which did not, how few they are.

    Of fewer than five launches the interval is the range, and is headed so.
    """
    rows = []
    known_figures = repeat.records[0].figures
    for name, launches in repeat.figures.items():
        unit = known_figures[name].unit if name in known_figures else ""
        (mean, low, high), unit = cells.scale_to_unit(
            [launches.mean, launches.low, launches.high], unit
        )
        cv = None if launches.cv is None else f"{launches.cv:.2%}"
        rows.append((name, mean, unit, f"{low} – {high}", cv, launches.launches))
    is_range = len(repeat.passed) < INTERVAL_MIN_LAUNCHES
    columns = translate_headings(
        "name", "mean", "unit", "range" if is_range else "interval", "cv", "launches"
    )
    blocks: list[Block] = []
    if rows:
        blocks.append(build_table(columns, rows))
    num_passed = phrase("repeats.counted", passed=len(repeat.passed), all=len(repeat.records))
    blocks.append(Paragraph(num_passed))
    failed = [record for record in repeat.records if not record.passed]
    if failed:
        runs = join((x.run_id, " (", phrase(f"status.{x.status}"), ")") for x in failed)
        blocks.append(Paragraph(phrase("repeats.left_out", runs=runs)))
    if is_range:
        blocks.append(Paragraph(phrase("repeats.descriptive")))
    return blocks


def find_median_launch(records: Sequence[Record]) -> Record:
    """Return the launch whose curves and facts stand for all: the median by speed."""
    candidates = select_passed(records) or list(records)
    ordered = sorted(candidates, key=lambda record: record.figure("p_train") or 0.0)
    return ordered[(len(ordered) - 1) // 2]


def select_passed(records: Sequence[Record]) -> list[Record]:
    """Return the launches that count."""
    return [record for record in records if record.passed]


def average_figures(records: Sequence[Record]) -> Record:
    """Return the median launch; of several launches with the means of their figures."""
    record = find_median_launch(records)
    if len(records) == 1:
        return record
    launches = select_passed(records)
    figures = dict(record.figures)
    for name, entry in record.figures.items():
        mean = summarize_figure(launches, name)
        if mean is not None:
            figures[name] = entry.model_copy(update={"value": mean.mean})
    return record.model_copy(update={"figures": figures})


def build_title(record: Record) -> Phrase:
    """Return the work, the machine with its count and memory, the precision, nodes or ranks.

    A model of another size than the case's standard model is named by its size, because their
    speeds do not compare. Changes beyond the closed rules are named, and a user's own program is.
    """
    plan = record.plan
    parts: list[Phrase] = [plan.about.title, _describe_devices(record), format_precision(record)]
    size = count_parameters(record)
    if size is not None and not is_same_size(size, plan.about.references.parameters):
        parts[0] = phrase(
            "first.sized", title=plan.about.title, size=cells.format_short_count(size)
        )
    if plan.nnodes > 1:
        parts.append(count_in_words("nodes", plan.nnodes))
    if plan.witness is not None:
        parts.append(phrase("division.witnessed"))
    elif plan.rules == "open":
        parts.append(phrase(f"division.{plan.rules}"))
    return join(parts, "dot")


def _describe_devices(record: Record) -> Phrase:
    """Return devices and their count, with the memory of a card whose name does not state it."""
    name = describe_devices(record)
    if not has_cards(record) or "GB" in get_device_name(record):
        return name
    entries = record.environment.get("devices") or [None]
    memory = (entries[0] or {}).get("memory_total_bytes")
    return (name, f" {memory / cells.GIB:.0f} GiB") if memory else name


def choose_badge(*works: Sequence[Record]) -> tuple[Phrase, Tone]:
    """Return the badge of the worst run: passed, not to be quoted or failed; with its tone.

    Of several works, or if a launch failed, it also has how many passed.

    Args:
        works: launches of each work.
    """
    launches = [record for records in works for record in records]
    passed = sum(record.passed for record in launches)
    if not passed:
        return phrase("badge.failed"), "bad"
    grade = find_worst_grade(get_trust(records).grade for records in works)
    tone = TONES[grade] if passed == len(launches) else "bad"
    if len(works) == 1 and passed == len(launches):
        return phrase(f"badge.{grade}"), tone
    words: list[Phrase] = [phrase("repeats.counted", passed=passed, all=len(launches))]
    if grade == "do_not_quote":
        words.append(phrase("trust.do_not_quote"))
    return join(words), tone


def list_doubts(records: Sequence[Record]) -> tuple[Doubt, ...]:
    """Return why the figures are doubtful, the most serious reason first.

    A run that failed has no figures to doubt.
    """
    launches = select_passed(records)
    if not launches:
        return ()
    doubts = []
    for reason in get_trust(records).reasons:
        if reason.code == "trust_not_passed":  # in the badge
            continue
        text = translate_message(records[0], reason)
        num_affected = sum(_has_reason(launch, reason.code) for launch in launches)
        if 0 < num_affected < len(launches):
            text = phrase("doubt.of_launches", text=text, n=num_affected, all=len(launches))
        is_grave = grade_reasons([reason]).grade == "do_not_quote"
        doubts.append(Doubt(shorten(reason), text, is_grave))
    return tuple(doubts)


def _has_reason(record: Record, code: str) -> bool:
    return any(reason.code == code for reason in record.trust.reasons)


def list_reasons(records: Sequence[Record]) -> tuple[Phrase, ...]:
    """Return in a line each why figures must not be quoted and why they are noisy, if they are.

    A run that failed has no figures to doubt.
    """
    if not select_passed(records):
        return ()
    by_grade: dict[str, list[Phrase]] = {"do_not_quote": [], "noisy": []}
    for reason in get_trust(records).reasons:
        grade = grade_reasons([reason]).grade
        if reason.code != "trust_not_passed" and grade in by_grade:
            by_grade[grade].append(shorten(reason))
    return tuple(
        phrase(f"first.{grade}", reasons=join(texts, "semicolon"))
        for grade, texts in by_grade.items()
        if texts
    )


def describe_key_figures(records: Sequence[Record]) -> Phrase:
    """Return the main figures with their units in a line; of launches their means, labelled so."""
    launches = select_passed(records)
    names = ["e2e_time", "token/p/s", "p_whole", "p_train", "p_core", "MFU", "mem", "mem_total"]
    specs_of_case = [spec for spec in records[0].plan.about.page.figures if spec.first_screen]
    means: dict[str, float] = {}
    for name in (*names, *(spec.name for spec in specs_of_case)):
        mean = summarize_figure(launches, name)
        if mean is not None:
            means[name] = mean.mean
    parts: list[Phrase] = []
    if "e2e_time" in means:
        parts.append(f"e2e_time {cells.format_duration(means['e2e_time'])}")
    if "token/p/s" in means and name_speed_figure(records[0]) == "token/p/s":
        parts.append(("token/p/s ", cells.format_rate(means["token/p/s"]), " tokens/s"))
    rates = [
        f"{name} {cells.format_rate(means[name])}"
        for name in ("p_whole", "p_train", "p_core")
        if name in means
    ]
    if rates:
        parts.append((", ".join(rates), " samples/s"))
    if "MFU" in means:
        parts.append(f"MFU {means['MFU']:.1f}%")
    for spec in specs_of_case:
        if spec.name in means:
            parts.append((spec.name, " ", cells.format_rate(means[spec.name]), " ", spec.unit))
    memory = describe_memory(means.get("mem"), means.get("mem_total"))
    if memory:
        parts.append(memory)
    row = join(parts, "dot")
    if parts and len(records) > 1:
        return join((phrase("head.mean"), row), "colon")
    return row


def describe_memory(used_bytes: float | None, total_bytes: float | None) -> Phrase:
    """Return the memory in use and the total with their unit; empty if it is not known."""
    if used_bytes is None:
        return ""
    used = f"{used_bytes / cells.GIB:.1f}"
    if total_bytes is None:
        return phrase("first.memory_used", used=used)
    return phrase("first.memory", used=used, total=f"{total_bytes / cells.GIB:.1f}")


def build_first_sentence(records: Sequence[Record]) -> Phrase:
    """Return speed, quality and time in a sentence; of a run that failed, what happened where."""
    record = find_median_launch(records)
    if record.status == "target_missed":
        return describe_verdict(record)
    if record.cause is not None:
        return describe_failure(record)
    launches = select_passed(records)
    quality = record.quality
    speed = summarize_figure(launches, name_speed_figure(record))
    time = summarize_figure(launches, "e2e_time")
    duration = cells.format_duration(time.mean) if time else ""
    parts: list[Phrase] = []
    if speed is not None:
        parts.append((cells.format_rounded(speed.mean), " ", get_unit(name_speed_figure(record))))
    if quality.value is not None:
        parts.append(
            phrase(
                "first.reached" if quality.reached else "first.no_target",
                metric=quality.metric,
                value=cells.format_quality(quality.value, target=quality.target),
                time=duration,
                target="" if quality.target is None else f"{quality.target:g}",
            )
        )
    elif duration:
        parts.append(phrase("first.took", time=duration))
    return join(parts, "semicolon")


def build_tiles(records: Sequence[Record], price: Price | None = None) -> Tiles:
    """Return what most readers look for first: speed, time, use of the device, memory, energy.

    A figure that no launch has is left out, but for the use of the device: it has a reason.
    """
    record = find_median_launch(records)
    launches = select_passed(records)
    energy = _build_tile(launches, "energy_per_sample", "energy")
    if energy is None:
        energy = _build_tile(launches, "estimated_energy_per_sample", "estimated")
    tiles = [
        _build_speed_tile(launches, name_speed_figure(record)),
        _build_tile(launches, "e2e_time", "to_target" if record.quality.reached else "whole"),
        _use_tile(record, launches),
        *(
            _build_case_tile(record, launches, spec)
            for spec in record.plan.about.page.figures
            if spec.first_screen
        ),
        _build_memory_tile(launches),
        energy,
        describe_cost(records, price),
    ]
    return Tiles(tuple(tile for tile in tiles if tile is not None))


def _build_speed_tile(launches: Sequence[Record], name: str) -> Tile | None:
    """Return the tile of the speed with its interval over launches; None if there is no speed."""
    mean = summarize_figure(launches, name)
    if mean is None:
        return None
    note: Phrase = count_in_words("launches", mean.launches)
    if mean.launches > 1:
        note = join((format_interval(mean, cells.format_rounded), note))
    return _build_tile(launches, name, "speed", note)


def _build_tile(
    launches: Sequence[Record], name: str, title: str, note: Phrase = ""
) -> Tile | None:
    """Return the tile of a figure's mean; None if no launch has the figure."""
    mean = summarize_figure(launches, name)
    if mean is None:
        return None
    if name == "e2e_time":
        return Tile(phrase(f"tile.{title}"), cells.format_duration(mean.mean), "", name, note)
    value = cells.format_rounded(mean.mean)
    return Tile(phrase(f"tile.{title}"), value, get_unit(name), name, note)


def _build_case_tile(record: Record, launches: Sequence[Record], spec: FigureSpec) -> Tile | None:
    """Return the tile of a case's own figure, with the note on its value; None without a value."""
    mean = summarize_figure(launches, spec.name)
    if mean is None:
        return None
    entry = record.figures.get(spec.name)
    note = translate_message(record, entry.note if entry else None)
    return Tile(spec.label, cells.format_rounded(mean.mean), spec.unit, spec.name, note)


def _use_tile(record: Record, launches: Sequence[Record]) -> Tile | None:
    """Return the share of the peak, or else of the measured matmul rate, or else why neither."""
    if not launches:
        return None
    share_of_matmul = summarize_figure(launches, "MAMFU")
    tile = _build_tile(launches, "MFU", "MFU")
    if tile is not None:
        if share_of_matmul is None:
            return tile
        share = f"{cells.format_rounded(share_of_matmul.mean)}%"
        return replace(tile, note=phrase("tile.of_matmul", share=share))
    if share_of_matmul is not None:
        size = count_parameters(record)
        is_small = size is not None and size < _SMALL_MODEL
        note = phrase("tile.small_model") if is_small else ""
        return _build_tile(launches, "MAMFU", "MAMFU", note)
    entry = record.figures.get("MFU")
    reason = translate_message(record, entry.reason if entry else None, phrase("fact.unknown"))
    return Tile(phrase("tile.MFU"), Missing(reason), "", "MFU", reason)


def _build_memory_tile(launches: Sequence[Record]) -> Tile | None:
    """Return the memory in use and the total."""
    used, total = summarize_figure(launches, "mem"), summarize_figure(launches, "mem_total")
    if used is None:
        return None
    unit: Phrase = "GiB"
    if total is not None:
        unit = phrase("tile.memory_of", total=f"{total.mean / cells.GIB:.1f}")
    return Tile(phrase("tile.memory"), f"{used.mean / cells.GIB:.1f}", unit, "mem")


def describe_cost(records: Sequence[Record], price: Price | None) -> Tile | None:
    """Return what a million samples or tokens cost, with its arithmetic; None without a price."""
    record = find_median_launch(records)
    rate = summarize_figure(select_passed(records), name_speed_figure(record))
    if price is None or rate is None:
        return None
    work = record.plan.about.work_unit
    # Tokens are counted per device, samples for all devices.
    num_rates = record.plan.world_size if work == "tokens" else 1
    per_second = rate.mean * num_rates
    arithmetic = f"{price.per_hour:g} / 3600 s / {per_second:,.1f} {work}/s x 1,000,000"
    value = cells.format_rounded(price.per_hour / 3600 / per_second * 1e6)
    return Tile(phrase(f"cost.{work}"), value, price.currency, "", "", arithmetic)


def describe_failure(record: Record) -> Phrase:
    """Return how and where a run failed, and why, in a sentence."""
    cause = record.cause
    assert cause is not None
    what: Phrase = phrase(f"status.{record.status}")
    if cause.place:
        what = phrase("first.failed", what=what, place=term("place", cause.place))
    if cause.rank is not None and record.plan.world_size > 1:  # a single rank needs no name
        what = join((what, f"rank {cause.rank}"))
    return join((what, translate_message(record, cause.message)), "colon")


def suggest_fix(record: Record) -> Callout:
    """Return what to do about a run that failed."""
    steps = (translate_message(record, message) for message in advise(record))
    return Callout(phrase("cause.fix"), join(steps, "semicolon"))


def list_first_lines(
    records: Sequence[Record], comparisons: Sequence[Result] = (), lang: str = "en"
) -> list[str]:
    """Return title, badge, sentence, key figures, launches, reasons, comparison and limit, by line.

    Of a run that failed, what to try in place of the last three.
    """
    record = find_median_launch(records)
    marks = join((choose_badge(records)[0], phrase(f"trust.{combine_verifications(records)}")))
    lines: list[Phrase] = [
        build_title(record),
        marks,
        build_first_sentence(records),
        describe_key_figures(records),
    ]
    if len(records) > 1:
        lines.append(_describe_launches(records))
    failed = [record for record in records if record.cause is not None]
    if failed:
        if failed[0] is not record:
            lines.append(describe_failure(failed[0]))
        advice = suggest_fix(failed[0])
        lines.append(join((advice.heading, advice.text), "colon"))
    else:
        lines += list_reasons(records)
        balance = compare_with_bound(records, comparisons)
        if balance is not None:
            lines.append(join((balance.heading, balance.text), "colon"))
        lines += [describe_comparison(records, comparisons), describe_dominant_limit(record)]
    texts = [to_one_line(translate(line, lang)) for line in lines]
    return [text for text in texts if text]


def _describe_launches(records: Sequence[Record]) -> Phrase:
    """Return how many launches passed, and the interval of their speed."""
    launches = select_passed(records)
    name = name_speed_figure(find_median_launch(records))
    parts: list[Phrase] = [phrase("repeats.counted", passed=len(launches), all=len(records))]
    speed = summarize_figure(launches, name)
    if speed is not None:
        parts.append((name, " ", format_interval(speed, cells.format_rate)))
    return join(parts, "semicolon")
