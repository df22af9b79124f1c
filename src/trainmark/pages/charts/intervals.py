"""Figures with intervals: over launches, over worlds, of runs over a base, over time."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

from trainmark.pages import cells
from trainmark.pages.charts import vega
from trainmark.pages.document import Chart, table
from trainmark.pages.phrases import heads
from trainmark.pages.texts import Phrase, t

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from trainmark.judge.comparison import ComparedFigure
    from trainmark.judge.comparison.history import Change
    from trainmark.pages.charts.vega import Spec
    from trainmark.pages.summary import RepeatSummary
    from trainmark.record.record import Record

_OF_LAUNCHES = ("p_train", "p_core", "token/p/s", "e2e_time", "step_time_p50", "MFU", "MAMFU")
_LEAST_RANGE = 0.5  # per cent: below, noise of the last digit would look like a spread
# In the order in which series get them.
_COLOURS = [
    f"var(--{name})" for name in ("accent", "wait", "work", "eval", "bad", "setup", "warn", "rest")
]
MOST_SERIES = len(_COLOURS)


def launches(records: Sequence[Record], found: RepeatSummary, name: str) -> Chart | None:
    """Return figures of launches as difference from the median; None of fewer than two passed."""
    passed = [record for record in records if record.passed]
    figures = [x for x in _OF_LAUNCHES if x in found.figures and found.figures[x].median]
    if len(passed) < 2 or not figures:
        return None
    dots: list[Spec] = []
    spans: list[Spec] = []
    rows = []
    for figure in figures:
        over = found.figures[figure]
        told = [(one, x) for one in passed if (x := one.figure(figure)) is not None]
        shown, unit = cells.scaled([over.median, *(x for _, x in told)], found.units[figure])
        label = f"{figure}\n{shown[0]} {unit}".rstrip()
        low, high = (round(100 * (end / over.median - 1), 4) for end in (over.low, over.high))
        spans.append({"label": label, "low": low, "high": high})
        for (record, value), text in zip(told, shown[1:], strict=True):
            percent = round(100 * (value / over.median - 1), 4)
            dots.append({"label": label, "percent": percent, "run": record.run_id})
            rows.append((figure, record.run_id, f"{text} {unit}".rstrip(), f"{percent:+.2f}%"))
    reach = 1.08 * max(_LEAST_RANGE, *(abs(dot["percent"]) for dot in dots))
    y, wide = {"y": vega.label_axis(span["label"] for span in spans)}, vega.scale(-reach, reach)
    axis = t("chart.launches.axis")
    across = vega.field("low", title=axis, scale=wide, axis={"format": "+~g"})
    placed = {"x": vega.field("percent", scale=wide), **y, "detail": vega.field("run", "n")}
    accent = {"color": "var(--accent)", "fill": "var(--accent)", "fillOpacity": 0.4}
    drawn = vega.layers(
        vega.layer("rule", "intervals", {"x": across, "x2": {"field": "high"}, **y},
                   color="var(--rest)", strokeWidth=3),
        vega.layer("tick", "intervals", {"x": {"datum": 0}, **y},
                   color="var(--ink)", thickness=2, size=22),
        vega.layer("point", "launches", placed, size=70, **accent),
        height=36 * len(spans),
    )  # fmt: skip
    said = t("chart.launches.desc", figures=len(figures), launches=len(passed))
    behind = table((*heads("name", "run", "value"), axis), rows, short=True)
    data = {"launches": dots, "intervals": spans}
    return Chart(name, t("chart.launches"), said, drawn, data, behind, in_text=False)


def efficiency(worlds: Sequence[dict[str, Any]]) -> Chart:
    """Return the efficiency over the devices with its interval, beside the ideal.

    Args:
        worlds: as ``pages.scaling.scaling`` returns them: two or more, the smallest first.
    """
    data: list[Spec] = []
    for one in worlds:
        share, low, high = (round(100 * value, 3) for value in one["efficiency"])
        count = prod(map(int, one["world"].split("x")))
        shown = f"{one['world']}  {cells.percent(share)}"
        data.append({"devices": count, "world": one["world"], "share": share, "low": low,
                     "high": high, "shown": shown})  # fmt: skip
    devices = sorted({row["devices"] for row in data})
    wide = vega.scale(devices[0] / 1.4, devices[-1] * 1.4, type="log", base=2)
    axis = {"values": devices, "grid": False, "format": ",d", "labelOverlap": True}
    x = {"x": vega.field("devices", title=t("efficiency.devices"), scale=wide, axis=axis)}
    top = max(110.0, *(1.05 * row["high"] for row in data))
    y = {"y": vega.field("share", title=t("efficiency.axis"), scale=vega.scale(0, top))}
    words = {**x, "y": vega.field("low"), "text": vega.field("shown", "n")}
    drawn = vega.layers(
        vega.layer("rule", "ideal", y, strokeDash=[6, 4], color="var(--soft)"),
        *vega.interval("worlds", "y", x, "horizontal"),
        vega.layer("line", "worlds", x | y, color="var(--accent)"),
        vega.layer("point", "worlds", x | y, color="var(--accent)", filled=True, size=70),
        vega.layer("text", "worlds", words, baseline="top", dy=8),
    )
    ends = {"first": worlds[0]["world"], "last": worlds[-1]["world"]}
    names = ("share", "low", "high")
    shares = {name: cells.percent(data[-1][name]) for name in names}
    rows = ((x["world"], x["devices"], *(cells.percent(x[name]) for name in names)) for x in data)
    columns = ("scaling.world", *(f"efficiency.{x}" for x in ("devices", *names)))
    return Chart(
        "efficiency", t("efficiency.title", **ends),
        t("efficiency.desc", worlds=len(data), **ends, **shares), drawn,
        {"worlds": data, "ideal": [{"share": 100}]}, table(map(t, columns), rows),
        in_text=False,  # the page has the worlds as a table
    )  # fmt: skip


def _series(series: Iterable[str], *, legend: bool = True) -> Spec:
    shown = {"title": None, "columns": 1, "labelLimit": 320} if legend else None
    looks = {"domain": [*series], "range": _COLOURS}
    return {"color": vega.field("series", "n", scale=looks, legend=shown)}


def ratios(found: Mapping[str, Sequence[ComparedFigure | None]], letters: str) -> Chart:
    """Return the ratios of figures to those of the first side, with their intervals.

    Args:
        found: for each figure those of the other sides; None: not compared.
    """
    base, others = letters[0], letters[1:]
    points = [
        {"figure": name, "series": letter, "ratio": one.ratio, "low": one.low, "high": one.high}
        for name, sides in found.items()
        for letter, one in zip(others, sides, strict=True)
        if one and one.ratio is not None
    ]
    title, series = t("site.ratio", base=base), _series(others)
    y = {"y": vega.field("figure", "n", title=None, sort=None), **series,
         "yOffset": vega.field("series", "n", sort=None)}  # fmt: skip
    across = vega.field("ratio", title=title, scale={"zero": False})
    drawn = vega.layers(
        vega.layer("rule", "one", {"x": vega.field("ratio")}, color="var(--edge)"),
        vega.layer("rule", "ratios", {"x": vega.field("low"), "x2": {"field": "high"}, **y},
                   strokeWidth=5, opacity=0.4, strokeCap="round"),
        vega.layer("point", "ratios", {"x": across, **y}, filled=True, size=70),
        height=max(120, 22 * len(points) + 40),
    )  # fmt: skip
    rows = ((name, *map(_ratio, sides)) for name, sides in found.items())
    return Chart(
        "ratios", title, t("site.ratio_seen", figures=len(found), sides=len(others)), drawn,
        {"ratios": points, "one": [{"ratio": 1}]},
        table((t("head.name"), *(f"{letter}/{base}" for letter in others)), rows),
    )  # fmt: skip


def _ratio(one: ComparedFigure | None) -> Phrase:
    """Return a ratio with its interval and verdict."""
    if one is None or one.ratio is None:
        return None
    interval = "" if one.low is None else f" ({cells.interval(one.low, one.high)})"
    return (f"{one.ratio:.3f}{interval} ", t(f"compare.{one.verdict}"))


def history(
    series: Mapping[str, Sequence[tuple[str, float]]],
    changes: Mapping[str, Sequence[Change]],
    figure: str,
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
    steps = [{"series": name, "started": x.time} for name, of in changes.items() for x in of]
    days = dict.fromkeys(("week", "date", "day"), "%m-%d") | dict.fromkeys(
        ("month", "quarter"), "%Y-%m"
    )
    clock = dict.fromkeys(("hours", "minutes"), "%H:%M") | {"seconds": "%H:%M:%S"}
    axis = {"grid": False, "labelOverlap": "greedy", "labelSeparation": 8, "format": days | clock}
    utc, colour = {"type": "utc"}, _series(series)
    x = vega.field("started", "t", title=t("site.started_utc"), scale=utc, axis=axis)
    both = {"x": x, "y": vega.field("value", title=figure, scale={"zero": False}), **colour}
    drawn = [
        vega.layer("line", "history", both, strokeWidth=1, opacity=0.5),
        vega.layer("point", "history", both, filled=True, size=36),
    ]
    if steps:  # the axis of none has no extent
        at = {"x": x, **colour}
        drawn.insert(0, vega.layer("rule", "changes", at, strokeDash=[4, 3], strokeWidth=2))
    rows = (
        (name, f"{len(of):,}", cells.number(of[0][1]), cells.number(of[-1][1]),
         "; ".join(f"{x.time[:10]} {x.after / x.before - 1:+.1%}" for x in changes[name]) or None)
        for name, of in series.items()
    )  # fmt: skip
    names = ("series", "runs_of", "oldest", "newest", "changes")
    return Chart(
        "history", t("site.history", figure=figure),
        t("site.history_seen", runs=len(points), series=len(series), steps=len(steps)),
        vega.layers(*drawn, height=300), {"history": points, "changes": steps},
        table((t(f"site.{name}") for name in names), rows),
    )  # fmt: skip


def scatter(
    points: Sequence[tuple[str, str, float, float]], series: Iterable[str], name: str,
    axes: tuple[Phrase, Phrase],
) -> Chart:  # fmt: skip
    """Return throughput against another figure, a point a run.

    Args:
        points: run, series, the other figure, throughput.
        series: all of them, in the order of the history's, which has the legend.
        axes: titles of the other figure and of throughput, with units.
    """
    best = sorted(points, key=lambda point: -point[3])[: vega.TABLE_ROWS]
    spread = {"labelOverlap": "greedy", "labelSeparation": 8}
    encoding = {
        "x": vega.field("x", title=axes[0], scale={"zero": False}, axis=spread),
        "y": vega.field("y", title=axes[1], scale={"zero": False}),
        "detail": vega.field("run", "n"),
        **_series(series, legend=False),
    }
    drawn = vega.layers(vega.layer("point", name, encoding, filled=True, size=40), height=260)
    rows = ((run, of, cells.number(x), cells.number(y)) for run, of, x, y in best)
    return Chart(
        name, t("site.against", x=axes[0], y=axes[1]),
        t("site.against_seen", runs=len(points), shown=len(best)), drawn,
        {name: [dict(zip(("run", "series", "x", "y"), x, strict=True)) for x in points]},
        table((t("site.run_id"), t("site.series"), *axes), rows),
    )  # fmt: skip
