"""Pages about many runs: the list, a page for each case, and one for all machines.

A run with all its launches is one row, with the mean over the launches that passed and its
interval. Its speed is the first figure of the run's page: tokens per device and second if the case
counts tokens, else samples per second.
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
from trainmark.record.trust import find_worst_verification
from trainmark.record.work import find_differing_settings
from trainmark.results.store.columns import IMPORTED

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from trainmark.pages.document import Table
    from trainmark.pages.site.views import Links

    Launch = dict[str, Any]  # a launch as a row of the index, by column
    Run = list[Launch]  # the launches of a run, in their order; or those that did the same work

MAX_ROWS = 2_000  # of the list, which the site's script filters; of a line over time
_COLUMNS = (
    "started_utc",
    "case",
    "recipe",
    "device",
    "world",
    "precision",
    "settings",
    "speed",
    "MFU",
    "quality",
)
# Columns of the tables on a case's page.
_CASE_COLUMNS = (
    "device",
    "precision",
    "world",
    "settings",
    "speed",
    "interval",
    "MFU",
    "quality",
    "recipe",
    "started_utc",
    "trust",
    "run_id",
)
_OPTIONAL = ("settings", "MFU", "quality")  # columns that a list without a value leaves out
# Figures that the filter of the list can name, in the units of the record.
_FILTERED_FIGURES = (
    "p_whole",
    "p_train",
    "p_core",
    "token/p/s",
    "e2e_time",
    "train_time",
    "MFU",
    "MAMFU",
    "quality_value",
    "mem",
    "power",
)
_FILTERED_TEXTS = ("case", "recipe", "device", "precision", "trust", "rules", "started_utc")
_MACHINE_KEYS = ("case", "device", "world")  # that are the same in all runs of a case on a machine
_WORK_KEYS = ("recipe", "precision", "world")  # by which works are named if they differ in them
_STATUSES_WITH_FIGURES = ("passed", IMPORTED)
_NUMBERS = ("world", "speed", "MFU", "quality")  # columns that are aligned as numbers
# A run id of ours: its time, its case, six letters, and the number of a repeat.
_RUN_ID = re.compile(r"\d{8}T\d{6}Z-.+-([0-9a-z]{6})(-r\d+)?")
_MAX_NUMBER_LENGTH = 10  # characters of a number among settings; longer ones are rounded
_MAX_LINES = 7  # of a history
# Columns of the index that these pages read.
PAGE_COLUMNS = (
    "bytes", "mtime_ns", "started_utc", "case", "recipe", "device", "world", "precision",
    "status", "trust", "trust_reasons", "verification", "suite_commit", "work", "comparable",
    "final_result_unit", "quality_value", "quality_metric", "quality_reached", "e2e_time",
    "power", "MFU", "MAMFU", "p_whole", "p_train", "p_core", "token/p/s", "train_time", "mem",
    "rules", "settings",
)  # fmt: skip


def _compute_mean(run: Run, key: str) -> float | None:
    """Return the geometric mean of a figure over the launches that have it; None if none has.

    Only launches that passed, and imported rows, count.

    Args:
        run: launches of one run or of one work.
        key: column of the index that has the figure.
    """
    values = [x[key] for x in run if x["status"] in _STATUSES_WITH_FIGURES and x[key] is not None]
    return summarize_launches(values).mean if values else None


def _name_speed_figure(launch: Launch) -> str:
    """Return the name of the figure that is a launch's speed; per device if it is in tokens."""
    return "token/p/s" if launch["final_result_unit"] == "tokens/s" else "p_train"


def _get_unit(launch: Launch) -> Phrase:
    return get_unit(_name_speed_figure(launch))


def _get_speed(run: Run) -> float | None:
    return _compute_mean(run, _name_speed_figure(run[0]))


def _get_known_speed(launches: list[Launch]) -> float:
    """Return the mean speed of launches of which at least one has a speed."""
    speed = _get_speed(launches)
    assert speed is not None
    return speed


