"""Do the launches of a plan file one after another, except those already finished.

Every entry is checked before the first starts. Entries that this machine cannot run are skipped
with a reason. A failure does not stop the others; Ctrl-C does. Only one call at a time can work in
a folder.

A launch is finished if it has a record that passed, of the same work as planned now. Its record is
checked against its evidence, as everywhere: one that is contradicted stays finished and is named.
Whatever did not pass stays in its folder. Launches that are missing go into a new one, the run's
next attempt: ``toy-2`` after ``toy``. So the finished launches of an entry may lie in several
attempts.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic_core import to_jsonable_python

from trainmark.errors import (
    EXIT_FAILED,
    EXIT_PASSED,
    EXIT_USAGE,
    EnvironmentFault,
    RecordError,
    TrainmarkError,
)
from trainmark.launch import submission
from trainmark.launch.cluster import Cluster, read_cluster
from trainmark.launch.run_dir import cannot_write, complete, locked
from trainmark.launch.submission import CLUSTER_FILE
from trainmark.plan.choosing import capable_vendor, choose
from trainmark.plan.plan import PLAN_FILE, Plan
from trainmark.plan.plan_file import attempt_name, attempt_number
from trainmark.plan.resolving import UnplannableError, launches, resolve
from trainmark.record.messages import render
from trainmark.record.record import RECORD_FILE, Record, read
from trainmark.record.trust import refuted
from trainmark.record.verify import checked
from trainmark.record.work import differing, planned_work

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from trainmark.launch.processes import StopRequest
    from trainmark.plan.plan_file import Entry, PlanFile

State = Literal["passed", "finished", "failed", "skipped", "left", "to run"]


@dataclass(slots=True, kw_only=True)
class Outcome:
    """One entry of a plan file, checked, and what there is of it.

    Args:
        plan: as resolved, in the folder of a first attempt; None: this machine cannot run it.
        cluster: settings of its launcher.
        state: ``finished``: records of the same work exist; ``skipped``: this machine cannot run
            it; ``left``: the series was stopped before it; ``to run``: until the series ends.
        reason: why it failed, was skipped or left, or what would run.
        run_dir: folder of its newest attempt, or of the next if anything is missing; None if there
            is none.
        ended: folder and record by number, of the launches that have ended.
        missing: plans of the launches to do.
        fallen: folders of earlier launches of the same work that did not pass or left no record.
    """

    name: str
    plan: Plan | None = None
    cluster: Cluster = field(default_factory=Cluster)
    state: State = "to run"
    reason: str | None = None
    run_dir: Path | None = None
    ended: dict[int, tuple[Path, Record]] = field(default_factory=dict)
    missing: list[Plan] = field(default_factory=list)
    fallen: list[Path] = field(default_factory=list)

    @property
    def planned(self) -> int:
        """Number of launches."""
        return 1 if self.plan is None else self.plan.repeat_count

    @property
    def folders(self) -> list[Path]:
        """Folder of each record, by the launches' numbers."""
        return [folder for _, (folder, _) in sorted(self.ended.items())]

    @property
    def records(self) -> list[Record]:
        """Record of each launch that has ended, by their numbers."""
        return [record for _, (_, record) in sorted(self.ended.items())]

    @property
    def contradiction(self) -> str | None:
        """Return which launches something contradicts; None if there is none."""
        runs = [record.run_id for record in self.records if refuted(record.trust)]
        return f"{', '.join(runs)} does not match its raw events" if runs else None

    def look(self) -> None:
        """Find what the folders of its attempts hold, and what is missing."""
        assert self.plan is not None, "a skipped entry has no folders"
        base, wanted = Path(self.plan.run_dir).parent, _work(self.plan)
        attempts = _attempts(base, self.name)
        self.run_dir = base / attempt_name(self.name, max(attempts, default=0) + 1)
        verified = dict(self.ended.values())  # records never change: each is checked once
        self.ended, self.missing, self.fallen = {}, [], []
        used = [0]
        for single in launches(self.plan.model_copy(update={"run_dir": str(self.run_dir)})):
            within = Path(single.run_dir).relative_to(self.run_dir)  # r2, or nothing
            for number in sorted(attempts, reverse=True):
                folder = attempts[number] / within
                same_work, record = _found(folder, wanted)
                if not same_work:
                    continue
                if record is None or not record.passed:
                    self.fallen.append(folder)
                elif single.repeat_index not in self.ended:
                    record = verified.get(folder) or checked(record, folder)
                    self.ended[single.repeat_index] = folder, record
                    used.append(number)
            if single.repeat_index not in self.ended:
                self.missing.append(single)
        if not self.missing:
            self.run_dir = attempts[max(used)]
        self.state = "to run" if self.missing else "finished"
        self.reason = self.plan.case_key if self.missing else self.contradiction

    def close(self, fault: str | None) -> None:
        """Say how it ended, once nothing more will be launched.

        Args:
            fault: why a launch of it could not begin.
        """
        if self.state != "to run":
            return
        fault = next((_why(record) for record in self.records if not record.passed), fault)
        self.state, self.reason = "passed" if fault is None else "failed", fault
        if fault is None and len(self.ended) < self.planned:
            self.state = "left"
            self.reason = f"stopped after {len(self.ended)} of {self.planned} launches"
            if self.run_dir is not None and not self.run_dir.exists():
                self.run_dir = None


