"""The attempts at an entry of a plan file: which one to keep, where the next one goes.

Owns what finished means: a record that passed, of the same work as planned now. Changes
nothing: an attempt that failed stays where it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from trainmark.errors import EnvironmentFault, RecordError
from trainmark.launch.repeats import launches
from trainmark.planning.plan import Plan
from trainmark.planning.plan_file import attempt_name, attempt_number
from trainmark.results.readings import differing, planned_work
from trainmark.results.record import RECORD_FILE, read

if TYPE_CHECKING:
    from trainmark.results.record import Record


@dataclass(frozen=True, slots=True)
class Found:
    """What the attempts so far come to: records to keep, or where and why to try again."""

    run_dir: Path
    kept: tuple[Record, ...] = ()
    why_again: str | None = None


def look(plan: Plan, base: Path, name: str) -> Found:
    """Look for a finished attempt at ``plan`` under ``base``, the newest first.

    Raises:
        EnvironmentFault: the folder cannot be read.
    """
    found = _numbered(base, name)
    why_again = None
    for number, folder in sorted(found.items(), reverse=True):
        records, why_not = _finished(plan, folder)
        if why_not is None:
            return Found(folder, records)
        if number == max(found):
            why_again = f"{folder.name} {why_not}"
    return Found(base / attempt_name(name, max(found, default=0) + 1), (), why_again)


def _numbered(base: Path, name: str) -> dict[int, Path]:
    """Return the folders of earlier attempts by their numbers; an empty folder is none."""
    try:
        paths = list(base.iterdir()) if base.exists() else []
        numbers = {path: attempt_number(name, path.name) for path in paths}
        return {
            number: path
            for path, number in numbers.items()
            if number is not None and not (path.is_dir() and not any(path.iterdir()))
        }
    except OSError as error:
        raise unusable(base, error) from error


def unusable(base: Path, error: OSError) -> EnvironmentFault:
    """Say that ``base`` cannot hold the runs of a plan file."""
    return EnvironmentFault(
        f"cannot be used as a folder: {error.strerror}",
        where=str(base),
        rule="the runs of a plan file lie there, a folder each",
        remedy="choose another --out",
    )


def _finished(plan: Plan, folder: Path) -> tuple[tuple[Record, ...], str | None]:
    """Return the records of an attempt, or why it is not what is planned now."""
    wanted = planned_work(Plan.model_validate_json(plan.model_dump_json()))
    records = []
    for launch in launches(plan.model_copy(update={"run_dir": str(folder)})):
        place = Path(launch.run_dir)
        if not (place / RECORD_FILE).exists():
            return (), "has no record"
        try:
            record = read(place)
        except RecordError as error:
            return (), f"cannot be read: {error.what}"
        if not record.passed:
            return (), f"did not pass: {record.status}"
        there = planned_work(record.plan)
        names = differing(wanted, there)
        if names:
            key = names[0]
            return (), f"is other work: {key} is {there.get(key)!r} there, {wanted.get(key)!r} now"
        records.append(record)
    return tuple(records), None
