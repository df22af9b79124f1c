"""The page of a case: its best runs, the main figure over time."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from trainmark.judge.comparison.history import change_points
from trainmark.library.store.query import counts, listing
from trainmark.pages import cells
from trainmark.pages import results as display
from trainmark.pages.charts import intervals
from trainmark.pages.document import Paragraph, Section, table
from trainmark.pages.site.views import page, with_rows
from trainmark.pages.texts import Link, Phrase, t, term
from trainmark.record.figures import FIGURES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainmark.library.store.database import Database
    from trainmark.pages.document import Block
    from trainmark.pages.site.links import Links

MAIN = "p_train"
RECORDS = "kind=record"  # what lists are of; rows that others printed are not in them
_PASSED = (RECORDS, "status=passed", f"{MAIN}>0")
_GOOD = (*_PASSED, "trust!=do_not_quote")
_SAME = ("device", "precision", "world", "recipe")
_BEST = ("run_id", "started_utc", *_SAME, "trust", MAIN, "p_core", "MFU", "mem", "quality_value")
_MOST = 2_000  # runs of charts over time, the newest


def case_page(database: Database, case: str, links: Links) -> str:
    """Return the page of a case.

    Where no run may be quoted, it is about all that passed, and says so.
    """
    total = sum(count for _, count in counts(database, ["case"], [f"case={case}", RECORDS]))
    filters = [f"case={case}", *_GOOD]
    counted = dict(counts(database, _SAME, filters))
    good = cells.count(sum(counted.values()))
    said = t("site.best_of", figure=MAIN, good=good, total=cells.count(total))
    blocks: list[Block] = [Paragraph(said, "muted")]
    if not counted:
        filters = [f"case={case}", *_PASSED]
        counted = dict(counts(database, _SAME, filters))
        note = "none_quotable" if counted else "none_good"
        blocks.append(Paragraph(t(f"site.{note}"), "warn"))
    if counted:
        blocks.append(_best(database, filters, counted, links))
    published = Link(t("site.references"), links.references(case))
    best = Section(t("site.best"), "best", tuple(blocks))
    actions = [published] if case in with_rows() else []
    return page(links, case, [best, *sections(database, filters)], actions=actions)


def _best(
    database: Database, filters: Sequence[str], counted: dict[Any, int], links: Links
) -> Block:
    """Return the fastest run of each device, precision, world and recipe."""
    found = listing(database, filters, columns=_BEST, sort=f"-{MAIN}", first_of=_SAME)
    names, columns = display.shown(found)
    rows: list[list[Phrase]] = []
    for texts, values in zip(zip(*columns, strict=True), found.documents(), strict=True):
        group = tuple(values[key] for key in _SAME)
        date = texts[_BEST.index("started_utc")][:10]
        shown: list[Phrase] = [*texts[2:], cells.count(counted.get(group, 1))]
        shown[_BEST.index("trust") - 2] = t(f"trust.{values['trust']}")
        rows.append([*shown, Link(date, links.run(values["run_id"]))])
    ends = (t("site.runs_of"), t("site.best_run"))
    return table([*map(head, _BEST[2:], names[2:]), *ends], rows)


def head(key: str, named: str) -> Phrase:
    """Return the head of a column; figures are called the same in all languages."""
    found = term("site", key)
    return named if found == key else found


def sections(database: Database, filters: Sequence[str]) -> list[Section]:
    """Return the charts of runs of a case: the main figure over time."""
    columns = ("run_id", "started_utc", "work", *_SAME, MAIN)
    runs = listing(database, filters, columns=columns, limit=_MOST).documents()[::-1]
    if not runs:
        return []
    names, unit = _names(runs), FIGURES[MAIN].unit
    drawn = [run for run in runs if run["work"] in names]
    over_time: dict[str, list[tuple[str, float]]] = {name: [] for name in names.values()}
    for run in drawn:
        over_time[names[run["work"]]].append((run["started_utc"], run[MAIN]))
    changes = {
        name: change_points([at for at, _ in of], [value for _, value in of])
        for name, of in over_time.items()
    }
    history = intervals.history(over_time, changes, f"{MAIN}, {unit}")
    return [Section(t("site.over_time"), "over-time", (history,))]


def _names(runs: list[dict[str, Any]]) -> dict[str, str]:
    """Return the work that most runs did, each under a name of its own, in the names' order."""
    counted = Counter(run["work"] for run in runs).most_common(intervals.MOST_SERIES)
    of = {run["work"]: run for run in runs}
    differ = [key for key in _SAME if len({of[work][key] for work, _ in counted}) > 1] or _SAME
    names: dict[str, str] = {}
    for work, _ in counted:
        told = of[work] | {"world": f"x{of[work]['world']}"}
        name = " · ".join(cells.clean(told[key]) for key in differ)
        names[work] = f"{name} · {work[:6]}" if name in names.values() else name
    return dict(sorted(names.items(), key=lambda named: named[1]))
