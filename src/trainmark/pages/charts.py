"""Charts of a run and of a comparison: each function builds one from records.

``chart_specs`` has what they look like.
"""

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
    from trainmark.telemetry.summary import IntervalName, Use

# Beyond this ratio between greatest and least a linear axis shows one spike and a flat line.
_LOG_RATIO = 20
_LOG_RATIO_OF_SIDES = 3  # the same, if the values are ratios of two sides themselves
TABLE_ROWS = 12
# Colours of verdicts, as names of the page's style; all others are "rest".
_VERDICT_COLOURS = {"faster": "good", "better": "good", "slower": "bad", "worse": "bad"}
_LONG_S = 600.0  # axes of longer times are in minutes
_MIN_STEPS_TO_SMOOTH = 40  # the loss of fewer steps is drawn without smoothing
# A smoothed value is the mean over a window of this share of all steps, but of at least so many.
_SMOOTHING_WINDOW_SHARE = 0.02
_MIN_SMOOTHING_WINDOW = 5
MAX_SIDES = 7  # lines of one chart, for each of which there is a colour
# Of each quantity: name of the chart, unit, how many of the record's units that is, scale.
_QUANTITIES: dict[str, tuple[str, str, int, Spec]] = {
    "memory_used_bytes": ("memory", "GiB", cells.GIB, {"zero": True}),
    "utilization_percent": ("busy", "%", 1, {"domain": [0, 100]}),
    "power_w": ("power", "W", 1, {"zero": True}),
    "temperature_c": ("temperature", "°C", 1, {"zero": False}),
}


def chart_curves(record: Record) -> Block | None:
    """Return the charts of loss and step time side by side.

    A chart of fewer than two known values is left out; None if both are.
    """
    charts = tuple(chart for chart in (chart_loss(record), chart_step_time(record)) if chart)
    return Columns(charts) if charts else None


def build_telemetry(record: Record) -> Section:
    """Return a section with charts of what was read of devices and hosts over time."""
    return build_folded_section("time", *chart_over_time(record), note=phrase("time.note"))


def chart_step_time(record: Record) -> Chart | None:
    """Return the step time in ms, the warm-up shaded; None for fewer than two known times."""
    values = _read_step_times_ms(record)
    title = phrase("chart.step_time")
    scale: Spec = {"zero": False}  # linear; the axis need not contain zero
    # If one time is far above the others, a linear axis would show one spike and a flat line.
    # ``initial`` is for a run without steps.
    if np.nanmax(values, initial=0) > _LOG_RATIO * np.nanmin(values, initial=math.inf):
        title = phrase("chart.log", title=title)
        scale = {"type": "log", "nice": False}
    # ``warmup`` is the number of steps at the start that are the warm-up.
    num_warmup_steps = min(record.steps.warmup, len(values))
    shades = []
    if num_warmup_steps:
        title = phrase("chart.with_warmup", title=title)
        # Up to the middle between the last step of the warm-up and the next, if there is one.
        shades.append({"step": 1, "to": min(num_warmup_steps + 0.5, len(values))})
    spec = chart_specs.draw_step_time(scale=scale, has_warmup=bool(num_warmup_steps))
    return _chart_curve(
        "step_time",
        title,
        values,
        spec,
        other_datasets={"warmup": shades},
        warmup=num_warmup_steps,  # for the placeholder of this name in the chart's description
    )


def _read_step_times_ms(record: Record) -> NDArray[np.float64]:
    """Return the time of each step in ms.

    A time of 0, which a logarithmic axis cannot show, is NaN, so that the line has a gap there.
    """
    values = np.asarray(record.steps.time_ns, np.float64) / 1e6
    values[values <= 0] = np.nan
    return values


def chart_loss(record: Record) -> Chart | None:
    """Return the chart of the loss of each step; None for fewer than two steps with a finite loss.

    The loss of a run with many steps is also drawn as a moving mean.
    """
    values = np.asarray(record.steps.loss, np.float64)  # makes NaN of a loss that is None
    title = phrase("chart.loss")
    other_datasets: dict[str, list[dict[str, Any]]] = {}
    window = _choose_smoothing_window(len(values))  # a number of steps; 0: no smoothing
    if window:
        title = phrase("chart.loss_smoothed", n=window)
        other_datasets["smoothed"] = _build_rows(
            _compute_moving_mean(values, window), range(1, len(values) + 1)
        )
    spec = chart_specs.draw_loss(is_smoothed=bool(window))
    return _chart_curve("loss", title, values, spec, other_datasets=other_datasets)


