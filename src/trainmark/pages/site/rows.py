"""The row of a run, or of a work, in lists of runs: its cells, its badge, its values for filters.

A run with all its launches is one row, with the mean over the launches that passed and its
interval.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from trainmark.pages import cells
from trainmark.pages.site.launches import (
    compute_mean,
    drop_contradicted,
    find_worst_grade_of_launches,
    format_settings,
    get_speed,
    get_speed_unit,
    name_speed_column,
)
from trainmark.pages.texts import TONES, Phrase, count_in_words, format_interval, join, phrase
from trainmark.plan.witness import WITNESSED
from trainmark.recipe import SHORT_NAMES
from trainmark.record.stats import summarize_launches
from trainmark.record.trust import find_worst_verification
from trainmark.results.store.columns import IMPORTED

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trainmark.pages.site.launches import Launch, Run
    from trainmark.pages.site.views import Links

LIST_COLUMNS = (
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
OPTIONAL_COLUMNS = ("settings", "MFU", "quality")  # columns that a list without a value leaves out
# Figures that the filter of the list can name, in the units of the record.
FILTERED_FIGURES = (
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
# A run id of ours: its time, its case, six letters, and the number of a repeat.
_RUN_ID = re.compile(r"\d{8}T\d{6}Z-.+-([0-9a-z]{6})(-r\d+)?")


def format_speed(speed: float) -> str:
    """Return a speed rounded to four significant digits."""
    return cells.format_rounded(speed, 4)


def format_date(launch: Launch) -> str:
    """Return when a launch started, to the minute: ``2026-11-22 08:15``."""
    return str(launch["started_utc"])[:16].replace("T", " ")


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
    grade = find_worst_grade_of_launches(run)
    word = "passed" if grade == "usable" else grade
    return word, phrase(f"badge.{grade}"), TONES[grade]


def list_shown_columns(names: Sequence[str], rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return the columns of a list, without optional ones that have no value in any row.

    Args:
        names: columns among which to choose, in their order.
        rows: each has ``cells``, by column a pair: the cell's text, and the value by which the list
            sorts.
    """
    columns = []
    for name in names:
        has_value = any(text != cells.NOTHING for text, _ in (row["cells"][name] for row in rows))
        if has_value or name not in OPTIONAL_COLUMNS:
            columns.append(name)
    return columns


def build_row(run: Run, links: Links, settings: Mapping[str, Any]) -> dict[str, Any]:
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
    speed = get_speed(run)
    mfu = compute_mean(run, "MFU")
    quality = compute_mean(run, "quality_value")
    # Texts of the cells that do not show the value in the index as it is; None: an empty cell.
    texts: dict[str, Phrase] = {
        "started_utc": format_date(first_launch) if first_launch["started_utc"] else None,
        "speed": (format_speed(speed), " ", get_speed_unit(first_launch)) if speed else None,
        "MFU": None if mfu is None else f"{mfu:.1f}%",
        "quality": None,
        "settings": format_settings(settings) or None,
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
    for name in LIST_COLUMNS:
        text = texts.get(name, first_launch.get(name)) or cells.NOTHING
        row_cells[name] = (text, sort_values[name])
    return row_cells


def _describe_speed_interval(run: Run) -> Phrase:
    """Return the interval of the speed and the number of launches; empty for a single launch.

    Launches that did not pass do not count; see also ``drop_contradicted``.
    """
    key = name_speed_column(run[0])  # the column with the speed
    passed = [x for x in run if x["status"] == "passed"]
    values = [x[key] for x in drop_contradicted(passed) if x[key] is not None]
    if len(values) < 2:
        return ""
    interval = format_interval(summarize_launches(values), format_speed)
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
    values: dict[str, Any] = {name: compute_mean(run, name) for name in FILTERED_FIGURES}
    values["world"] = first_launch["world"]  # the number of ranks
    for name in _FILTERED_TEXTS:  # columns with words; those of the first launch count
        values[name] = first_launch[name]
    values["status"] = word
    for name, value in settings.items():
        values[name] = value
        values[SHORT_NAMES.get(name, name)] = value
    return {name: value for name, value in values.items() if value is not None}
