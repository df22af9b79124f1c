"""Scaling efficiency from the smallest world to the largest, beside the ideal."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

from trainmark.pages import cells
from trainmark.pages.charts import plotting
from trainmark.pages.document import Chart, Table
from trainmark.pages.texts import text

if TYPE_CHECKING:
    from collections.abc import Sequence


def chart(worlds: Sequence[dict[str, Any]], lang: str) -> Chart:
    """Return the efficiency over the devices, with its interval.

    Args:
        worlds: as ``report.scaling.scaling`` returns them: two or more, the smallest first.
    """
    rows = []
    for one in worlds:
        share, low, high = (round(100 * value, 3) for value in one["efficiency"])
        devices = prod(map(int, one["world"].split("x")))
        shown = f"{one['world']}  {cells.percent(share)}"
        rows.append({"devices": devices, "world": one["world"], "share": share, "low": low,
                     "high": high, "shown": shown})  # fmt: skip
    ends = {"first": worlds[0]["world"], "last": worlds[-1]["world"]}
    shares = {name: cells.percent(rows[-1][name]) for name in ("share", "low", "high")}
    return Chart(
        name="efficiency",
        title=text("efficiency.title", lang, **ends),
        description=text("efficiency.desc", lang, worlds=len(rows), **ends, **shares),
        draws=plotting.later(_spec, rows, lang),
        data={"worlds": rows, "ideal": [{"share": 100}]},
        table=_table(rows, lang),
        text="",  # the page has the worlds as a table
    )


def _spec(rows: Sequence[dict[str, Any]], lang: str) -> dict[str, Any]:
    import altair as alt

    devices = sorted({row["devices"] for row in rows})
    top = max(110.0, *(1.05 * row["high"] for row in rows))
    x = alt.X(
        "devices:Q", title=text("efficiency.devices", lang),
        scale=alt.Scale(type="log", base=2, nice=False,
                        domain=[devices[0] / 1.4, devices[-1] * 1.4]),
        axis=alt.Axis(values=devices, grid=False, format=",d", labelOverlap=True),
    )  # fmt: skip
    y = alt.Y("share:Q", title=text("efficiency.axis", lang),
              scale=alt.Scale(domain=[0, top], nice=False))  # fmt: skip
    base = alt.Chart(alt.NamedData("worlds")).encode(x=x)
    told = [
        alt.Tooltip("world:N", title=text("scaling.world", lang)),
        *(alt.Tooltip(f"{name}:Q", title=text(f"efficiency.{name}", lang), format=".1f")
          for name in ("share", "low", "high")),
    ]  # fmt: skip
    ideal = alt.Chart(alt.NamedData("ideal")).mark_rule(strokeDash=[6, 4], color="var(--soft)")
    curve = base.encode(y=y)
    return plotting.layered(
        ideal.encode(y=y),
        base.mark_rule(color="var(--ink)", strokeWidth=2).encode(
            y=alt.Y("low:Q"), y2=alt.Y2("high")
        ),
        *(base.mark_tick(color="var(--ink)", orient="horizontal", size=9).encode(y=f"{end}:Q")
          for end in ("low", "high")),
        curve.mark_line(color="var(--accent)"),
        curve.mark_point(color="var(--accent)", filled=True, size=70, opacity=1)
        .encode(tooltip=told),
        base.mark_text(baseline="top", dy=8).encode(
            y=alt.Y("low:Q"), text=alt.Text("shown:N")
        ),
    )  # fmt: skip


def _table(rows: Sequence[dict[str, Any]], lang: str) -> Table:
    names = ("share", "low", "high")
    heads = (
        text("scaling.world", lang), text("efficiency.devices", lang),
        *(text(f"efficiency.{name}", lang) for name in names),
    )  # fmt: skip
    return Table(heads, tuple(
        (row["world"], cells.count(row["devices"]), *(cells.percent(row[x]) for x in names))
        for row in rows
    ))  # fmt: skip
