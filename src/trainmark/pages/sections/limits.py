"""What limits a training, how it stands beside comparable results, and how its ranks differ.

Owns the rules: each tells what it costs of the training time, where that is known, and advises
only what follows.
Comparable is the same work, on any device: own launches, and rows that others published.
"""

from __future__ import annotations

from statistics import median_low
from typing import TYPE_CHECKING, NamedTuple

from trainmark.library.store.columns import short_device
from trainmark.pages import cells
from trainmark.pages.document import Bar, Bars, Callout, Paragraph, Strip
from trainmark.pages.texts import (
    Phrase,
    Tone,
    configuration,
    devices,
    has_cards,
    join,
    speed_name,
    t,
    term,
    worded,
)
from trainmark.record.findings import (
    BUSY_SHARE,
    SLOW_SHARE,
    THROTTLED_SHARE,
    find_throttling_shares,
)
from trainmark.record.record import Record
from trainmark.record.stats import over_launches
from trainmark.record.trust import refuted, trust_of
from trainmark.record.work import Row, differing, differing_from_row, groups, name_of, work

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trainmark.record.stats import Launches
    from trainmark.record.telemetry import IntervalName
    from trainmark.record.work import Result

_LEAST_SHARE = 0.005  # of the training time; less is told with the rest
_LEAST = {"data": 0.05, "evaluation": 0.25}  # of the training time; from there a rule holds
_GOOD_USE, _ROOMY = 0.4, 0.5  # of the matmul rate; of the memory
_DEVICES = "device_products"  # other devices are what a comparison is for
_MOST = 3  # comparable results that are drawn
_MOST_DIFFERENCES = 3  # of the closest result, that are named
_LONGEST = 60  # characters of a printed configuration, of a difference


class Limit(NamedTuple):
    """A rule that holds: the share of the time that it costs, the sentence, the arithmetic.

    ``cost``: None where nobody knows.
    """

    rule: str
    cost: float | None
    said: Phrase
    arithmetic: str


def shares(record: Record) -> dict[str, float]:
    """Return the seconds of the training time by what they were spent on; empty without any."""
    spans, parts = record.spans.by_name_ns, record.spans.train_parts_ns
    found = {
        "compute": parts.get("compute", 0), "data": parts.get("data_wait", 0),
        "evaluation": spans.get("evaluate", 0),
        "rest": parts.get("other", 0) + spans.get("checkpoint", 0),
    }  # fmt: skip
    return {name: ns / 1e9 for name, ns in found.items()} if any(found.values()) else {}


def bar(record: Record) -> Bars | None:
    """Return one bar to 100% of the training time, below it what limits it; None without steps."""
    spent, at, drawn = shares(record), 0.0, []
    total = sum(spent.values())
    for name, seconds in spent.items():
        share = seconds / total
        called = "compute_all" if name == "compute" and record.plan.world_size > 1 else name
        if share >= _LEAST_SHARE:
            shown, hover = f"{100 * share:.0f}%", f"{seconds:.3f} s / {total:.3f} s"
            drawn.append(Bar(t(f"limit.{called}"), at, at + share, name, shown, hover))
        at += share
    if not drawn:
        return None
    found = limits(record)
    arithmetic = found[0].arithmetic if found else ""
    return Bars(t("limit.title"), tuple(drawn), gravest(record), arithmetic, stacked=True)


def gravest(record: Record) -> Phrase:
    """Return the sentence of the rule that costs most; that it computes where none holds."""
    found, spent = limits(record), shares(record)
    if found or not spent:
        return found[0].said if found else ""
    share, rate = f"{spent['compute'] / sum(spent.values()):.0%}", record.figure("MAMFU")
    kind = "none" if rate is None else "none_rate"
    return t(f"limit.{kind}", share=share, rate=f"{rate or 0:.2g}%")


def minor_limits(record: Record) -> list[Paragraph]:
    """Return what limits a training besides the dominant limit, each with its arithmetic."""
    return [Paragraph((one.said, " ", f"({one.arithmetic})")) for one in limits(record)[1:]]


def limits(record: Record) -> list[Limit]:
    """Return what the rules find in a run, the costliest first, those of unknown cost last."""
    return sorted(_rules(record), key=lambda one: -(one.cost or 0.0))


