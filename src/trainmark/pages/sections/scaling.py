"""Scaling: the same work on more and more devices, beside each other.

Owns what the same work of several worlds is. Weak scaling: each rank has the same batch; strong
scaling: all ranks together have it. The efficiency is the throughput of a device over that in the
smallest world.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from trainmark.library.store.columns import short_device
from trainmark.pages import cells
from trainmark.pages.document import Paragraph, Section, table
from trainmark.pages.summary import summary
from trainmark.pages.texts import Phrase, join, t
from trainmark.record.work import work

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trainmark.pages.summary import RepeatSummary
    from trainmark.record.record import Record

_FIGURES = ("final_result", "step_time_p50")
_BATCH = ("micro_batch_size", "grad_accum_steps")
_OF_WORLD = ("ran_world", "world", *_BATCH)  # ``world``: for which one a recipe was written
_HEADS = (
    "world", "launches", "samples_per_rank", "throughput", "efficiency", "step_s", "exposed_s",
)  # fmt: skip


def scaling(works: Sequence[Sequence[Record]]) -> Iterator[Section]:
    """Yield a section for each work that several worlds did, the smallest world first.

    Args:
        works: launches of each work; those that did not pass do not count.
    """
    found: dict[tuple[str, object, str], list[RepeatSummary]] = {}
    for one in map(summary, works):
        if {*_FIGURES} <= one.figures.keys():
            plan = one.passed[0].plan
            same = {x: y for x, y in work(one.passed[0]).items() if x not in _OF_WORLD}
            batch = [plan.recipe[name] for name in _BATCH]
            for kind, size in (("weak", (*batch,)), ("strong", prod(batch) * plan.world_size)):
                found.setdefault((kind, size, str(sorted(same.items()))), []).append(one)
    several = ((kind, of) for (kind, *_), of in found.items() if len(of) > 1)
    for place, (kind, of) in enumerate(several, start=1):
        yield _section(kind, sorted(of, key=_world), f"scaling{place}")


def _world(one: RepeatSummary) -> tuple[int, int]:
    return one.passed[0].plan.world_size, one.passed[0].plan.nnodes


def _section(kind: str, worlds: Sequence[RepeatSummary], anchor: str) -> Section:
    """Return throughput and efficiency of each world: geometric means, both ends of the interval.

    That of an efficiency joins the far ends of two worlds' intervals, so it is wider than 95%.
    """
    (base, first), small = (worlds[0].figures[name] for name in _FIGURES), worlds[0].passed[0]
    rows: list[list[Phrase]] = []
    for one in worlds:
        plan, (rate, step) = one.passed[0].plan, (one.figures[name] for name in _FIGURES)
        share = small.plan.world_size / plan.world_size
        far = (1.0, 1.0) if one is worlds[0] else (rate.low / base.high, rate.high / base.low)
        rows.append([
            f"{plan.nnodes}x{plan.nproc}", rate.launches,
            prod(plan.recipe[name] for name in _BATCH),
            "{} ({} – {})".format(*map(cells.number, (rate.mean, rate.low, rate.high))),
            "{:.1%} ({:.1%} – {:.1%})".format(*(share * x for x in (rate.mean / base.mean, *far))),
            cells.number(step.mean),
            cells.number(step.mean - first.mean) if kind == "weak" else None,
        ])  # fmt: skip
    heads = (t(f"scaling.{x}", unit=small.figures[_FIGURES[0]].unit) for x in _HEADS)
    means = (Paragraph(t(f"scaling.means-{x}", first=rows[0][0])) for x in (kind, "interval"))
    title = t("scaling.title", case=small.plan.case, device=short_device(small))
    heading = join((title, t(f"scaling.{kind}")), "colon")
    return Section(heading, anchor, (table(heads, rows), *means))
