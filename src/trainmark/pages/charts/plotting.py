"""What the charts share: axes over steps, layers that answer a pointer, tables of stretches."""

from __future__ import annotations

import math
import os
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec

import numpy as np

from trainmark.pages import cells
from trainmark.pages.document import Table
from trainmark.pages.drawing import WIDTH
from trainmark.pages.texts import text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import altair as alt
    from numpy.typing import NDArray

P = ParamSpec("P")
HEIGHT = 200
TABLE_ROWS = 12


def later(
    make: Callable[P, dict[str, Any]], *args: P.args, **further: P.kwargs
) -> Callable[[], dict[str, Any]]:
    """Return what makes Vega-Lite once a page draws it, without validation.

    The tests hold every chart to Vega-Lite's schema; here that would take most of the time.
    """

    @cache
    def made() -> dict[str, Any]:
        with _some_home():
            from altair.utils.schemapi import debug_mode

        with debug_mode(False):
            return make(*args, **further)

    return made


@contextmanager
def _some_home() -> Iterator[None]:
    """Let a user without a home import Altair, which asks for one to name a cache unused here."""
    try:
        Path.home()
    except RuntimeError:
        os.environ["HOME"] = os.sep
        try:
            yield
        finally:
            del os.environ["HOME"]
    else:
        yield


def layered(*layers: alt.Chart, height: int = HEIGHT) -> dict[str, Any]:
    """Return layers over each other as Vega-Lite, the first at the bottom.

    What ``report.drawing`` sets is left out.
    """
    drawn = [layer.to_dict(validate=False) for layer in layers]
    kept = [{k: v for k, v in one.items() if k not in ("$schema", "config")} for one in drawn]
    return {"layer": kept, "width": WIDTH, "height": height}


def rows(points: Iterable[tuple[int, float]]) -> list[dict[str, Any]]:
    """Return pairs of index and value as rows of step, from 1, and value; null for no value."""
    return [
        {"step": index + 1, "value": float(f"{value:.6g}") if math.isfinite(value) else None}
        for index, value in points
    ]


def trace(
    title: str, steps: int, lang: str, *, colour: str = "accent", **scale: Any
) -> list[alt.Chart]:
    """Return the line of the dataset ``steps``, and its points under the pointer.

    Args:
        scale: of the values, as Vega-Lite has it; none: from about the least to the greatest.
    """
    import altair as alt

    line = alt.Chart(alt.NamedData("steps")).encode(
        x=step_axis(steps, lang),
        y=alt.Y("value:Q", title=title, scale=alt.Scale(**(scale or {"zero": False}))),
    )
    told = [
        alt.Tooltip("step:Q", title=text("chart.step", lang), format=","),
        alt.Tooltip("value:Q", title=title, format=".4"),
    ]
    return [line.mark_line(color=f"var(--{colour})"), answering(line, told)]


def bars(
    data: Sequence[dict[str, Any]], title: str, end: float, lang: str, *, row_px: int = 34
) -> dict[str, Any]:
    """Return bars of the dataset ``bars``, a row each, as Vega-Lite.

    Args:
        data: rows of label, colour, from, to, and told: what the pointer shows.
        title: of the axis, in lines that are short enough for a narrow screen.
        end: of the axis, which begins at 0.
    """
    import altair as alt

    names = list(dict.fromkeys(row["colour"] for row in data))
    scale = alt.Scale(domain=names, range=[f"var(--{name})" for name in names])
    drawn = alt.Chart(alt.NamedData("bars")).encode(
        x=alt.X("from:Q", title=title.split("\n"), scale=alt.Scale(domain=[0, end], nice=False)),
        x2=alt.X2("to"),
        y=label_axis([row["label"] for row in data]),
        color=alt.Color("colour:N", legend=None, scale=scale),
        stroke=alt.Stroke("colour:N", legend=None, scale=scale),  # keeps a short bar in sight
        tooltip=alt.Tooltip("told:N", title=text("head.value", lang)),
    )
    return layered(drawn.mark_bar(height=14), height=row_px * len(data))


def step_axis(steps: int, lang: str) -> alt.X:
    """Return the axis of steps 1 to ``steps``."""
    import altair as alt

    return alt.X(
        "step:Q",
        title=text("chart.step", lang),
        axis=alt.Axis(format=",d", tickMinStep=1, grid=False),
        scale=alt.Scale(domain=[1, max(steps, 2)], nice=False),
    )


def answering(line: alt.Chart, tooltip: Iterable[alt.Tooltip]) -> alt.Chart:
    """Return the points of a line that show themselves and their values under the pointer."""
    import altair as alt

    near = alt.selection_point(
        name="near", on="pointerover", clear="pointerout", nearest=True, encodings=["x"]
    )
    shown = alt.OpacityValue(0, condition={"param": "near", "empty": False, "value": 1})
    points: alt.Chart = line.mark_point(filled=True, size=60, color="var(--accent)").encode(
        opacity=shown, tooltip=list(tooltip)
    )
    return points.add_params(near)


def label_axis(order: Sequence[str]) -> alt.Y:
    """Return the axis of rows that are labelled in one or more lines, in the order given."""
    import altair as alt

    return alt.Y(
        "label:N",
        title=None,
        sort=list(order),
        axis=alt.Axis(
            labelExpr="split(datum.label, '\\n')",
            labelLimit=260,
            labelOffset=-7,  # half a line: Vega centres the first of two
            ticks=False,
            domain=False,
        ),
    )


def some(count: int, *, most: int) -> list[int]:
    """Return at most ``most`` of ``count`` places, evenly apart, with the first and the last."""
    return sorted(set(np.linspace(0, count - 1, min(most, count)).round().astype(int).tolist()))


def stretches(values: NDArray[np.float64], unit: str, lang: str) -> Table:
    """Return least, median and greatest of some stretches of steps, which cover every step."""
    found = []
    for part in np.array_split(np.arange(len(values)), min(TABLE_ROWS, len(values))):
        first, last = cells.count(int(part[0]) + 1), cells.count(int(part[-1]) + 1)
        known = values[part][np.isfinite(values[part])]
        told = (
            [cells.number(float(f(known))) for f in (np.min, np.median, np.max)]
            if len(known)
            else []
        )
        name = first if first == last else f"{first} – {last}"
        found.append((name, *(told or [cells.NOTHING] * 3)))
    heads = [text(f"head.{name}", lang) for name in ("least", "median", "greatest")]
    if unit:
        heads = [text("chart.in_unit", lang, name=head, unit=unit) for head in heads]
    return Table((text("chart.step", lang), *heads), tuple(found))
