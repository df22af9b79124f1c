"""Heat maps of ranks that name the slowest: over stretches of steps, and as the record has them."""

from __future__ import annotations

from statistics import median_low
from typing import TYPE_CHECKING, Any

import numpy as np

from trainmark.devices.numa import compact
from trainmark.pages import cells
from trainmark.pages.charts import vega
from trainmark.pages.document import Chart, table
from trainmark.pages.texts import Phrase, join, t

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from trainmark.pages.charts.vega import Spec
    from trainmark.record.record import Record
    from trainmark.record.series import StepShares

MOST_ROWS = 32  # and one of the slowest rank; beyond, a row has several ranks
_MOST_CELLS = 3300  # beyond, neighbouring stretches are drawn as one
_MOST = 1e6  # what is beyond is not a measurement
_LEAST_REACH = 0.05  # of the full colour: on most machines less is noise


def charts(record: Record) -> Iterator[Chart]:
    """Yield what is known of several ranks: over their steps, and over the whole run."""
    slow = _slowest(record)
    rank = None if slow is None else slow[0]
    if record.series.steps is not None:
        yield _steps(record.series.steps, rank, slow)
    if sum(bool(entry.step_ns) for entry in record.ranks) > 1:
        yield _known(record, rank, slow)


def _slowest(record: Record) -> tuple[int, Phrase] | None:
    """Return the rank with the longest median step, in a sentence; None where all are alike."""
    times = {entry.rank: entry.step_ns for entry in record.ranks if entry.step_ns}
    if len({*times.values()}) < 2:
        return None
    rank = max(times, key=times.__getitem__)
    share = f"{100 * (times[rank] / median_low(times.values()) - 1):.1f}"
    return rank, (" ", t("ranks.slowest", rank=rank, step=f"{times[rank] / 1e9:.4g}", share=share))


def _rows(ranks: Sequence[int], named: int | None) -> list[tuple[Phrase, list[int]]]:
    """Return the ranks of each row with its label: ``named`` alone and first where it is known."""
    rest = [rank for rank in ranks if rank != named]
    size = -(-len(rest) // MOST_ROWS) or 1
    groups = (rest[at : at + size] for at in range(0, len(rest), size))
    rows: list[tuple[Phrase, list[int]]] = [(compact(group), group) for group in groups]
    if named is not None and named in ranks:
        rows.insert(0, (t("ranks.row", rank=named), [named]))
    return rows


def _steps(found: StepShares, named: int | None, slow: tuple[int, Phrase] | None) -> Chart:
    """Return rank x stretch of steps: its time over that of the median rank."""
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
             "over": _bounded(float(greatest[at]) - 1)}
            for at in np.flatnonzero(np.isfinite(greatest)).tolist()
        ]  # fmt: skip
    rank, step, share = found.longest
    longest = t("ranks.longest", rank=rank, step=cells.count(step), share=f"{share:.2f}")
    about = {"ranks": cells.count(len(found.ranks)), "steps": cells.count(edges[-1])}
    axis = {"format": ",d", "tickMinStep": 1, "grid": False}
    ends = {"domain": [1, edges[-1] + 1], "nice": False}
    x = {"field": "step", "type": "quantitative", "title": t("chart.step"), "axis": axis,
         "scale": ends}  # fmt: skip
    said = (t("ranks.steps", **about), slow[1] if slow else "", " ", longest)
    return _map("steps", x, rows, data, description=said, table=_steps_table(found, shares))


def _map(
    name: str, x: Spec, rows: Sequence[tuple[Phrase, Any]], data: list[Spec], **more: Any
) -> Chart:
    """Return cells in rows from above; of ``over``, the sign is the colour, the size its strength.

    Args:
        more: description and table of the chart.
    """
    reach = _reach(abs(one["over"]) for one in data)
    order = [label for label, _ in rows]
    height = 15 * max(len(rows), 3)
    spec = vega.spec("ranks", x=x, order=order, reach=reach, height=height, steps=name == "steps")
    title = t(f"ranks.{name}-title", reach=f"{100 * reach:.0f}")
    return Chart(name=f"ranks-{name}", title=title, spec=spec, data={"cells": data}, **more)


def _bounded(difference: float) -> float:
    return round(min(max(difference, -_MOST), _MOST), 4)


def _reach(differences: Iterable[float]) -> float:
    """Return the difference with the full colour: nearly the greatest, and a round number."""
    wanted = max(_LEAST_REACH, float(np.percentile([*differences] or [0.0], 99)))
    return next(one for one in (0.05, 0.1, 0.2, 0.5, 1.0) if one >= min(wanted, 1.0))


def _steps_table(found: StepShares, shares: Any) -> Any:
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


def _known(record: Record, named: int | None, slow: tuple[int, Phrase] | None) -> Chart:
    """Return rank x what the record has of it; of several ranks the one that is worst."""
    differences = _differences(record)
    rows = _rows([entry.rank for entry in record.ranks], named)
    data: list[Spec] = [
        {"of": label, "what": t(f"ranks.{what}"), "over": _bounded(max(told))}
        for label, members in rows
        for what, by_rank in differences.items()
        if (told := [by_rank[rank] for rank in members if rank in by_rank])
    ]
    labels = [t(f"ranks.{what}") for what in differences]
    axis = {"labelAngle": 0, "grid": False, "ticks": False}
    x = {"field": "what", "type": "nominal", "title": None, "sort": labels, "axis": axis}
    said = t("ranks.known", ranks=cells.count(len(record.ranks)), what=join(labels))
    about = (said, slow[1] if slow else "")
    return _map("known", x, rows, data, description=about, table=_known_table(record))


def _differences(record: Record) -> dict[str, dict[int, float]]:
    """Return by which share each rank is worse than the median rank, by what was measured.

    Waits are a share of the median step.
    """
    ranks = record.ranks
    steps = {one.rank: one.step_ns for one in ranks if one.step_ns}
    waits = {one.rank: one.wait_ns for one in ranks if one.wait_ns is not None}
    rates = {one.rank: one.matmul_flops_per_second for one in ranks if one.matmul_flops_per_second}
    step_ns = median_low(steps.values())
    found = {"step": {rank: value / step_ns - 1 for rank, value in steps.items()}}
    if waits:
        wait_ns = median_low(waits.values())
        found["wait"] = {rank: (value - wait_ns) / step_ns for rank, value in waits.items()}
    if rates:
        rate = median_low(rates.values())
        found["matmul"] = {rank: 1 - value / rate for rank, value in rates.items()}
    return found


def _known_table(record: Record) -> Any:
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
