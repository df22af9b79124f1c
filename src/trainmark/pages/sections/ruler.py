"""A speed against the best comparable results, and the ranks of a run against each other.

Comparable is the same work, on any device: own launches, and rows that others published.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainmark.judge.comparison.sides import name_of
from trainmark.library.store.columns import short_device
from trainmark.pages import cells
from trainmark.pages.document import Bar, Bars, Paragraph, Strip, Tone
from trainmark.pages.phrases import devices
from trainmark.pages.sections.limits import slowest, throttled
from trainmark.pages.texts import Phrase, join, t
from trainmark.record.record import Record
from trainmark.record.rows import Row
from trainmark.record.stats import over_launches
from trainmark.record.trust import refuted
from trainmark.record.work import differing, groups, printed_work, work

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainmark.judge.comparison.sides import Result
    from trainmark.pages.document import Block
    from trainmark.record.stats import Launches

_DEVICES = "device_products"  # other devices are what a comparison is for
_MOST = 3  # comparable results that are drawn
_LONGEST = 60  # characters of a printed configuration


def _unlike(own: Record, other: Result) -> dict[str, tuple[object, object]]:
    """Return in what the work of a result differs, by name, with both values."""
    if isinstance(other, Row):
        ours, theirs = printed_work(own), printed_work(other)
        names = [x for x in theirs if ours.get(x, theirs[x]) != theirs[x]]
    else:
        ours, theirs = work(own), work(other)
        names = [x for x in differing(ours, theirs) if x != _DEVICES]
    return {name: (ours.get(name), theirs.get(name)) for name in names}


def over(results: Sequence[Result], figure: str) -> Launches | None:
    """Return a figure over the results that have it; None where none has."""
    values = [x for one in results if (x := one.figure(figure)) is not None]
    return over_launches(values) if values else None


def ruler(records: Sequence[Record], against: Sequence[Result]) -> Block | None:
    """Return the launches beside the best comparable results, each with its ratio.

    Where none is comparable, one line names the nearest and what differs. None: nothing to compare.
    """
    own = [one for one in records if one.passed and not refuted(one.trust)]
    ids = {one.run_id for one in records}
    others = [x for x in against if isinstance(x, Record) and x.passed and x.run_id not in ids]
    found: list[Sequence[Result]] = [*groups(others)]
    found += [[x] for x in against if isinstance(x, Row) and x.failure is None]
    if not own or not found:
        return None
    unlike = [(_unlike(own[0], one[0]), one) for one in found]
    same = [one for keys, one in unlike if not keys]
    for figure in ("p_train", "p_core", "token/p/s", "p_whole"):
        ours = over(own, figure)
        told = [(value.mean, one) for one in same if (value := over(one, figure))]
        if ours and told:
            return _bars(own[0], ours.mean, sorted(told, key=lambda x: -x[0])[:_MOST], figure)
    keys, nearest = min(unlike, key=lambda one: len(one[0]))
    differs = join(f"{name} {a} / {b}" for name, (a, b) in list(keys.items())[:2])
    why = differs if keys else t("against.silent")
    return Paragraph(t("against.none", name=_named(nearest[0]), why=why), "muted")


def _bars(
    own: Record, ours: float, told: Sequence[tuple[float, Sequence[Result]]], figure: str
) -> Bars:
    end = max(ours, *(value for value, _ in told))
    unit = own.figures[figure].unit
    items = [Bar(t("against.this"), 0.0, ours / end, "own", "", f"{cells.number(ours)} {unit}")]
    for value, results in told:
        kind = "published" if isinstance(results[0], Row) else "history"
        label = t(f"against.{kind}", name=_named(results[0]))
        hover = f"{cells.number(value)} {unit}; {', '.join(map(name_of, results))}"
        ratio = f"× {ours / value:#.3g}"
        items.append(Bar(label, 0.0, value / end, "other", ratio, hover))
    return Bars(t("against.title", figure=figure), tuple(items))


def _named(result: Result) -> Phrase:
    if isinstance(result, Record):
        return devices(result)
    device, named = result.device or "", result.configuration
    return cells.clean(named if device in named else f"{device} {named}")[:_LONGEST]


def strip(record: Record) -> Strip | None:
    """Return a cell for each rank, by node: slowest, throttled and hottest named; None of one."""
    if record.plan.world_size < 2 or not record.ranks:
        return None
    slow, hot = slowest(record), _hottest(record)
    lowered, ever = throttled(record, "measured"), throttled(record, "run")
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
        tone: Tone = "bad" if slow and one.rank == slow[0] else "plain"
        tone = "warn" if one.rank in lowered or not one.finished else tone
        step = "/" if one.step_ns is None else f"{one.step_ns / 1e6:.4g} ms"
        hover = (f"rank {one.rank}, {short_device(record)}: {step}",)
        nodes.setdefault(one.rank // record.plan.nproc, []).append((tone, hover))
    return Strip(t("strip.title"), tuple(map(tuple, nodes.values())),
                 join(said, "semicolon") if said else t("strip.alike"))  # fmt: skip


def _hottest(record: Record) -> tuple[int, float] | None:
    """Return the rank with the hottest device in the training, and how hot it was."""
    found = [
        (use.quantities["temperature_c"].highest, device.ranks[0])
        for device in (record.telemetry.devices if record.telemetry else ())
        if device.ranks and (use := device.over.get("train")) and "temperature_c" in use.quantities
    ]
    celsius, rank = max(found, default=(0.0, 0))
    return (rank, celsius) if len(found) > 1 else None
