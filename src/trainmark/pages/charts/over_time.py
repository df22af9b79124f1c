"""Memory, utilisation, power and temperature of devices and hosts over the run, a chart each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trainmark.pages import cells
from trainmark.pages.charts import vega
from trainmark.pages.document import Chart, table
from trainmark.pages.texts import Phrase, t
from trainmark.record.thinning import TOGETHER

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trainmark.pages.charts.vega import Spec
    from trainmark.record.record import Record
    from trainmark.record.series import Extremes, Line

# In the order of the page: name of the chart, unit, how much of the record's unit that is, scale.
_QUANTITIES: dict[str, tuple[str, str, int, Spec]] = {
    "memory_used_bytes": ("memory", "GiB", cells.GIB, {"zero": True}),
    "utilization_percent": ("busy", "%", 1, {"domain": [0, 100]}),
    "power_w": ("power", "W", 1, {"zero": True}),
    "temperature_c": ("temperature", "°C", 1, {"zero": False}),
}
_COLOURS = [f"var(--{name})" for name in ("accent", "eval", "work", "wait")] * 2
_DASHES = [*[[1, 0]] * 4, *[[5, 3]] * 4]


def charts(record: Record) -> Iterator[Chart]:
    """Yield a chart for each quantity that devices, then hosts, have at least twice."""
    for of_host in (False, True):
        for quantity in _QUANTITIES:
            about = quantity, of_host
            lines = [x for x in record.series.lines if (x.quantity, x.of_host) == about]
            found = [x for x in record.series.extremes if (x.quantity, x.of_host) == about]
            if lines and max((one.readings for one in found), default=0) > 1:
                found.sort(key=lambda one: -one.highest)
                yield _chart(record, quantity, lines, found)


def _chart(
    record: Record, quantity: str, lines: Sequence[Line], found: Sequence[Extremes]
) -> Chart:
    """Return the chart of a quantity, the steps that figures are over shaded."""
    short, unit, factor, scale = _QUANTITIES[quantity]
    kind, together = "host" if found[0].of_host else "device", lines[0].of in TOGETHER
    measured = record.telemetry.intervals_s.get("measured") if record.telemetry else None
    lowered = [
        {"s": s, "v": _rounded(value / factor), "of": one.of, "why": why}
        for one in found for s, value, why in one.lowered
    ]  # fmt: skip
    count, top = sum(one.lowered_readings for one in found), found[0]
    said: list[Phrase] = [t(
        f"time.{kind}", n=len(found), quantity=t(f"time.{short}"), of=top.of, unit=unit,
        lowest=_number(min(one.lowest for one in found) / factor),
        highest=_number(top.highest / factor), at=_moment(top.highest_s),
    )]  # fmt: skip
    said += [(" ", t("time.together"))] if together else []
    said += [(" ", t("time.lowered", n=cells.count(count)))] if count else []
    rows = [
        {"s": round(s, 3), "v": _rounded(value / factor), "of": one.of}
        for one in lines for s, value in one.points
    ]  # fmt: skip
    names = [one.of for one in lines]
    axes = _axes(unit, scale)
    drawn = _band(axes) if together else [_lines(names, axes, t(f"time.{kind}-of"))]
    marks = [_marks(axes)] if lowered else []
    return Chart(
        f"time-{kind}-{short}", t(f"time.{kind}-title", quantity=t(f"time.{short}")), (*said,),
        vega.layers(_shade(), *drawn, *marks, height=120),
        {"measured": [{"from": measured[0], "to": measured[1]}] if measured else [],
         "lowered": lowered, "lines": rows},
        _table(found, kind, factor),
    )  # fmt: skip


def _axes(unit: str, scale: Spec) -> Spec:
    axis = {"format": "~g", "grid": False}
    x = vega.field("s", title=t("time.axis"), axis=axis, scale={"nice": False})
    return {"x": x, "y": vega.field("v", title=unit, axis={"tickCount": 4}, scale=scale)}


def _shade() -> Spec:
    ends = {"x": vega.field("from"), "x2": {"field": "to"}}
    return vega.layer("rect", "measured", ends, color="var(--shade)")


def _marks(axes: Spec) -> Spec:
    look: Spec = {"shape": "triangle-down", "filled": True, "size": 45, "color": "var(--bad)"}
    return vega.layer("point", "lowered", axes, opacity=1, **look)


def _lines(names: Sequence[str], axes: Spec, title: Phrase) -> Spec:
    """Return a line for each of ``names``; of several each in its colour and dash."""
    apart: Spec = {}
    if len(names) > 1:
        for channel, looks in (("color", _COLOURS), ("strokeDash", _DASHES)):
            of = {"domain": [*names], "range": looks[: len(names)]}
            apart[channel] = vega.field("of", "n", title=title, scale=of)
    return vega.layer("line", "lines", {**axes, **apart})


def _band(axes: Spec) -> list[Spec]:
    """Return the median of all devices in the band from the lowest to the highest."""
    ends = {**axes, "y": {**axes["y"], "field": "lowest"}, "y2": {"field": "highest"}}
    band = vega.layer("area", "lines", ends, color="var(--accent)", opacity=0.25)
    line = vega.layer("line", "lines", {**axes, "y": {**axes["y"], "field": "median"}})
    pivot = {"pivot": "of", "value": "v", "groupby": ["s"]}
    return [{**one, "transform": [pivot]} for one in (band, line)]


def _number(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.1f}"


def _moment(seconds: float) -> str:
    """Return seconds with one decimal; not as -0.0, since clocks differ by microseconds."""
    return f"{round(seconds, 1) + 0.0:.1f}"


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")


def _table(found: Sequence[Extremes], kind: str, factor: int) -> Any:
    """Return what each device or host had over the run, that with the highest reading first."""
    rows = (
        (one.of, _number(one.lowest / factor), _number(one.highest / factor),
         _moment(one.highest_s), cells.count(one.lowered_readings), cells.count(one.readings))
        for one in found
    )  # fmt: skip
    names = (f"time.{kind}-of", "time.lowest", "time.highest", "time.at", "time.marked")
    return table((*map(t, names), t("use.readings")), rows, short=True)
