"""Charts of a run and of a comparison: a function each, from records to data and their names."""

from __future__ import annotations

import math
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from trainmark.events.series import SUMMARY_LINES, compute_bucket_size, thin_values
from trainmark.pages import cells, chart_specs
from trainmark.pages.document import (
    Block,
    Chart,
    Columns,
    Section,
    Table,
    build_folded_section,
    build_table,
)
from trainmark.pages.texts import Phrase, describe_devices, join, phrase, translate_headings

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from trainmark.events.series import SeriesLine
    from trainmark.judge.comparison import Comparison
    from trainmark.pages.chart_specs import Spec
    from trainmark.record.record import Record
    from trainmark.spec import Shown

# Beyond this ratio between greatest and least a linear axis shows one spike and a flat line.
_LOG_RATIO = 20
_LOG_COMPARED = 3  # the same, of ratios of two sides
TABLE_ROWS = 12
_VERDICTS = {"faster": "good", "better": "good", "slower": "bad", "worse": "bad"}
_LONG_S = 600.0  # beyond, axes are in minutes
_SMOOTHED_FROM = 40  # steps; fewer are drawn as they are
_SMOOTHED_SHARE, _MIN_SMOOTHED = 0.02, 5  # of all steps, that a smoothed value is the mean of
MAX_SIDES = 7  # lines of one chart, for each of which there is a colour
# Name of the chart, unit, how much of the record's unit that is, scale.
_QUANTITIES: dict[str, tuple[str, str, int, Spec]] = {
    "memory_used_bytes": ("memory", "GiB", cells.GIB, {"zero": True}),
    "utilization_percent": ("busy", "%", 1, {"domain": [0, 100]}),
    "power_w": ("power", "W", 1, {"zero": True}),
    "temperature_c": ("temperature", "°C", 1, {"zero": False}),
}


def chart_curves(record: Record) -> Block | None:
    """Return loss and step time side by side; None for fewer than two steps."""
    drawn = tuple(chart for chart in (chart_loss(record), chart_step_time(record)) if chart)
    return Columns(drawn) if drawn else None


def chart_telemetry(record: Record) -> Section:
    """Return devices and hosts over time."""
    return build_folded_section("time", *chart_over_time(record), note=phrase("time.note"))


def chart_step_time(record: Record) -> Chart | None:
    """Return the step time in ms, the warm-up shaded; None for fewer than two."""
    values = _read_step_times_ms(record)
    title, scale = phrase("chart.step_time"), dict[str, object](zero=False)
    if np.nanmax(values, initial=0) > _LOG_RATIO * np.nanmin(values, initial=math.inf):
        title, scale = phrase("chart.log", title=title), {"type": "log", "nice": False}
    warmup = min(record.steps.warmup, len(values))
    shades = []
    if warmup:
        title = phrase("chart.with_warmup", title=title)
        shades.append({"step": 1, "to": min(warmup + 0.5, len(values))})
    drawn = chart_specs.draw_step_time(scale=scale, has_warmup=bool(warmup))
    return _chart_curve("step_time", title, values, drawn, data={"warmup": shades}, warmup=warmup)


def _read_step_times_ms(record: Record) -> NDArray[np.float64]:
    """Return the time of each step in ms, NaN where it is not known."""
    values = np.asarray(record.steps.time_ns, np.float64) / 1e6
    values[values <= 0] = np.nan
    return values


def chart_loss(record: Record) -> Chart | None:
    """Return the loss of each step and their moving mean; None for fewer than two steps."""
    values = np.asarray(record.steps.loss, np.float64)
    title, data = phrase("chart.loss"), dict[str, Any]()
    window = _choose_smoothing_window(len(values))
    if window:
        title = phrase("chart.loss_smoothed", n=window)
        data["smoothed"] = _build_rows(
            _compute_moving_mean(values, window), range(1, len(values) + 1)
        )
    drawn = chart_specs.draw_loss(is_smoothed=bool(window))
    return _chart_curve("loss", title, values, drawn, data=data)


def _choose_smoothing_window(steps: int) -> int:
    """Return how many steps a smoothed value is the mean of, an odd number; 0: none is drawn."""
    if steps < _SMOOTHED_FROM:
        return 0
    return max(_MIN_SMOOTHED, int(steps * _SMOOTHED_SHARE)) | 1


def _compute_moving_mean(values: NDArray[np.float64], window: int) -> NDArray[np.float64]:
    """Return the mean of the finite values in a window around each value; NaN if there is none.

    Args:
        values: (N,).
        window: an odd number of values; at the ends the window is cut off.
    """
    is_finite = np.isfinite(values)
    half, places = window // 2, np.arange(len(values))
    starts = np.maximum(places - half, 0)
    stops = np.minimum(places + half + 1, len(values))

    def sum_in_windows(terms: NDArray[np.float64]) -> NDArray[np.float64]:
        # Differences of running sums, so that a million steps take no longer than their number.
        running = np.concatenate([[0.0], np.cumsum(terms)])
        sums: NDArray[np.float64] = running[stops] - running[starts]
        return sums

    sums = sum_in_windows(np.where(is_finite, values, 0.0))
    counts = sum_in_windows(is_finite.astype(np.float64))
    return np.where(counts > 0, sums / np.maximum(counts, 1.0), np.nan)


