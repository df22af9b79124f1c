"""Do the launches of a plan file one after another, except those already finished.

Every entry is checked before the first starts. Entries that this machine cannot run are skipped
with a reason. A failure does not stop the others; Ctrl-C does. Only one call at a time can work in
a folder.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainmark.errors import EnvironmentFault, TrainmarkError
from trainmark.launch import submission
from trainmark.launch.contract import SITE_FILE
from trainmark.launch.earlier import Found, look_up, unusable
from trainmark.launch.late_record import complete
from trainmark.launch.run_dir import locked
from trainmark.launch.site import Site, read_site
from trainmark.plan.capabilities import capable_vendor
from trainmark.plan.choosing import choose
from trainmark.plan.plan import PLAN_FILE, Plan
from trainmark.plan.plan_file import ROUNDS
from trainmark.plan.resolving import resolve
from trainmark.record.entries import Outcome, State
from trainmark.record.messages import render
from trainmark.record.record import RECORD_FILE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from trainmark.launch.stopping import StopRequest
    from trainmark.plan.plan_file import Entry, PlanFile
    from trainmark.record.record import Record


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedEntry:
    """One entry, checked.

    Args:
        plan: as resolved, in the folder of a first attempt.
        site: settings of its launcher.
        found: what there is of it, and what is missing; nothing if it is skipped.
        skipped: why this machine cannot run it.
    """

    name: str
    plan: Plan | None = None
    site: Site = field(default_factory=Site)
    found: Found = field(default_factory=Found)
    skipped: str | None = None

    def outcome(self, *, over: bool = False, fault: str | None = None) -> Outcome:
        """Return its outcome.

        Args:
            over: whether nothing more will be launched; else it is that before the first launch.
            fault: why a launch of it could not begin.
        """
        if self.plan is None:
            return Outcome(name=self.name, state="skipped", reason=self.skipped)
        ended = [self.found.ended[number] for number in sorted(self.found.ended)]
        done, wanted = len(ended), self.plan.repeat_count
        fault = next((_why(record) for _, record in ended if not record.passed), fault)
        state: State = "passed"
        if not self.found.missing:
            state = "kept"
        elif not over:
            state, fault = "to run", "; ".join([self.plan.case_key, *self.found.why_again])
        elif fault is not None:
            state = "failed"
        elif done < wanted:
            state, fault = "left", f"stopped after {done} of {wanted} launches"
        anew = any(plan.repeat_index in self.found.ended for plan in self.found.missing)
        return Outcome(
            name=self.name, state=state, reason=fault, planned=wanted,
            run_dir=self.found.run_dir if anew or state != "left" else None,
            records=tuple(record for _, record in ended),
            folders=tuple(folder for folder, _ in ended), fallen=tuple(self.found.fallen),
        )  # fmt: skip


def _why(record: Record) -> str:
    """Return why a launch did not pass."""
    cause = record.cause and f": {' '.join(render(record.cause.message, 'en').split())}"
    return record.status + (cause or "")


def check(
    file: PlanFile, *, engines: bool = False, generated_root: Path | None = None
) -> list[CheckedEntry]:
    """Resolve every entry; nothing is started.

    Args:
        engines: whether launchers look for what would stop the runs at their site.
        generated_root: the cache of generated data; None: the user's.

    Raises:
        TrainmarkError: the first fault, with the file and name of its entry.
        EnvironmentFault: the folder of the runs is a run itself.
    """
    if (file.out / PLAN_FILE).exists():
        raise EnvironmentFault("the folder is that of a single run", where=str(file.out),
                               rule="the runs of a plan file need their own folder",
                               remedy="choose another --out")  # fmt: skip
    read_once, seen, entries = cache(read_site), set[tuple[Any, ...]](), []
    for entry in file.entries:
        try:
            site = read_once(entry.site).with_hosts(entry.hosts)
            checked = _checked(entry, site, generated_root)
            plan = checked.plan
            if engines and plan and plan.node_processes and checked.found.missing:
                asked = plan.launcher, plan.device.vendor, plan.nnodes, plan.nproc, id(site)
                if asked not in seen:
                    submission.launcher_of(site, plan.launcher).check(plan, site)
                seen.add(asked)
        except TrainmarkError as fault:
            where = ": ".join(filter(None, [f"{entry.where}, run {entry.name}", fault.where]))
            told = {"where": where, "rule": fault.rule, "remedy": fault.remedy}
            raise type(fault)(fault.what, **told) from fault
        entries.append(checked)
    return entries


def _checked(entry: Entry, site: Site, generated_root: Path | None) -> CheckedEntry:
    elsewhere = site.elsewhere(entry.launcher)
    try:
        vendor = capable_vendor(
            choose(entry), entry.device, elsewhere=elsewhere, ranks_share_cores=False
        )
    except EnvironmentFault as fault:
        return CheckedEntry(name=entry.name, site=site, skipped=fault.what)
    request = entry.model_copy(update={"device": vendor.name})
    plan = resolve(request, elsewhere=elsewhere, generated_root=generated_root)
    found = look_up(entry.name, plan, Path(plan.run_dir).parent)
    return CheckedEntry(name=entry.name, plan=plan, site=site, found=found)


def expected(entries: Sequence[CheckedEntry], order: str) -> list[tuple[str, Plan]]:
    """Return the launches to do, each with its entry's name.

    Args:
        order: ``ROUNDS``: launch 1 of every entry goes before launch 2 of any, every other round
            backwards, so that a drift of the machine affects all alike. Else one entry goes after
            another.
    """
    left = [(entry.name, plan) for entry in entries for plan in entry.found.missing]
    if order == ROUNDS:
        places = {entry.name: number for number, entry in enumerate(entries)}

        def turn(launch: tuple[str, Plan]) -> tuple[int, int]:
            number, place = launch[1].repeat_index, places[launch[0]]
            return number, place if number % 2 else -place

        left.sort(key=turn)
    return left


def run(
    entries: Sequence[CheckedEntry],
    request: StopRequest,
    *,
    order: str,
    launch: Callable[[Plan, Site, str], Record],
    said: Callable[[str], None],
) -> list[Outcome]:
    """Do all launches that are left and return every entry's outcome.

    Args:
        request: nothing further is launched once it holds a signal.
        order: see ``expected``.
        launch: does one launch at a site under a label and returns its record.
        said: called with a line for each entry that is not launched (the reason is in the
            outcome), and with the reason why a launch is done again.

    Raises:
        EnvironmentFault: the folder of the runs cannot be used, or another call is at work
            there; nothing was started.
        RecordError: processes of a killed launch still run there; nothing was started.
    """
    with ExitStack() as stack:
        if any(entry.found.missing for entry in entries):
            stack.enter_context(_alone(_base(entries)))
            entries = [_under_lock(entry, _base(entries), request, said) for entry in entries]
        known = {entry.name: entry for entry in entries}
        labels = {name: f"{place}/{len(known)} {name}" for place, name in enumerate(known, 1)}
        for name, entry in known.items():
            for why in entry.found.why_again:
                said(f"{labels[name]}: {why}")
            if not entry.found.missing:
                said(f"{labels[name]}: {entry.outcome().state}")
        left = expected(entries, order)
        faults: dict[str, str] = {}
        while left and request.signal_name is None:
            name, plan = left.pop(0)
            entry = known[name]
            try:
                record = launch(plan, entry.site, labels[name])
            except (TrainmarkError, OSError) as fault:
                said(f"{labels[name]}: failed: {fault}")
                faults[name] = " ".join(str(fault).split())
                left = [turn for turn in left if turn[0] != name]
            else:
                entry.found.ended[plan.repeat_index] = Path(plan.run_dir), record
    outcomes = [entry.outcome(over=True, fault=faults.get(name)) for name, entry in known.items()]
    for outcome in outcomes:
        if outcome.state == "left":
            said(f"{labels[outcome.name]}: left")
    return outcomes


def _base(entries: Sequence[CheckedEntry]) -> Path:
    """Return the folder of the runs, which all entries share."""
    return next(Path(entry.plan.run_dir).parent for entry in entries if entry.plan)


def _under_lock(
    entry: CheckedEntry, base: Path, request: StopRequest, said: Callable[[str], None]
) -> CheckedEntry:
    """Return an entry as it is now that no other call is at work.

    Another call may have finished some launches since the check, or have been killed at one. A
    job that it submitted goes on without it and is waited for.
    """
    if entry.plan is None:
        return entry
    for folder in entry.found.fallen:
        try:
            if (folder / SITE_FILE).exists() and not (folder / RECORD_FILE).exists():
                said(f"{entry.name}: {folder.relative_to(base)} is a submitted job: waiting")
                submission.follow(*submission.attach(folder), request)
            complete(folder)
        except TrainmarkError as fault:  # as of a launch that was killed before it began
            said(f"{entry.name}: {fault}")
    return replace(entry, found=look_up(entry.name, entry.plan, base))


@contextmanager
def _alone(base: Path) -> Iterator[None]:
    """Lock the folder of the runs, which is created if it is missing."""
    with ExitStack() as stack:
        try:
            base.mkdir(parents=True, exist_ok=True)
            stack.enter_context(locked(base))
        except BlockingIOError:
            what = "another `trainmark run` of this plan is running there"
            remedy = "wait for it, or choose another --out"
            raise EnvironmentFault(what, where=str(base), remedy=remedy) from None
        except OSError as error:
            raise unusable(base, error) from error
        yield
