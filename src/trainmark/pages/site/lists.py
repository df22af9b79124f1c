"""Pages about many runs: the list, and a page a case.

A run is all its launches: one row, with the mean over those that passed and their range.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trainmark.judge.comparison.history import change_points
from trainmark.pages import cells
from trainmark.pages.charts import vega
from trainmark.pages.document import Bar, Bars, Block, Chart, Paragraph, Section, table
from trainmark.pages.phrases import TONES, status_tone
from trainmark.pages.rendering import rendered
from trainmark.pages.site.views import MOST_COMPARED, page, with_rows
from trainmark.pages.texts import Link, Phrase, t
from trainmark.record.figures import FIGURES
from trainmark.record.stats import over_launches

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainmark.pages.site.links import Links

    Run = list[dict[str, Any]]  # what the index has of its launches, in their order

ROWS = 2_000  # of a page of the list, which the site's script filters; of a line over time
_SPEEDS = ("final_result", "token/p/s", "p_train", "p_core", "p_whole")
_FILTERS = ("case", "device", "precision", "badge")
_COLUMNS = ("started_utc", "case", "device", "world", "precision", "speed", "MFU", "quality")
_NUMBERS = ("world", "speed", "MFU", "quality")
_LINES = [f"var(--{x})" for x in ("accent", "wait", "work", "eval", "bad", "setup", "warn")]
KEYS = (
    "line", "bytes", "mtime_ns", "started_utc", "case", "recipe", "device", "configuration",
    "world", "precision", "status", "trust", "verification", "suite_commit", "work", "comparable",
    "final_result_unit", "quality_value", "quality_metric", "quality_reached", "e2e_time",
    "power", "MFU", *_SPEEDS,
)  # fmt: skip


def _mean(run: Run, key: str) -> float | None:
    values = [x[key] for x in run if x["status"] in ("passed", None) and x[key] is not None]
    return over_launches(values).mean if values else None


def _when(one: dict[str, Any]) -> str:
    return (one["started_utc"] or cells.NOTHING)[:16].replace("T", " ")


def _badge(run: Run) -> tuple[str, str]:
    """Return what became of a run, as a word and its tone."""
    first = next((one for one in run if one["status"] != "passed"), run[0])
    if first["kind"] == "row":
        return "imported", "muted"
    if first["status"] != "passed":
        return first["status"], status_tone(first["status"])
    doubtful = any(one["trust"] == "do_not_quote" for one in run)
    return ("doubtful", "warn") if doubtful else ("passed", "good")


def _badge_text(word: str) -> Phrase:
    return t(f"site.{word}" if word in ("imported", "doubtful") else f"status.{word}")


def _row(run: Run, links: Links) -> dict[str, Any]:
    """Return what a row of the list shows: each cell's text, and the value that it sorts by."""
    one, (word, tone) = run[0], _badge(run)
    imported = one["kind"] == "row"
    key = next((key for key in _SPEEDS if _mean(run, key)), _SPEEDS[0])
    speed, mfu, quality = (_mean(run, x) for x in (key, "MFU", "quality_value"))
    unit = one["final_result_unit"] if key == _SPEEDS[0] else FIGURES[key].unit
    values = [x[key] for x in run if x["status"] == "passed" and x[key] is not None]
    many: Phrase = ""
    if len(values) > 1:
        low, high = cells.number(min(values)), cells.number(max(values))
        many = t("site.of_launches", low=low, high=high, n=len(values))
    ident = f"{one['path'].rpartition('/')[2]}:{one['line']}" if imported else one["run_id"]
    texts = {
        "started_utc": _when(one), "device": one["device"] or one["configuration"],
        "speed": f"{cells.number(speed)} {unit}" if speed else None,
        "MFU": cells.percent(mfu),
        "quality": f"{cells.quality(quality)} {one['quality_metric'] or ''}" if quality else None,
    }  # fmt: skip
    sorted_by = one | {"speed": speed, "MFU": mfu, "quality": quality}
    return {
        "cells": {x: (texts.get(x, one.get(x)) or cells.NOTHING, sorted_by[x]) for x in _COLUMNS},
        "word": word, "badge": _badge_text(word), "tone": tone, "many": many, "id": ident,
        "unverified": any(x["verification"] == "unverified" for x in run),
        "short": ident if imported else ident.rpartition("-")[2],
        "address": None if imported else links.run(one["run_id"]),
        "case_address": None if imported else links.case(one["case"]),
    }  # fmt: skip


