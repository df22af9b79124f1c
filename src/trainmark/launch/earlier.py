"""What earlier launches left in folders: which of a plan file's are finished.

A launch is finished if it has a record that passed, of the same work as planned now. Whatever did
not pass stays in its folder. Launches that are missing go into a new one, the run's next attempt:
``toy-2`` after ``toy``. So the finished launches of a series may lie in several attempts.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic_core import to_jsonable_python

from trainmark.errors import EnvironmentFault, RecordError
from trainmark.launch.repeats import launches
from trainmark.plan.plan import Plan
from trainmark.plan.plan_file import attempt_name, attempt_number
from trainmark.record.record import RECORD_FILE, Record, read
from trainmark.record.work import differing, planned_work


@dataclass(slots=True, kw_only=True)
class Found:
    """What there is of an entry.

    Args:
        run_dir: folder of its newest attempt, or of the next if anything is missing.
        ended: folder and record by number, of the launches that are finished.
        missing: plans of the launches to do.
        why_again: why launches are done again.
        fallen: folders of launches of the same work that did not pass or left no record.
    """

    run_dir: Path = Path()
    ended: dict[int, tuple[Path, Record]] = field(default_factory=dict)
    missing: list[Plan] = field(default_factory=list)
    why_again: list[str] = field(default_factory=list)
    fallen: list[Path] = field(default_factory=list)


def look_up(name: str, plan: Plan, base: Path) -> Found:
    """Return what the folders of entry ``name`` in ``base`` hold of ``plan``.

    Raises:
        EnvironmentFault: ``base`` cannot be used as a folder.
    """
    attempts = _attempts(base, name)
    found = Found(run_dir=base / attempt_name(name, max(attempts, default=0) + 1))
    wanted, newest = _work(plan), 0
    for single in launches(plan.model_copy(update={"run_dir": str(found.run_dir)})):
        within = Path(single.run_dir).relative_to(found.run_dir)  # r2, or nothing
        again = []
        for number in sorted(attempts, reverse=True):
            folder = attempts[number] / within
            if plan.repeat_count > 1 and not folder.exists():
                continue  # this attempt was not for that launch, or was no series
            record, fault, same_work = _judged(folder, wanted)
            if record is not None and fault is None:
                if single.repeat_index not in found.ended:
                    found.ended[single.repeat_index] = folder, record
                    newest = max(newest, number)
                continue
            found.fallen += [folder] if same_work else []
            again.append(
                f"{folder.relative_to(base)} {fault}; this attempt goes to {found.run_dir.name}"
            )
        if single.repeat_index not in found.ended:
            found.missing.append(single)
            found.why_again += again[:1]
    if not found.missing:
        found.run_dir = attempts[newest]
    return found


def _attempts(base: Path, name: str) -> dict[int, Path]:
    """Return the folders of earlier attempts by number, without empty folders."""
    try:
        there = base.iterdir() if base.exists() else ()
        found = {attempt_number(name, path.name): path for path in there}
        return {n: x for n, x in found.items() if n and not (x.is_dir() and not any(x.iterdir()))}
    except OSError as error:
        raise unusable(base, error) from error


def unusable(base: Path, error: OSError) -> EnvironmentFault:
    """Return the error that ``base`` cannot hold the runs of a plan file."""
    what, rule = f"cannot be used as a folder: {error.strerror}", "each run gets a folder in it"
    return EnvironmentFault(what, where=str(base), rule=rule, remedy="choose another --out")


def _work(plan: Plan) -> dict[str, Any]:
    """Return what launches of the same work have in common, as a file holds it."""
    return dict(to_jsonable_python(planned_work(plan)))


def _judged(folder: Path, wanted: dict[str, Any]) -> tuple[Record | None, str | None, bool]:
    """Return a launch's record, why it does not count, and whether it is of the same work."""
    try:
        record = read(folder) if (folder / RECORD_FILE).exists() else None
        there = _work(record.plan if record else Plan.read(folder))
    except RecordError as error:
        return None, f"cannot be read: {error.what}", False
    except (OSError, ValueError):  # killed before it wrote its plan, or no run at all
        return None, "has no record", False
    names = differing(wanted, there)
    if names:
        was, now = there.get(names[0]), wanted.get(names[0])
        return record, f"is other work: {names[0]} was {was!r}, is now {now!r}", False
    if record is None or record.passed:
        return record, None if record else "has no record", True
    return record, f"did not pass: {record.status}", True
