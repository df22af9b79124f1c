"""Heat maps of ranks that name the slowest: over stretches of steps, and as the record has them."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median_low
from typing import TYPE_CHECKING, Any

import numpy as np

from trainmark.devices.numa import compact
from trainmark.pages import cells
from trainmark.pages.charts import plotting
from trainmark.pages.document import Chart, Paragraph, Section, Table
from trainmark.pages.tables import shortened_rows
from trainmark.pages.texts import text
from trainmark.record.messages import render

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from trainmark.record.record import Record
    from trainmark.record.series import StepShares

MOST_ROWS = 32  # and one of the slowest rank; beyond, a row has several ranks
_MOST_CELLS = 3300  # beyond, neighbouring stretches are drawn as one
_ROW_PX = 15
_MOST = 1e6
_LEAST_REACH = 0.05  # of the full colour: on most machines less is noise


@dataclass(frozen=True, slots=True)
class Slowest:
    """The rank with the longest median step; ``share`` over the median rank's, less 1."""

    rank: int
    step_s: float
    share: float


def slowest(record: Record) -> Slowest | None:
    """Return the rank with the longest median of measured steps; None where all are alike."""
    times = {entry.rank: entry.step_ns for entry in record.ranks if entry.step_ns}
    if len({*times.values()}) < 2:
        return None
    rank = max(times, key=times.__getitem__)
    return Slowest(rank, times[rank] / 1e9, times[rank] / median_low(times.values()) - 1)


def section(record: Record, lang: str) -> Section | None:
    """Return the maps of several ranks, or why their steps are not drawn; None of a single one."""
    drawn, reason = charts(record, lang), record.series.no_steps
    why = [] if reason is None else [Paragraph(render(reason, lang), "warn")]
    if not drawn and not why:
        return None
    note = Paragraph(text("ranks.note", lang), "muted")
    return Section(text("ranks.heading", lang), 2, "ranks", (*drawn, note, *why))


def charts(record: Record, lang: str) -> list[Chart]:
    """Return what is known of several ranks: over their steps, and over the whole run."""
    found = record.series.steps
    steps = None if found is None else _steps(found, record, lang)
    return [chart for chart in (steps, _known(record, lang)) if chart is not None]