def exit_code(outcomes: Iterable[Outcome]) -> int:
    """Return 0 if all entries that could run passed, 1 if one did not, 2 if none could run."""
    states = {outcome.state for outcome in outcomes}
    if states & {"failed", "left"}:
        return EXIT_FAILED
    return EXIT_PASSED if states & {"passed", "finished", "to run"} else EXIT_USAGE


def _attempts(base: Path, name: str) -> dict[int, Path]:
    """Return the folders of earlier attempts by number, without empty folders."""
    found = {attempt_number(name, path.name): path for path in base.glob("*")}
    return {n: x for n, x in found.items() if n and x.is_dir() and any(x.iterdir())}


def _in_next_attempt(plan: Plan, name: str) -> Plan:
    """Return the plan of an entry's first launch in the folder of its next attempt."""
    within = Path(f"r{plan.repeat_index}") if plan.repeat_count > 1 else Path()
    first = Path(plan.run_dir).parent if plan.repeat_count > 1 else Path(plan.run_dir)
    number = max(_attempts(first.parent, name), default=0) + 1
    folder = first.parent / attempt_name(name, number) / within
    return plan.model_copy(update={"run_dir": str(folder)})


def _work(plan: Plan) -> dict[str, Any]:
    """Return what launches of the same work have in common, as a file holds it."""
    return dict(to_jsonable_python(planned_work(plan)))


def _found(folder: Path, wanted: dict[str, Any]) -> tuple[bool, Record | None]:
    """Tell whether a folder holds a launch of the same work, with its record if it has one."""
    try:
        record = read(folder) if (folder / RECORD_FILE).exists() else None
        there = _work(record.plan if record else Plan.read(folder))
    except (RecordError, OSError, ValueError):  # no run at all, or one that cannot be read
        return False, None
    return not differing(wanted, there), record


def _why(record: Record) -> str:
    """Return why a launch did not pass."""
    cause = record.cause and f": {' '.join(render(record.cause.message, 'en').split())}"
    return record.status + (cause or "")


def check(file: PlanFile, *, dry_run: bool = False) -> list[Outcome]:
    """Resolve every entry and look what there is of it; nothing is started.

    Args:
        dry_run: the plans are only shown; see ``resolve``.

    Raises:
        TrainmarkError: the first fault, with the file and name of its entry.
        EnvironmentFault: the folder of the runs is a run itself.
    """
    if (file.out / PLAN_FILE).exists():
        raise EnvironmentFault("the folder is that of a single run", where=str(file.out),
                               rule="the runs of a plan file need their own folder",
                               fix="choose another --out")  # fmt: skip
    read_once, entries = cache(read_cluster), []
    for entry in file.entries:
        try:
            entries.append(_checked(entry, read_once(entry.cluster), dry_run=dry_run))
        except TrainmarkError as fault:
            place = f"{entry.where}, run {entry.name}"
            fault.where = f"{place}: {fault.where}" if fault.where else place
            raise
    return entries


