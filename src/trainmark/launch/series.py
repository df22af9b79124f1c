"""Run the entries of a plan file one after another, except those already finished.

Every entry is checked before the first starts. Entries that this machine cannot run are skipped
with a reason. A failure does not stop the others; Ctrl-C does. An entry is finished if it has a
record that passed, of the same work as planned now. A failed attempt stays in its folder; the
next attempt gets a new one. Only one call at a time can work in a folder.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock, Timeout

from trainmark.errors import EnvironmentFault, RecordError, TrainmarkError
from trainmark.launch.repeats import launches
from trainmark.planning.capabilities import capable_vendor
from trainmark.planning.plan import PLAN_FILE, RUNS_DIR, Plan, resolve
from trainmark.planning.plan_file import attempt_name, attempt_number
from trainmark.planning.requests import read_request
from trainmark.results.entries import Outcome, State
from trainmark.results.messages import render
from trainmark.results.readings import differing, planned_work
from trainmark.results.record import RECORD_FILE, read

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from trainmark.launch.stopping import StopRequest
    from trainmark.planning.plan_file import Entry, PlanFile
    from trainmark.results.record import Record

_LOCK_FILE = ".trainmark.lock"


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """Options of the command line for all entries; they take precedence over the file."""

    data: Path | None = None
    device: str | None = None
    out: Path | None = None
    timeout_s: float | None = None
    seed: int | None = None
    sample_every_s: float | None = None


@dataclass(frozen=True, slots=True)
class CheckedEntry:
    """One entry, checked.

    Args:
        outcome: its state before running: ``skipped``, ``kept``, or ``to run``.
        plan: what to launch; None if it is skipped.
        why_again: why the newest attempt does not count as finished.
    """

    outcome: Outcome
    plan: Plan | None = None
    why_again: str | None = None

    @property
    def to_launch(self) -> bool:
        """Tell whether there is anything left to do."""
        return self.outcome.state == "to run"


def check(file: PlanFile, choices: Choices, *, generated_root: Path) -> list[CheckedEntry]:
    """Resolve every entry; nothing is started.

    Raises:
        TrainmarkError: the first fault, with the file, line and name of its entry.
        EnvironmentFault: the folder of the runs is a run itself.
    """
    base = choices.out or file.out or RUNS_DIR / file.name
    if (base / PLAN_FILE).exists():
        raise EnvironmentFault(
            "the folder is that of a single run",
            where=str(base),
            rule="the runs of a plan file need their own folder",
            remedy="choose another --out",
        )
    return [_checked(entry, file, choices, base, generated_root) for entry in file.entries]


def _checked(
    entry: Entry, file: PlanFile, choices: Choices, base: Path, generated_root: Path
) -> CheckedEntry:
    data = choices.data or entry.data
    asked: dict[str, Any] = {
        "recipe_name": entry.recipe,
        "overrides": entry.fields,
        "nnodes": entry.nnodes,
        "nproc": entry.nproc,
        "repeat_count": entry.repeat,
        "timeout_s": entry.timeout_s if choices.timeout_s is None else choices.timeout_s,
        "seed": entry.seed if choices.seed is None else choices.seed,
        "sample_every_s": (
            entry.sample_every_s if choices.sample_every_s is None else choices.sample_every_s
        ),
        "peak_tflops": entry.peak_tflops,
    }
    try:
        try:
            request = read_request(entry.case, real_data=data is not None, **asked)
            chosen = choices.device or entry.device
            vendor = capable_vendor(request, chosen=chosen, default=file.device)
        except EnvironmentFault as fault:
            skipped = Outcome(name=entry.name, state="skipped", reason=fault.what)
            return CheckedEntry(skipped)
        plan = resolve(
            entry.case,
            data_dir=data,
            device_name=vendor.name,
            run_dir=base / entry.name,
            generated_root=generated_root,
            **asked,
        )
        return _looked_up(entry.name, plan)
    except TrainmarkError as fault:
        place = f"{entry.where}, run {entry.name}"
        where = f"{place}: {fault.where}" if fault.where else place
        raise type(fault)(fault.what, where=where, rule=fault.rule, remedy=fault.remedy) from fault


def _looked_up(name: str, plan: Plan) -> CheckedEntry:
    """Return an entry's state from its earlier attempts, the newest first."""
    base = Path(plan.run_dir).parent
    attempts = _numbered(base, name)
    why_again = None
    for number in sorted(attempts, reverse=True):
        folder = attempts[number]
        records, why_not = _finished(plan, folder)
        if why_not is None:
            kept = Outcome(name=name, state="kept", run_dir=folder, records=records)
            return CheckedEntry(kept, plan)
        why_again = why_again or f"{folder.name} {why_not}"
    folder = base / attempt_name(name, max(attempts, default=0) + 1)
    reason = f"{plan.case_key}; {why_again}" if why_again else plan.case_key
    waiting = Outcome(name=name, state="to run", reason=reason, run_dir=folder)
    return CheckedEntry(waiting, plan.model_copy(update={"run_dir": str(folder)}), why_again)


