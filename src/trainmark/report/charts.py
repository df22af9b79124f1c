"""Charts: loss and step time of a run step by step, and figures over repeated launches.

What is drawn is thinned out to the least and the greatest value of each bucket, so that no
spike is lost. Nothing here computes a figure.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from trainmark.report import cells, svg
from trainmark.report.summary import summary
from trainmark.report.texts import text
from trainmark.results.readings import value_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from trainmark.results.record import Record

MAX_POINTS = 1000
_LEFT, _RIGHT, _TOP, _HEIGHT, _BOTTOM = 62, 14, 26, 190, 34
# Beyond this ratio between greatest and least a linear axis shows one spike and a flat line.
_LOG_RATIO = 20
_LABEL_ROOM_PX = 74
_LINE_ROOM_PX = 3

# Of repeated launches: the figures that are drawn, and the room of their rows.
_ROWS = ("p_train", "p_core", "token/p/s", "e2e_time", "step_time_p50", "MFU", "MAMFU")
_NAME_PX, _VALUE_PX, _TOP_PX, _ROW_PX, _BOTTOM_PX = 118, 128, 8, 30, 44
_LEAST_RANGE = 0.5  # per cent: below, noise of the last digit would look like a spread

Point = tuple[float, float]


def bucket_steps(steps: int, *, max_points: int = MAX_POINTS) -> int:
    """Return how many steps a bucket holds: 1 where every step is drawn."""
    return 1 if steps <= max_points else math.ceil(steps / max(max_points // 2, 1))


def thin(values: NDArray[np.float64], *, max_points: int = MAX_POINTS) -> list[tuple[int, float]]:
    """Return at most ``max_points`` pairs of index and value, in order.

    Each bucket gives its least and its greatest finite value; a bucket without one gives a
    single NaN, so that a gap stays a gap.
    """
    size = bucket_steps(len(values), max_points=max_points)
    if size == 1:
        return list(enumerate(values.tolist()))
    buckets = math.ceil(len(values) / size)
    padded = np.full(buckets * size, np.nan)
    padded[: len(values)] = np.where(np.isfinite(values), values, np.nan)
    table = padded.reshape(buckets, size)
    empty = np.isnan(table).all(axis=1)
    least = np.where(np.isnan(table), np.inf, table).argmin(axis=1)
    greatest = np.where(np.isnan(table), -np.inf, table).argmax(axis=1)
    points = []
    for row in range(buckets):
        if empty[row]:
            points.append((row * size, math.nan))
            continue
        places = sorted({int(least[row]), int(greatest[row])})
        points += [(row * size + place, float(table[row, place])) for place in places]
    return points


def linear_ticks(low: float, high: float, *, wanted: int = 5) -> list[float]:
    """Return round values from ``low`` to ``high``, about ``wanted`` of them."""
    if not high > low:
        return [low]
    raw = (high - low) / wanted
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= raw)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [round(step * index, 12) for index in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Return powers of ten between two positive values, with 2 and 5 where they are few."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for factors in ((1,), (1, 2, 5)):
        found = [f * 10.0**p for p in powers for f in factors if low <= f * 10.0**p <= high]
        if len(found) >= 3:
            return found
    return found


def _range(values: Sequence[float], *, log: bool) -> tuple[float, float]:
    low, high = min(values), max(values)
    if log:
        return low / 1.15, high * 1.15
    margin = (high - low) * 0.06 or abs(high) * 0.1 or 1.0
    # Losses and times do not fall below zero: an axis must not suggest that they might.
    return (max(low - margin, 0.0) if low >= 0 else low - margin), high + margin


class _Axes:
    """Map steps and values to pixels and draw the frame."""

    def __init__(self, steps: int, values: Sequence[float], *, log: bool) -> None:
        self.steps, self.log = steps, log
        self.low, self.high = _range(values, log=log)
        self.right = svg.WIDTH - _RIGHT
        self.floor = _TOP + _HEIGHT

    def x(self, step: float) -> float:
        """Return the pixel of a step, counted from 1."""
        return _LEFT + (self.right - _LEFT) * (step - 1) / max(self.steps - 1, 1)

    def y(self, value: float) -> float:
        """Return the pixel of a value."""
        scale: Callable[[float], float] = math.log if self.log else float
        low, high = scale(self.low), scale(self.high)
        return self.floor - _HEIGHT * (scale(value) - low) / (high - low)

    def frame(self, *, lang: str) -> list[str]:
        """Return grid lines with their values, and the steps under them."""
        ticks = (log_ticks if self.log else linear_ticks)(self.low, self.high)
        parts = []
        for tick in ticks:
            y = self.y(tick)
            parts.append(svg.line(x1=_LEFT, y1=y, x2=self.right, y2=y, classes="grid"))
            name = f"{tick:.6g}"
            parts.append(svg.label(name, x=_LEFT - 8, y=y + 4, anchor="end", classes="num sub"))
        named = [tick for tick in linear_ticks(1, max(self.steps, 2), wanted=6) if tick >= 1]
        for tick in named:
            if tick == int(tick) and tick <= self.steps:
                x = self.x(tick)
                name = f"{int(tick):,}"
                parts.append(
                    svg.label(name, x=x, y=self.floor + 17, anchor="middle", classes="num sub")
                )
        parts.append(
            svg.label(
                text("chart.step", lang),
                x=self.right,
                y=self.floor + 31,
                anchor="end",
                classes="sub",
            )
        )
        return parts

    def runs(self, points: Sequence[tuple[int, float]]) -> list[list[Point]]:
        """Return pixels of the points, broken where a value is missing."""
        found: list[list[Point]] = [[]]
        for index, value in points:
            if math.isfinite(value):
                found[-1].append((self.x(index + 1), self.y(value)))
            elif found[-1]:
                found.append([])
        return [run for run in found if run]


def loss_chart(record: Record, *, lang: str = "en", ident: str = "loss") -> str | None:
    """Return the loss over the steps with the evaluations; None without a finite loss."""
    values = np.asarray(record.steps.loss, np.float64)
    points = thin(values)
    finite = [value for _, value in points if math.isfinite(value)]
    if not finite:
        return None
    axes = _Axes(len(values), finite, log=False)
    parts = axes.frame(lang=lang)
    parts += _evaluations(record, axes)
    parts.append(svg.polyline(axes.runs(points), classes="curve"))
    measured = values[np.isfinite(values)]  # the description covers every step
    description = text(
        "chart.loss.desc",
        lang,
        n=f"{len(values):,}",
        first=f"{measured[0]:.4g}",
        last=f"{measured[-1]:.4g}",
    )
    return _chart(parts, text("chart.loss", lang), description, ident)


def _evaluations(record: Record, axes: _Axes) -> list[str]:
    """Return a dashed line per evaluation, labelled if there is room; the last always."""
    parts: list[str] = []
    taken = drawn = math.inf
    for point in reversed(record.quality.history):
        x = axes.x(min(max(point.step, 1), axes.steps))
        if drawn - x < _LINE_ROOM_PX:
            continue
        drawn = x
        parts.append(svg.line(x1=x, y1=_TOP, x2=x, y2=axes.floor, classes="eval-line"))
        if taken - x < _LABEL_ROOM_PX or x < _LEFT + _LABEL_ROOM_PX / 2:
            continue
        name = f"{record.quality.metric} {cells.quality(point.value, target=record.quality.target)}"
        anchor = "end" if x > axes.right - _LABEL_ROOM_PX / 2 else "middle"
        parts.append(svg.label(name, x=x, y=_TOP - 8, anchor=anchor, classes="eval-label"))
        taken = x - (_LABEL_ROOM_PX / 2 if anchor == "end" else 0)
    return parts


def step_time_chart(record: Record, *, lang: str = "en", ident: str = "steps") -> str | None:
    """Return the step time in ms with the warm-up shaded; None without steps."""
    values = np.asarray(record.steps.time_ns, np.float64) / 1e6
    points = thin(np.where(values > 0, values, np.nan))
    finite = [value for _, value in points if math.isfinite(value)]
    if not finite:
        return None
    axes = _Axes(len(values), finite, log=_is_log(record.steps.time_ns))
    parts = []
    warmup = min(record.steps.warmup, len(values))
    if warmup:
        width = max(axes.x(warmup) - _LEFT, 1.5)
        parts.append(svg.rect(x=_LEFT, y=_TOP, width=width, height=_HEIGHT, classes="shade"))
        parts.append(svg.label(text("chart.warmup", lang), x=_LEFT, y=_TOP - 8, classes="sub"))
    parts += axes.frame(lang=lang)
    parts.append(svg.polyline(axes.runs(points), classes="curve"))
    description = text("chart.step_time.desc", lang, n=f"{len(values):,}", warmup=warmup)
    return _chart(parts, step_time_title(record, lang), description, ident)


def step_time_title(record: Record, lang: str) -> str:
    """Return the chart's title; it says so where the axis is logarithmic."""
    title = text("chart.step_time", lang)
    return text("chart.log", lang, title=title) if _is_log(record.steps.time_ns) else title


