"""Pages about many runs: the list, a page a case, and one over all machines.

A run is all its launches: one row, with the mean over those that passed and its interval. A speed
is the figure that a run's page has first: tokens of a device where a case counts tokens.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from trainmark.judge.comparison.history import change_points
from trainmark.pages import cells, chart_specs
from trainmark.pages.document import Bar, Bars, Block, Chart, Paragraph, Section, build_table
from trainmark.pages.rendering import render_template
from trainmark.pages.site.views import MAX_COMPARED, build_page
from trainmark.pages.texts import (
    TONES,
    Link,
    Phrase,
    count_in_words,
    format_interval,
    get_unit,
    join,
    phrase,
    translate_headings,
)
from trainmark.plan.recipes import format_setting
from trainmark.plan.witness import WITNESSED
from trainmark.recipe import SHORT_NAMES
from trainmark.record.figures import FIGURES
from trainmark.record.stats import INTERVAL_MIN_LAUNCHES, summarize_launches
from trainmark.record.work import find_differing_settings
from trainmark.results.store.columns import IMPORTED

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from trainmark.pages.document import Table
    from trainmark.pages.site.views import Links

    Launch = dict[str, Any]  # what the index has of it
    Run = list[Launch]  # its launches, in their order

ROWS = 2_000  # of the list, which the site's script filters; of a line over time
_COLUMNS = (
    "started_utc", "case", "recipe", "device", "world", "precision", "settings", "speed", "MFU",
    "quality",
)  # fmt: skip
_OF_CASE = (
    "device", "precision", "world", "settings", "speed", "interval", "MFU", "quality", "recipe",
    "started_utc", "trust", "run_id",
)  # fmt: skip
_OPTIONAL = ("settings", "MFU", "quality")  # columns that a list without a value leaves out
# What the filter of the list compares besides its columns, in the units of the record.
_FILTERED = (
    "p_whole", "p_train", "p_core", "token/p/s", "e2e_time", "train_time", "MFU", "MAMFU",
    "quality_value", "mem", "power",
)  # fmt: skip
_FILTERED_TEXTS = ("case", "recipe", "device", "precision", "trust", "rules", "started_utc")
_MACHINE = ("case", "device", "world")
_OF_WORK = ("recipe", "precision", "world")  # named where they differ
_TOLD = ("passed", IMPORTED)  # status of what has figures
_NUMBERS = ("world", "speed", "MFU", "quality")
# A run id of ours: its time, its case, six letters, and the number of a repeat.
_RUN_ID = re.compile(r"\d{8}T\d{6}Z-.+-([0-9a-z]{6})(-r\d+)?")
_MAX_NUMBER = 10  # characters of a setting
_MOST_LINES = 7  # of a history
KEYS = (
    "bytes", "mtime_ns", "started_utc", "case", "recipe", "device", "world", "precision",
    "status", "trust", "trust_reasons", "verification", "suite_commit", "work", "comparable",
    "final_result_unit", "quality_value", "quality_metric", "quality_reached", "e2e_time",
    "power", "MFU", "MAMFU", "p_whole", "p_train", "p_core", "token/p/s", "train_time", "mem",
    "rules", "settings",
)  # fmt: skip


def _compute_mean(run: Run, key: str) -> float | None:
    values = [x[key] for x in run if x["status"] in _TOLD and x[key] is not None]
    return summarize_launches(values).mean if values else None


def _name_speed_figure(launch: Launch) -> str:
    """Return the figure that is a launch's speed."""
    return "token/p/s" if launch["final_result_unit"] == "tokens/s" else "p_train"


def _get_unit(launch: Launch) -> Phrase:
    return get_unit(_name_speed_figure(launch))


def _get_speed(run: Run) -> float | None:
    return _compute_mean(run, _name_speed_figure(run[0]))


def _count_digits(speed: float) -> str:
    return cells.format_rounded(speed, 4)


def _format_date(launch: Launch) -> str:
    return str(launch["started_utc"])[:16].replace("T", " ")


def _grade(run: Run) -> str:
    """Return the worst trust among launches; that each is one alone counts where they are few."""
    alone = "trust_few_launches" if len(run) >= INTERVAL_MIN_LAUNCHES else None
    grades = {"usable" if alone and x["trust_reasons"] == alone else x["trust"] for x in run}
    return next(x for x in reversed(TONES) if x in grades)