def chart_case_curve(rows: Sequence[Mapping[str, Any]], shown: Shown) -> Chart | None:
    """Return a value of a case over the steps of its rows; None for fewer than two."""
    values = np.asarray([row[shown.value] for row in rows], np.float64)
    steps = [row["step"] for row in rows]
    drawn = chart_specs.draw_loss(is_smoothed=False)
    return _chart_curve(f"trend_{shown.value}", shown.name, values, drawn, steps, data={})


def chart_quality(record: Record) -> Chart | None:
    """Return the quality of each evaluation against the target; None for fewer than two."""
    metric, target = record.quality.metric, record.quality.target
    known = [x for x in record.quality.history if x.value is not None]
    values = np.asarray([x.value for x in known], np.float64)
    named = phrase("chart.quality.no_target")
    if target is not None:
        named = phrase("chart.quality.target", target=f"{target:g}")
    line = [] if target is None else [{"value": target, "label": named}]
    title, steps = phrase("chart.quality", metric=metric), [x.step for x in known]
    drawn = chart_specs.draw_quality()
    return _chart_curve("quality", title, values, drawn, steps, data={"target": line}, target=named)


def _chart_curve(
    name: str,
    title: Phrase,
    values: NDArray[np.float64],
    drawn: Spec,
    steps: Sequence[int] = (),
    *,
    data: dict[str, list[dict[str, Any]]],
    **described: Any,
) -> Chart | None:
    """Return the chart of values by step, thinned, with a table; None for fewer than two.

    Args:
        values: NaN where there is none.
        steps: of the values; default: every step.
        data: the datasets besides that of the values.
        described: what the description names.
    """
    known, steps = values[np.isfinite(values)], steps or range(1, len(values) + 1)
    if len(known) < 2:
        return None
    ends = {"first": f"{known[0]:.4g}", "last": f"{known[-1]:.4g}"}
    text = "described.trend" if name.startswith("trend_") else f"described.{name}"
    description = phrase(text, n=cells.count(len(values)), **ends, **described)
    stretch = compute_bucket_size(len(values))
    note = phrase("chart.note", stretch=cells.count(stretch)) if stretch > 1 else ""
    rows = {"steps": _build_rows(values, steps)} | data
    return Chart(name, title, description, drawn, rows, _summarize_stretches(values, steps), note)


def _build_rows(values: NDArray[np.float64], steps: Sequence[int]) -> list[dict[str, Any]]:
    """Return values by step as a chart takes them, thinned; null where there is none."""
    return [
        {"step": steps[place], "value": float(f"{value:.6g}") if math.isfinite(value) else None}
        for place, value in thin_values(values)
    ]


def chart_ratios(sides: Mapping[str, Comparison]) -> Chart | None:
    """Return each figure of each side over A's, good and bad marked; None where there is none.

    Args:
        sides: by its letter, what a side is compared with A.
    """
    rows: list[dict[str, Any]] = [
        {
            "name": f"{letter} {one.name}",
            "ratio": one.ratio,
            "low": one.low,
            "high": one.high,
            "said": phrase(f"compare.{one.verdict}"),
        }
        for letter, of in sides.items()
        for one in of.figures
        if one.ratio is not None
    ]
    if not rows:
        return None
    values = [x["ratio"] for x in rows]
    title, scale = phrase("compare.ratios"), dict[str, object](zero=False)
    if max(*values, 1) >= _LOG_COMPARED * min(*values, 1):
        title, scale = phrase("chart.log", title=title), {"type": "log", "base": 2}
    lowest, highest = (f"{x:.3f}" for x in (min(values), max(values)))
    told = phrase("compare.ratios_seen", n=len(rows), lowest=lowest, highest=highest)
    said = {
        one.verdict: phrase(f"compare.{one.verdict}") for of in sides.values() for one in of.figures
    }
    colours = [f"var(--{_VERDICTS.get(verdict, 'rest')})" for verdict in said]
    drawn = chart_specs.draw_ratios(scale=scale, verdicts=[*said.values()], colours=colours)
    shown = (
        [x["name"], *(x[of] and f"{x[of]:.3f}" for of in ("ratio", "low", "high")), x["said"]]
        for x in rows
    )
    columns = translate_headings("name", "compare.ratio", "least", "greatest", "compare.said")
    return Chart("ratios", title, told, drawn, {"ratios": rows}, build_table(columns, shown))


