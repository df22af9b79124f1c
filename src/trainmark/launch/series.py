"""Do the launches of a plan file one after another, except those already finished.

Every entry is checked before the first starts. Entries that this machine cannot run are skipped
with a reason. A failure does not stop the others; Ctrl-C does. Only one call at a time can work in
a folder.

A launch is finished if it has a record that passed, of the same work as planned now. Its record is
checked against its events; if they contradict it, the launch stays finished and is reported.
Launches that did not pass stay in their folder. Missing launches go into a new folder, the entry's
next attempt: ``toy-2`` after ``toy``. So the finished launches of an entry may lie in several
attempts.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

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
from trainmark.launch.run_dir import build_write_fault, complete_records, lock_folder
from trainmark.launch.submission import CLUSTER_FILE
from trainmark.plan.choosing import choose_work, select_vendor
from trainmark.plan.plan import PLAN_FILE, Plan
from trainmark.plan.plan_file import format_attempt_name, parse_attempt_number
from trainmark.plan.resolving import UnplannableError, list_launches, resolve
from trainmark.plan.witnessing import choose_program_work
from trainmark.record.messages import render
from trainmark.record.record import RECORD_FILE, Record, read_record
from trainmark.record.trust import is_refuted
from trainmark.record.verify import check_record
from trainmark.record.work import describe_planned_work, find_differences

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from trainmark.launch.processes import StopRequest
    from trainmark.plan.plan_file import Entry, PlanFile

EntryState = Literal["passed", "finished", "failed", "skipped", "left", "to run"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesEntry:
    """A checked entry of a plan file and the launches that it already has.

    ``check_entries`` returns it before the series, ``run_entries`` a new one after it.

    Args:
        plan: the resolved plan, with the folder of a first attempt; None: this machine cannot run
            the entry.
        cluster: settings of the plan's launcher.
        state: ``finished``: records of the same work existed before; ``skipped``: this machine
            cannot run it; ``to run``: launches are missing, until the series ends. From then on
            ``passed``, ``failed``, or ``left``: the series was stopped before its last launch.
        reason: why the entry failed, was skipped or was left, or what would run.
        run_dir: folder of the newest attempt, or of the next one if launches are missing; None if
            there is none.
        ended: folder and record of the launches that have ended, by the launch's number.
        missing: plans of the launches to do.
        earlier_failures: folders of earlier launches of the same work that did not pass or have no
            record.
        follow: the request's ``follow``: programs to which its launches are handed.
    """

    name: str
    plan: Plan | None = None
    cluster: Cluster = field(default_factory=Cluster)
    state: EntryState = "to run"
    reason: str | None = None
    run_dir: Path | None = None
    ended: Mapping[int, tuple[Path, Record]] = field(default_factory=dict)
    missing: tuple[Plan, ...] = ()
    earlier_failures: tuple[Path, ...] = ()
    follow: tuple[str, ...] = ()

    @property
    def num_launches(self) -> int:
        """Return the number of launches that the entry asks for.

        An entry that this machine cannot run has no plan, and counts as one launch.
        """
        return 1 if self.plan is None else self.plan.repeat_count

    @property
    def folders(self) -> list[Path]:
        """Return the folder of each record, in the order of the launches' numbers."""
        return [folder for _number, (folder, _record) in sorted(self.ended.items())]

    @property
    def records(self) -> list[Record]:
        """Return the record of each launch that has ended, in the order of their numbers."""
        return [record for _number, (_folder, record) in sorted(self.ended.items())]

    @property
    def contradiction(self) -> str | None:
        """Return a sentence that names the runs whose record contradicts its events.

        It is None if there is no such run.
        """
        runs = [record.run_id for record in self.records if is_refuted(record.trust)]
        if not runs:
            return None
        verb = "does not match its" if len(runs) == 1 else "do not match their"
        return f"{', '.join(runs)} {verb} raw events"