def _format_speed(speed: float) -> str:
    return cells.format_rounded(speed, 4)


def _format_date(launch: Launch) -> str:
    """Return when a launch started, to the minute: ``2026-11-22 08:15``."""
    return str(launch["started_utc"])[:16].replace("T", " ")


def _find_worst_grade(run: Run) -> str:
    """Return the worst grade of trust among the launches of a run.

    The grades are ``usable``, ``noisy`` and ``do_not_quote``. The index of launches has a grade of
    each launch by itself. A single launch is too few for an interval, which is one of the reasons
    to doubt it. If the run has enough launches, this reason does not count: a launch with no other
    reason is usable.

    Args:
        run: launches of one run or of one work.
    """
    has_enough_launches = len(run) >= INTERVAL_MIN_LAUNCHES
    grades = set()
    for launch in run:
        # The column has the codes of all reasons to doubt the launch.
        has_no_other_reason = launch["trust_reasons"] == "trust_few_launches"
        grades.add("usable" if has_enough_launches and has_no_other_reason else launch["trust"])
    worst_first = reversed(TONES)  # the keys of `TONES` are the grades, the best first
    return next(grade for grade in worst_first if grade in grades)


def _choose_badge(run: Run) -> tuple[str, Phrase, str]:
    """Return what became of a run: a word for the filter, the text of the badge, and its tone.

    The tone is a name such as ``bad`` or ``warn``, by which the page colours the badge. If launches
    did not pass, the word is the status of the first of them. If all passed, it is the worst grade
    of trust, or ``passed`` if this is ``usable``. An imported row was not measured here: its status
    is ``imported``, which is neither good nor bad.
    """
    for launch in run:
        status = launch["status"]
        if status != "passed":
            return status, phrase(f"status.{status}"), "plain" if status == IMPORTED else "bad"
    grade = _find_worst_grade(run)
    word = "passed" if grade == "usable" else grade
    return word, phrase(f"badge.{grade}"), TONES[grade]


