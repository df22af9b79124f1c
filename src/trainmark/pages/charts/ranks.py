"""Ranks against each other: a heat map over stretches of steps, a table of what was measured."""

from __future__ import annotations

from statistics import median_low
from typing import TYPE_CHECKING, Any

import numpy as np

from trainmark.devices.cores import compact
from trainmark.pages import cells
from trainmark.pages.charts import vega
from trainmark.pages.document import Block, Chart, Paragraph, Table, table
from trainmark.pages.texts import Phrase, t

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trainmark.pages.charts.vega import Spec
    from trainmark.record.record import Record
    from trainmark.record.series import StepShares

MOST_ROWS = 32  # and one of the slowest rank; beyond, a row has several ranks
_MOST_CELLS = 3300  # beyond, neighbouring stretches are drawn as one


def blocks(record: Record) -> Iterator[Block]:
    """Yield what is known of several ranks: over their steps, and over the whole run."""
    times = {entry.rank: entry.step_ns for entry in record.ranks if entry.step_ns}
    slowest, said = None, None
    if len({*times.values()}) > 1:
        slowest = max(times, key=times.__getitem__)
        share = f"{100 * (times[slowest] / median_low(times.values()) - 1):.1f}"
        step = f"{times[slowest] / 1e9:.4g}"
        said = t("ranks.slowest", rank=slowest, step=step, share=share)
    if record.series.steps is not None:
        yield _steps(record.series.steps, slowest, (" ", said) if said else "")
    elif said:
        yield Paragraph(said)
    if len(times) > 1:
        yield _known(record)


def _rows(ranks: Sequence[int], named: int | None) -> list[tuple[Phrase, list[int]]]:
    """Return the ranks of each row with its label: ``named`` alone and first where it is known."""
    rest = [rank for rank in ranks if rank != named]
    size = -(-len(rest) // MOST_ROWS) or 1
    groups = (rest[at : at + size] for at in range(0, len(rest), size))
    rows: list[tuple[Phrase, list[int]]] = [(compact(group), group) for group in groups]
    if named is not None and named in ranks:
        rows.insert(0, (t("ranks.row", rank=named), [named]))
    return rows


def _steps(found: StepShares, named: int | None, slowest: Phrase) -> Chart:
    """Return rank x stretch of steps: its time over that of the median rank.

    The sign is the colour, the size its strength.
    """
    rows, shares = _rows(found.ranks, named), np.array(found.share, np.float64)
    places = range(0, shares.shape[1], -(-len(rows) * shares.shape[1] // _MOST_CELLS))
    edges = [*(found.edges[at] for at in places), found.edges[-1]]
    drawn = np.fmax.reduceat(shares, places, axis=1)
    place = {rank: row for row, rank in enumerate(found.ranks)}
    data: list[Spec] = []
    for label, members in rows:
        # Of several ranks the slowest; NaN where none has steps.
        greatest = np.fmax.reduce(drawn[[place[rank] for rank in members]], axis=0)
        data += [
            {"of": label, "step": edges[at] + 1, "end": edges[at + 1] + 1,
             "over": round(float(greatest[at]) - 1, 4)}
            for at in np.flatnonzero(np.isfinite(greatest)).tolist()
        ]  # fmt: skip
    rank, step, share = found.longest
    longest = t("ranks.longest", rank=rank, step=cells.count(step), share=f"{share:.2f}")
    about = {"ranks": cells.count(len(found.ranks)), "steps": cells.count(edges[-1])}
    # Nearly the greatest has the full colour: a round number.
    wanted = float(np.percentile([abs(one["over"]) for one in data] or [0.0], 99))
    reach = next((one for one in (0.05, 0.1, 0.2, 0.5) if one >= wanted), 1.0)
    spec = vega.spec(
        "ranks", ends=[1, edges[-1] + 1], order=[label for label, _ in rows], reach=reach,
        height=15 * max(len(rows), 3),
    )  # fmt: skip
    return Chart(
        "ranks-steps", t("ranks.steps-title", reach=f"{100 * reach:.0f}"),
        (t("ranks.steps", **about), slowest, " ", longest), spec, {"cells": data},
        _steps_table(found, shares),
    )  # fmt: skip


def _steps_table(found: StepShares, shares: Any) -> Table:
    """Return each rank's usual and greatest share, the slowest first."""
    known = np.flatnonzero(~np.isnan(shares).all(axis=1)).tolist()
    usual = {row: float(np.nanmedian(shares[row])) for row in known}
    rows = []
    for row in sorted(usual, key=lambda row: -usual[row]):
        at = int(np.nanargmax(shares[row]))
        steps = f"{cells.count(found.edges[at] + 1)}–{cells.count(found.edges[at + 1])}"
        rows.append((found.ranks[row], f"{usual[row]:.3f}", f"{shares[row][at]:.3f}", steps))
    names = ("use.rank", "ranks.usual", "ranks.most", "ranks.in")
    return table(map(t, names), rows, short=True)


def _known(record: Record) -> Table:
    """Return what the record has of each rank, the slowest first."""
    rows = (
        (
            one.rank, one.rank // record.plan.nproc,
            *(None if ns is None else f"{ns / 1e6:.4g}" for ns in (one.step_ns, one.wait_ns)),
            (rate := one.matmul_flops_per_second) and f"{rate / 1e12:.4g}",
            cells.memory(one.used_bytes, None),
        )
        for one in sorted(record.ranks, key=lambda one: -(one.step_ns or 0))
    )  # fmt: skip
    names = ("node", "step_ms", "wait_ms", "tflops", "memory")
    return table((t("use.rank"), *(t(f"ranks.{name}") for name in names)), rows, short=True)