def choose_exit_code(entries: Iterable[SeriesEntry]) -> int:
    """Return 0 if all entries that could run passed, 1 if one did not, 2 if none could run."""
    states = {entry.state for entry in entries}
    if states & {"failed", "left"}:  # left: the series was stopped before its launches had ended
        return EXIT_FAILED
    # passed: in this call; finished: in an earlier one. After a dry run, entries that could run
    # stay in the state "to run".
    if states & {"passed", "finished", "to run"}:
        return EXIT_PASSED
    return EXIT_USAGE


def _find_attempts(base: Path, name: str) -> dict[int, Path]:
    """Return the folders of an entry's earlier attempts, by the attempt's number.

    Empty folders are left out.

    Args:
        base: the folder of the runs of a plan file.
        name: name of the entry.
    """
    attempts: dict[int, Path] = {}
    for folder in base.glob("*"):
        number = parse_attempt_number(name, folder.name)  # None: a folder of another entry
        if number and folder.is_dir() and any(folder.iterdir()):
            attempts[number] = folder
    return attempts


def _move_to_next_attempt(plan: Plan, name: str) -> Plan:
    """Return the plan of an entry's first launch in the folder of its next attempt."""
    attempt_folder = Path(plan.run_dir)
    subfolder = Path()
    if plan.repeat_count > 1:  # several launches are in subfolders of the attempt
        attempt_folder = attempt_folder.parent
        subfolder = Path(f"r{plan.repeat_index}")
    base = attempt_folder.parent
    number = max(_find_attempts(base, name), default=0) + 1
    folder = base / format_attempt_name(name, number) / subfolder
    return plan.model_copy(update={"run_dir": str(folder)})


def _describe_work(plan: Plan) -> dict[str, Any]:
    """Return what launches of the same work have in common, as JSON values."""
    return dict(to_jsonable_python(describe_planned_work(plan)))


class _EarlierLaunch(NamedTuple):
    """The work of a launch in a folder, and its record if it has one."""

    work: dict[str, Any]
    record: Record | None


def _read_launch(folder: Path) -> _EarlierLaunch | None:
    """Return the launch in a folder; None if there is none, or it cannot be read."""
    try:
        # A launch without a record still runs, or was killed with its launcher.
        record = read_record(folder) if (folder / RECORD_FILE).exists() else None
        plan = Plan.read(folder) if record is None else record.plan
    except (RecordError, OSError, ValueError):
        return None
    return _EarlierLaunch(_describe_work(plan), record)


def _explain_failure(record: Record) -> str:
    """Return why a launch did not pass."""
    if record.cause is None:
        return record.status
    return f"{record.status}: {' '.join(render(record.cause.message, 'en').split())}"


def check_entries(file: PlanFile, *, dry_run: bool = False) -> list[SeriesEntry]:
    """Resolve every entry and find the launches that it already has; start nothing.

    Args:
        dry_run: the plans are only shown; data that this machine cannot see is then not checked.

    Raises:
        TrainmarkError: the first fault, with the file and name of its entry.
        EnvironmentFault: the folder of the runs is a run itself.
    """
    if (file.out / PLAN_FILE).exists():
        raise EnvironmentFault(
            "the folder already contains a run that was started without a plan file",
            where=str(file.out),
            rule="the runs of a plan file need a folder of their own",
            fix="choose another folder with --out",
        )
    read_cluster_once = cache(read_cluster)  # many entries may name the same cluster file
    entries = []
    for entry in file.entries:
        try:
            cluster = read_cluster_once(entry.cluster)
            entries.append(_check_entry(entry, cluster, dry_run=dry_run))
        except TrainmarkError as fault:
            place = f"{entry.where}, run {entry.name}"
            fault.where = f"{place}: {fault.where}" if fault.where else place
            raise
    return entries