def _choose_smoothing_window(num_steps: int) -> int:
    """Return over how many steps a smoothed value is averaged, an odd number; 0: no smoothing.

    Args:
        num_steps: of the run.
    """
    if num_steps < _MIN_STEPS_TO_SMOOTH:
        return 0
    window = max(_MIN_SMOOTHING_WINDOW, int(num_steps * _SMOOTHING_WINDOW_SHARE))
    return window if window % 2 == 1 else window + 1  # odd, so that it has a step in its middle


def _compute_moving_mean(values: NDArray[np.float64], window: int) -> NDArray[np.float64]:
    """Return the mean of the finite values in a window around each value; NaN if there is none.

    Args:
        values: (N,).
        window: an odd number of values; at the ends the window is cut off.
    """
    is_finite = np.isfinite(values)
    half = window // 2
    indices = np.arange(len(values))
    starts = np.maximum(indices - half, 0)
    stops = np.minimum(indices + half + 1, len(values))

    def sum_in_windows(terms: NDArray[np.float64]) -> NDArray[np.float64]:
        # Differences of running sums: the time does not depend on the length of the window.
        running = np.concatenate([[0.0], np.cumsum(terms)])
        sums: NDArray[np.float64] = running[stops] - running[starts]
        return sums

    sums = sum_in_windows(np.where(is_finite, values, 0.0))
    counts = sum_in_windows(is_finite.astype(np.float64))
    return np.where(counts > 0, sums / np.maximum(counts, 1.0), np.nan)


def chart_case_curve(rows: Sequence[Mapping[str, Any]], shown: Shown) -> Chart | None:
    """Return the chart of one value that a case's own training code reported at some of its steps.

    None for fewer than two finite values.

    Args:
        rows: one for each step at which values were reported: the number of the step under the key
            ``step``, and each value under a key of its own.
        shown: which value to draw. ``shown.value`` is its key in a row, and ``shown.name`` is the
            title of the chart.
    """
    values = np.asarray([row[shown.value] for row in rows], np.float64)
    steps = [row["step"] for row in rows]
    spec = chart_specs.draw_loss(is_smoothed=False)  # a plain line, which fits any value
    return _chart_curve(f"trend_{shown.value}", shown.name, values, spec, steps, other_datasets={})


def chart_quality(record: Record) -> Chart | None:
    """Return the chart of the quality that each evaluation measured, with a line at the target.

    None for fewer than two evaluations that have a quality.
    """
    target = record.quality.target
    evaluations = [
        evaluation for evaluation in record.quality.history if evaluation.value is not None
    ]
    values = np.asarray([evaluation.value for evaluation in evaluations], np.float64)
    # The label stands at the line, and in the text that describes the chart.
    target_label = phrase("chart.quality.no_target")
    target_rows: list[dict[str, Any]] = []
    if target is not None:
        target_label = phrase("chart.quality.target", target=f"{target:g}")
        target_rows = [{"value": target, "label": target_label}]
    return _chart_curve(
        "quality",
        phrase("chart.quality", metric=record.quality.metric),
        values,
        chart_specs.draw_quality(),
        [evaluation.step for evaluation in evaluations],
        other_datasets={"target": target_rows},
        target=target_label,
    )


def _chart_curve(
    name: str,
    title: Phrase,
    values: NDArray[np.float64],
    spec: Spec,
    steps: Sequence[int] = (),
    *,
    other_datasets: dict[str, list[dict[str, Any]]],
    **description_values: Any,
) -> Chart | None:
    """Return the chart of a value over the steps, with a table of it.

    Of very many steps, the chart shows only the extremes of neighbouring ones. None for fewer than
    two finite values.

    Args:
        name: of the chart; the text ``described.<name>`` is its description.
        title: of the chart.
        values: one for each step, ``(N,)``; NaN: the step has none.
        spec: what Vega-Lite draws. It reads the values from the dataset ``steps``.
        steps: numbers of the steps, in the order of the values; empty: 1, 2, 3 and so on.
        other_datasets: rows of each further dataset that ``spec`` reads, by its name.
        description_values: for placeholders that only this chart's description has.
    """
    finite_values = values[np.isfinite(values)]
    if len(finite_values) < 2:
        return None
    step_numbers = steps or range(1, len(values) + 1)
    description = phrase(
        # ``trend_…`` names the chart of a value that a case defines; all those share one text.
        "described.trend" if name.startswith("trend_") else f"described.{name}",
        n=cells.format_integer(len(values)),
        first=f"{finite_values[0]:.4g}",
        last=f"{finite_values[-1]:.4g}",
        **description_values,
    )
    # Of so many neighbouring steps, the chart shows the smallest and the largest value.
    bucket_size = compute_bucket_size(len(values))
    note: Phrase = ""
    if bucket_size > 1:
        note = phrase("chart.note", stretch=cells.format_integer(bucket_size))
    datasets = {"steps": _build_rows(values, step_numbers)} | other_datasets
    table = _summarize_stretches(values, step_numbers)
    return Chart(name, title, description, spec, datasets, table, note)