def _numbered(base: Path, name: str) -> dict[int, Path]:
    """Return the folders of earlier attempts by number, without empty folders."""
    try:
        paths = list(base.iterdir()) if base.exists() else []
        numbers = {path: attempt_number(name, path.name) for path in paths}
        return {
            number: path
            for path, number in numbers.items()
            if number is not None and not (path.is_dir() and not any(path.iterdir()))
        }
    except OSError as error:
        raise _unusable(base, error) from error


def _unusable(base: Path, error: OSError) -> EnvironmentFault:
    """Say that ``base`` cannot hold the runs of a plan file."""
    return EnvironmentFault(
        f"cannot be used as a folder: {error.strerror}",
        where=str(base),
        rule="each run of a plan file gets a folder in it",
        remedy="choose another --out",
    )


def _finished(plan: Plan, folder: Path) -> tuple[tuple[Record, ...], str | None]:
    """Return the records of an attempt, or why it does not count as finished."""
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
            return (), f"is other work: {key} was {there.get(key)!r}, is now {wanted.get(key)!r}"
        records.append(record)
    return tuple(records), None


def run(
    entries: Sequence[CheckedEntry],
    request: StopRequest,
    *,
    launch: Callable[[Plan, str], list[Record]],
    said: Callable[[str], None],
) -> list[Outcome]:
    """Run all unfinished entries and return every entry's outcome.

    Args:
        request: no further entry is launched once it holds a signal.
        launch: runs a plan under a label and returns its records, fewer than planned if a
            signal was noted in ``request``.
        said: called with a line for each entry that is not launched (the reason is in the
            outcome), and with the reason why one is launched again.

    Raises:
        EnvironmentFault: the folder of the runs cannot be used, or another call is at work
            there; nothing was started.
    """
    with ExitStack() as stack:
        left = next((entry.plan for entry in entries if entry.plan and entry.to_launch), None)
        if left is not None:
            stack.enter_context(_alone(Path(left.run_dir).parent))
            # Another call may have finished entries between the check and the lock.
            entries = [
                _looked_up(entry.outcome.name, entry.plan) if entry.plan else entry
                for entry in entries
            ]
        outcomes = []
        for number, entry in enumerate(entries, 1):
            outcome, label = entry.outcome, f"{number}/{len(entries)} {entry.outcome.name}"
            if entry.to_launch and request.signal_name is None:
                outcome = _launched(entry, label, launch, said)
            else:
                if entry.to_launch:
                    outcome = Outcome(
                        name=outcome.name, state="left", reason="stopped before its turn"
                    )
                said(f"{label}: {outcome.state}")
            outcomes.append(outcome)
    return [_still_there(outcome) for outcome in outcomes]


@contextmanager
def _alone(base: Path) -> Iterator[None]:
    """Lock the folder of the runs, which is created if it is missing."""
    lock = FileLock(base / _LOCK_FILE)
    try:
        base.mkdir(parents=True, exist_ok=True)
        lock.acquire(blocking=False)
    except Timeout:
        raise EnvironmentFault(
            "another `trainmark run` of this plan is running there",
            where=str(base),
            remedy="wait for it, or choose another --out",
        ) from None
    except OSError as error:
        raise _unusable(base, error) from error
    try:
        yield
    finally:
        with suppress(OSError):  # a lock file that remains is not locked
            (base / _LOCK_FILE).unlink()
        lock.release()


def _still_there(outcome: Outcome) -> Outcome:
    """Return an entry's outcome; failed if its folder was deleted while later entries ran."""
    folder = outcome.run_dir
    if outcome.state not in ("passed", "kept") or (folder is not None and folder.exists()):
        return outcome
    return replace(outcome, state="failed", reason="its folder was deleted while other runs ran")


def _launched(
    entry: CheckedEntry,
    label: str,
    launch: Callable[[Plan, str], list[Record]],
    said: Callable[[str], None],
) -> Outcome:
    """Launch one entry and return its outcome."""
    assert entry.plan is not None
    if entry.why_again:
        folder = Path(entry.plan.run_dir)
        said(f"{label}: {entry.why_again}; this attempt goes to {folder.name}")
    try:
        records = tuple(launch(entry.plan, label))
    except (TrainmarkError, OSError) as fault:
        said(f"{label}: failed: {fault}")
        return replace(entry.outcome, state="failed", reason=" ".join(str(fault).split()))
    fallen = next((record for record in records if not record.passed), None)
    wanted = entry.plan.repeat_count
    why: str | None = None
    if fallen is not None:
        why = fallen.status
        if fallen.cause is not None:
            why += f": {' '.join(render(fallen.cause.message, 'en').split())}"
    elif len(records) < wanted:
        why = f"stopped after {len(records)} of {wanted} launches"
    state: State = "failed" if why else "passed"
    return replace(entry.outcome, state=state, reason=why, records=records)
