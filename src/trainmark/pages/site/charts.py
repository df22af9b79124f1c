"""The charts of the site: ratios of runs, a figure over time, throughput against another figure.

What Vega-Lite draws is in ``charts.json``; ``$NAME`` there is a value of a chart's own.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainmark.pages import cells
from trainmark.pages.charts.plotting import TABLE_ROWS
from trainmark.pages.document import Chart, Table
from trainmark.pages.drawing import WIDTH
from trainmark.pages.texts import text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from trainmark.judge.comparison import ComparedFigure
    from trainmark.judge.comparison.history import Change

# In the order in which series get them.
COLOURS = [
    f"var(--{name})" for name in ("accent", "wait", "work", "eval", "bad", "setup", "warn", "rest")
]
MOST_SERIES = len(COLOURS)


@cache
def _specs() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path(__file__).with_suffix(".json").read_bytes())
    return found


def _spec(name: str, series: Iterable[str], **own: object) -> dict[str, Any]:
    """Return what draws a chart, with its own values in their places."""
    colour: dict[str, Any] = {"field": "series", "type": "nominal", "legend": None}
    colour["scale"] = {"domain": [*series], "range": COLOURS}
    legend = {"title": None, "columns": 1, "labelLimit": 320}
    told = {"width": WIDTH, "colour": colour, "told_colour": {**colour, "legend": legend}, **own}

    def filled(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: filled(below) for key, below in value.items()}
        if isinstance(value, list):
            return [filled(below) for below in value]
        return told[value[1:]] if isinstance(value, str) and value.startswith("$") else value

    made: dict[str, Any] = filled(_specs()[name])
    return made


def ratios(found: Mapping[str, Sequence[ComparedFigure | None]], letters: str, lang: str) -> Chart:
    """Return the ratios of figures to those of the first side, with their intervals.

    Args:
        found: for each figure those of the other sides; None: not compared.
    """
    base, others = letters[0], letters[1:]
    rows = [(name, *(_ratio(one, lang) for one in sides)) for name, sides in found.items()]
    points = [
        {"figure": row[0], "series": letter, "told": told, "ratio": one.ratio, "low": one.low,
         "high": one.high}
        for row, sides in zip(rows, found.values(), strict=True)
        for letter, told, one in zip(others, row[1:], sides, strict=True)
        if one and one.ratio is not None
    ]  # fmt: skip
    title = text("site.ratio", lang, base=base)
    words = text("site.ratio_seen", lang, figures=len(rows), sides=len(others))
    spec = _spec("ratios", others, x=title, height=max(120, 22 * len(points) + 40))
    heads = (text("head.name", lang), *(f"{letter}/{base}" for letter in others))
    data: dict[str, list[dict[str, Any]]] = {"ratios": points, "one": [{"ratio": 1}]}
    return Chart("ratios", title, words, lambda: spec, data, Table(heads, tuple(rows)))


def _ratio(one: ComparedFigure | None, lang: str) -> str:
    """Return a ratio with its interval and verdict."""
    if one is None or one.ratio is None:
        return cells.NOTHING
    interval = "" if one.low is None else f" ({one.low:.3f} – {one.high:.3f})"
    return f"{one.ratio:.3f}{interval} {text(f'compare.{one.verdict}', lang)}"


def history(
    series: Mapping[str, Sequence[tuple[str, float]]],
    changes: Mapping[str, Sequence[Change]],
    figure: str,
    lang: str,
) -> Chart:
    """Return a figure over time, a line a series, with its change points.

    Args:
        series: time and value of each run, the oldest first, in the unit of ``figure``'s name.
    """
    points = [
        {"series": name, "started": at, "value": value}
        for name, of in series.items()
        for at, value in of
    ]
    steps = [
        {"series": name, "started": x.time, "day": x.time[:10], "before": x.before,
         "after": x.after}
        for name, of in changes.items() for x in of
    ]  # fmt: skip
    spec = _spec("history", series, x=text("site.started_utc", lang), y=figure)
    if not steps:  # the axis of none has no extent
        del spec["layer"][0]
    rows = [
        (name, f"{len(of):,}", cells.number(of[0][1]), cells.number(of[-1][1]),
         "; ".join(f"{x.time[:10]} {x.after / x.before - 1:+.1%}" for x in changes[name])
         or cells.NOTHING)
        for name, of in series.items()
    ]  # fmt: skip
    heads = [text(f"site.{name}", lang) for name in ("series", "runs_of", "oldest", "newest")]
    table = Table((*heads, text("site.changes", lang)), tuple(rows))
    words = text("site.history_seen", lang, runs=len(points), series=len(series), steps=len(steps))
    title = text("site.history", lang, figure=figure)
    return Chart(
        "history", title, words, lambda: spec, {"history": points, "changes": steps}, table
    )


def scatter(
    points: Sequence[tuple[str, str, float, float]],
    series: Iterable[str],
    name: str,
    axes: tuple[str, str],
    lang: str,
) -> Chart:
    """Return throughput against another figure, a point a run.

    Args:
        points: run, series, the other figure, throughput.
        series: all of them, in the order of the history's, which has the legend.
        axes: titles of the other figure and of throughput, with units.
    """
    heads = (text("site.run_id", lang), text("site.series", lang), *axes)
    best = sorted(points, key=lambda point: -point[3])[:TABLE_ROWS]
    rows = [(run, of, cells.number(x), cells.number(y)) for run, of, x, y in best]
    title = text("site.against", lang, x=axes[0], y=axes[1])
    words = text("site.against_seen", lang, runs=len(points), shown=len(rows))
    data = [dict(zip(("run", "series", "x", "y"), point, strict=True)) for point in points]
    spec = _spec("scatter", series, data=name, x=axes[0], y=axes[1])
    return Chart(name, title, words, lambda: spec, {name: data}, Table(heads, tuple(rows)))