def _build_rows(values: NDArray[np.float64], steps: Sequence[int]) -> list[dict[str, Any]]:
    """Return the rows of a chart's dataset: each has a ``step`` and its ``value``.

    Of very many values, only the smallest and the largest of neighbouring ones have a row. A value
    is rounded to six significant digits; None replaces one that is not finite.

    Args:
        values: one for each step, ``(N,)``.
        steps: numbers of the steps, in the order of the values.
    """
    rows = []
    for index, value in thin_values(values):  # the kept values, each with its index in ``values``
        rounded = float(f"{value:.6g}") if math.isfinite(value) else None
        rows.append({"step": steps[index], "value": rounded})
    return rows


def chart_ratios(sides: Mapping[str, Comparison]) -> Chart | None:
    """Return the chart of the ratio of each side's figures to those of side A.

    A figure is a measured quantity, such as throughput, of a side and of A; its ratio is the side's
    value divided by A's. The colour shows the verdict. None if no figure has a ratio.

    Args:
        sides: the comparison of each side with side A, by the side's letter, such as ``B``.
    """
    rows: list[dict[str, Any]] = []
    verdict_names: dict[str, Phrase] = {}
    for letter, comparison in sides.items():
        for figure in comparison.figures:
            # Also of a figure without a ratio, which has no point: the legend has all verdicts.
            verdict_names[figure.verdict] = phrase(f"compare.{figure.verdict}")
            if figure.ratio is None:
                continue
            rows.append(
                {
                    "name": f"{letter} {figure.name}",
                    "ratio": figure.ratio,
                    # Ends of the ratio's interval; None: too few launches for an interval.
                    "low": figure.low,
                    "high": figure.high,
                    "verdict": verdict_names[figure.verdict],  # by which the chart colours the row
                }
            )
    if not rows:
        return None
    ratios = [row["ratio"] for row in rows]
    title = phrase("compare.ratios")
    scale: Spec = {"zero": False}
    # A wide range of ratios needs a logarithmic axis. 1 belongs to the range, because the axis also
    # shows a line at 1, where both sides are equal.
    if max(*ratios, 1) >= _LOG_RATIO_OF_SIDES * min(*ratios, 1):
        title = phrase("chart.log", title=title)
        scale = {"type": "log", "base": 2}
    description = phrase(
        "compare.ratios_seen",
        n=len(rows),
        lowest=f"{min(ratios):.3f}",
        highest=f"{max(ratios):.3f}",
    )
    # "rest" is the colour of verdicts that are neither good nor bad.
    colours = [f"var(--{_VERDICT_COLOURS.get(verdict, 'rest')})" for verdict in verdict_names]
    spec = chart_specs.draw_ratios(
        scale=scale, verdicts=list(verdict_names.values()), colours=colours
    )
    table_rows: list[list[Phrase]] = []
    for row in rows:
        numbers = [row["ratio"], row["low"], row["high"]]
        texts = [None if number is None else f"{number:.3f}" for number in numbers]
        table_rows.append([row["name"], *texts, row["verdict"]])
    columns = translate_headings("name", "compare.ratio", "least", "greatest", "compare.verdict")
    table = build_table(columns, table_rows)
    return Chart("ratios", title, description, spec, {"ratios": rows}, table)