def _list_differing_settings(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Return for each run the settings in which the runs of its case and recipe differ.

    A setting is a field of the recipe, with its value. The precision is left out, because it has a
    column of its own.

    Args:
        runs: lists of launches; all launches of a list have the same case, recipe and settings.
    """
    # The column ``settings`` has all fields of a run's recipe, ``recipe`` the recipe's name.
    fields_by_run = [json.loads(run[0]["settings"] or "{}") for run in runs]
    fields_by_recipe: dict[tuple[str, str], list[dict[str, Any]]] = {}  # by case and recipe
    for run, fields in zip(runs, fields_by_run, strict=True):
        fields_by_recipe.setdefault((run[0]["case"], run[0]["recipe"]), []).append(fields)
    differing_names: dict[tuple[str, str], list[str]] = {}  # by case and recipe
    for case_and_recipe, recipe_fields in fields_by_recipe.items():
        # The function compares runs of the same kind. All of these are, so one name serves.
        names = find_differing_settings(("", fields) for fields in recipe_fields)
        differing_names[case_and_recipe] = [name for name in names if name != "precision"]
    settings = []
    for run, fields in zip(runs, fields_by_run, strict=True):
        names = differing_names[run[0]["case"], run[0]["recipe"]]
        settings.append({name: fields[name] for name in names if name in fields})
    return settings


def _format_settings(settings: Mapping[str, Any]) -> str:
    """Return settings as text, ``bs=96, lr=0.0003``; a long number is rounded.

    Args:
        settings: values of recipe fields by the field's full name.
    """
    texts = {name: format_setting(value) for name, value in settings.items()}
    for name, value in settings.items():
        if isinstance(value, float) and len(texts[name]) > _MAX_NUMBER_LENGTH:
            texts[name] = f"{value:.4g}"
    return ", ".join(f"{SHORT_NAMES.get(name, name)}={text}" for name, text in texts.items())


def _list_columns(names: Sequence[str], rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return the columns of a list, without optional ones that have no value in any row.

    Args:
        names: columns among which to choose, in their order.
        rows: each has ``cells``, by column a pair: the cell's text, and the value by which the list
            sorts.
    """
    columns = []
    for name in names:
        has_value = any(text != cells.NOTHING for text, _ in (row["cells"][name] for row in rows))
        if has_value or name not in _OPTIONAL:
            columns.append(name)
    return columns


def _build_row(run: Run, links: Links, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a row of the list shows, and what the page's script sorts and filters it by.

    Args:
        run: the launches of a run or, for the page of a case, of one work. Each has its values in
            the index of launches, by column. An imported row counts as one launch.
        links: gives the addresses of other pages.
        settings: values of the recipe fields in which it differs from other rows.
    """
    # What is the same in all launches of the run is taken from the first.
    first_launch = run[0]
    word, badge, tone = _choose_badge(run)  # the tone colours the badge
    own_id = _RUN_ID.fullmatch(first_launch["run_id"])  # None: Trainmark did not make the run id
    return {
        "cells": _build_row_cells(run, settings),
        "word": word,  # what became of the run; the page filters and sorts by it
        "badge": badge,
        "tone": tone,
        "speed_interval": _describe_speed_interval(run),  # "" for a single launch
        "id": first_launch["run_id"],
        # An imported row has no verification. It counts as "verified" here, because the list says
        # something only of other values.
        "verification": find_worst_verification(x["verification"] or "verified" for x in run),
        # Of a run id that Trainmark made, its six letters; any other run id in full.
        "short_id": own_id[1] if own_id else first_launch["run_id"],
        "values": _collect_filter_values(run, word, settings),  # for the filter
        # An imported row has no page.
        "address": "" if word == IMPORTED else links.get_run_address(first_launch["run_id"]),
        "case_address": links.get_case_address(first_launch["case"]),
    }


def _build_row_cells(run: Run, settings: Mapping[str, Any]) -> dict[str, tuple[Phrase, Any]]:
    """Return by column the cells of a run's row: the text, and the value by which the list sorts.

    Args:
        run: its launches, with their values in the index of launches by column.
        settings: values of the recipe fields in which the run differs from other rows.
    """
    # What is the same in all launches of the run is taken from the first.
    first_launch = run[0]
    # A figure is the mean over all launches.
    speed = _get_speed(run)
    mfu = _compute_mean(run, "MFU")
    quality = _compute_mean(run, "quality_value")
    # Texts of the cells that do not show the value in the index as it is; None: an empty cell.
    texts: dict[str, Phrase] = {
        "started_utc": _format_date(first_launch) if first_launch["started_utc"] else None,
        "speed": (_format_speed(speed), " ", _get_unit(first_launch)) if speed else None,
        "MFU": None if mfu is None else f"{mfu:.1f}%",
        "quality": None,
        "settings": _format_settings(settings) or None,
    }
    if quality is not None:
        metric = first_launch["quality_metric"] or ""
        texts["quality"] = f"{cells.format_quality(quality)} {metric}"
    # A recipe whose changes the closed rules do not allow is marked as run by the open rules. A
    # user's own program has no recipe: its column has `WITNESSED`, to which the mark adds nothing.
    if first_launch["rules"] == "open" and first_launch["recipe"] != WITNESSED:
        texts["recipe"] = join((first_launch["recipe"], phrase("division.open")))
    # The list sorts by the first launch's value, except for these.
    sort_values = first_launch | {
        "speed": speed,
        "MFU": mfu,
        "quality": quality,
        "settings": None,  # the list cannot be sorted by them
    }
    row_cells: dict[str, tuple[Phrase, Any]] = {}
    for name in _COLUMNS:
        text = texts.get(name, first_launch.get(name)) or cells.NOTHING
        row_cells[name] = (text, sort_values[name])
    return row_cells


def _describe_speed_interval(run: Run) -> Phrase:
    """Return the interval of the speed and the number of launches; empty for a single launch.

    Launches that did not pass do not count.
    """
    key = _name_speed_figure(run[0])  # the column with the speed
    values = [x[key] for x in run if x["status"] == "passed" and x[key] is not None]
    if len(values) < 2:
        return ""
    interval = format_interval(summarize_launches(values), _format_speed)
    return join((interval, count_in_words("launches", len(values))))


def _collect_filter_values(run: Run, word: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a run that a reader's filter can name, by key, without unknown ones.

    Args:
        run: its launches.
        word: what became of the run: ``passed``, the status of a launch that did not pass, or
            ``noisy`` or ``do_not_quote`` if it passed with this grade of trust.
        settings: values of the recipe fields in which the run differs from others of the list. A
            filter may also name them by their short names, such as ``bs``.
    """
    first_launch = run[0]
    values: dict[str, Any] = {name: _compute_mean(run, name) for name in _FILTERED_FIGURES}
    values["world"] = first_launch["world"]  # the number of ranks
    for name in _FILTERED_TEXTS:  # columns with words; those of the first launch count
        values[name] = first_launch[name]
    values["status"] = word
    for name, value in settings.items():
        values[name] = value
        values[SHORT_NAMES.get(name, name)] = value
    return {name: value for name, value in values.items() if value is not None}


def build_list_page(runs: Sequence[Run], links: Links) -> str:
    """Return the page with the list of the newest runs.

    Args:
        runs: the launches of each run, of all cases; the newest run first.
        links: addresses of other pages, in the language of this one.
    """
    newest_runs = runs[:MAX_ROWS]
    total = cells.format_integer(len(runs))
    counted = phrase("site.counted", shown=cells.format_integer(len(newest_runs)), total=total)
    rows = [
        _build_row(run, links, settings)
        for run, settings in zip(newest_runs, _list_differing_settings(newest_runs), strict=True)
    ]
    return render_template(
        "site/list.html.j2",
        links.lang,
        links=links,
        rows=rows,
        columns=_list_columns(_COLUMNS, rows),
        numbers=_NUMBERS,  # the columns that are aligned as numbers
        counted=counted,
        total=total,
        # Units of the figures that a filter can name. A few of them are not in `FIGURES`.
        units={name: FIGURES[name].unit for name in _FILTERED_FIGURES if name in FIGURES},
        cases=sorted({run[0]["case"] for run in runs}),
        most=MAX_COMPARED,  # the number of runs that a reader can choose for a comparison
        charts=False,  # the page does not load the script that draws charts
    )


def build_case_page(runs: Sequence[Run], case: str, links: Links) -> str:
    """Return the page of a case: a table of speeds, bars that compare devices, speed over time.

    All three show the launches whose figures may be quoted. If there are none for a device with
    some number of ranks, they show all launches with this device and number that passed. Imported
    rows have a table of their own.

    Args:
        runs: the launches of each run; those of other cases are left out.
        case: its name.
        links: addresses of other pages, in the language of this one.
    """
    launches = [x for run in runs for x in run if x["case"] == case]
    works = _group_by_work(_select_launches(launches))  # launches by the name of their work
    # Rows that were imported from other projects, each a run of its own.
    imported = [[launch] for launch in launches if launch["status"] == IMPORTED]
    imported_sections = []
    if imported:
        heading = phrase(f"status.{IMPORTED}")
        imported_table = _build_case_table(imported, links)
        imported_sections.append(Section(heading, IMPORTED, (imported_table,)))
    if not works:
        return build_page(
            links, case, imported_sections, lead=[Paragraph(phrase("site.none_good"), "warn")]
        )
    sections = [Section(phrase("site.best"), "best", (_build_case_table(works.values(), links),))]
    bars = _build_bars(works)
    if bars:
        sections.append(Section(phrase("site.devices"), "devices", bars))
    any_launch = next(iter(works.values()))[0]  # the unit is the same for all of a case
    speed_heading = phrase("site.speed_unit", unit=_get_unit(any_launch))
    history = _build_history(works, speed_heading, links)
    sections.append(Section(phrase("site.over_time"), "over-time", (history,)))
    return build_page(links, case, [*sections, *imported_sections])


def _build_case_table(runs: Iterable[Run], links: Links) -> Table:
    """Return a table for the page of a case, a row for each run, the machine in the first column.

    Its cells are those of the page with the list of runs, and a few more.

    Args:
        runs: all of one case. Each is a list of launches that did the same work, or a list of a
            single imported row.
        links: addresses of other pages.
    """
    listed_runs = list(runs)
    # Of each run what its row of the list shows: a text and a sort value by column in ``cells``.
    list_rows = [
        _build_row(run, links, settings)
        for run, settings in zip(listed_runs, _list_differing_settings(listed_runs), strict=True)
    ]
    # Only the optional columns are looked up in the rows of the list, which lack some columns of
    # this table, such as the interval.
    optional_columns = _list_columns(_OPTIONAL, list_rows)
    columns = [name for name in _CASE_COLUMNS if name not in _OPTIONAL or name in optional_columns]
    rows: list[list[Phrase]] = []
    for run, list_row in zip(listed_runs, list_rows, strict=True):
        texts = {name: text for name, (text, _) in list_row["cells"].items()}
        texts["run_id"] = list_row["short_id"]
        speed = _get_speed(run)  # None: an imported row without this figure
        # Without its unit, which is in the heading.
        texts["speed"] = None if speed is None else _format_speed(speed)
        if list_row["address"]:  # measured here: it has a page, a grade of trust, and launches
            texts["device"] = Link(texts["device"], list_row["address"])
            texts["trust"] = phrase(f"trust.{_find_worst_grade(run)}")
            texts["interval"] = list_row["speed_interval"] or count_in_words("launches", 1)
        else:  # an imported row; its badge says so
            texts["trust"] = list_row["badge"]
            texts["interval"] = ""
        # None is shown as a dash.
        rows.append([texts[name] or None for name in columns])
    headings: list[Phrase] = []
    for name in columns:
        if name == "speed":
            # The unit is the same for all runs of a case.
            unit = _get_unit(listed_runs[0][0])
            headings.append(phrase("site.speed_unit", unit=unit))
        else:
            headings.append(phrase(f"site.{name}"))
    return build_table(headings, rows)


def _select_launches(launches: list[Launch]) -> list[Launch]:
    """Return the passed launches with a speed that may be quoted.

    Of a case on a machine that has none of these, return all passed launches with a speed.

    Args:
        launches: of any runs and cases.
    """
    # `_name_speed_figure` returns the column that has the speed of a launch.
    passed = [x for x in launches if x["status"] == "passed" and x[_name_speed_figure(x)]]
    quotable = [x for x in passed if x["trust"] != "do_not_quote"]
    quotable_groups = {_get_case_and_machine(launch) for launch in quotable}
    return quotable + [x for x in passed if _get_case_and_machine(x) not in quotable_groups]


def _get_case_and_machine(launch: Launch) -> tuple[Any, ...]:
    """Return what is the same for all launches of a case on one machine."""
    return tuple(launch[key] for key in _MACHINE_KEYS)


def _group_by_work(launches: list[Launch]) -> dict[str, list[Launch]]:
    """Return the launches of each work by a name for the work, the fastest work first.

    Launches are of the same work if their case, recipe, data, devices and all else that a fair
    comparison needs are equal. The name has the device, and also the recipe, the precision, the
    number of ranks and the settings, but each of these only if it differs between the works.

    Args:
        launches: of any runs and cases, each with a speed.
    """
    # The column ``work`` has a hash of all that makes launches comparable, the devices included.
    launches_by_work: dict[str, list[Launch]] = {}  # by this hash
    for launch in launches:
        launches_by_work.setdefault(launch["work"], []).append(launch)
    works = list(launches_by_work.values())
    # The columns among recipe, precision and number of ranks whose values differ between the works.
    differing_keys = [
        key for key in _WORK_KEYS if len({work_launches[0][key] for work_launches in works}) > 1
    ]
    settings_by_work = dict(zip(launches_by_work, _list_differing_settings(works), strict=True))
    fastest_first = sorted(
        launches_by_work.items(), key=lambda item: _get_known_speed(item[1]), reverse=True
    )
    named_works: dict[str, list[Launch]] = {}
    for work_hash, work_launches in fastest_first:
        first_launch = work_launches[0]
        parts = [
            first_launch["device"],
            *_describe_work(first_launch, differing_keys),
            _format_settings(settings_by_work[work_hash]),
        ]
        name = " · ".join(part for part in parts if part)
        if name in named_works:  # this work differs from another in nothing that the name states
            name = f"{name} · {work_hash[:6]}"
        named_works[name] = work_launches
    return named_works


def _describe_work(launch: Launch, names: Sequence[str]) -> list[str]:
    """Return the values of some keys of the work as words; of ``world``, the ranks, as ``x8``."""
    return [f"x{launch[name]}" if name == "world" else str(launch[name]) for name in names]


def _build_bars(works: dict[str, list[Launch]]) -> tuple[Block, ...]:
    """Return the mean speeds, with the power, as bars for each work that several devices did.

    Args:
        works: launches of each work on one device, by the work's name; the fastest work first.
    """
    # Launches of each device, by the work apart from its devices: the column ``comparable`` has a
    # hash of it.
    device_launches_by_work: dict[str, list[list[Launch]]] = {}
    for launches in works.values():
        device_launches_by_work.setdefault(launches[0]["comparable"], []).append(launches)
    blocks: list[Block] = []
    for device_launches in device_launches_by_work.values():
        if len(device_launches) < 2:
            continue
        highest_speed = _get_known_speed(device_launches[0])  # its bar has the whole width
        bars = []
        for launches in device_launches:
            speed = _get_known_speed(launches)
            power = _compute_mean(launches, "power")
            unit = _get_unit(launches[0])
            shown: tuple[Phrase, ...] = (cells.format_rate(speed), " ", unit)
            if power:
                shown += (f" · {power:,.0f} W · {cells.format_rate(speed / power)} ", unit, "/W")
            bars.append(
                Bar(
                    launches[0]["device"],
                    start=0.0,
                    end=speed / highest_speed,
                    colour="other",
                    shown=shown,
                )
            )
        # The title names recipe, precision and number of ranks.
        work = " · ".join(_describe_work(device_launches[0][0], _WORK_KEYS))
        title = phrase("site.same_work", what=work)
        blocks.append(Bars(title, tuple(bars)))
    return tuple(blocks)


def build_machines_page(runs: Sequence[Run], links: Links) -> str:
    """Return all cases on one page: a row for each machine, a column for each case.

    A machine is a device with a number of ranks. If it did a case in several ways, with other
    recipes or settings for instance, the cell is of the fastest. The cell has the speed, and the
    time to the target if it was reached.

    Args:
        runs: the launches of each run, of all cases.
        links: addresses of other pages.
    """
    # A work can have launches of several runs, so all launches are grouped anew.
    works = _group_by_work(_select_launches([launch for run in runs for launch in run]))
    cases = sorted({launches[0]["case"] for launches in works.values()})
    cells_by_machine: dict[tuple[str, str], dict[str, Phrase]] = {}
    for launches in works.values():  # the fastest first
        first_launch = launches[0]
        machine = (first_launch["device"], first_launch["world"])  # "world": the number of ranks
        machine_cells = cells_by_machine.setdefault(machine, {})
        if first_launch["case"] not in machine_cells:
            address = links.get_run_address(first_launch["run_id"])
            machine_cells[first_launch["case"]] = Link(_describe_speed(launches), address)
    rows = [
        [*machine, *(machine_cells.get(case) for case in cases)]
        for machine, machine_cells in cells_by_machine.items()
    ]
    columns = [
        *translate_headings("site.device", "site.world"),
        *(Link(case, links.get_case_address(case)) for case in cases),
    ]
    section = Section(phrase("site.machines_lead"), "machines", (build_table(columns, rows),))
    return build_page(links, phrase("site.machines"), [section])


def _describe_speed(launches: list[Launch]) -> Phrase:
    """Return the time to the target if it was reached, the speed, and a grade below ``usable``.

    Time and speed are means over the launches. The grade is the worst grade of trust among them.

    Args:
        launches: of one work, all of which have a speed.
    """
    time = _compute_mean([x for x in launches if x["quality_reached"]], "e2e_time")
    time_text = "" if time is None else f"{cells.format_duration(time)} · "
    speed_text = _format_speed(_get_known_speed(launches))
    text: Phrase = (time_text, speed_text, " ", _get_unit(launches[0]))
    grade = _find_worst_grade(launches)
    if grade == "usable":  # nothing to warn of
        return text
    return (text, " [", phrase(f"trust.{grade}"), "]")


def _build_history(works: dict[str, list[Launch]], speed_heading: Phrase, links: Links) -> Chart:
    """Return a chart of speeds over time, a line for each of the works with the most launches.

    It marks the launches at which the level of a line changes. The table of its values also has the
    relative change, and the commit of Trainmark that made each launch.

    Args:
        works: launches of each work, by its name.
        speed_heading: the word for speed with its unit.
        links: addresses of other pages.
    """
    # Names of works, which are the series of the chart.
    most_frequent = sorted(works, key=lambda name: len(works[name]), reverse=True)[:_MAX_LINES]
    points: list[dict[str, Any]] = []  # data of the lines, an entry for each launch
    change_marks: list[dict[str, Any]] = []  # data of the marks, an entry for each change
    rows: list[list[Phrase]] = []  # of the table
    for name in most_frequent:
        oldest_first = sorted(works[name], key=lambda launch: launch["started_utc"])
        launches = oldest_first[-MAX_ROWS:]  # the newest
        times = [launch["started_utc"] for launch in launches]
        speeds = [launch[_name_speed_figure(launch)] for launch in launches]
        # By the index of the first launch after the change.
        changes = {change.index: change for change in change_points(times, speeds)}
        change_marks += [{"series": name, "started": times[index]} for index in changes]
        for index, (launch, speed) in enumerate(zip(launches, speeds, strict=True)):
            points.append({"series": name, "started": times[index], "value": speed})
            change_text = None
            if index in changes:
                change = changes[index]  # has the median speeds before and after it
                change_text = f"{change.after / change.before - 1:+.1%}"
            when = Link(_format_date(launch), links.get_run_address(launch["run_id"]))
            commit = (launch["suite_commit"] or cells.NOTHING)[:10]
            rows.append([when, name, cells.format_rate(speed), change_text, commit])
    columns = [
        phrase("site.started_utc"),
        phrase("site.series"),
        speed_heading,
        phrase("site.changes"),
        phrase("site.commit"),
    ]
    description = phrase(
        "site.history_seen",
        launches=len(points),
        series=len(most_frequent),
        steps=len(change_marks),  # sudden changes of the speed, no steps of a training
    )
    return Chart(
        "history",
        phrase("site.history", figure=speed_heading),
        description,
        chart_specs.draw_history(has_changes=bool(change_marks)),
        {"history": points, "changes": change_marks},
        build_table(columns, rows),
    )
