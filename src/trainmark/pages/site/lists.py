"""Pages about many runs: the list, and a page a case.

A run is all its launches: one row, with the median over those that passed and their range.
"""

from __future__ import annotations

from collections import Counter
from statistics import median
from typing import TYPE_CHECKING, Any

from trainmark.judge.comparison.history import change_points
from trainmark.pages import cells
from trainmark.pages.charts import intervals, vega
from trainmark.pages.document import Chart, Paragraph, Section, table
from trainmark.pages.phrases import TONES, status_tone
from trainmark.pages.rendering import rendered
from trainmark.pages.site.views import MOST_COMPARED, page, with_rows
from trainmark.pages.texts import Link, Phrase, t
from trainmark.record.figures import FIGURES
from trainmark.record.stats import over_launches

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trainmark.pages.document import Block
    from trainmark.pages.site.links import Links

    Run = list[dict[str, Any]]  # what the index has of its launches, in their order

ROWS = 2_000  # of a page of the list, which the site's script filters
_MOST = 2_000  # runs of a chart over time, the newest
_SPEEDS = ("final_result", "token/p/s", "p_train", "p_core", "p_whole")
_FILTERS = ("case", "device", "precision", "badge")
_COLUMNS = ("started_utc", "case", "device", "world", "precision", "speed", "MFU", "quality")
_NUMBERS = ("world", "speed", "MFU", "quality")
KEYS = (
    "line", "bytes", "mtime_ns", "started_utc", "case", "recipe", "device", "configuration",
    "world", "precision", "status", "trust", "suite_commit", "work", "comparable",
    "final_result_unit", "quality_value", "quality_metric", "MFU", *_SPEEDS,
)  # fmt: skip


def _speed(one: dict[str, Any]) -> tuple[float, str] | None:
    """Return how fast a launch trained, and the unit; of a row of others what it has of that."""
    for key in _SPEEDS:
        if one[key]:
            return one[key], one["final_result_unit"] or FIGURES[key].unit.replace("{unit}", "")
    return None


def _passed(run: Run) -> Run:
    return [x for x in run if x["status"] == "passed" or x["kind"] == "row"]


def _middle(run: Run, key: str) -> float | None:
    values = [one[key] for one in _passed(run) if one[key] is not None]
    return median(values) if values else None


def _badge(run: Run) -> tuple[str, Phrase, str]:
    """Return what became of a run as a word, as a text, and its tone."""
    first = next((one for one in run if one["status"] != "passed"), run[0])
    if first["kind"] == "row":
        return "imported", t("site.imported"), "muted"
    if first["status"] != "passed":
        return first["status"], t(f"status.{first['status']}"), status_tone(first["status"])
    if any(one["trust"] == "do_not_quote" for one in run):
        return "doubtful", t("site.doubtful"), "warn"
    return "passed", t("status.passed"), "good"


def _row(run: Run, links: Links) -> dict[str, Any]:
    """Return what a row of the list shows: each cell's text, and the value that it sorts by."""
    one, (word, badge, tone) = run[0], _badge(run)
    imported, mfu, quality = (
        one["kind"] == "row",
        _middle(run, "MFU"),
        _middle(run, "quality_value"),
    )
    speeds = [x for x in map(_speed, _passed(run)) if x]
    values = [value for value, _ in speeds]
    shown = f"{cells.number(median(values))} {speeds[0][1]}".strip() if speeds else cells.NOTHING
    many: Phrase = ""
    if len(run) > 1 and values:
        ends = (cells.number(min(values)), cells.number(max(values)))
        many = t("site.of_launches", low=ends[0], high=ends[1], n=len(values))
    ident = f"{one['path'].rpartition('/')[2]}:{one['line']}" if imported else one["run_id"]
    metric = one["quality_metric"] or ""
    texts: dict[str, tuple[Phrase, Any]] = {
        "started_utc": ((one["started_utc"] or "/")[:16].replace("T", " "), one["started_utc"]),
        "case": (one["case"] or "/", one["case"]),
        "device": (one["device"] or one["configuration"] or "/", one["device"]),
        "world": (str(one["world"] or "/"), one["world"]),
        "precision": (one["precision"] or "/", one["precision"]),
        "speed": (shown, median(values) if values else None),
        "MFU": (cells.percent(mfu), mfu),
        "quality": (f"{cells.quality(quality)} {metric}" if quality is not None else "/", quality),
    }
    return {
        "cells": texts, "badge": badge, "word": word, "tone": tone, "many": many, "id": ident,
        "short": ident.rpartition("-")[2] if not imported else ident,
        "address": None if imported else links.run(one["run_id"]),
        "case_address": None if imported else links.case(one["case"]),
    }  # fmt: skip