def _choose_badge(run: Run) -> tuple[str, Phrase, str]:
    """Return what became of a run: a word, a text, a tone."""
    first = next((launch for launch in run if launch["status"] != "passed"), run[0])
    if first["status"] != "passed":
        tone = "plain" if first["status"] == IMPORTED else "bad"
        return first["status"], phrase(f"status.{first['status']}"), tone
    grade = _grade(run)
    word = "passed" if grade == "usable" else grade
    return word, phrase(f"badge.{grade}"), TONES[grade]


def _list_differing_settings(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Return of each run the settings in which runs of its case and recipe differ.

    The precision has a column of its own.
    """
    recipes = [json.loads(run[0]["settings"] or "{}") for run in runs]
    kinds: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for run, recipe in zip(runs, recipes, strict=True):
        kinds.setdefault((run[0]["case"], run[0]["recipe"]), []).append(recipe)
    names = {
        kind: [
            name
            for name in find_differing_settings(("", recipe) for recipe in of_kind)
            if name != "precision"
        ]
        for kind, of_kind in kinds.items()
    }
    return [
        {name: recipe[name] for name in names[run[0]["case"], run[0]["recipe"]] if name in recipe}
        for run, recipe in zip(runs, recipes, strict=True)
    ]


def _format_settings(settings: Mapping[str, Any]) -> str:
    """Return settings by their short names; a long number is rounded."""
    texts = {name: format_setting(value) for name, value in settings.items()}
    for name, value in settings.items():
        if isinstance(value, float) and len(texts[name]) > _MAX_NUMBER:
            texts[name] = f"{value:.4g}"
    return ", ".join(f"{SHORT_NAMES.get(name, name)}={text}" for name, text in texts.items())


def _list_columns(names: Sequence[str], rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return the columns of a list without those in which no row has a value."""
    return [
        name
        for name in names
        if name not in _OPTIONAL or any(row["cells"][name][0] != cells.NOTHING for row in rows)
    ]


def _build_row(run: Run, links: Links, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a row of the list shows: each cell's text, and the value that it sorts by.

    Args:
        settings: those in which it differs from other rows.
    """
    first_launch, (word, badge, tone) = run[0], _choose_badge(run)
    speed, mfu, quality = (
        _get_speed(run),
        _compute_mean(run, "MFU"),
        _compute_mean(run, "quality_value"),
    )
    key = _name_speed_figure(first_launch)
    values = [x[key] for x in run if x["status"] == "passed" and x[key] is not None]
    many: Phrase = ""
    if len(values) > 1:
        many = join(
            (
                format_interval(summarize_launches(values), _count_digits),
                count_in_words("launches", len(values)),
            )
        )
    texts: dict[str, Phrase] = {
        "started_utc": _format_date(first_launch) if first_launch["started_utc"] else None,
        "speed": (_count_digits(speed), " ", _get_unit(first_launch)) if speed else None,
        "MFU": None if mfu is None else f"{mfu:.1f}%",
        "quality": f"{cells.format_quality(quality)} {first_launch['quality_metric'] or ''}"
        if quality
        else None,
        "settings": _format_settings(settings) or None,
    }
    if first_launch["rules"] == "open" and first_launch["recipe"] != WITNESSED:
        texts["recipe"] = join((first_launch["recipe"], phrase("division.open")))
    sorted_by = first_launch | {"speed": speed, "MFU": mfu, "quality": quality, "settings": None}
    run_id = _RUN_ID.fullmatch(first_launch["run_id"])
    return {
        "cells": {
            x: (texts.get(x, first_launch.get(x)) or cells.NOTHING, sorted_by[x]) for x in _COLUMNS
        },
        "word": word,
        "badge": badge,
        "tone": tone,
        "many": many,
        "id": first_launch["run_id"],
        "unverified": any(x["verification"] == "unverified" for x in run),
        "short": run_id[1] if run_id else first_launch["run_id"],
        "values": _collect_filter_values(run, word, settings),
        "address": "" if word == IMPORTED else links.get_run_address(first_launch["run_id"]),
        "case_address": links.get_case_address(first_launch["case"]),
    }


def _collect_filter_values(run: Run, word: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the list's filter compares of a run, by key; what is not known is left out."""
    first_launch = run[0]
    values = {name: _compute_mean(run, name) for name in _FILTERED} | {
        "world": first_launch["world"]
    }
    values |= {name: first_launch[name] for name in _FILTERED_TEXTS} | {"status": word}
    for name, value in settings.items():
        values[name] = values[SHORT_NAMES.get(name, name)] = value
    return {name: value for name, value in values.items() if value is not None}


def build_list_page(runs: Sequence[Run], links: Links) -> str:
    """Return the list of the newest runs."""
    part = runs[:ROWS]
    total = cells.count(len(runs))
    counted = phrase("site.counted", shown=cells.count(len(part)), total=total)
    rows = [
        _build_row(run, links, settings)
        for run, settings in zip(part, _list_differing_settings(part), strict=True)
    ]
    return render_template(
        "site/list.html.j2",
        links.lang,
        links=links,
        rows=rows,
        columns=_list_columns(_COLUMNS, rows),
        numbers=_NUMBERS,
        counted=counted,
        total=total,
        units={name: FIGURES[name].unit for name in _FILTERED if name in FIGURES},
        cases=sorted({run[0]["case"] for run in runs}),
        most=MAX_COMPARED,
        charts=False,
        live=True,
        ident="",
    )


def build_case_page(runs: Sequence[Run], case: str, links: Links) -> str:
    """Return the page of a case: its speed on each machine, machines as bars, speed over time.

    Where no run of a machine may be quoted, it is about all of it that passed.
    """
    launches = [x for run in runs for x in run if x["case"] == case]
    works = _group_by_work(_select_launches(launches))
    imported = [[launch] for launch in launches if launch["status"] == IMPORTED]
    heading = phrase(f"status.{IMPORTED}")
    others = [Section(heading, IMPORTED, (_build_grid(imported, links),))] if imported else []
    if not works:
        return build_page(links, case, others, lead=[Paragraph(phrase("site.none_good"), "warn")])
    sections = [Section(phrase("site.best"), "best", (_build_grid(works.values(), links),))]
    if bars := _build_bars(works):
        sections.append(Section(phrase("site.devices"), "devices", bars))
    history = _build_history(
        works, phrase("site.speed_unit", unit=_get_unit(next(iter(works.values()))[0])), links
    )
    sections.append(Section(phrase("site.over_time"), "over-time", (history,)))
    return build_page(links, case, [*sections, *others])


def _build_grid(runs: Iterable[Run], links: Links) -> Table:
    """Return the rows of the list as a table of a case's page, which begins with the machine."""
    shown = list(runs)
    found = [
        _build_row(run, links, settings)
        for run, settings in zip(shown, _list_differing_settings(shown), strict=True)
    ]
    columns = [
        name for name in _OF_CASE if name not in _OPTIONAL or name in _list_columns(_COLUMNS, found)
    ]
    rows: list[list[Phrase]] = []
    speed: Phrase = ""
    for run, row in zip(shown, found, strict=True):
        texts = {name: text for name, (text, _) in row["cells"].items()} | {
            "interval": row["many"],
            "trust": row["badge"],
            "run_id": row["short"],
            "speed": _count_digits(_get_speed(run) or 0.0),
        }
        if row["address"]:
            texts["device"] = Link(texts["device"], row["address"])
            texts["trust"] = phrase(f"trust.{_grade(run)}")
            texts["interval"] = row["many"] or count_in_words("launches", 1)
        rows.append([texts[name] or None for name in columns])
        speed = speed or phrase("site.speed_unit", unit=_get_unit(run[0]))
    return build_table([speed if x == "speed" else phrase(f"site.{x}") for x in columns], rows)


def _select_launches(launches: Run) -> Run:
    """Return launches that may be quoted; of a machine without one in a case, all that passed."""
    passed = [x for x in launches if x["status"] == "passed" and x[_name_speed_figure(x)]]
    good = [x for x in passed if x["trust"] != "do_not_quote"]
    machines = {tuple(x[key] for key in _MACHINE) for x in good}
    return good + [x for x in passed if tuple(x[key] for key in _MACHINE) not in machines]


def _group_by_work(launches: Run) -> dict[str, Run]:
    """Return the launches of each work on each device, the fastest first, under a name each.

    A name has of the work what is not the same for all.
    """
    works: dict[str, Run] = {}
    for launch in launches:
        works.setdefault(launch["work"], []).append(launch)
    named: dict[str, Run] = {}
    unlike = [x for x in _OF_WORK if len({of[0][x] for of in works.values()}) > 1]
    settings = dict(zip(works, _list_differing_settings(list(works.values())), strict=True))
    for work, of in sorted(works.items(), key=lambda item: -(_get_speed(item[1]) or 0)):
        differing = _format_settings(settings[work])
        name = " · ".join(
            filter(None, [of[0]["device"], *_describe_work(of[0], unlike), differing])
        )
        named[f"{name} · {work[:6]}" if name in named else name] = of
    return named


def _describe_work(launch: Launch, names: Sequence[str] = _OF_WORK) -> list[str]:
    return [f"x{launch[name]}" if name == "world" else str(launch[name]) for name in names]


def _build_bars(works: dict[str, Run]) -> tuple[Block, ...]:
    """Return for each work that several devices did their mean speeds as bars, with the power."""
    alike: dict[str, list[Run]] = {}
    for of in works.values():
        alike.setdefault(of[0]["comparable"], []).append(of)
    blocks: list[Block] = []
    for sides in (x for x in alike.values() if len(x) > 1):
        end, items = _get_speed(sides[0]) or 1.0, []
        for of in sides:
            speed, power, unit = _get_speed(of) or 0.0, _compute_mean(of, "power"), _get_unit(of[0])
            shown: tuple[Phrase, ...] = (cells.format_rate(speed), " ", unit)
            if power:
                shown += (f" · {power:,.0f} W · {cells.format_rate(speed / power)} ", unit, "/W")
            items.append(Bar(of[0]["device"], 0.0, speed / end, "other", shown))
        blocks.append(
            Bars(
                phrase("site.same_work", what=" · ".join(_describe_work(sides[0][0]))), tuple(items)
            )
        )
    return tuple(blocks)


def build_machines_page(runs: Sequence[Run], links: Links) -> str:
    """Return all cases on one page: a row a machine, a column a case.

    A cell has the time to the target, where it was reached, and the speed, of the fastest work.
    """
    works = _group_by_work(_select_launches([x for run in runs for x in run]))
    names = sorted({of[0]["case"] for of in works.values()})
    rows_by_machine: dict[tuple[str, str], dict[str, Phrase]] = {}
    for of in works.values():  # the fastest first
        first_launch, time = (
            of[0],
            _compute_mean([x for x in of if x["quality_reached"]], "e2e_time"),
        )
        took = "" if time is None else f"{cells.format_duration(time)} · "
        shown: Phrase = (took, _count_digits(_get_speed(of) or 0.0), " ", _get_unit(first_launch))
        if (grade := _grade(of)) != "usable":
            shown = (shown, " [", phrase(f"trust.{grade}"), "]")
        row = rows_by_machine.setdefault((first_launch["device"], first_launch["world"]), {})
        row.setdefault(
            first_launch["case"], Link(shown, links.get_run_address(first_launch["run_id"]))
        )
    rows = (
        (*machine, *(row.get(name) for name in names)) for machine, row in rows_by_machine.items()
    )
    columns = (
        *translate_headings("site.device", "site.world"),
        *(Link(x, links.get_case_address(x)) for x in names),
    )
    section = Section(phrase("site.machines_lead"), "machines", (build_table(columns, rows),))
    return build_page(links, phrase("site.machines"), [section])


def _build_history(works: dict[str, Run], figure: Phrase, links: Links) -> Chart:
    """Return the speed of each work over time, with its change points; the table has commits."""
    most_frequent = sorted(works, key=lambda name: -len(works[name]))[:_MOST_LINES]
    points: list[Launch] = []
    steps: list[Launch] = []
    rows: list[list[Phrase]] = []
    for name in most_frequent:
        of = sorted(works[name], key=lambda launch: launch["started_utc"])[-ROWS:]
        times, values = [x["started_utc"] for x in of], [x[_name_speed_figure(x)] for x in of]
        changes = {x.index: x for x in change_points(times, values)}
        steps += [{"series": name, "started": times[index]} for index in changes]
        for index, (launch, value) in enumerate(zip(of, values, strict=True)):
            points.append({"series": name, "started": times[index], "value": value})
            step = (
                f"{changes[index].after / changes[index].before - 1:+.1%}"
                if index in changes
                else None
            )
            when = Link(_format_date(launch), links.get_run_address(launch["run_id"]))
            commit = (launch["suite_commit"] or cells.NOTHING)[:10]
            rows.append([when, name, cells.format_rate(value), step, commit])
    drawn = chart_specs.draw_history(has_steps=bool(steps))
    first, *rest = translate_headings(
        "site.started_utc", "site.series", "site.changes", "site.commit"
    )
    columns = (first, rest[0], figure, *rest[1:])
    return Chart(
        "history",
        phrase("site.history", figure=figure),
        phrase(
            "site.history_seen", launches=len(points), series=len(most_frequent), steps=len(steps)
        ),
        drawn,
        {"history": points, "changes": steps},
        build_table(columns, rows),
    )
