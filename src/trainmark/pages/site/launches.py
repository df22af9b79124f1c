"""Values of the launches of a run or of a work, and which launches the pages about many runs show.

Their values are those of the index. The speed of a launch is the first figure of its run's page:
tokens per device and second if the case counts tokens, else samples per second.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from trainmark.pages.texts import TONES, Phrase, get_unit
from trainmark.plan.recipes import format_setting
from trainmark.recipe import SHORT_NAMES
from trainmark.record.stats import INTERVAL_MIN_LAUNCHES, summarize_launches
from trainmark.record.work import find_differing_settings
from trainmark.results.store.columns import IMPORTED

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Launch = dict[str, Any]  # a launch as a row of the index, by column
    Run = list[Launch]  # the launches of a run, in their order; or those that did the same work

_MACHINE_KEYS = ("case", "device", "world")  # that are the same in all runs of a case on a machine
WORK_KEYS = ("recipe", "precision", "world")  # by which works are named if they differ in them
_STATUSES_WITH_FIGURES = ("passed", IMPORTED)
_MAX_NUMBER_LENGTH = 10  # characters of a number among settings; longer ones are rounded
# Columns of the index that these pages read.
PAGE_COLUMNS = (
    "bytes", "mtime_ns", "started_utc", "case", "recipe", "device", "world", "precision",
    "status", "trust", "trust_reasons", "verification", "suite_commit", "work", "comparable",
    "final_result_unit", "quality_value", "quality_metric", "quality_reached", "e2e_time",
    "power", "MFU", "MAMFU", "p_whole", "p_train", "p_core", "token/p/s", "train_time", "mem",
    "rules", "settings",
)  # fmt: skip


def compute_mean(run: Run, key: str) -> float | None:
    """Return the geometric mean of a figure over the launches that have it; None if none has.

    Only launches that passed, and imported rows, count. Of these, launches whose record is
    contradicted by its own evidence do not count, unless all are contradicted.

    Args:
        run: launches of one run or of one work.
        key: column of the index that has the figure.
    """
    counted = [x for x in run if x["status"] in _STATUSES_WITH_FIGURES]
    values = [x[key] for x in drop_contradicted(counted) if x[key] is not None]
    return summarize_launches(values).mean if values else None


def drop_contradicted(launches: Sequence[Launch]) -> list[Launch]:
    """Return the launches that their evidence does not contradict; all if it contradicts each.

    If all are contradicted, as a single launch may be, the page marks them as not to be quoted.
    """
    counted = [launch for launch in launches if launch["verification"] != "contradicted"]
    return counted or list(launches)


def name_speed_column(launch: Launch) -> str:
    """Return the name of the figure that is a launch's speed; per device if it is in tokens."""
    return "token/p/s" if launch["final_result_unit"] == "tokens/s" else "p_train"


def get_speed_unit(launch: Launch) -> Phrase:
    """Return the unit of a launch's speed."""
    return get_unit(name_speed_column(launch))


def get_speed(run: Run) -> float | None:
    """Return the mean speed of launches; None if none of them has a speed."""
    return compute_mean(run, name_speed_column(run[0]))


def get_known_speed(launches: list[Launch]) -> float:
    """Return the mean speed of launches of which at least one has a speed."""
    speed = get_speed(launches)
    assert speed is not None
    return speed


def find_worst_grade_of_launches(run: Run) -> str:
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


def list_differing_settings(runs: Sequence[Run]) -> list[dict[str, Any]]:
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


def format_settings(settings: Mapping[str, Any]) -> str:
    """Return settings as text, ``bs=96, lr=0.0003``; a long number is rounded.

    Args:
        settings: values of recipe fields by the field's full name.
    """
    texts = {name: format_setting(value) for name, value in settings.items()}
    for name, value in settings.items():
        if isinstance(value, float) and len(texts[name]) > _MAX_NUMBER_LENGTH:
            texts[name] = f"{value:.4g}"
    return ", ".join(f"{SHORT_NAMES.get(name, name)}={text}" for name, text in texts.items())


def select_launches(launches: list[Launch]) -> list[Launch]:
    """Return the passed launches with a speed that may be quoted.

    A machine is a device with a number of ranks. Of a case on a machine that has none of these,
    return all passed launches with a speed.

    Args:
        launches: of any runs and cases.
    """
    # `name_speed_column` returns the column that has the speed of a launch.
    passed = [x for x in launches if x["status"] == "passed" and x[name_speed_column(x)]]
    quotable = [x for x in passed if x["trust"] != "do_not_quote"]
    quotable_groups = {_get_case_and_machine(launch) for launch in quotable}
    return quotable + [x for x in passed if _get_case_and_machine(x) not in quotable_groups]


def _get_case_and_machine(launch: Launch) -> tuple[Any, ...]:
    """Return the case, and the machine as its device and number of ranks."""
    return tuple(launch[key] for key in _MACHINE_KEYS)


def group_launches_by_work(launches: list[Launch]) -> dict[str, list[Launch]]:
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
        key for key in WORK_KEYS if len({work_launches[0][key] for work_launches in works}) > 1
    ]
    settings_by_work = dict(zip(launches_by_work, list_differing_settings(works), strict=True))
    fastest_first = sorted(
        launches_by_work.items(), key=lambda item: get_known_speed(item[1]), reverse=True
    )
    named_works: dict[str, list[Launch]] = {}
    for work_hash, work_launches in fastest_first:
        first_launch = work_launches[0]
        parts = [
            first_launch["device"],
            *format_work_values(first_launch, differing_keys),
            format_settings(settings_by_work[work_hash]),
        ]
        name = " · ".join(part for part in parts if part)
        if name in named_works:  # this work differs from another in nothing that the name states
            name = f"{name} · {work_hash[:6]}"
        named_works[name] = work_launches
    return named_works


def format_work_values(launch: Launch, names: Sequence[str]) -> list[str]:
    """Return the values of some keys of the work as words; of ``world``, the ranks, as ``x8``."""
    return [f"x{launch[name]}" if name == "world" else str(launch[name]) for name in names]
