"""Charts of a run and of a comparison: a function each, from records to Vega-Lite's input.

The specifications are those of ``charts.json``.
"""

from __future__ import annotations

import json
import math
from functools import cache
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from trainmark.pages import cells
from trainmark.pages.document import Chart, Section, Table, folded, table
from trainmark.pages.texts import Phrase, devices, heads, join, t
from trainmark.record.series import TOGETHER, bucket_steps, thin

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from trainmark.judge.comparison import Comparison
    from trainmark.record.record import Record
    from trainmark.record.series import Line

Spec = dict[str, Any]
_WIDTH = 460  # px of a static picture: it fits a phone, and two stand side by side
# Beyond this ratio between greatest and least a linear axis shows one spike and a flat line.
_LOG_RATIO = 20
_LOG_COMPARED = 3  # the same, of ratios of two sides
TABLE_ROWS = 12
_VERDICTS = {"faster": "good", "better": "good", "slower": "bad", "worse": "bad"}
_LONG_S = 600.0  # beyond, axes are in minutes
# Name of the chart, unit, how much of the record's unit that is, scale.
_QUANTITIES: dict[str, tuple[str, str, int, Spec]] = {
    "memory_used_bytes": ("memory", "GiB", cells.GIB, {"zero": True}),
    "utilization_percent": ("busy", "%", 1, {"domain": [0, 100]}),
    "power_w": ("power", "W", 1, {"zero": True}),
    "temperature_c": ("temperature", "°C", 1, {"zero": False}),
}


def of_record(record: Record) -> list[Section]:
    """Return curves, and devices over time."""
    stretch = bucket_steps(len(record.steps.time_ns))
    thinned = t("chart.note", stretch=cells.count(stretch)) if stretch > 1 else ""
    curves = step_time(record), loss(record), quality(record)
    return [
        folded("steps", *curves, note=thinned),
        folded("time", *over_time(record), note=t("time.note")),
    ]


@cache
def _specs() -> Spec:
    found: Spec = json.loads(Path(__file__).with_suffix(".json").read_bytes())
    return found


def spec(name: str, **values: Any) -> Spec:
    """Return what Vega-Lite draws: a specification of ``charts.json``, filled.

    ``$x`` there is a value, ``@x`` a text by its key; what has an ``if`` is there where it is true.
    """

    def there(part: Any) -> bool:
        return not isinstance(part, dict) or bool(filled(part.get("if", True)))

    def filled(part: Any) -> Any:
        if isinstance(part, dict):
            kept = {key: below for key, below in part.items() if key != "if" and there(below)}
            return {key: filled(below) for key, below in kept.items()}
        if isinstance(part, list):
            return [filled(below) for below in part if there(below)]
        if not isinstance(part, str) or part[:1] not in ("$", "@"):
            return part
        return values[part[1:]] if part[0] == "$" else t(part[1:])

    return {"width": _WIDTH, "height": 180, **filled(_specs()[name])}


def step_time(record: Record) -> Chart | None:
    """Return the step time in ms, the warm-up shaded; None for fewer than two."""
    values = np.asarray(record.steps.time_ns, np.float64) / 1e6
    values[values <= 0] = np.nan
    title, scale = t("chart.step_time"), dict[str, object](zero=False)
    if np.nanmax(values, initial=0) > _LOG_RATIO * np.nanmin(values, initial=math.inf):
        title, scale = t("chart.log", title=title), {"type": "log", "nice": False}
    warmup = min(record.steps.warmup, len(values))
    shaded = {"kind": t("chart.warmup"), "step": 1, "to": min(warmup + 0.5, len(values))}
    shades = [shaded] if warmup else []
    return _curve("step_time", title, values, scale=scale, warmup=warmup, shaded=shades)


def loss(record: Record) -> Chart | None:
    """Return the loss step by step; None for fewer than two."""
    return _curve("loss", t("chart.loss"), np.asarray(record.steps.loss, np.float64))


def quality(record: Record) -> Chart | None:
    """Return the quality of each evaluation against the target; None for fewer than two."""
    metric, target = record.quality.metric, record.quality.target
    known = [x for x in record.quality.history if x.value is not None]
    values = np.asarray([x.value for x in known], np.float64)
    named = t("chart.quality.no_target")
    if target is not None:
        named = t("chart.quality.target", target=f"{target:g}")
    line = [] if target is None else [{"value": target, "label": named}]
    title, steps = t("chart.quality", metric=metric), [x.step for x in known]
    return _curve("quality", title, values, steps, metric=metric, target=named, line=line)


def _curve(
    name: str, title: Phrase, values: NDArray[np.float64], steps: Sequence[int] = (), **told: Any
) -> Chart | None:
    """Return the chart of values by step, thinned, with a table; None for fewer than two.

    Args:
        values: NaN where there is none.
        steps: of the values; default: every step.
        told: what specification and description name.
    """
    known, steps = values[np.isfinite(values)], steps or range(1, len(values) + 1)
    if len(known) < 2:
        return None
    ends = {"first": f"{known[0]:.4g}", "last": f"{known[-1]:.4g}"}
    said = t(f"described.{name}", n=cells.count(len(values)), **ends, **told)
    rows = [
        {"step": steps[at], "value": float(f"{value:.6g}") if math.isfinite(value) else None}
        for at, value in thin(values)
    ]
    return Chart(name, title, said, spec(name, **told), {"steps": rows}, _stretches(values, steps))