def chart_overlays(
    sides: Mapping[str, Sequence[Record]],
    legend_names: Mapping[str, Phrase] | None = None,
    *,
    prefix: str = "sides",
) -> list[Chart]:
    """Return a chart of losses, one of step times and one of qualities, with a curve of each side.

    A side is one or more launches of the same work, which are compared with other launches. All
    sides have the same case, and so the same metric of quality. A chart is left out if fewer than
    two sides have a curve for it.

    Args:
        sides: the launches of each side, by the side's short name, such as ``A`` or ``[1]``. The
            curve of a side is that of its first launch that has one.
        legend_names: what the legend writes after each short name, by short name; None: the
            devices of the side's first launch.
        prefix: the names of the charts are ``<prefix>-loss``, ``<prefix>-step_time`` and
            ``<prefix>-quality``.
    """
    first_record = next(iter(sides.values()))[0]
    titles: dict[str, Phrase] = {
        "loss": phrase("compare.loss"),
        "step_time": phrase("compare.step_time"),
        "quality": phrase("compare.quality", metric=first_record.quality.metric),
    }
    # Each function charts one launch; it returns None if the launch has too few values for a curve.
    chart_functions = {"loss": chart_loss, "step_time": chart_step_time, "quality": chart_quality}
    labels: dict[str, Phrase] = {}
    for side, records in sides.items():
        name = legend_names[side] if legend_names else describe_devices(records[0])
        labels[side] = (f"{side} · ", name)
    overlays = []
    for quantity, title in titles.items():
        curves: dict[str, Chart] = {}
        for side, records in list(sides.items())[:MAX_SIDES]:  # there are no colours for more
            charts = (chart_functions[quantity](record) for record in records)
            first_chart = next((chart for chart in charts if chart is not None), None)
            if first_chart is not None:
                curves[side] = first_chart
        if len(curves) > 1:
            overlays.append(_chart_overlay(f"{prefix}-{quantity}", title, curves, labels))
    return overlays


def _chart_overlay(
    name: str, title: Phrase, curves: Mapping[str, Chart], labels: Mapping[str, Phrase]
) -> Chart:
    """Return one chart with the curves of several sides; its table has the rows of all of them.

    Args:
        name: of the new chart, unique in its page.
        title: of the new chart.
        curves: the chart of each side alone, by the side's short name, such as ``A``.
        labels: of the sides in the legend, by the same short names.
    """
    points = []
    table_rows = []
    descriptions = []
    for side, chart in curves.items():
        # ``steps`` has a row for each step that is drawn. Only the chart of the loss of a run with
        # many steps has ``smoothed``, with the moving mean of the values.
        for point in chart.data.get("smoothed") or chart.data["steps"]:
            points.append(point | {"side": labels[side]})
        if chart.table:
            table_rows += [(side, *row) for row in chart.table.rows]
        descriptions.append(join((side, chart.description), "colon"))
    # After the side, the columns of each curve's own table, as `_summarize_stretches` makes it.
    columns = translate_headings("compare.side", "chart.step", "least", "median", "greatest")
    return Chart(
        name,
        title,
        join(descriptions, "semicolon"),
        chart_specs.draw_sides(),
        {"steps": points},
        build_table(columns, table_rows),
    )


def chart_over_time(record: Record) -> Iterator[Chart]:
    """Yield a chart for each quantity that was read at least twice, of devices, then of hosts.

    A quantity is what a monitor reads, such as power. A line of ``record.series`` has the readings
    of one quantity of one device or host, or a summary of many of them, over time.
    """
    # The lines of one quantity are neighbours in a record, those of devices before those of hosts.
    for _, group in groupby(record.series, attrgetter("of_host", "quantity")):
        lines = list(group)
        if max(len(line.points) for line in lines) > 1:  # one reading is no curve
            yield _chart_quantity(record, lines)


def _chart_quantity(record: Record, lines: Sequence[SeriesLine]) -> Chart:
    """Return the chart of a quantity of devices or hosts over time; the measured steps are shaded.

    Args:
        lines: of the quantity, one for each device or host; or three, which summarize many of them
            by the lowest, the median and the highest reading. The points of a line are pairs: the
            seconds since the launch, and the reading.
    """
    first_line = lines[0]
    # text_name: the quantity's name in keys of texts and in the chart's name. factor: units of the
    # readings in one `unit` of the chart, bytes in a GiB for example.
    text_name, unit, factor, scale = _QUANTITIES[first_line.quantity]
    kind = "host" if first_line.of_host else "device"
    # ``of`` has the ranks of a device, the number of a host, or the name of one of the three lines.
    is_summary = first_line.of in SUMMARY_LINES
    last_s = max(time_s for line in lines for time_s, _ in line.points)
    if last_s > _LONG_S:
        seconds_per_unit = 60
        axis = phrase("time.minutes")
    else:
        seconds_per_unit = 1
        axis = phrase("time.axis")  # in seconds
    spec = chart_specs.draw_over_time(
        axis=axis,
        scale=scale,
        member=phrase(f"time.{kind}-of"),
        has_several_members=len(lines) > 1 and not is_summary,
        is_band=is_summary,
    )
    shades = []
    # The time of the measured steps, from start to end, in seconds since the launch.
    measured = record.telemetry.intervals_s.get("measured") if record.telemetry else None
    if measured:
        start_s, end_s = measured
        shades.append({"from": start_s / seconds_per_unit, "to": end_s / seconds_per_unit})
    rows = []
    for line in lines:
        for time_s, value in line.points:
            rounded = float(f"{value / factor:.4g}")
            rows.append({"s": round(time_s / seconds_per_unit, 3), "v": rounded, "of": line.of})
    return Chart(
        f"time-{kind}-{text_name}",
        phrase(f"time.{kind}-title", quantity=phrase(f"time.{text_name}"), unit=unit),
        _describe_readings(record, lines),
        spec,
        {"measured": shades, "lines": rows},
    )