def list_page(runs: Sequence[Run], number: int, links: Links) -> str:
    """Return a page of the list, the newest runs first."""
    first = (number - 1) * ROWS
    part = runs[first : first + ROWS]
    values = {key: {run[0][key] for run in part} - {None} for key in _FILTERS[:-1]}
    choices = {key: [(x, x) for x in sorted(of)] for key, of in values.items()}
    words = {_badge(run)[0] for run in part}
    choices["badge"] = [(word, _badge_text(word)) for word in sorted(words)]
    span = {"first": first + 1, "last": first + len(part), "total": cells.count(len(runs))}
    return rendered(
        "site/list.html.j2", links.lang, links=links, rows=[_row(run, links) for run in part],
        choices=choices, columns=_COLUMNS, numbers=_NUMBERS, counted=t("site.counted", **span),
        cases=sorted({run[0]["case"] for run in runs if run[0]["kind"] == "record"}),
        page_number=number, pages=-(-len(runs) // ROWS), most=MOST_COMPARED, charts=False,
        live=True, ident="",
    )  # fmt: skip


def case_page(runs: Sequence[Run], case: str, links: Links) -> str:
    """Return the page of a case: its speed on each machine, machines as bars, speed over time.

    Where no run may be quoted, it is about all that passed, and says so.
    """
    launches = [x for run in runs for x in run if x["case"] == case and x["kind"] == "record"]
    passed = [x for x in launches if x["status"] == "passed" and x["final_result"]]
    good = [x for x in passed if x["trust"] != "do_not_quote"]
    counts = {"good": cells.count(len(good)), "total": cells.count(len(launches))}
    blocks: list[Block] = [Paragraph(t("site.best_of", **counts), "muted")]
    if not good:
        none = t("site.none_quotable") if passed else t("site.none_good")
        blocks.append(Paragraph(none, "warn"))
    sections = [Section(t("site.best"), "best", tuple(blocks))]
    if shown := good or passed:
        works, unit = _works(shown), shown[0]["final_result_unit"] or ""
        blocks.append(_speeds(works, unit, links))
        sections = [Section(t("site.best"), "best", tuple(blocks))]
        if bars := _bars(works, unit):
            sections.append(Section(t("site.devices"), "devices", tuple(bars)))
        history = _history(works, t("site.speed_unit", unit=unit), links)
        sections.append(Section(t("site.over_time"), "over-time", (history,)))
    actions = [Link(t("site.references"), links.references(case))] if case in with_rows() else []
    return page(links, case, sections, actions=actions)


def _works(launches: Run) -> dict[str, Run]:
    """Return the launches of each work on each device, the fastest first, under a name each."""
    found: dict[str, Run] = {}
    for one in launches:
        found.setdefault(one["work"], []).append(one)
    named: dict[str, Run] = {}
    for work, of in sorted(found.items(), key=lambda item: -(_mean(item[1], _SPEEDS[0]) or 0)):
        name = f"{of[0]['device']} · {_what(of[0])}"
        named[f"{name} · {work[:6]}" if name in named else name] = of
    return named


def _what(one: dict[str, Any]) -> str:
    return f"{one['recipe']} · {one['precision']} · x{one['world']}"


def _speeds(works: dict[str, Run], unit: str, links: Links) -> Block:
    """Return the mean speed of each work on each device, with its interval."""
    rows: list[list[Phrase]] = []
    for of in works.values():
        first, over = of[0], over_launches([one["final_result"] for one in of])
        ends: Phrase = f"{cells.number(over.low)} – {cells.number(over.high)}"
        ends = t("site.range", ends=ends) if over.is_range else ends
        worst = next(x for x in reversed(TONES) if x in {one["trust"] for one in of})
        rows.append([
            first["device"], first["world"], first["precision"], first["recipe"], len(of),
            cells.number(over.mean), ends if len(of) > 1 else cells.NOTHING,
            cells.percent(_mean(of, "MFU")), cells.quality(_mean(of, "quality_value")),
            t(f"trust.{worst}"), Link(_when(first), links.run(first["run_id"])),
        ])  # fmt: skip
    names = ("device", "world", "precision", "recipe", "launches", "speed_unit", "interval", "MFU",
             "quality", "trust", "newest")  # fmt: skip
    return table((t(f"site.{name}", unit=unit) for name in names), rows)


def _bars(works: dict[str, Run], unit: str) -> list[Block]:
    """Return for each work that several devices did their mean speeds as bars, with the power."""
    alike: dict[str, list[Run]] = {}
    for of in works.values():
        alike.setdefault(of[0]["comparable"], []).append(of)
    blocks: list[Block] = []
    for sides in (x for x in alike.values() if len(x) > 1):
        end, items = _mean(sides[0], _SPEEDS[0]) or 1.0, []
        for of in sides:
            speed, power = _mean(of, _SPEEDS[0]) or 0.0, _mean(of, "power")
            shown = f"{cells.number(speed)} {unit}"
            if power:
                shown += f" · {power:,.0f} W · {cells.number(speed / power)} {unit}/W"
            items.append(Bar(of[0]["device"], 0.0, speed / end, "other", shown))
        blocks.append(Bars(t("site.same_work", what=_what(sides[0][0])), tuple(items)))
    return blocks


def machines_page(runs: Sequence[Run], links: Links) -> str:
    """Return all cases on one page: a row a machine, a column a case.

    A cell has the time to the target, where it was reached, and the speed, of the fastest work.
    """
    passed = [x for run in runs for x in run if x["status"] == "passed" and x["final_result"]]
    works = _works([x for x in passed if x["trust"] != "do_not_quote"] or passed)
    names = sorted({of[0]["case"] for of in works.values()})
    found: dict[tuple[str, str], dict[str, Phrase]] = {}
    for of in works.values():  # the fastest first
        one, time = of[0], _mean([x for x in of if x["quality_reached"]], "e2e_time")
        speed = f"{cells.number(_mean(of, _SPEEDS[0]))} {one['final_result_unit']}"
        shown = speed if time is None else f"{cells.duration(time)} · {speed}"
        row = found.setdefault((one["device"], one["world"]), {})
        row.setdefault(one["case"], Link(shown, links.run(one["run_id"])))
    rows = ((*machine, *(row.get(name) for name in names)) for machine, row in found.items())
    heads = (t("site.device"), t("site.world"), *(Link(x, links.case(x)) for x in names))
    section = Section(t("site.machines_lead"), "machines", (table(heads, rows),))
    return page(links, t("site.machines"), [section])


def _history(works: dict[str, Run], figure: Phrase, links: Links) -> Chart:
    """Return the speed of each work over time, with its change points; the table has commits."""
    most = sorted(works, key=lambda name: -len(works[name]))[: len(_LINES)]
    points, steps, rows = list[dict[str, Any]](), list[dict[str, str]](), list[list[Phrase]]()
    for name in most:
        of = sorted(works[name], key=lambda one: one["started_utc"])[-ROWS:]
        times, values = [x["started_utc"] for x in of], [x["final_result"] for x in of]
        points += [{"series": name, "started": at, "value": value}
                   for at, value in zip(times, values, strict=True)]  # fmt: skip
        changes = {x.index: x for x in change_points(times, values)}
        steps += [{"series": name, "started": times[at]} for at in changes]
        for at, one in enumerate(of):
            step = f"{changes[at].after / changes[at].before - 1:+.1%}" if at in changes else None
            when = Link(_when(one), links.run(one["run_id"]))
            commit = (one["suite_commit"] or cells.NOTHING)[:10]
            rows.append([when, name, cells.number(one["final_result"]), step, commit])
    drawn = vega.spec("history", figure=figure, series=most, colours=_LINES, steps=steps)
    heads = (t("site.started_utc"), t("site.series"), figure, t("site.changes"), t("site.commit"))
    return Chart(
        "history", t("site.history", figure=figure),
        t("site.history_seen", runs=len(points), series=len(most), steps=len(steps)),
        drawn, {"history": points, "changes": steps}, table(heads, rows),
    )  # fmt: skip
