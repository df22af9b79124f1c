"""Scaling: the same work on more and more devices, from records.

Owns what the same work of several worlds is. Weak scaling: each rank has the same batch; strong
scaling: all ranks together have it. The efficiency is the throughput of a device over that in the
smallest world.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from trainmark.errors import UsageError
from trainmark.library.store.columns import short_device
from trainmark.pages import cells
from trainmark.pages.document import Block, Document, Facts, Paragraph, Section, table
from trainmark.pages.summary import summary
from trainmark.pages.texts import Phrase, t
from trainmark.record.trust import graded, verification_of
from trainmark.record.work import differing, work

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainmark.record.record import Record

_FIGURES = ("final_result", "step_time_p50")
_BATCH = ("micro_batch_size", "grad_accum_steps")
_OF_WORLD = ("ran_world", "world", *_BATCH)  # ``world``: for which one a recipe was written
_HEADS = (
    "world", "launches", "samples_per_rank", "throughput", "efficiency", "step_s", "exposed_s",
)  # fmt: skip
_RULE = "scaling compares passed runs of the same work, with one batch for each rank or for all"


def scaling_page(records: Sequence[Record]) -> Document:
    """Return how throughput grows over the worlds of ``records``, the smallest first.

    Throughput and efficiency are the geometric mean over the launches, and both ends of its
    interval. That of an efficiency joins the far ends of two worlds' intervals, so it is wider
    than 95%.

    Raises:
        UsageError: a record that did not pass, other work, or a single world; with the key.
    """
    found: dict[tuple[int, int], list[Record]] = {}
    for record in records:
        _refuse(record, records[0])
        found.setdefault((record.plan.world_size, record.plan.nnodes), []).append(record)
    groups = [found[key] for key in sorted(found)]
    firsts, sums = [group[0] for group in groups], [summary(group) for group in groups]
    kind, (base, first) = _kind(firsts), (sums[0].figures[name] for name in _FIGURES)
    rows: list[list[Phrase]] = []
    for record, one in zip(firsts, sums, strict=True):
        plan, (rate, step) = record.plan, (one.figures[name] for name in _FIGURES)
        share = firsts[0].plan.world_size / plan.world_size
        far = (1.0, 1.0) if one is sums[0] else (rate.low / base.high, rate.high / base.low)
        rows.append([
            f"{plan.nnodes}x{plan.nproc}", rate.launches,
            prod(plan.recipe[name] for name in _BATCH),
            "{} ({} – {})".format(*map(cells.number, (rate.mean, rate.low, rate.high))),
            "{:.1%} ({:.1%} – {:.1%})".format(*(share * x for x in (rate.mean / base.mean, *far))),
            cells.number(step.mean),
            cells.number(step.mean - first.mean) if kind == "weak" else None,
        ])  # fmt: skip
    names = {"first": rows[0][0], "last": rows[-1][0]}
    unit, fewest = firsts[0].figures[_FIGURES[0]].unit, sorted(sums, key=lambda x: len(x.passed))
    runs = ((row[0], ", ".join(x.run_id for x in of)) for row, of in zip(rows, groups, strict=True))
    blocks: tuple[Block, ...] = (
        table((t(f"scaling.{name}", unit=unit) for name in _HEADS), rows),
        *(Paragraph(t(f"scaling.means-{x}", **names)) for x in (kind, "interval")),
        Facts(tuple(runs)),
    )
    return Document(
        title=t("scaling.title", case=firsts[0].plan.case, device=short_device(firsts[0])),
        badge=t(f"scaling.{kind}"), tone="good",
        sentence=t("scaling.verdict", share=str(rows[-1][4]).partition(" ")[0], **names),
        verification=t(f"trust.{verification_of(records)}"),
        doubts=tuple(graded(x for one in fewest for x in one.trust.reasons).reasons),
        sections=(Section(t("section.scaling"), "scaling", blocks),),
    )  # fmt: skip


def _refuse(record: Record, first: Record) -> None:
    known, other = work(first), work(record)
    why = [] if record.passed else [f"status is {record.status}"]
    why += [f"{name} is null" for name in _FIGURES if record.figure(name) is None]
    unlike = [key for key in differing(known, other) if key not in _OF_WORLD]
    why += [f"{key} is {other.get(key)!r}, elsewhere {known.get(key)!r}" for key in unlike]
    if why:
        raise UsageError(why[0], where=record.run_id, rule=_RULE)


def _kind(firsts: Sequence[Record]) -> str:
    """Return which batch the worlds have in common, given one record of each."""
    worlds = [record.plan.world_size for record in firsts]
    batches = [tuple(record.plan.recipe[name] for name in _BATCH) for record in firsts]
    if len(set(worlds)) > 1 and len(set(batches)) == 1:
        return "weak"
    if len(set(worlds)) > 1 == len({prod(x) * n for x, n in zip(batches, worlds, strict=True)}):
        return "strong"
    raise UsageError(f"{batches} in worlds of {worlds} ranks", where=", ".join(_BATCH), rule=_RULE)