def _describe_readings(record: Record, lines: Sequence[SeriesLine]) -> Phrase:
    """Return the lowest and the highest reading of a quantity, and where and when it was highest.

    Args:
        lines: of the quantity, one for each device or host; or three, which summarize many of them
            by the lowest, the median and the highest reading. The points of a line are pairs: the
            seconds since the launch, and the reading. ``of`` has the ranks of a device, the number
            of a host, or the name of one of the three lines.
    """
    first_line = lines[0]
    # text_name: the quantity's name in keys of texts. factor: units of the readings in one `unit`.
    text_name, unit, factor, _ = _QUANTITIES[first_line.quantity]
    readings = [(value, time_s, line.of) for line in lines for time_s, value in line.points]
    lowest, _, _ = min(readings)
    # By the value alone: if several readings are the highest, the first of them counts.
    highest, highest_s, highest_line = max(readings, key=lambda reading: reading[0])
    # The device or host that had the highest reading, and how many there are.
    member: int | str = highest_line
    num_members = len(lines)
    if first_line.of in SUMMARY_LINES:  # these lines summarize devices or hosts and name none
        highest_by_member = _collect_highest_readings(
            record, of_host=first_line.of_host, quantity=first_line.quantity
        )
        num_members = len(highest_by_member)
        # "?": an imported record may have the lines without the readings of each device or host.
        member = max(highest_by_member, key=highest_by_member.__getitem__, default="?")
    return phrase(
        f"time.{'host' if first_line.of_host else 'device'}",
        quantity=phrase(f"time.{text_name}"),
        unit=unit,
        at=f"{highest_s:.0f}",
        n=num_members,
        of=member,
        lowest=cells.format_rounded(lowest / factor),
        highest=cells.format_rounded(highest / factor),
    )


def _collect_highest_readings(record: Record, *, of_host: bool, quantity: str) -> dict[int, float]:
    """Return the highest reading of a quantity in the run, of each device or of each host.

    It is by the first of the device's ranks, or by the host's node number. A device without ranks,
    or without readings of the quantity, is left out.

    Args:
        of_host: of each host; else of each device.
        quantity: such as ``power_w``.
    """
    if record.telemetry is None:
        return {}
    # A use summarizes the readings of one device or host in one interval, such as the whole run:
    # ``quantities`` has the mean, the lowest and the highest reading by quantity.
    uses_by_member: dict[int, Mapping[IntervalName, Use]] = {}
    if of_host:
        for node, use_by_interval in enumerate(record.telemetry.hosts):
            uses_by_member[node] = use_by_interval
    else:
        for device in record.telemetry.devices:
            if device.ranks:
                uses_by_member[device.ranks[0]] = device.over
    highest: dict[int, float] = {}
    for member, uses in uses_by_member.items():
        use = uses.get("run")
        if use is not None and quantity in use.quantities:
            highest[member] = use.quantities[quantity].highest
    return highest


def _summarize_stretches(values: NDArray[np.float64], steps: Sequence[int]) -> Table:
    """Return a table of the least, median and greatest value in each stretch of neighbouring steps.

    The steps are cut into stretches of about the same length, at most ``TABLE_ROWS`` of them. The
    values of a stretch without a finite value are shown as not known.

    Args:
        values: one for each step, ``(N,)``; NaN: the step has none.
        steps: numbers of the steps, in the order of the values.
    """
    rows = []
    all_indices = np.arange(len(values))
    for indices in np.array_split(all_indices, min(TABLE_ROWS, len(values))):
        first = cells.format_integer(steps[indices[0]])
        last = cells.format_integer(steps[indices[-1]])
        finite_values = values[indices][np.isfinite(values[indices])]
        percentiles: list[float | None] = [None, None, None]
        if len(finite_values):
            percentiles = np.percentile(finite_values, (0, 50, 100)).tolist()
        stretch = first if first == last else f"{first} – {last}"
        rows.append((stretch, *(cells.format_rate(value) for value in percentiles)))
    return build_table(translate_headings("chart.step", "least", "median", "greatest"), rows)
