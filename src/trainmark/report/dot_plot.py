"""Figures over repeated launches as one dot plot: a row a figure, a dot a launch.

Every row is drawn as difference from its own median, so that figures of different units
share one axis. Nothing here computes a figure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainmark.report import cells, svg
from trainmark.report.charts import linear_ticks
from trainmark.report.summary import summary
from trainmark.report.texts import text
from trainmark.results.readings import value_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainmark.results.record import Record

_ROWS = ("p_train", "p_core", "token/p/s", "e2e_time", "step_time_p50", "MFU", "MAMFU")
_NAME_PX, _VALUE_PX, _TOP_PX, _ROW_PX, _BOTTOM_PX = 118, 128, 8, 30, 44
_LEAST_RANGE = 0.5  # per cent: below, noise of the last digit would look like a spread


def launches_plot(records: Sequence[Record], *, lang: str, ident: str) -> str | None:
    """Return the plot over the launches that passed; None where fewer than two did."""
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