def _check_entry(entry: Entry, cluster: Cluster, *, dry_run: bool) -> SeriesEntry:
    """Resolve an entry and find its launches; it is ``skipped`` if this machine cannot run it.

    Args:
        dry_run: the plan is only shown; data that this machine cannot see is then not checked.
    """
    # The machines of the entry's launcher; None: this machine, without a container.
    remote = cluster.find_remote_target(entry.launcher)
    # An entry with ``witness`` runs a program of the user's own, any other entry a case.
    choice = choose_work(entry) if entry.witness is None else choose_program_work(entry)
    try:
        # An entry with more ranks than cores is skipped, too: such ranks would run, but compete for
        # the cores, and a series is there to measure.
        vendor = select_vendor(choice, entry.device, remote=remote, ranks_share_cores=False)
    except EnvironmentFault as fault:
        return SeriesEntry(name=entry.name, state="skipped", reason=fault.what)
    # The request names the vendor, so that planning takes the same one.
    request = entry.model_copy(update={"device": vendor.name})
    try:
        plan = resolve(request, remote=remote, dry_run=dry_run)
    except UnplannableError as error:
        # The caller writes a record of the failed planning, which needs an unused folder.
        error.plan = _move_to_next_attempt(error.plan, entry.name)
        raise
    planned_entry = SeriesEntry(
        name=entry.name,
        plan=plan,
        cluster=cluster,
        follow=tuple(entry.follow or ()),  # programs, such as wandb, to which progress is handed
    )
    return _scan_attempts(planned_entry)


def _scan_attempts(entry: SeriesEntry) -> SeriesEntry:
    """Return the entry with the launches that have ended and those that are missing.

    They are read from the folders of all attempts. Each call that runs the entry's launches is an
    attempt, with a numbered folder of its own. If launches are missing, the state is ``to run``,
    and they get the folder of the next attempt. Otherwise it is ``finished``, with the folder of
    the newest attempt in use. A launch is not missing if an attempt has a record of it that passed,
    of the work that is planned now.

    An entry without a plan, which this machine cannot run, is returned as it is.
    """
    if entry.plan is None:
        return entry
    base = Path(entry.plan.run_dir).parent  # the folder of all attempts
    planned_work = _describe_work(entry.plan)
    attempts = _find_attempts(base, entry.name)
    next_dir = base / format_attempt_name(entry.name, max(attempts, default=0) + 1)
    # Records by folder. An earlier scan has checked them against their events; they never change,
    # so that they are not checked again.
    checked_records = dict(entry.ended.values())
    ended: dict[int, tuple[Path, Record]] = {}
    missing: list[Plan] = []
    earlier_failures: list[Path] = []
    last_used_attempt = 0  # number of the newest attempt from which a record is used
    for launch in list_launches(entry.plan.model_copy(update={"run_dir": str(next_dir)})):
        # The subfolder is r1, r2 …; that of a single launch is the attempt's folder itself.
        subfolder = Path(launch.run_dir).relative_to(next_dir)
        for attempt in sorted(attempts, reverse=True):  # the newest that passed counts
            folder = attempts[attempt] / subfolder
            earlier = _read_launch(folder)
            if earlier is None or find_differences(planned_work, earlier.work):
                continue  # nothing readable, or another work than is planned now
            # Those that did not pass are listed from all attempts, also if the launch passed in a
            # newer one: pages report each of them. A launch without a record still runs, or was
            # killed with its launcher. It is listed, too.
            if earlier.record is None or not earlier.record.passed:
                earlier_failures.append(folder)
            elif launch.repeat_index not in ended:
                record = checked_records.get(folder)
                if record is None:
                    record = check_record(earlier.record, folder)
                ended[launch.repeat_index] = folder, record
                last_used_attempt = max(last_used_attempt, attempt)
        if launch.repeat_index not in ended:
            missing.append(launch)
    scanned = replace(
        entry, ended=ended, missing=tuple(missing), earlier_failures=tuple(earlier_failures)
    )
    if missing:
        # The reason is what would run.
        return replace(scanned, state="to run", reason=entry.plan.case_key, run_dir=next_dir)
    return replace(
        scanned,
        state="finished",
        reason=scanned.contradiction,  # a warning; None: the records match their events
        run_dir=attempts[last_used_attempt],
    )