def _rules(record: Record) -> Iterator[Limit]:
    """Yield a limit for each rule that holds, in the order in which they are told if alike."""
    spent = shares(record)
    total = sum(spent.values())
    for name, least in _LEAST.items():
        share = spent[name] / total if total else 0.0
        if share >= least:
            arithmetic = f"{spent[name]:.3f} s / {total:.3f} s = {share:.1%} ≥ {least:.0%}"
            yield Limit(name, share, t(f"advice.{name}", share=f"{share:.0%}"), arithmetic)
    lowered = _throttled(record, "measured")
    share, rank = max(((x, rank) for rank, x in lowered.items()), default=(0.0, 0))
    if share > THROTTLED_SHARE:
        said = t("advice.clocks", rank=rank)
        yield Limit("clocks", share, said, f"{share:.1%} > {THROTTLED_SHARE:.0%}")
    rank, longer = _slowest(record) or (0, 0.0)
    if longer:
        lost, said = longer / (1 + longer), t("advice.rank", rank=rank)
        yield Limit("rank", lost, said, f"{longer:.3f} / {1 + longer:.3f} = {lost:.1%}")
    others: float = record.environment.get("others_cpu_share") or 0.0
    if others > BUSY_SHARE:
        kind = "other_work_threads" if _has_threads(record) else "other_work"
        yield Limit("other_work", None, t(f"advice.{kind}"), f"{others:.1%} > {BUSY_SHARE:.0%}")
    rate, used, most = (record.figure(name) for name in ("MAMFU", "mem", "mem_total"))
    if rate is None or not used or not most or not has_cards(record):
        return
    if rate < 100 * _GOOD_USE and used / most < _ROOMY and not record.plan.recipe["compile"]:
        # A larger batch may use the device better.
        said = t("advice.batch", rate=f"{rate:.0f}%", memory=f"{used / most:.0%}")
        shown = f"{cells.memory(used, most)} < {_ROOMY:.0%}"
        yield Limit("batch", None, said, f"MAMFU {rate:.1f}% < {_GOOD_USE:.0%}; {shown}")


def _has_threads(record: Record) -> bool:
    """Return whether each rank computed on the processor with several threads."""
    threads = (record.environment.get("variables") or {}).get("OMP_NUM_THREADS", "1")
    return not has_cards(record) and threads != "1"


def _throttled(record: Record, interval: IntervalName) -> dict[int, float]:
    """Return the share of an interval with lowered clocks, by first rank."""
    shares = find_throttling_shares(record.telemetry, interval)
    return {rank: max(reasons.values()) for rank, reasons in shares.items()}


def _slowest(record: Record) -> tuple[int, float] | None:
    """Return the rank that a finding calls slow, and by what share its steps are longer."""
    for args in (one.args for one in record.findings if one.code == "slow_rank"):
        match args:
            case {"rank": int(rank), "share": float(share)}:
                return rank, share
    return None


def over(results: Sequence[Result], figure: str) -> Launches | None:
    """Return a figure over the results that have it; None where none has."""
    values = [x for one in results if (x := one.figure(figure)) is not None]
    return over_launches(values) if values else None


def _unlike(own: Record, other: Result) -> dict[str, tuple[object, object]]:
    """Return in what the work of a result differs, by name, with both values."""
    if isinstance(other, Row):
        return differing_from_row(own, other)
    ours, theirs = work(own), work(other)
    names = [name for name in differing(ours, theirs) if name != _DEVICES]
    names.sort(key=lambda name: len(f"{ours.get(name)}{theirs.get(name)}"))
    return {name: (ours.get(name), theirs.get(name)) for name in names}


def ruler(records: Sequence[Record], against: Sequence[Result]) -> Bars | Callout | None:
    """Return the launches beside the best comparable results, each with its ratio.

    Where none is comparable, one line names the nearest and what differs, or says that no other
    result is known. None: no launch that counts.
    """
    own = [one for one in records if one.passed and not refuted(one.trust)]
    ids = {one.run_id for one in records}
    others = [x for x in against if isinstance(x, Record) and x.passed and x.run_id not in ids]
    rows = ([x] for x in against if isinstance(x, Row) and x.failure is None)
    found: list[Sequence[Result]] = [*groups(others), *rows]
    if not own:
        return None
    if not found:
        failed = any(isinstance(x, Record) and x.run_id not in ids for x in against)
        return _incomparable(t(f"against.{'none_passed' if failed else 'nothing'}"))
    unlike = [(_unlike(own[0], one[0]), one) for one in found]
    same = [one for keys, one in unlike if not keys]
    for figure in (speed_name(own[0]), "p_train", "p_core", "p_whole"):
        ours = over(own, figure)
        told = [(value.mean, one) for one in same if (value := over(one, figure))]
        if ours and told:
            best = sorted(told, key=lambda x: -x[0])[:_MOST]
            return _bars(figure, own, ours.mean, best)
    keys, nearest = min(unlike, key=lambda one: len(one[0]))
    differs = [_differs(*one) for one in keys.items()][:_MOST_DIFFERENCES]
    why = join(differs, "semicolon") if differs else t("against.silent")
    return _incomparable(t("against.none", name=_named(nearest[0]), why=why))


def _incomparable(text: Phrase) -> Callout:
    return Callout(t("against.heading"), text, is_quiet=True)


def _differs(name: str, both: tuple[object, object]) -> Phrase:
    """Return in what work differs, with both values, in plain words."""
    a, b = map(_shown_value, both)
    return t("against.differs", what=term("work", name), a=a, b=b)