def _is_log(times_ns: Sequence[int]) -> bool:
    """Tell whether a linear axis would show one spike and a flat line."""
    known = [value for value in times_ns if value > 0]
    return bool(known) and max(known) > _LOG_RATIO * min(known)


def _chart(parts: Sequence[str], title: str, description: str, ident: str) -> str:
    height = _TOP + _HEIGHT + _BOTTOM
    return svg.picture(parts, height=height, title=title, description=description, ident=ident)


def launches_plot(records: Sequence[Record], *, lang: str, ident: str) -> str | None:
    """Return the plot over the launches that passed; None where fewer than two did.

    One row per figure, one dot per launch, as difference from the row's median, so that figures
    with different units share one axis.
    """
    passed = [record for record in records if record.passed]
    found = summary(records)
    rows = [name for name in _ROWS if name in found.figures and found.figures[name].median]
    if len(passed) < 2 or not rows:
        return None

    def percent(value: float, name: str) -> float:
        return 100 * (value / found.figures[name].median - 1)

    dots = {
        name: [percent(value, name) for r in passed if (value := value_of(r, name)) is not None]
        for name in rows
    }
    reach = max(_LEAST_RANGE, *(abs(value) for values in dots.values() for value in values)) * 1.08
    left, right = _NAME_PX, svg.WIDTH - _VALUE_PX
    floor = _TOP_PX + _ROW_PX * len(rows)

    def x(value: float) -> float:
        return left + (right - left) * (value + reach) / (2 * reach)

    parts = []
    for tick in linear_ticks(-reach, reach, wanted=6):
        parts.append(svg.line(x1=x(tick), y1=_TOP_PX, x2=x(tick), y2=floor, classes="grid"))
        name = f"{tick:+g}" if tick else "0"
        parts.append(svg.label(name, x=x(tick), y=floor + 16, anchor="middle", classes="num sub"))
    axis = text("chart.launches.axis", lang)
    parts.append(svg.label(axis, x=right, y=floor + 34, anchor="end", classes="sub"))
    for row, name in enumerate(rows):
        over, y = found.figures[name], _TOP_PX + _ROW_PX * (row + 0.5)
        low, high = percent(over.low, name), percent(over.high, name)
        (median,), unit = cells.scaled([over.median], found.units[name])
        parts.append(svg.label(name, x=0, y=y + 4))
        parts.append(svg.line(x1=x(low), y1=y, x2=x(high), y2=y, classes="interval"))
        parts.append(svg.line(x1=x(0), y1=y - 8, x2=x(0), y2=y + 8, classes="median"))
        parts += [svg.dot(x=x(value), y=y, classes="launch") for value in dots[name]]
        shown = f"{median} {unit}"
        parts.append(svg.label(shown, x=svg.WIDTH, y=y + 4, anchor="end", classes="num"))
    return svg.picture(
        parts,
        height=floor + _BOTTOM_PX,
        title=text("chart.launches", lang),
        description=text("chart.launches.desc", lang, figures=len(rows), launches=len(passed)),
        ident=ident,
    )
