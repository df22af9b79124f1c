"""Charts of a case: the main figure over time, and throughput against other figures."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from trainmark.judge.comparison.history import change_points
from trainmark.library.store.query import listing
from trainmark.pages import cells
from trainmark.pages.charts import intervals as charts
from trainmark.pages.document import Section
from trainmark.pages.site.links import RECORDS
from trainmark.pages.texts import t
from trainmark.record.figures import FIGURES

if TYPE_CHECKING:
    from trainmark.library.store.database import Database
    from trainmark.pages.document import Block

MAIN = "p_train"
PASSED = (RECORDS, "status=passed", f"{MAIN}>0")
GOOD = (*PASSED, "trust!=do_not_quote")
SAME = ("device", "precision", "world", "recipe")
MOST = 2_000  # runs of charts over time, the newest
_DRAWN = 500  # points of a scatter
_AGAINST = {"mem": (cells.GIB, "GiB"), "power": (1.0, "W"), "MFU": (1.0, "%")}


def sections(database: Database, filters: list[str]) -> list[Section]:
    """Return the charts of runs of a case: the main figure over time, and against others."""
    columns = ("run_id", "started_utc", "work", *SAME, MAIN, *_AGAINST)
    found = listing(database, filters, columns=columns, limit=MOST)
    runs = found.documents()[::-1]
    if not runs:
        return []
    names = _names(runs)
    unit = FIGURES[MAIN].unit
    over_time: dict[str, list[tuple[str, float]]] = {name: [] for name in names.values()}
    for run in runs:
        if run["work"] in names:
            over_time[names[run["work"]]].append((run["started_utc"], run[MAIN]))
    changes = {
        name: change_points([at for at, _ in of], [value for _, value in of])
        for name, of in over_time.items()
    }
    history = charts.history(over_time, changes, f"{MAIN}, {unit}")
    against: list[Block] = []
    for name, (factor, scale) in _AGAINST.items():
        told = [run for run in runs if run[name] is not None and run["work"] in names][-_DRAWN:]
        if not told:
            continue
        points = [
            (run["run_id"], names[run["work"]], run[name] / factor, run[MAIN] / run["world"])
            for run in told
        ]
        axes = (f"{name}, {scale}", t("site.per_rank", figure=MAIN, unit=unit))
        against.append(charts.scatter(points, over_time, name.lower(), axes))
    return [
        Section(t("site.over_time"), "over-time", (history,)),
        Section(t("site.against_others"), "scatter", tuple(against)),
    ]


def _names(runs: list[dict[str, Any]]) -> dict[str, str]:
    """Return the work that most runs did, each under a name of its own, in the names' order."""
    counted = Counter(run["work"] for run in runs).most_common(charts.MOST_SERIES)
    of = {run["work"]: run for run in runs}
    differ = [key for key in SAME if len({of[work][key] for work, _ in counted}) > 1] or SAME
    names: dict[str, str] = {}
    for work, _ in counted:
        told = of[work] | {"world": f"x{of[work]['world']}"}
        name = " · ".join(cells.clean(told[key]) for key in differ)
        names[work] = f"{name} · {work[:6]}" if name in names.values() else name
    return dict(sorted(names.items(), key=lambda named: named[1]))
