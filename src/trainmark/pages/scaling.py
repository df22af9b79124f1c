"""Scaling: the same work on more and more devices, from records.

Owns what the same work of several worlds is. Weak scaling: each rank has the same batch; strong
scaling: all ranks together have it. The efficiency is the throughput of a device over that in the
smallest world.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

from trainmark.errors import UsageError
from trainmark.library.store.columns import short_device
from trainmark.pages import cells
from trainmark.pages.document import Bar, Bars, Block, Document, Facts, Paragraph, Section, table
from trainmark.pages.rendering import to_html, to_markdown
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
_RULE = "scaling compares passed runs of the same work, with one batch for each rank or for all"


def scaling(records: Sequence[Record]) -> dict[str, Any]:
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
    kind, sums = _kind([group[0] for group in groups]), [summary(group) for group in groups]
    base, first = (sums[0].figures[name] for name in _FIGURES)
    worlds = []
    for group, one in zip(groups, sums, strict=True):
        plan, (rate, step) = group[0].plan, (one.figures[name] for name in _FIGURES)
        share = groups[0][0].plan.world_size / plan.world_size
        far = [rate.low / base.high, rate.high / base.low] if one is not sums[0] else [1.0, 1.0]
        worlds.append({
            "world": f"{plan.nnodes}x{plan.nproc}", "launches": rate.launches,
            "samples_per_rank": prod(plan.recipe[name] for name in _BATCH),
            "throughput": [rate.mean, rate.low, rate.high],
            "efficiency": [share * x for x in (rate.mean / base.mean, *far)],
            "step_s": step.mean,
            "exposed_s": step.mean - first.mean if kind == "weak" else None,
        })  # fmt: skip
    fewest = sorted(sums, key=lambda one: one.launches)
    return {
        "case": records[0].plan.case, "device": short_device(records[0]), "kind": kind,
        "unit": sums[0].units[_FIGURES[0]], "worlds": worlds,
        "run_ids": [[record.run_id for record in group] for group in groups],
        "trust": graded(x for one in fewest for x in one.trust.reasons),
        "verification": verification_of(records),
    }  # fmt: skip


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
    sizes = [record.plan.world_size for record in firsts]
    batches = [tuple(record.plan.recipe[name] for name in _BATCH) for record in firsts]
    if len(set(sizes)) < 2:
        raise UsageError("all runs have one world size", where="nnodes, nproc", rule=_RULE)
    if len(set(batches)) == 1:
        return "weak"
    if len({prod(batch) * size for batch, size in zip(batches, sizes, strict=True)}) == 1:
        return "strong"
    raise UsageError(f"{batches} in worlds of {sizes} ranks", where=", ".join(_BATCH), rule=_RULE)


def scaling_text(records: Sequence[Record], form: str, lang: str) -> str:
    """Return what ``scaling`` does as a page, ``md`` or ``html``.

    Raises:
        UsageError: another form; see also ``scaling``.
    """
    found = scaling(records)
    if form not in ("md", "html"):
        raise UsageError(f"no scaling page as {form}", where="--format", remedy="md or html")
    return to_markdown(_page(found), lang) if form == "md" else to_html([_page(found)], lang)


def _page(found: dict[str, Any]) -> Document:
    worlds, kind = found["worlds"], found["kind"]
    heads = (t(f"scaling.{name}", unit=found["unit"]) for name in worlds[0])
    names = {"first": worlds[0]["world"], "last": worlds[-1]["world"]}
    means = (Paragraph(t(f"scaling.means-{x}", **names)) for x in (kind, "interval"))
    shares = [(one["world"], *one["efficiency"]) for one in worlds]
    end = max(1.0, *(share for _, share, *_ in shares))
    bars = (
        Bar(world, 0.0, share / end, "own", f"{share:.1%} ({low:.1%} – {high:.1%})")
        for world, share, low, high in shares
    )
    runs = ((one["world"], ", ".join(ids)) for one, ids in
            zip(worlds, found["run_ids"], strict=True))  # fmt: skip
    shown: tuple[Block, ...] = (
        Bars(t("scaling.efficiency"), tuple(bars)),
        table(heads, (map(_cell, world.values()) for world in worlds)), *means,
    )  # fmt: skip
    return Document(
        title=t("scaling.title", case=found["case"], device=found["device"]),
        badge=t(f"scaling.{kind}"), tone="good",
        sentence=t("scaling.verdict", share=f"{shares[-1][1]:.1%}", **names),
        verification=t(f"trust.{found['verification']}"), doubts=tuple(found["trust"].reasons),
        sections=(
            Section(t("section.scaling"), "scaling", shown),
            Section(t("section.provenance"), "provenance", (Facts(tuple(runs)),)),
        ),
    )  # fmt: skip


def _cell(value: Any) -> Phrase:
    if isinstance(value, list):
        return "{} ({}–{})".format(*map(cells.number, value))
    return cells.number(value) if isinstance(value, float) else value