def order_launches(entries: Sequence[SeriesEntry]) -> list[tuple[SeriesEntry, Plan]]:
    """Return the launches to do, each with its entry, in the order in which they start.

    Launch 1 of every entry comes before launch 2 of any. Rounds with an even number run backwards,
    so that a drift of the machine affects all entries alike.
    """
    rounds: dict[int, list[tuple[SeriesEntry, Plan]]] = {}  # by the launch's number
    for entry in entries:
        for plan in entry.missing:
            rounds.setdefault(plan.repeat_index, []).append((entry, plan))
    ordered: list[tuple[SeriesEntry, Plan]] = []
    for number, launches in sorted(rounds.items()):
        is_backwards = number % 2 == 0
        ordered += launches[::-1] if is_backwards else launches
    return ordered


def run_entries(
    entries: Sequence[SeriesEntry],
    stop: StopRequest,
    *,
    launch: Callable[[Plan, Cluster, str, tuple[str, ...]], Record],
    report: Callable[[str], None],
) -> list[SeriesEntry]:
    """Do all missing launches; return the entries as they ended, in the same order.

    A launch is missing if no earlier call made a record of it that passed. After a launch that
    reached its time limit, the other launches of its entry are skipped: they would also time out.

    Args:
        stop: nothing further is launched once it holds a signal.
        launch: does one launch and returns its record. It is called with the plan, the cluster,
            a label for messages, and the names of the programs, such as ``wandb``, to which the
            launch's progress is handed (the entry's ``follow``).
        report: called with a line for each entry without missing launches, each entry that a stop
            signal leaves unfinished (``left``), and each launch that cannot begin; also with
            messages about launches of earlier calls.

    Raises:
        EnvironmentFault: the folder of the runs cannot be used, or another call uses it; nothing
            was started.
    """
    labels = {
        entry.name: f"{number}/{len(entries)} {entry.name}"
        for number, entry in enumerate(entries, start=1)
    }
    with ExitStack() as stack:
        # Without missing launches nothing is written, and the folder needs no lock.
        if any(entry.missing for entry in entries):
            stack.enter_context(_lock_folder(entries))
            for entry in entries:
                _finish_earlier_launches(entry, stop, report)
            # Launches of which there are records now may no longer be missing.
            entries = [_scan_attempts(entry) for entry in entries]
        for entry in entries:
            if not entry.missing:
                report(f"{labels[entry.name]}: {entry.state}")
        results = _launch_missing(entries, labels, stop, launch=launch, report=report)
    concluded = [
        _conclude_entry(entry, results.ended[entry.name], results.faults.get(entry.name))
        for entry in entries
    ]
    for entry in concluded:
        if entry.state == "left":
            report(f"{labels[entry.name]}: left")
    return concluded


class _LaunchResults(NamedTuple):
    """How the missing launches of all entries ended, by the entry's name.

    Args:
        ended: folder and record of the launches that have ended, by the launch's number; empty for
            an entry of which none has.
        faults: why a launch of the entry could not begin; an entry without a fault has none.
    """

    ended: dict[str, dict[int, tuple[Path, Record]]]
    faults: dict[str, str]


def _launch_missing(
    entries: Sequence[SeriesEntry],
    labels: dict[str, str],
    stop: StopRequest,
    *,
    launch: Callable[[Plan, Cluster, str, tuple[str, ...]], Record],
    report: Callable[[str], None],
) -> _LaunchResults:
    """Do the missing launches; return their records, and why a launch could not begin.

    Args:
        labels: label of each entry in messages, by the entry's name.
        stop: nothing further is launched once it holds a signal.
        launch: does one launch and returns its record. It is called with the plan, the cluster,
            the label, and the names of the programs, such as ``wandb``, to which the launch's
            progress is handed (the entry's ``follow``).
        report: called with a line for each launch that cannot begin.
    """
    results = _LaunchResults(ended={entry.name: {} for entry in entries}, faults={})
    timed_out: set[str] = set()
    for entry, plan in order_launches(entries):
        if stop.signal_name is not None:
            break
        # After such an end of one launch, the entry's others would not begin either, or would also
        # time out.
        if entry.name in results.faults or entry.name in timed_out:
            continue
        label = labels[entry.name]
        try:
            record = launch(plan, entry.cluster, label, entry.follow)
        except (TrainmarkError, OSError) as fault:
            report(f"{label}: failed: {fault}")
            results.faults[entry.name] = " ".join(str(fault).split())
            continue
        results.ended[entry.name][plan.repeat_index] = Path(plan.run_dir), record
        if record.status == "timed_out":
            timed_out.add(entry.name)
    return results


