"""What the charts share: Vega-Lite in few words, axes over steps, tables of stretches."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from trainmark.pages import cells
from trainmark.pages.document import table
from trainmark.pages.texts import Phrase, t

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from trainmark.pages.document import Table

Spec = dict[str, Any]
WIDTH = 760  # px of a static picture, axes and legends included
TABLE_ROWS = 12
_TYPES = {"q": "quantitative", "n": "nominal", "t": "temporal"}


def field(name: str, kind: str = "q", **more: Any) -> Spec:
    """Return what encodes a field; its type is ``q``, ``n`` or ``t``."""
    return {"field": name, "type": _TYPES[kind], **more}


def scale(*domain: Any, **more: Any) -> Spec:
    """Return the scale from the first to the last of ``domain``, not rounded."""
    return {"domain": list(domain), "nice": False, **more}


def layer(mark: str, data: str, encoding: Spec, /, **look: Any) -> Spec:
    """Return a layer: marks of a dataset."""
    return {"data": {"name": data}, "mark": {"type": mark, **look}, "encoding": encoding}


def layers(*drawn: Spec, height: int = 200) -> Spec:
    """Return layers over each other, the first at the bottom."""
    return {"layer": list(drawn), "width": WIDTH, "height": height}


def interval(data: str, axis: str, across: Spec, orient: str = "vertical") -> list[Spec]:
    """Return the layers of intervals from ``low`` to ``high`` along an axis.

    Args:
        across: what encodes the other axis.
    """
    ends = ({**across, axis: field(end)} for end in ("low", "high"))
    line = {**across, axis: field("low"), f"{axis}2": {"field": "high"}}
    return [
        layer("rule", data, line, color="var(--ink)", strokeWidth=2),
        *(layer("tick", data, x, color="var(--ink)", orient=orient, size=9) for x in ends),
    ]


def step_axis(steps: int) -> Spec:
    """Return the axis of steps 1 to ``steps``."""
    axis = {"format": ",d", "tickMinStep": 1, "grid": False}
    return field("step", title=t("chart.step"), axis=axis, scale=scale(1, max(steps, 2)))


def label_axis(order: Iterable[Phrase]) -> Spec:
    """Return the axis of rows that are labelled in one or more lines, in the order given."""
    axis = {
        "labelExpr": "split(datum.label, '\\n')", "labelLimit": 260, "ticks": False,
        "labelOffset": -7,  # half a line: Vega centres the first of two
        "domain": False,
    }  # fmt: skip
    return field("label", "n", title=None, sort=list(order), axis=axis)


def trace(title: Phrase, steps: int, colour: str = "accent", **scaled: Any) -> Spec:
    """Return the line of the dataset ``steps``."""
    y = field("value", title=title, scale=scaled or {"zero": False})
    return layer("line", "steps", {"x": step_axis(steps), "y": y}, color=f"var(--{colour})")


def bars(data: Sequence[Spec], title: Sequence[Phrase], end: float) -> Spec:
    """Return bars of the dataset ``bars``, a row each: label, colour, from and to.

    Args:
        title: of the axis from 0 to ``end``, in lines short enough for a narrow screen.
    """
    names = list(dict.fromkeys(row["colour"] for row in data))
    looks = {"domain": names, "range": [f"var(--{name})" for name in names]}
    colour = field("colour", "n", legend=None, scale=looks)
    encoding = {
        "x": field("from", title=list(title), scale=scale(0, end)),
        "x2": {"field": "to"},
        "y": label_axis(row["label"] for row in data),
        "color": colour,
        "stroke": colour,  # keeps a short bar in sight
    }
    return layers(layer("bar", "bars", encoding, height=14), height=34 * len(data))


def rows(points: Iterable[tuple[int, float]]) -> list[Spec]:
    """Return pairs of index and value as rows of step, from 1, and value; null for no value."""
    return [
        {"step": index + 1, "value": float(f"{value:.6g}") if math.isfinite(value) else None}
        for index, value in points
    ]


def some(count: int, *, most: int) -> list[int]:
    """Return at most ``most`` of ``count`` places, evenly apart, with the first and the last."""
    return sorted(set(np.linspace(0, count - 1, min(most, count)).round().astype(int).tolist()))


def stretches(values: NDArray[np.float64], unit: str) -> Table:
    """Return least, median and greatest of some stretches of steps, which cover every step."""
    found = []
    for part in np.array_split(np.arange(len(values)), min(TABLE_ROWS, len(values))):
        first, last = cells.count(int(part[0]) + 1), cells.count(int(part[-1]) + 1)
        known = values[part][np.isfinite(values[part])]
        reduced = [float(f(known)) if len(known) else None for f in (np.min, np.median, np.max)]
        found.append((first if first == last else f"{first} – {last}", *map(cells.number, reduced)))
    heads = [t(f"head.{name}") for name in ("least", "median", "greatest")]
    named = (t("chart.in_unit", name=head, unit=unit) if unit else head for head in heads)
    return table((t("chart.step"), *named), found)
