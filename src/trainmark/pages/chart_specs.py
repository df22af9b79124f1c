"""Specifications of charts for Vega-Lite 6: each function returns layers and axes without data.

A specification names its datasets, which ``document.Chart`` holds beside it. Titles are phrases;
colours are variables of the page's style. The name of a value axis is in the title above the chart,
so that it takes no width from the chart on a narrow screen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trainmark.pages.texts import Phrase, phrase

if TYPE_CHECKING:
    from collections.abc import Sequence

Spec = dict[str, Any]
# Pixels of a static picture; a wide screen shows two side by side.
WIDTH = 640
HEIGHT = 190
# Of two labels of a logarithmic axis with less space between them, the second is left out: without
# this limit, 2 and 3 overlap in a browser, whose letters are higher than Vega assumes.
_LABEL_SEPARATION = 9
# Labels of an axis, from 10 million on with a power of ten: a diverging loss may have 30 digits.
_SHORT_NUMBER = "abs(datum.value) < 1e7 || !datum.label ? datum.label : format(datum.value, '.2~e')"
# The rows are far enough apart for the letters of a narrow screen, which base.css makes larger.
_LEGEND = {"title": None, "columns": 1, "labelLimit": 500, "rowPadding": 9}


def draw_step_time(*, scale: Spec, has_warmup: bool) -> Spec:
    """Return a line of the step times, with the warm-up shaded.

    A row of the dataset ``steps`` is a step: its number ``step`` and its time ``value``. The
    dataset ``warmup`` has one row: ``step`` is where the shade starts and ``to`` where it ends.

    Args:
        scale: Vega-Lite's scale for the axis of the step times, for example ``{"type": "log"}``.
        has_warmup: whether there are steps of the warm-up to shade.
    """
    span = {"x": {"field": "step", "type": "quantitative"}, "x2": {"field": "to"}}
    shade = {
        "data": {"name": "warmup"},
        "mark": {"type": "rect", "opacity": 0.16, "color": "var(--setup)"},
        "encoding": span,
    }
    edge = {  # a thick line along the upper edge of the shade
        "data": {"name": "warmup"},
        "mark": {"type": "rule", "strokeWidth": 5, "y": 0, "color": "var(--setup)"},
        "encoding": span,
    }
    line = _draw_steps_line({"color": "var(--accent)"}, scale=scale)
    return _set_size([shade, edge, line] if has_warmup else [line])


def draw_loss(*, is_smoothed: bool) -> Spec:
    """Return a line of the loss over the steps, from the dataset ``steps``.

    Args:
        is_smoothed: whether to draw the moving mean of the loss, from the dataset ``smoothed``, as
            a thick line. The line of the loss itself is then thin and pale behind it.
    """
    if not is_smoothed:
        return _set_size([_draw_steps_line({"color": "var(--accent)"})])
    raw = _draw_steps_line({"color": "var(--accent)", "strokeWidth": 1, "opacity": 0.35})
    mean = _draw_steps_line({"color": "var(--accent)", "strokeWidth": 2}, dataset="smoothed")
    return _set_size([raw, mean])


def draw_quality() -> Spec:
    """Return the evaluations as points on a line, and the target as a dashed horizontal line.

    A row of the dataset ``steps`` is an evaluation: its ``step`` and its quality ``value``. The
    dataset ``target`` has one row, with the target ``value`` and its ``label``; or none.
    """
    value = {"field": "value", "type": "quantitative"}
    target = {
        "data": {"name": "target"},
        "mark": {"type": "rule", "color": "var(--good)", "strokeDash": [8, 4]},
        "encoding": {"y": value},
    }
    label = {
        "data": {"name": "target"},
        "mark": {
            "type": "text",
            "align": "left",
            "baseline": "bottom",
            "x": 0,
            "dx": 4,
            "dy": -3,
            "color": "var(--good)",
        },
        "encoding": {"y": value, "text": {"field": "label", "type": "nominal"}},
    }
    point = {"color": "var(--eval)", "filled": True}
    return _set_size([target, label, _draw_steps_line({"color": "var(--eval)", "point": point})])


def draw_sides() -> Spec:
    """Return a line over the steps for each of several sides, told apart by colour and dashes.

    A side is one or more launches that are compared with others. A row of the dataset ``steps`` is
    a point of a line: its ``step``, its ``value``, and in ``side`` the name of the line.
    """
    line = _draw_steps_line({})
    # ``sort`` is None: the legend keeps the order of the data.
    side = {"field": "side", "type": "nominal", "sort": None, "legend": _LEGEND}
    line["encoding"] |= {"color": side, "strokeDash": side}
    return _set_size([line], height=240)


def draw_over_time(
    *, axis: Phrase, scale: Spec, member: Phrase, has_several_members: bool, is_band: bool
) -> Spec:
    """Return readings of devices or hosts over time: a line for each, or a band for many of them.

    A row of the dataset ``lines`` is a reading: its time ``s``, its value ``v``, and in ``of`` the
    name of its line. A row of the dataset ``measured`` is the time of the measured steps, which is
    shaded: its start ``from`` and its end ``to``.

    Args:
        axis: title of the time axis.
        scale: Vega-Lite's scale for the axis of the values, for example ``{"zero": True}``.
        member: title of the legend, which says what a line belongs to: a device, or a host.
        has_several_members: whether there is a line for each of several devices or hosts, so that
            lines need a legend. False for a single line, and for a band.
        is_band: whether the lines are the lowest, the median and the highest reading of many.
    """
    value_axis = {
        "field": "v",
        "type": "quantitative",
        "title": None,
        "axis": {"tickCount": 4},
        "scale": scale,
    }
    measured = {
        "data": {"name": "measured"},
        "mark": {"type": "rect", "color": "var(--shade)"},
        "encoding": {
            "x": {"field": "from", "type": "quantitative"},
            "x2": {"field": "to"},
            "y": None,  # over the whole height, not by the value of the common encoding below
        },
    }
    if is_band:
        lines = _draw_band(value_axis)
    elif has_several_members:
        lines = [_draw_member_lines(member)]
    else:
        lines = [{"data": {"name": "lines"}, "mark": {"type": "line", "color": "var(--accent)"}}]
    time_axis = {
        "field": "s",
        "type": "quantitative",
        "title": axis,
        "axis": {"format": ",~f", "grid": False},
        "scale": {"nice": False},
    }
    common_encoding = {"x": time_axis, "y": value_axis}
    return _set_size([measured, *lines], height=130) | {"encoding": common_encoding}


def _draw_band(value_axis: Spec) -> list[Spec]:
    """Return the area between the lowest and the highest reading, and the median as a line.

    Args:
        value_axis: Vega-Lite's encoding of the y axis of the chart, with its ticks and scale.
    """
    # A row of the dataset is one reading: its time ``s``, its value ``v``, and in ``of`` whether it
    # is the lowest, median or highest at that time. This makes one row of each time, with the
    # fields ``lowest``, ``median`` and ``highest``.
    rows_by_time = [{"pivot": "of", "value": "v", "groupby": ["s"]}]
    area = {
        "data": {"name": "lines"},
        "transform": rows_by_time,
        "mark": {"type": "area", "color": "var(--accent)", "opacity": 0.25},
        "encoding": {"y": value_axis | {"field": "lowest"}, "y2": {"field": "highest"}},
    }
    median = {
        "data": {"name": "lines"},
        "transform": rows_by_time,
        "mark": {"type": "line", "color": "var(--accent)"},
        # Without axis and scale: layers of a chart share them.
        "encoding": {"y": {"field": "median", "type": "quantitative", "title": None}},
    }
    return [area, median]


def _draw_member_lines(member: Phrase) -> Spec:
    """Return a line for each device or host, told apart by colour and dashes.

    Args:
        member: title of the legend, which says what a line belongs to: a device, or a host.
    """
    # ``of`` is the field with the name of the device or host. ``sort`` is None: the legend keeps
    # the order of the data.
    name = {"field": "of", "type": "nominal", "title": member, "sort": None}
    return {
        "data": {"name": "lines"},
        "mark": "line",
        "encoding": {"color": name, "strokeDash": name},
    }


def draw_ratios(*, scale: Spec, verdicts: Sequence[Phrase], colours: Sequence[str]) -> Spec:
    """Return a point with its interval for each ratio, and a vertical line at 1.

    A row of the dataset ``ratios`` is a point: what it is the ratio of (``name``), its ``ratio``,
    the ends ``low`` and ``high`` of its interval, and the name of its verdict (``verdict``).

    Args:
        scale: Vega-Lite's scale for the axis of the ratios, for example ``{"type": "log"}``.
        verdicts: names of the verdicts that occur, for the legend.
        colours: of the verdicts, in the same order.
    """
    axis = {"type": "quantitative", "title": phrase("compare.ratio"), "scale": scale}
    interval = {
        "data": {"name": "ratios"},
        "mark": {"type": "rule", "strokeWidth": 2},
        "encoding": {"x": {"field": "low", **axis}, "x2": {"field": "high"}},
    }
    point = {
        "data": {"name": "ratios"},
        "mark": {"type": "point", "filled": True, "size": 80},
        "encoding": {"x": {"field": "ratio", **axis}},
    }
    equal = {
        "data": {"values": [{"one": 1}]},
        "mark": {"type": "rule", "color": "var(--soft)", "strokeDash": [4, 3]},
        "encoding": {
            "x": {"field": "one", "type": "quantitative", "scale": scale},
            # The line is at the height of no name and has the colour of no verdict. None overrides
            # the encoding below, which all layers share.
            "y": None,
            "color": None,
        },
    }
    return {
        "width": 760,
        "height": {"step": 26},
        "layer": [interval, point, equal],
        "encoding": {
            "y": {
                "field": "name",
                "type": "nominal",
                "title": None,
                "sort": None,
                "axis": {"grid": False},
            },
            "color": {
                "field": "verdict",
                "type": "nominal",
                "title": None,
                "scale": {"domain": list(verdicts), "range": list(colours)},
                "legend": {"columns": 2},
            },
        },
    }


def draw_history(*, has_changes: bool) -> Spec:
    """Return the speed of each series over time, with its change points as dashed vertical lines.

    A series is the launches of one work. A change point is the first launch after a lasting change
    of their speed. A row of the dataset ``history`` is a launch: the name of its ``series``, the
    time when it ``started``, and its speed as ``value``. A row of the dataset ``changes`` is a
    change point, with ``series`` and ``started``.

    Args:
        has_changes: whether there are change points.
    """
    # Formats of the axis' labels, by the largest unit of time that begins at the label: a label at
    # the start of a month shows the month, one at the start of an hour the time of day.
    months = dict.fromkeys(("month", "quarter"), "%Y-%m")
    days = dict.fromkeys(("week", "date", "day"), "%m-%d")
    hours = dict.fromkeys(("hours", "minutes"), "%H:%M")
    seconds = dict.fromkeys(("seconds", "milliseconds"), "%H:%M:%S")
    time_axis = {
        "field": "started",
        "type": "temporal",
        "title": phrase("site.started_utc"),
        "scale": {"type": "utc"},
        "axis": {
            "grid": False,
            "labelOverlap": "greedy",
            "labelSeparation": 8,
            "format": months | days | hours | seconds,
        },
    }
    speed_axis = {"field": "value", "type": "quantitative", "title": None, "scale": {"zero": False}}
    change = {
        "data": {"name": "changes"},
        "mark": {"type": "rule", "strokeDash": [4, 3], "strokeWidth": 2},
    }
    line = {
        "data": {"name": "history"},
        "mark": {"type": "line", "strokeWidth": 1, "opacity": 0.5},
        "encoding": {"y": speed_axis},
    }
    point = {
        "data": {"name": "history"},
        "mark": {"type": "point", "filled": True, "size": 36},
        "encoding": {"y": speed_axis},
    }
    # ``sort`` is None: the legend keeps the order of the data.
    series = {"field": "series", "type": "nominal", "sort": None, "legend": _LEGEND}
    return {
        "width": 760,
        "height": 300,
        "layer": [change, line, point] if has_changes else [line, point],
        "encoding": {"x": time_axis, "color": series},
    }


def _draw_steps_line(style: Spec, *, dataset: str = "steps", scale: Spec | None = None) -> Spec:
    """Return a line of values over the steps.

    Args:
        style: of the line, as properties of Vega-Lite's marks: ``{"strokeWidth": 2}``.
        dataset: name of the dataset, whose rows have a ``step`` and its ``value``.
        scale: Vega-Lite's scale for the axis of the values; None: a linear one, which need not
            contain zero.
    """
    value_axis: Spec = {"labelExpr": _SHORT_NUMBER}
    if scale and scale.get("type") == "log":
        value_axis |= {"labelOverlap": "greedy", "labelSeparation": _LABEL_SEPARATION}
    return {
        "data": {"name": dataset},
        "mark": {"type": "line", **style},
        "encoding": {
            "x": {
                "field": "step",
                "type": "quantitative",
                "title": phrase("chart.step"),
                "axis": {"format": ",d", "tickMinStep": 1, "grid": False},
                "scale": {"nice": False, "zero": False},
            },
            "y": {
                "field": "value",
                "type": "quantitative",
                "title": None,
                "axis": value_axis,
                "scale": scale or {"zero": False},
            },
        },
    }


def _set_size(layers: list[Spec], *, height: int = HEIGHT) -> Spec:
    """Return a specification of layers with its size."""
    return {"width": WIDTH, "height": height, "layer": layers}