def chart_overlays(
    sides: Mapping[str, Sequence[Record]],
    names: Mapping[str, Phrase] | None = None,
    *,
    prefix: str = "sides",
) -> list[Chart]:
    """Return losses, step times and qualities of several runs, in one chart each.

    Args:
        sides: by its short name the launches of a run, of which the first with a curve is drawn.
        names: what the legend says of each; None: its devices.
        prefix: begins the names of the charts.
    """
    first = next(iter(sides.values()))[0]
    titles: dict[str, Phrase] = {
        "loss": phrase("compare.loss"),
        "step_time": phrase("compare.step_time"),
        "quality": phrase("compare.quality", metric=first.quality.metric),
    }
    draw = {"loss": chart_loss, "step_time": chart_step_time, "quality": chart_quality}
    labels = {
        side: (f"{side} · ", names[side] if names else describe_devices(records[0]))
        for side, records in sides.items()
    }
    made = []
    for name, title in titles.items():
        curves = {
            side: next((chart for record in records if (chart := draw[name](record))), None)
            for side, records in list(sides.items())[:MAX_SIDES]
        }
        known = {side: chart for side, chart in curves.items() if chart is not None}
        if len(known) > 1:
            made.append(_chart_overlay(f"{prefix}-{name}", title, known, labels))
    return made


def _chart_overlay(
    name: str, title: Phrase, curves: Mapping[str, Chart], labels: Mapping[str, Phrase]
) -> Chart:
    """Return the curves of several runs in one chart; smoothed ones where there are."""
    points = [
        point | {"side": labels[side]}
        for side, chart in curves.items()
        for point in chart.data.get("smoothed") or chart.data["steps"]
    ]
    rows = [
        (side, *row) for side, chart in curves.items() if chart.table for row in chart.table.rows
    ]
    described = join(
        (join((side, chart.description), "colon") for side, chart in curves.items()), "semicolon"
    )
    columns = translate_headings("compare.side", "chart.step", "least", "median", "greatest")
    return Chart(
        name,
        title,
        described,
        chart_specs.draw_sides(),
        {"steps": points},
        build_table(columns, rows),
    )


def chart_over_time(record: Record) -> Iterator[Chart]:
    """Yield a chart for each quantity that devices, then hosts, have at least twice."""
    for _, of in groupby(record.series, attrgetter("of_host", "quantity")):
        lines = list(of)
        if max(len(line.points) for line in lines) > 1:
            yield _chart_quantity(record, lines)


def _chart_quantity(record: Record, lines: Sequence[SeriesLine]) -> Chart:
    """Return the chart of a quantity, the steps that figures are over shaded."""
    short, unit, factor, scale = _QUANTITIES[lines[0].quantity]
    kind, together = "host" if lines[0].of_host else "device", lines[0].of in SUMMARY_LINES
    measured = record.telemetry.intervals_s.get("measured") if record.telemetry else None
    told = [(value, s, one.of) for one in lines for s, value in one.points]
    highest, at_s, of = max(told, key=lambda point: point[0])
    uses = _collect_highest_readings(record, of_host=lines[0].of_host, quantity=lines[0].quantity)
    said = phrase(
        f"time.{kind}",
        quantity=phrase(f"time.{short}"),
        unit=unit,
        at=f"{at_s:.0f}",
        n=len(uses) if together else len(lines),
        of=max(uses, key=uses.__getitem__, default="?") if together else of,
        lowest=cells.format_rounded(min(told)[0] / factor),
        highest=cells.format_rounded(highest / factor),
    )
    second, axis = (60, "minutes") if max(s for _, s, _ in told) > _LONG_S else (1, "axis")
    names = [one.of for one in lines] if len(lines) > 1 and not together else []
    drawn = chart_specs.draw_over_time(
        axis=phrase(f"time.{axis}"),
        scale=scale,
        member=phrase(f"time.{kind}-of"),
        names=names,
        is_band=together,
    )
    marked = [{"from": measured[0] / second, "to": measured[1] / second}] if measured else []
    rows = [
        {"s": round(s / second, 3), "v": float(f"{value / factor:.4g}"), "of": one.of}
        for one in lines
        for s, value in one.points
    ]
    title = phrase(f"time.{kind}-title", quantity=phrase(f"time.{short}"), unit=unit)
    return Chart(f"time-{kind}-{short}", title, said, drawn, {"measured": marked, "lines": rows})


def _collect_highest_readings(record: Record, *, of_host: bool, quantity: str) -> dict[int, float]:
    """Return the highest reading of the run, by the first rank of a device or by node."""
    telemetry = record.telemetry
    members = (
        enumerate(telemetry.hosts if telemetry else ())
        if of_host
        else (
            (device.ranks[0], device.over)
            for device in (telemetry.devices if telemetry else ())
            if device.ranks
        )
    )
    return {
        of: use.quantities[quantity].highest
        for of, over in members
        if (use := over.get("run")) and quantity in use.quantities
    }


def _summarize_stretches(values: NDArray[np.float64], steps: Sequence[int]) -> Table:
    """Return least, median and greatest of some stretches of steps, which cover every value."""
    rows = []
    for part in np.array_split(np.arange(len(values)), min(TABLE_ROWS, len(values))):
        first, last = (cells.count(steps[place]) for place in (part[0], part[-1]))
        known = values[part][np.isfinite(values[part])]
        reduced = np.percentile(known, (0, 50, 100)).tolist() if len(known) else [None] * 3
        rows.append(
            (first if first == last else f"{first} – {last}", *map(cells.format_rate, reduced))
        )
    return build_table(translate_headings("chart.step", "least", "median", "greatest"), rows)