def _shown_value(value: object) -> Phrase:
    """Return a value of a piece of work, a count in groups of three digits."""
    if isinstance(value, int) and not isinstance(value, bool):
        return cells.count(value)
    return worded(term("origin", str(value)[:_LONGEST]) if value else None)


def _bars(
    figure: str, own: Sequence[Record], ours: float,
    told: Sequence[tuple[float, Sequence[Result]]],
) -> Bars:  # fmt: skip
    end, unit = max(ours, told[0][0]), own[0].figures[figure].unit
    grades = {str(trust_of(own).grade)}
    items = [Bar(t("against.this"), 0.0, ours / end, "own", "", f"{cells.number(ours)} {unit}")]
    for value, results in told:
        runs = [one for one in results if isinstance(one, Record)]
        kind = trust_of(runs).grade if runs else "published"
        grades.add(kind)
        label = t(f"against.{kind}", name=_named(results[0]))
        hover = f"{cells.number(value)} {unit}; {', '.join(map(name_of, results))}"
        items.append(Bar(label, 0.0, value / end, "other", f"× {ours / value:#.3g}", hover))
    hint = [t("against.hint")] if "do_not_quote" in grades else []
    return Bars(join((*hint, t("against.title", figure=figure)), "colon"), tuple(items))


def ruler_line(records: Sequence[Record], against: Sequence[Result]) -> Phrase:
    """Return the ruler in one line: the ratio to each comparable result, or that there is none."""
    found = ruler(records, against)
    if not isinstance(found, Bars):
        return found.text if found else ""
    return join(
        (
            found.title,
            join(t("against.ratio", ratio=x.shown, name=x.label) for x in found.items[1:]),
        ),
        "colon",
    )


def _named(result: Result) -> Phrase:
    """Return a result's devices; of a row as it was printed, in English in our words."""
    if isinstance(result, Record):
        return devices(result)
    device, printed = result.device or "", result.configuration
    named = printed if device in printed else f"{device} {printed}"
    named = cells.clean(named)[:_LONGEST]
    if not (device and result.nnodes and result.nproc):
        return named
    ours = configuration(device, nnodes=result.nnodes, nproc=result.nproc)
    return t("reference.as_printed", printed=named, ours=ours)


def strip(record: Record) -> Strip | None:
    """Return a cell for each rank, by node: slowest, throttled and hottest named; None of one."""
    if record.plan.world_size < 2 or not record.ranks:
        return None
    slow, hot = _slowest(record), _hottest(record)
    lowered, ever = _throttled(record, "measured"), _throttled(record, "run")
    said: list[Phrase] = []
    if slow:
        said.append(t("strip.slowest", rank=slow[0], share=f"{slow[1]:+.0%}"))
    if lowered:
        worst = max(lowered, key=lowered.__getitem__)
        said.append(t("strip.throttled", rank=worst, share=f"{lowered[worst]:.0%}"))
    outside = [str(rank) for rank in ever if rank not in lowered]
    if outside:
        said.append(t("strip.outside", ranks=", ".join(outside[:4])))
    if hot:
        said.append(t("strip.hottest", rank=hot[0], celsius=f"{hot[1]:.0f}"))
    nodes: dict[int, list[tuple[Tone, Phrase]]] = {}
    for one in record.ranks:
        tone: Tone = "warn" if one.rank in lowered or not one.finished else "plain"
        tone = "bad" if slow and one.rank == slow[0] else tone
        step = cells.NOTHING if one.step_ns is None else f"{one.step_ns / 1e6:.4g} ms"
        hover = f"rank {one.rank}, {short_device(record)}: {step}"
        nodes.setdefault(one.rank // record.plan.nproc, []).append((tone, hover))
    if not slow:
        said = [*_spread(record), *said]
    told = join(said, "semicolon")
    return Strip(t("strip.title"), tuple(map(tuple, nodes.values())), told)


def _spread(record: Record) -> list[Phrase]:
    """Return how much slower the slowest rank is than the median, and what was not compared."""
    steps_ns = [one.step_ns for one in record.ranks if one.step_ns]
    if len(steps_ns) < 2:
        return [t("strip.no_steps")]
    spread = max(steps_ns) / median_low(steps_ns) - 1
    parts: list[Phrase] = [t("strip.spread", share=f"{spread:.1%}")]
    if spread > SLOW_SHARE:  # or there would be a finding
        parts.append(t("strip.not_compared"))
    if not has_cards(record):
        parts.append(t("strip.shared_cores"))
    return parts


def _hottest(record: Record) -> tuple[int, float] | None:
    """Return the rank with the hottest device in the training, and how hot it was."""
    found = [
        (use.quantities["temperature_c"].highest, device.ranks[0])
        for device in (record.telemetry.devices if record.telemetry else ())
        if device.ranks and (use := device.over.get("train")) and "temperature_c" in use.quantities
    ]
    celsius, rank = max(found, default=(0.0, 0))
    return (rank, celsius) if len(found) > 1 else None
