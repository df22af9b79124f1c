"""What the charts share: their specifications, tables of stretches."""

from __future__ import annotations

import json
import math
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from trainmark.pages import cells
from trainmark.pages.document import table
from trainmark.pages.texts import t

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from trainmark.pages.document import Table

Spec = dict[str, Any]
_WIDTH = 460  # px of a static picture: it fits a phone, and two stand side by side
TABLE_ROWS = 12


@cache
def _specs() -> Spec:
    found: Spec = json.loads(Path(__file__).with_name("specs.json").read_bytes())
    return found


def spec(name: str, **values: Any) -> Spec:
    """Return what Vega-Lite draws: a specification of ``specs.json``, filled.

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