def ratios(sides: Mapping[str, Comparison]) -> Chart | None:
    """Return each figure of each side over A's, good and bad marked; None where there is none.

    Args:
        sides: by its letter, what a side is compared with A.
    """
    rows: list[dict[str, Any]] = [
        {"name": f"{letter} {one.name}", "ratio": one.ratio, "low": one.low, "high": one.high,
         "said": t(f"compare.{one.verdict}")}
        for letter, of in sides.items() for one in of.figures if one.ratio is not None
    ]  # fmt: skip
    if not rows:
        return None
    values = [x["ratio"] for x in rows]
    title, scale = t("compare.ratios"), dict[str, object](zero=False)
    if max(*values, 1) >= _LOG_COMPARED * min(*values, 1):
        title, scale = t("chart.log", title=title), {"type": "log", "base": 2}
    lowest, highest = (f"{x:.3f}" for x in (min(values), max(values)))
    told = t("compare.ratios_seen", n=len(rows), lowest=lowest, highest=highest)
    said = {one.verdict: t(f"compare.{one.verdict}") for of in sides.values() for one in of.figures}
    colours = [f"var(--{_VERDICTS.get(verdict, 'rest')})" for verdict in said]
    drawn = spec("ratios", scale=scale, said=[*said.values()], colours=colours)
    shown = (
        [x["name"], *(x[of] and f"{x[of]:.3f}" for of in ("ratio", "low", "high")), x["said"]]
        for x in rows
    )
    columns = heads("name", "compare.ratio", "least", "greatest", "compare.said")
    return Chart("ratios", title, told, drawn, {"ratios": rows}, table(columns, shown))


def over_each_other(sides: Mapping[str, Sequence[Record]]) -> Iterator[Chart]:
    """Yield the losses, and the qualities, of several sides in one chart each.

    Args:
        sides: by its letter the launches of a side, of which the first with a curve is drawn.
    """
    for of in (loss, quality):
        known = {x: next(filter(None, map(of, side)), None) for x, side in sides.items()}
        found = [((f"{x} · ", devices(sides[x][0])), one) for x, one in known.items() if one]
        if len(found) > 1:
            steps = [point | {"side": x} for x, one in found for point in one.data["steps"]]
            rows = ((x, *row) for x, one in found if one.table for row in one.table.rows)
            columns = heads("compare.side", "chart.step", "least", "median", "greatest")
            said = join((join((x, one.description), "colon") for x, one in found), "semicolon")
            title = t(f"compare.{of.__name__}", metric=sides["A"][0].quality.metric)
            name, drawn = f"sides-{of.__name__}", spec("sides")
            yield Chart(name, title, said, drawn, {"steps": steps}, table(columns, rows))


def over_time(record: Record) -> Iterator[Chart]:
    """Yield a chart for each quantity that devices, then hosts, have at least twice."""
    for _, of in groupby(record.series, attrgetter("of_host", "quantity")):
        lines = list(of)
        if max(len(one.points) for one in lines) > 1:
            yield _quantity(record, lines)


def _quantity(record: Record, lines: Sequence[Line]) -> Chart:
    """Return the chart of a quantity, the steps that figures are over shaded."""
    short, unit, factor, scale = _QUANTITIES[lines[0].quantity]
    kind, together = "host" if lines[0].of_host else "device", lines[0].of in TOGETHER
    measured = record.telemetry.intervals_s.get("measured") if record.telemetry else None
    told = [(value, s, one.of) for one in lines for s, value in one.points]
    highest, at_s, of = max(told, key=lambda point: point[0])
    uses = _uses(record, of_host=lines[0].of_host, quantity=lines[0].quantity)
    said = t(
        f"time.{kind}", quantity=t(f"time.{short}"), unit=unit, at=f"{at_s:.0f}",
        n=len(uses) if together else len(lines),
        of=max(uses, key=uses.__getitem__, default="?") if together else of,
        lowest=cells.rounded(min(told)[0] / factor), highest=cells.rounded(highest / factor),
    )  # fmt: skip
    second, axis = (60, "minutes") if max(s for _, s, _ in told) > _LONG_S else (1, "axis")
    names = [one.of for one in lines] if len(lines) > 1 and not together else []
    drawn = spec(
        "over_time", unit=unit, scale=scale, band=together, alone=not (together or names),
        names=names, member=t(f"time.{kind}-of"), axis=t(f"time.{axis}"),
    )  # fmt: skip
    marked = [{"from": measured[0] / second, "to": measured[1] / second}] if measured else []
    rows = [
        {"s": round(s / second, 3), "v": float(f"{value / factor:.4g}"), "of": one.of}
        for one in lines for s, value in one.points
    ]  # fmt: skip
    title = t(f"time.{kind}-title", quantity=t(f"time.{short}"))
    return Chart(f"time-{kind}-{short}", title, said, drawn, {"measured": marked, "lines": rows})


def _uses(record: Record, *, of_host: bool, quantity: str) -> dict[int, float]:
    """Return the highest reading of the run, by the first rank of a device or by node."""
    found = record.telemetry
    members = enumerate(found.hosts if found else ()) if of_host else (
        (one.ranks[0], one.over) for one in (found.devices if found else ()) if one.ranks
    )  # fmt: skip
    return {
        of: use.quantities[quantity].highest
        for of, over in members
        if (use := over.get("run")) and quantity in use.quantities
    }


def _stretches(values: NDArray[np.float64], steps: Sequence[int]) -> Table:
    """Return least, median and greatest of some stretches of steps, which cover every value."""
    found = []
    for part in np.array_split(np.arange(len(values)), min(TABLE_ROWS, len(values))):
        first, last = (cells.count(steps[at]) for at in (part[0], part[-1]))
        known = values[part][np.isfinite(values[part])]
        reduced = np.percentile(known, (0, 50, 100)).tolist() if len(known) else [None] * 3
        found.append((first if first == last else f"{first} – {last}", *map(cells.number, reduced)))
    return table(heads("chart.step", "least", "median", "greatest"), found)