def _rows(ranks: Sequence[int], named: int | None, lang: str) -> list[tuple[str, list[int]]]:
    """Return the ranks of each row with its label: ``named`` alone and first where it is known."""
    rest = [rank for rank in ranks if rank != named]
    size = -(-len(rest) // MOST_ROWS)
    groups = [rest[at : at + size] for at in range(0, len(rest), size)]
    rows = [(compact(group), group) for group in groups]
    if named in ranks and named is not None:
        rows.insert(0, (text("ranks.row", lang, rank=named), [named]))
    return rows


def _named(found: Slowest | None, lang: str) -> list[str]:
    if found is None:
        return []
    share = f"{100 * found.share:.1f}"
    return [text("ranks.slowest", lang, rank=found.rank, step=f"{found.step_s:.4g}", share=share)]


def _steps(found: StepShares, record: Record, lang: str) -> Chart:
    """Return rank x stretch of steps: its time over that of the median rank."""
    slow = slowest(record)
    rows = _rows(found.ranks, slow.rank if slow else None, lang)
    edges, shares = _drawn(found, len(rows))
    place = {rank: row for row, rank in enumerate(found.ranks)}
    data: list[dict[str, Any]] = []
    for label, members in rows:
        part = shares[[place[rank] for rank in members]]
        # Of several ranks the slowest; NaN where none has steps.
        greatest = np.fmax.reduce(part, axis=0)
        data += [
            {"of": label, "step": edges[at] + 1, "over": _bounded(float(greatest[at]) - 1)}
            for at in np.flatnonzero(np.isfinite(greatest)).tolist()
        ]
    rank, step, share = found.longest
    reach = _reach(abs(one["over"]) for one in data)
    size, steps = edges[1], edges[-1]
    longest = text("ranks.longest", lang, rank=rank, step=cells.count(step), share=f"{share:.2f}")
    about = {"ranks": cells.count(len(found.ranks)), "steps": cells.count(steps)}
    return Chart(
        name="ranks-steps",
        title=text("ranks.steps.title", lang, reach=f"{100 * reach:.0f}"),
        description=" ".join([text("ranks.steps", lang, **about), *_named(slow, lang), longest]),
        draws=plotting.later(_steps_spec, [label for label, _ in rows], size, steps, reach, lang),
        data={"cells": data},
        table=_steps_table(found, lang),
    )


def _drawn(found: StepShares, rows: int) -> tuple[tuple[int, ...], NDArray[np.float64]]:
    """Return edges and shares of as many stretches as are drawn; of several the greatest share."""
    share = _array(found)
    count = share.shape[1]
    places = range(0, count, -(-rows * count // _MOST_CELLS))
    edges = (*(found.edges[at] for at in places), found.edges[-1])
    return edges, np.fmax.reduceat(share, places, axis=1)


def _array(found: StepShares) -> NDArray[np.float64]:
    """Return ranks x stretches, NaN where a rank has no steps."""
    return np.array(found.share, np.float64)


def _bounded(difference: float) -> float:
    """Return a difference for a cell; what is beyond a million times is not a measurement."""
    return round(min(max(difference, -_MOST), _MOST), 4)


def _reach(differences: Iterable[float]) -> float:
    """Return the difference with the full colour: nearly the greatest, and a round number."""
    told = list(differences) or [0.0]
    wanted = max(_LEAST_REACH, float(np.percentile(told, 99)))
    return next(one for one in (0.05, 0.1, 0.2, 0.5, 1.0, np.inf) if one >= min(wanted, 1.0))


def _colour(reach: float) -> dict[str, Any]:
    """Return how a difference ``over`` looks: the sign is the colour, the size the strength."""
    import altair as alt

    slower = {"test": "datum.over >= 0", "value": "var(--bad)"}
    strength = alt.Scale(domain=[0, reach], range=[0.04, 1], clamp=True)
    return {
        "color": alt.ColorValue("var(--accent)", condition=slower),
        "opacity": alt.Opacity("size:Q", scale=strength, legend=None),
    }


def _map(x: dict[str, Any], rows: Sequence[str], reach: float, told: Sequence[Any], lang: str
) -> dict[str, Any]:  # fmt: skip
    """Return cells as Vega-Lite, in ``rows`` from above."""
    import altair as alt

    y = alt.Y("of:N", title=text("use.rank", lang), sort=list(rows),
              axis=alt.Axis(grid=False, ticks=False))  # fmt: skip
    cell = (
        alt.Chart(alt.NamedData("cells"))
        .mark_rect(aria=False)  # the table has them; a label each would treble the file
        .transform_calculate(size="abs(datum.over)", **x.pop("calculated", {}))
        .encode(y=y, **x, **_colour(reach), tooltip=list(told))
    )
    return plotting.layered(cell, height=_ROW_PX * max(len(rows), 3))


def _steps_spec(
    rows: Sequence[str], size: int, steps: int, reach: float, lang: str
) -> dict[str, Any]:
    import altair as alt

    x = {
        "x": plotting.step_axis(steps + 1, lang),
        "x2": alt.X2("end:Q"),
        "calculated": {"end": f"min(datum.step + {size}, {steps + 1})"},
    }
    told = [
        alt.Tooltip("of:N", title=text("use.rank", lang)),
        alt.Tooltip("step:Q", title=text("chart.step", lang), format=","),
        alt.Tooltip("over:Q", title=text("ranks.over", lang), format="+.1%"),
    ]
    return _map(x, rows, reach, told, lang)


def _steps_table(found: StepShares, lang: str) -> Table:
    """Return each rank's usual and greatest share, the slowest first."""
    shares = _array(found)
    known = np.flatnonzero(~np.isnan(shares).all(axis=1))
    usual = dict(zip(known.tolist(), np.nanmedian(shares[known], axis=1).tolist(), strict=True))
    rows = []
    for row in sorted(usual, key=lambda row: -usual[row]):
        share = shares[row]
        stretch = int(np.nanargmax(share))
        first, end = found.edges[stretch] + 1, found.edges[stretch + 1]
        rows.append((str(found.ranks[row]), f"{usual[row]:.3f}", f"{share[stretch]:.3f}",
                     f"{cells.count(first)}–{cells.count(end)}"))  # fmt: skip
    heads = (text("use.rank", lang), *(text(f"ranks.{x}", lang) for x in ("usual", "most", "in")))
    return Table(heads, shortened_rows(rows, lang))


def _known(record: Record, lang: str) -> Chart | None:
    """Return rank x what the record has of it; None of fewer than two ranks with steps."""
    if sum(bool(entry.step_ns) for entry in record.ranks) < 2:
        return None
    slow = slowest(record)
    differences = _differences(record)
    rows = _rows([entry.rank for entry in record.ranks], slow.rank if slow else None, lang)
    # Of several ranks the one that is worst.
    data: list[dict[str, Any]] = [
        {"of": label, "what": text(f"ranks.{what}", lang), "over": _bounded(max(told))}
        for label, members in rows
        for what, by_rank in differences.items()
        if (told := [by_rank[rank] for rank in members if rank in by_rank])
    ]
    reach = _reach(abs(one["over"]) for one in data)
    labels = [text(f"ranks.{what}", lang) for what in differences]
    about = {"ranks": cells.count(len(record.ranks)), "what": text("sep.comma", lang).join(labels)}
    said = [text("ranks.known", lang, **about), *_named(slow, lang)]
    return Chart(
        name="ranks-known",
        title=text("ranks.known.title", lang, reach=f"{100 * reach:.0f}"),
        description=" ".join(said),
        draws=plotting.later(_known_spec, [label for label, _ in rows], labels, reach, lang),
        data={"cells": data},
        table=_known_table(record, lang),
    )


def _differences(record: Record) -> dict[str, dict[int, float]]:
    """Return by which share each rank is worse than the median rank, by what was measured.

    Waits are told as a share of the median step.
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


def _known_spec(
    rows: Sequence[str], columns: Sequence[str], reach: float, lang: str
) -> dict[str, Any]:
    import altair as alt

    axis = alt.Axis(labelAngle=0, grid=False, ticks=False)
    told = [
        alt.Tooltip("of:N", title=text("use.rank", lang)),
        alt.Tooltip("what:N", title=text("ranks.what", lang)),
        alt.Tooltip("over:Q", title=text("ranks.worse", lang), format="+.1%"),
    ]
    x = {"x": alt.X("what:N", title=None, sort=list(columns), axis=axis)}
    return _map(x, rows, reach, told, lang)


def _known_table(record: Record, lang: str) -> Table:
    """Return what the record has of each rank, the slowest first."""
    rows = tuple(
        (
            str(one.rank),
            str(one.rank // record.plan.nproc),
            *(
                cells.NOTHING if ns is None else f"{ns / 1e6:.4g}"
                for ns in (one.step_ns, one.wait_ns)
            ),
            cells.NOTHING
            if (rate := one.matmul_flops_per_second) is None
            else f"{rate / 1e12:.4g}",
            cells.memory(one.used_bytes, None),
        )
        for one in sorted(record.ranks, key=lambda one: -(one.step_ns or 0))
    )
    names = ("node", "step_ms", "wait_ms", "tflops", "memory")
    heads = (text("use.rank", lang), *(text(f"ranks.{name}", lang) for name in names))
    return Table(heads, shortened_rows(rows, lang))
