"""Figures with intervals: over launches, over worlds, of runs over a base, over time."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

from trainmark.pages import cells
from trainmark.pages.charts import vega
from trainmark.pages.document import Chart, table
from trainmark.pages.phrases import heads
from trainmark.pages.texts import t

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

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
    order, axis = [span["label"] for span in spans], t("chart.launches.axis")
    drawn = vega.spec("launches", height=36 * len(spans), order=order, reach=[-reach, reach])
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
    top, wide = max(110.0, *(1.05 * x["high"] for x in data)), [devices[0] / 1.4, devices[-1] * 1.4]
    drawn = vega.spec("efficiency", top=top, devices=devices, wide=wide)
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
    drawn = vega.spec("history", figure=figure, series=[*series], colours=_COLOURS, steps=steps)
    rows = (
        (name, f"{len(of):,}", cells.number(of[0][1]), cells.number(of[-1][1]),
         "; ".join(f"{x.time[:10]} {x.after / x.before - 1:+.1%}" for x in changes[name]) or None)
        for name, of in series.items()
    )  # fmt: skip
    names = ("series", "runs_of", "oldest", "newest", "changes")
    return Chart(
        "history", t("site.history", figure=figure),
        t("site.history_seen", runs=len(points), series=len(series), steps=len(steps)),
        drawn, {"history": points, "changes": steps},
        table((t(f"site.{name}") for name in names), rows),
    )  # fmt: skip