def list_page(runs: Sequence[Run], number: int, links: Links) -> str:
    """Return a page of the list, the newest runs first."""
    first = (number - 1) * ROWS
    rows = [_row(run, links) for run in runs[first : first + ROWS]]
    counted: dict[str, Counter[Any]] = {key: Counter() for key in _FILTERS}
    texts = {}
    for row in rows:
        texts[row["word"]] = row["badge"]
        counted["badge"][row["word"]] += 1
        for key in _FILTERS[:-1]:
            counted[key][row["cells"][key][1]] += 1
    choices = {
        key: [(value, texts.get(value, value), of[value]) for value in sorted(filter(None, of))]
        for key, of in counted.items()
    }
    span = {"first": first + 1, "last": first + len(rows), "total": cells.count(len(runs))}
    return rendered(
        "site/list.html.j2", links.lang, links=links, rows=rows, choices=choices, columns=_COLUMNS,
        numbers=_NUMBERS, counted=t("site.counted", **span) if rows else t("site.none"),
        cases=sorted({run[0]["case"] for run in runs if run[0]["kind"] == "record"}),
        page_number=number, pages=-(-len(runs) // ROWS), most=MOST_COMPARED, charts=False,
        live=True, ident="",
    )  # fmt: skip


def case_page(runs: Sequence[Run], case: str, links: Links) -> str:
    """Return the page of a case: its speed on each machine, over time, and machines as bars.

    Where no run may be quoted, it is about all that passed, and says so.
    """
    launches = [
        one for run in runs for one in run if one["case"] == case and one["kind"] == "record"
    ]
    passed = [x for x in launches if x["status"] == "passed" and x["final_result"]]
    good = [x for x in passed if x["trust"] != "do_not_quote"]
    counts = {"good": cells.count(len(good)), "total": cells.count(len(launches))}
    blocks: list[Block] = [Paragraph(t("site.best_of", **counts), "muted")]
    if not good:
        blocks.append(Paragraph(t(f"site.none_{'quotable' if passed else 'good'}"), "warn"))
    shown, sections = good or passed, []
    if shown:
        works = _works(shown)
        blocks.append(_speeds(works, links))
        sections = [*_bars(works), _history(works, links)]
    best = Section(t("site.best"), "best", tuple(blocks))
    actions = [Link(t("site.references"), links.references(case))] if case in with_rows() else []
    return page(links, case, [best, *sections], actions=actions)


def _works(launches: Run) -> dict[str, Run]:
    """Return the launches of each work on each device, the fastest first, under a name each."""
    found: dict[str, Run] = {}
    for one in launches:
        found.setdefault(one["work"], []).append(one)
    ordered = sorted(found.values(), key=lambda of: -(_middle(of, "final_result") or 0))
    same = ("device", "precision", "world", "recipe")
    differ = [key for key in same if len({of[0][key] for of in ordered}) > 1] or same[:1]
    named: dict[str, Run] = {}
    for of in ordered:
        parts = (f"x{of[0][key]}" if key == "world" else str(of[0][key]) for key in differ)
        name = " · ".join(map(cells.clean, parts))
        named[f"{name} · {of[0]['work'][:6]}" if name in named else name] = of
    return named


def _unit(works: dict[str, Run]) -> str:
    return next(of[0]["final_result_unit"] or "" for of in works.values())


def _speeds(works: dict[str, Run], links: Links) -> Block:
    """Return the median speed of each work on each device, with its interval."""
    rows: list[list[Phrase]] = []
    for of in works.values():
        first, over = of[0], over_launches([one["final_result"] for one in of])
        ends = f"{cells.number(over.low)} – {cells.number(over.high)}" if len(of) > 1 else "/"
        trusts = [one["trust"] for one in of]
        worst = next(x for x in reversed(TONES) if x in trusts)
        rows.append([
            first["device"], str(first["world"]), first["precision"], first["recipe"], len(of),
            cells.number(over.mean),
            t("site.range", ends=ends) if over.is_range and len(of) > 1 else ends,
            cells.percent(_middle(of, "MFU")), cells.quality(_middle(of, "quality_value")),
            t(f"trust.{worst}"), Link(first["started_utc"][:10], links.run(first["run_id"])),
        ])  # fmt: skip
    names = ("device", "world", "precision", "recipe", "launches", "speed_unit", "interval", "MFU",
             "quality", "trust", "newest")  # fmt: skip
    return table((t(f"site.{name}", unit=_unit(works)) for name in names), rows)


def _bars(works: dict[str, Run]) -> Iterator[Section]:
    """Yield devices that did the same work as bars of their median speed."""
    alike: dict[str, list[tuple[str, float]]] = {}
    for of in works.values():
        key, speed = of[0]["comparable"], _middle(of, "final_result") or 0.0
        alike.setdefault(key, []).append((of[0]["device"], speed))
    charts = []
    for place, (key, found) in enumerate(x for x in alike.items() if len(x[1]) > 1):
        first = next(of[0] for of in works.values() if of[0]["comparable"] == key)
        what = f"{first['recipe']} · {first['precision']} · x{first['world']}"
        shown = [(device, f"{cells.number(speed)} {_unit(works)}") for device, speed in found]
        data = [
            {"label": f"{device}\n{text}", "colour": "accent", "from": 0.0, "to": speed}
            for (device, text), (_, speed) in zip(shown, found, strict=True)
        ]
        drawn = vega.spec(
            "bars", height=34 * len(data), title=_unit(works), end=found[0][1], kinds=["accent"],
            colours=["var(--accent)"], order=[bar["label"] for bar in data],
        )  # fmt: skip
        behind = table((t("site.device"), t("site.speed")), shown)
        title = t("site.same_work", what=what)
        charts.append(Chart(f"devices-{place}", title, title, drawn, {"bars": data}, behind))
    if charts:
        yield Section(t("site.devices"), "devices", tuple(charts))


def _history(works: dict[str, Run], links: Links) -> Section:
    """Return the speed of each work over time, with change points and the commit of each point."""
    most = sorted(works, key=lambda name: -len(works[name]))[: intervals.MOST_SERIES]
    series, changes = dict[str, list[tuple[str, float]]](), {}
    stepped, points = list[list[Phrase]](), list[tuple[str, list[Phrase]]]()
    for name in sorted(most):
        of = sorted(works[name], key=lambda one: one["started_utc"])[-_MOST:]
        series[name] = [(one["started_utc"], one["final_result"]) for one in of]
        changes[name] = change_points([at for at, _ in series[name]], [x for _, x in series[name]])
        commits = [(one["suite_commit"] or "/")[:10] for one in of]
        for change in changes[name]:
            share = f"{change.after / change.before - 1:+.1%}"
            stepped.append([str(change.time)[:10], name, share, commits[change.index]])
        for one, commit in zip(of, commits, strict=True):
            when = Link(one["started_utc"][:16].replace("T", " "), links.run(one["run_id"]))
            shown: list[Phrase] = [when, name, cells.number(one["final_result"]), commit]
            points.append((one["started_utc"], shown))
    chart = intervals.history(series, changes, t("site.speed_unit", unit=_unit(works)))
    heads = [t(f"site.{name}", unit=_unit(works)) for name in ("started_utc", "series")]
    blocks: list[Block] = [chart]
    if stepped:
        blocks.append(table([*heads, t("site.changes"), t("site.commit")], stepped))
    rows = (row for _, row in sorted(points, key=lambda point: point[0], reverse=True))
    speed = t("site.speed_unit", unit=_unit(works))
    blocks.append(table([*heads, speed, t("site.commit")], rows, short=True))
    return Section(t("site.over_time"), "over-time", tuple(blocks))
