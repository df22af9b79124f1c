"""Run the entries of a plan file one after another; what is finished already is kept.

Owns the order of things: every entry is checked before the first starts, what this machine
cannot do is skipped with its reason, a failure does not stop the others, Ctrl-C does.
One call at a time is at work in a folder.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainmark.data.locks import held
from trainmark.errors import EnvironmentFault, TrainmarkError
from trainmark.launch.attempts import Found, look, unusable
from trainmark.planning.capabilities import able_vendor
from trainmark.planning.plan import PLAN_FILE, RUNS_DIR, Plan, resolve
from trainmark.planning.requests import read_words
from trainmark.results.entries import Outcome
from trainmark.results.messages import render

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from trainmark.launch.stopping import StopRequest
    from trainmark.planning.plan_file import Entry, PlanFile
    from trainmark.results.record import Record

_LOCK_FILE = ".trainmark.lock"


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """What the command line says for all entries; it takes precedence over the file."""

    data: Path | None = None
    device: str | None = None
    out: Path | None = None
    timeout_s: float | None = None
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """One entry, checked: a plan to launch or records to keep, or why it is skipped."""

    name: str
    plan: Plan | None
    found: Found | None
    skipped: str | None = None

    @property
    def to_launch(self) -> bool:
        """Tell whether there is anything left to do."""
        return self.found is not None and not self.found.kept


def check(file: PlanFile, choices: Choices, *, generated_root: Path) -> list[Step]:
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
            rule="the runs of a plan file lie in a folder of their own",
            remedy="choose another --out",
        )
    return [_checked(entry, file, choices, base, generated_root) for entry in file.entries]


def _checked(
    entry: Entry, file: PlanFile, choices: Choices, base: Path, generated_root: Path
) -> Step:
    data = choices.data or entry.data
    asked: dict[str, Any] = {
        "recipe_name": entry.recipe,
        "overrides": entry.fields,
        "nnodes": entry.nnodes,
        "nproc": entry.nproc,
        "repeat_count": entry.repeat,
        "timeout_s": entry.timeout_s if choices.timeout_s is None else choices.timeout_s,
        "seed": entry.seed if choices.seed is None else choices.seed,
    }
    try:
        try:
            words = read_words(entry.case, real_data=data is not None, **asked)
            chosen = choices.device or entry.device
            vendor = able_vendor(words, chosen=chosen, default=file.device)
        except EnvironmentFault as fault:
            return Step(entry.name, None, None, skipped=fault.what)
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


def _looked_up(name: str, plan: Plan) -> Step:
    """Return the step of an entry as the attempts beside ``plan``'s folder stand now."""
    found = look(plan, Path(plan.run_dir).parent, name)
    return Step(name, plan.model_copy(update={"run_dir": str(found.run_dir)}), found)


def preview(steps: Sequence[Step]) -> list[Outcome]:
    """Return what a run would do with each entry."""
    return [_settled(step) or _waiting(step) for step in steps]


def _settled(step: Step) -> Outcome | None:
    """Return the outcome of an entry that needs no launch; None for one that does."""
    if step.skipped is not None:
        return Outcome(name=step.name, state="skipped", reason=step.skipped)
    assert step.found is not None
    if not step.found.kept:
        return None
    records = step.found.kept
    return Outcome(name=step.name, state="kept", run_dir=step.found.run_dir, records=records)


def _waiting(step: Step) -> Outcome:
    assert step.plan is not None
    assert step.found is not None
    again = f"; {step.found.why_again}" if step.found.why_again else ""
    reason = f"{step.plan.case_key}{again}"
    return Outcome(name=step.name, state="to run", reason=reason, run_dir=step.found.run_dir)


def run(
    steps: Sequence[Step],
    request: StopRequest,
    *,
    launch: Callable[[Plan, str], list[Record]],
    said: Callable[[str], None],
) -> list[Outcome]:
    """Do all that is left to do and return every entry's outcome.

    Args:
        request: no further entry is launched once it holds a signal.
        launch: runs a plan under a label and returns its records, fewer than the plan says
            where ``request`` came to hold a signal.
        said: told in a line what becomes of an entry that is not launched (its reason is
            in the outcome), and why one is launched again.

    Raises:
        EnvironmentFault: the folder of the runs cannot be used, or another call is at work
            there; nothing was started.
    """
    bases = [step.found.run_dir.parent for step in steps if step.found and step.to_launch]
    if not bases:
        return _in_turn(steps, request, launch, said)
    with _alone(bases[0]):
        # What another call did between the check and the lock counts.
        now = [_looked_up(step.name, step.plan) if step.plan else step for step in steps]
        return _in_turn(now, request, launch, said)


@contextmanager
def _alone(base: Path) -> Iterator[None]:
    """Hold the folder of the runs, which is made where it is missing."""
    at_work = EnvironmentFault(
        "another `trainmark run` of this plan is at work there",
        where=str(base),
        remedy="wait for it, or choose another --out",
    )
    with ExitStack() as stack:
        try:
            base.mkdir(parents=True, exist_ok=True)
            stack.enter_context(held(base / _LOCK_FILE, at_work))
        except OSError as error:
            raise unusable(base, error) from error
        yield


def _in_turn(
    steps: Sequence[Step],
    request: StopRequest,
    launch: Callable[[Plan, str], list[Record]],
    said: Callable[[str], None],
) -> list[Outcome]:
    outcomes: list[Outcome] = []
    for number, step in enumerate(steps, 1):
        label = f"{number}/{len(steps)} {step.name}"
        outcome = _settled(step)
        if outcome is not None:
            said(f"{label}: {outcome.state}")
        elif request.signal_name is not None:
            outcome = Outcome(name=step.name, state="left", reason="stopped before its turn")
            said(f"{label}: left")
        else:
            outcome = _launched(step, label, launch, said)
        outcomes.append(outcome)
    return [_still_there(outcome) for outcome in outcomes]


def _still_there(outcome: Outcome) -> Outcome:
    """Return an entry's outcome, failed where its folder was deleted while later ones ran."""
    folder = outcome.run_dir
    if outcome.state not in ("passed", "kept") or (folder is not None and folder.exists()):
        return outcome
    return replace(outcome, state="failed", reason="its folder was deleted while other runs ran")


def _launched(
    step: Step,
    label: str,
    launch: Callable[[Plan, str], list[Record]],
    said: Callable[[str], None],
) -> Outcome:
    """Launch one entry and return its outcome."""
    assert step.plan is not None
    assert step.found is not None
    folder = step.found.run_dir
    if step.found.why_again:
        said(f"{label}: {step.found.why_again}; this attempt goes to {folder.name}")
    try:
        records = tuple(launch(step.plan, label))
    except (TrainmarkError, OSError) as fault:
        said(f"{label}: failed: {fault}")
        return _failed(step, folder, " ".join(str(fault).split()))
    fallen = next((record for record in records if not record.passed), None)
    wanted = step.plan.repeat_count
    if fallen is None and len(records) < wanted:
        return _failed(step, folder, f"stopped after {len(records)} of {wanted} launches", records)
    if fallen is None:
        return Outcome(name=step.name, state="passed", run_dir=folder, records=records)
    why: str = fallen.status
    if fallen.cause is not None:
        why += f": {render(fallen.cause.message, 'en')}"
    return _failed(step, folder, " ".join(why.split()), records)


def _failed(step: Step, folder: Path, why: str, records: tuple[Record, ...] = ()) -> Outcome:
    return Outcome(name=step.name, state="failed", reason=why, run_dir=folder, records=records)
