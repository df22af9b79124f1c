"""Figures with intervals: over worlds and over time."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

from trainmark.pages import cells
from trainmark.pages.charts import vega
from trainmark.pages.document import Chart, table
from trainmark.pages.texts import t

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainmark.pages.charts.vega import Spec


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
    )  # fmt: skip