def _checked(entry: Entry, cluster: Cluster, *, dry_run: bool) -> Outcome:
    elsewhere = cluster.elsewhere(entry.launcher)
    try:
        vendor = capable_vendor(
            choose(entry), entry.device, elsewhere=elsewhere, ranks_share_cores=False
        )
    except EnvironmentFault as fault:
        return Outcome(name=entry.name, state="skipped", reason=fault.what)
    request = entry.model_copy(update={"device": vendor.name})
    try:
        plan = resolve(request, elsewhere=elsewhere, dry_run=dry_run)
    except UnplannableError as error:
        error.plan = _in_next_attempt(error.plan, entry.name)
        raise
    checked = Outcome(name=entry.name, plan=plan, cluster=cluster)
    checked.look()
    return checked


def expected(entries: Sequence[Outcome]) -> list[tuple[Outcome, Plan]]:
    """Return the launches to do, each with its entry.

    Launch 1 of every entry goes before launch 2 of any, every other round backwards, so that a
    drift of the machine affects all alike.
    """
    launches = [(place, entry, x) for place, entry in enumerate(entries) for x in entry.missing]

    def turn(launch: tuple[int, Outcome, Plan]) -> tuple[int, int]:
        place, _, plan = launch
        return plan.repeat_index, place if plan.repeat_index % 2 else -place

    return [(entry, plan) for _, entry, plan in sorted(launches, key=turn)]


def run(
    entries: Sequence[Outcome],
    request: StopRequest,
    *,
    launch: Callable[[Plan, Cluster, str], Record],
    said: Callable[[str], None],
) -> None:
    """Do all launches that are left, and say in every entry how it ended.

    After a launch that came to its time limit, its entry's others are left out: they would too.

    Args:
        request: nothing further is launched once it holds a signal.
        launch: does one launch at a cluster under a label and returns its record.
        said: called with a line for each entry that is not launched.

    Raises:
        EnvironmentFault: the folder of the runs cannot be used, or another call is at work
            there; nothing was started.
    """
    labels = {
        one.name: f"{place}/{len(entries)} {one.name}" for place, one in enumerate(entries, 1)
    }
    given_up: dict[str, str | None] = {}  # why a launch could not begin; None: too slow
    with ExitStack() as stack:
        if any(entry.missing for entry in entries):
            stack.enter_context(_alone(entries))
            for entry in entries:
                _take_over(entry, request, said)
        for entry in entries:
            if not entry.missing:
                said(f"{labels[entry.name]}: {entry.state}")
        for entry, plan in expected(entries):
            if request.signal_name is not None:
                break
            if entry.name in given_up:
                continue
            label = labels[entry.name]
            try:
                record = launch(plan, entry.cluster, label)
            except (TrainmarkError, OSError) as fault:
                said(f"{label}: failed: {fault}")
                given_up[entry.name] = " ".join(str(fault).split())
            else:
                entry.ended[plan.repeat_index] = Path(plan.run_dir), record
                if record.status == "timed_out":
                    given_up[entry.name] = None
    for entry in entries:
        entry.close(given_up.get(entry.name))
        if entry.state == "left":
            said(f"{labels[entry.name]}: left")


def _take_over(entry: Outcome, request: StopRequest, said: Callable[[str], None]) -> None:
    """Finish what earlier calls left of an entry, now that no other call is at work.

    One may have been killed at a launch. A job that it submitted goes on without it and is waited
    for.
    """
    if entry.plan is None:
        return
    for folder in entry.fallen:
        try:
            if (folder / CLUSTER_FILE).exists() and not (folder / RECORD_FILE).exists():
                said(f"{entry.name}: {folder} is a submitted job: waiting")
                submission.follow(submission.attach(folder), request)
            complete(folder)
        except TrainmarkError as fault:  # as of a launch that was killed before it began
            said(f"{entry.name}: {fault}")
    entry.look()


@contextmanager
def _alone(entries: Sequence[Outcome]) -> Iterator[None]:
    """Lock the folder of the runs, which is created if it is missing."""
    base = next(Path(entry.plan.run_dir).parent for entry in entries if entry.plan)
    with ExitStack() as stack:
        try:
            base.mkdir(parents=True, exist_ok=True)
            stack.enter_context(locked(base))
        except BlockingIOError:
            what = "another `trainmark run` of this plan is running there"
            fix = "wait for it, or choose another --out"
            raise EnvironmentFault(what, where=str(base), fix=fix) from None
        except OSError as error:
            raise cannot_write(base, error) from error
        yield