def _conclude_entry(
    entry: SeriesEntry, ended: Mapping[int, tuple[Path, Record]], fault: str | None
) -> SeriesEntry:
    """Return the entry with the state that it ends with, once nothing more is launched.

    Args:
        ended: folder and record of the launches of this call that have ended, by the launch's
            number.
        fault: why a launch of the entry could not begin; None: no launch failed to begin.
    """
    if entry.state != "to run":  # it is skipped or finished: nothing of it was launched
        return entry
    concluded = replace(entry, ended={**entry.ended, **ended})
    failure = fault
    # A launch that has not passed ended before any fault: after a launch that could not begin, no
    # further launch of the entry is started. The earlier of both reasons is named.
    for record in concluded.records:
        if not record.passed:
            failure = _explain_failure(record)
            break
    if failure is not None:
        return replace(concluded, state="failed", reason=failure)
    num_ended = len(concluded.ended)
    if num_ended == entry.num_launches:
        return replace(concluded, state="passed", reason=None)
    # Otherwise a stop signal has ended the series.
    run_dir = entry.run_dir
    if run_dir is not None and not run_dir.exists():
        run_dir = None  # stopped before the first launch of the attempt: nothing was written
    reason = f"stopped after {num_ended} of {entry.num_launches} launches"
    return replace(concluded, state="left", reason=reason, run_dir=run_dir)


def _finish_earlier_launches(
    entry: SeriesEntry, stop: StopRequest, report: Callable[[str], None]
) -> None:
    """Make the records of launches that earlier calls did not finish.

    An earlier call may have been killed during a launch. If that launch is a job of an engine such
    as Slurm, it is still running, and this function waits for it.

    Args:
        stop: a job for which this function waits is cancelled once it holds a stop signal.
        report: called with a line about each job that is waited for, and each launch of which no
            record can be made.
    """
    # These launches did not pass or have no record. ``complete_records`` writes the records that
    # are missing, and leaves the others as they are.
    for folder in entry.earlier_failures:
        try:
            # Only the folder of an engine's job has the settings of its cluster.
            if (folder / CLUSTER_FILE).exists() and not (folder / RECORD_FILE).exists():
                report(f"{entry.name}: {folder} is a submitted job: waiting")
                _, job = submission.attach(folder)
                submission.follow(job, stop)
            complete_records(folder)
        except TrainmarkError as fault:  # for example, the launch was killed before it began
            report(f"{entry.name}: {fault}")


@contextmanager
def _lock_folder(entries: Sequence[SeriesEntry]) -> Iterator[None]:
    """Lock the folder of the runs in the block; create it if it is missing."""
    # At least one entry has a plan: the caller has found launches that are missing.
    plans = [entry.plan for entry in entries if entry.plan is not None]
    base = Path(plans[0].run_dir).parent  # all entries of a plan file have the same
    with ExitStack() as stack:
        try:
            base.mkdir(parents=True, exist_ok=True)
            stack.enter_context(lock_folder(base))
        except BlockingIOError:
            raise EnvironmentFault(
                "another `trainmark run` of this plan is running in this folder",
                where=str(base),
                fix="wait until the other process ends, or choose another --out",
            ) from None
        except OSError as error:
            raise build_write_fault(base, error) from error
        yield
