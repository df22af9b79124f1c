"""Planning, launching, submitting and attaching runs, with remarks to the user on the way."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from trainmark import devices
from trainmark.api.following import select_followers
from trainmark.api.pages import write_pages_safely
from trainmark.api.records import Records
from trainmark.errors import TrainmarkError, UsageError
from trainmark.export.followers.starting import Followers
from trainmark.export.followers.targets import parse_targets
from trainmark.launch import local, series, submission
from trainmark.launch.cluster import CONTAINER, LOCAL, read_cluster
from trainmark.launch.processes import StopRequest, note_stop_signals
from trainmark.launch.progress import ProgressLine, end_line
from trainmark.launch.run_dir import record_failed_planning, refuse_unwritable, refuse_used
from trainmark.pages.page import write_entry_pages, write_pages
from trainmark.plan.plan import UNCHECKED
from trainmark.plan.plan_file import read_plan_file
from trainmark.plan.resolving import UNUSED_ACCELERATOR, UnplannableError, list_launches, resolve
from trainmark.record.record import RECORD_FILE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from trainmark.export.followers.targets import FollowTarget
    from trainmark.launch.cluster import Cluster
    from trainmark.launch.series import SeriesEntry
    from trainmark.plan.plan import Plan
    from trainmark.plan.plan_file import PlanFile
    from trainmark.plan.request import RunRequest
    from trainmark.record.record import Record

    ShowRemark = Callable[[object], None]


def plan_run(
    request: RunRequest, *, show_remark: ShowRemark, dry_run: bool = False
) -> tuple[Plan, Cluster]:
    """Check everything and return the plan of a run, with the settings of its launcher's cluster.

    Args:
        show_remark: called with each remark, for example that a device cannot be used.
        dry_run: the plan is only shown. Data that only the nodes can see is then not checked, and
            no record is written if planning fails.

    Raises:
        UsageError, DataError, EnvironmentFault: before anything starts.
        UnplannableError: code of the case failed; without ``dry_run``, the run has a record.
    """
    # The first vendor with a usable device is chosen. The user learns of packages of vendors that
    # cannot be loaded, and below of devices that are there but cannot be used.
    if request.device is None:
        _report_unusable_vendors(show_remark)
    settings = read_cluster(request.cluster)
    with _record_failed_planning(show_remark=show_remark, dry_run=dry_run):
        # ``remote``: the machines of the launcher, or a container here; None: this machine itself.
        plan = resolve(
            request, remote=settings.find_remote_target(request.launcher), dry_run=dry_run
        )
    _report_unchecked_data([plan], show_remark)
    _report_unproven([plan], show_remark)  # the vendor or launcher, if it did no real run yet
    # Refuse a run directory that is not empty: also before a dry run, which shows what a run would
    # do, and before the launches of a repeat, each of which checks only its own folder inside it.
    refuse_used(Path(plan.run_dir))
    has_other_machines = plan.launcher not in (LOCAL, CONTAINER)
    # The script of a job may be printed on a machine that does not have the folder of the nodes.
    if not (dry_run and has_other_machines):
        refuse_unwritable(Path(plan.run_dir))
    # This machine has an accelerator that cannot be used, and the user chose no device.
    if UNUSED_ACCELERATOR in plan.labels:
        for remark in (*devices.list_device_faults(), f"runs on {plan.device.vendor} instead"):
            show_remark(remark)
    # A case key such as `distilbert:pytorch_2.13:cpu:1:2:1` names a device too.
    names_device = bool(request.device or settings.device or ":" in request.case)
    if has_other_machines and plan.device.vendor == "cpu" and not names_device:
        # A login node has no accelerator, but the nodes to which it submits usually have.
        show_remark(
            "the run uses the CPUs of the nodes: no accelerator was found on this "
            "machine, and neither --device nor `device` in the cluster file selects "
            "another device"
        )
    return plan, settings


def _report_unusable_vendors(show_remark: ShowRemark) -> None:
    """Show why the plugins of device vendors that cannot be loaded fail, each by a remark."""
    _vendors, faults = devices.load_all()
    for fault in faults:
        show_remark(fault)


@contextmanager
def _record_failed_planning(*, show_remark: ShowRemark, dry_run: bool) -> Iterator[None]:
    """Write the record of a run whose planning, in the block, fails in the code of its case.

    Args:
        dry_run: write nothing; the error is raised all the same.
    """
    try:
        yield
    except UnplannableError as error:
        if not dry_run:
            _write_failed_planning(error, show_remark)
        raise


def _write_failed_planning(error: UnplannableError, show_remark: ShowRemark) -> None:
    """Write the record and the pages of a run that could not be planned."""
    folder = Path(error.plan.run_dir)
    try:
        record = record_failed_planning(error)
    except TrainmarkError as fault:  # the caller raises the first error, which matters more
        show_remark(fault)
        return
    write_pages_safely(folder, write_pages, [record], folder, show_remark=show_remark)
    show_remark(f"record: {folder}/{RECORD_FILE}")


def launch_run(
    plan: Plan,
    cluster: Cluster,
    stop: StopRequest,
    *,
    quiet: bool,
    show_remark: ShowRemark,
    follow: Sequence[FollowTarget] = (),
) -> Records:
    """Launch as often as the plan says, write the pages, and return the records.

    Each launch writes its own page. Several launches also get a page of all together.

    A failed launch does not stop the others, unless it reached its time limit: the others would
    too. Then, and after a signal in ``stop``, there are fewer records than the plan says.

    Args:
        cluster: settings of the plan's launcher.
        quiet: show no progress.
        show_remark: called with each remark, for example that launches are skipped.
        follow: programs, such as MLflow, to which each launch is handed while it runs.
    """
    records = Records()
    for plan_of_launch in list_launches(plan):  # ``plan`` itself has the folder of all launches
        if stop.signal_name is not None:
            break
        record = launch_once(
            plan_of_launch,
            cluster,
            plan.case,
            stop,
            quiet=quiet,
            show_remark=show_remark,
            follow=follow,
        )
        records.append(record)
        records.places.append(Path(plan_of_launch.run_dir))
        if record.status == "timed_out" and len(records) < plan.repeat_count:
            num_skipped = plan.repeat_count - len(records)
            show_remark(
                f"the remaining launches ({num_skipped}) are skipped: they would also time out"
            )
            break
    if plan.repeat_count > 1 and records:
        folder = Path(plan.run_dir)
        write_pages_safely(folder, write_pages, records, folder, show_remark=show_remark)
    return records


def launch_once(
    plan_of_launch: Plan,
    cluster: Cluster,
    label: str,
    stop: StopRequest,
    *,
    quiet: bool,
    show_remark: ShowRemark,
    follow: Sequence[FollowTarget] = (),
) -> Record:
    """Do one launch, hand it to the programs of ``follow`` meanwhile, and write its pages.

    Args:
        cluster: settings of the plan's launcher.
        label: name of the run in the line that shows the progress.
        stop: the launch is ended as soon as this holds a signal.
        quiet: show no such line.
    """
    # Without node processes, the launcher starts the ranks on this machine itself.
    runs_on_this_machine = plan_of_launch.node_processes == 0
    if runs_on_this_machine:  # other processes on its devices would slow the run down
        for occupant in devices.list_occupants(plan_of_launch.device.vendor, plan_of_launch.nproc):
            if occupant.computes:
                show_remark(f"{occupant.describe()}: do not quote the figures of this run")
    with Followers(Path(plan_of_launch.run_dir), follow) as followers:
        followers.wait_until_ready(stop)
        record = _launch_with_progress(plan_of_launch, cluster, label, stop, quiet=quiet)
        followers.end_inputs()  # they hand over the rest while the pages are written
        folder = Path(plan_of_launch.run_dir)
        write_pages_safely(folder, write_pages, [record], folder, show_remark=show_remark)
    for remark in followers.iterate_remarks():
        show_remark(remark)
    return record


def _launch_with_progress(
    plan: Plan, cluster: Cluster, label: str, stop: StopRequest, *, quiet: bool
) -> Record:
    """Launch here or through the plan's launcher, with a progress line; return the record.

    Args:
        plan: plan of one launch.
        label: name of the run in the line.
        stop: the run is stopped as soon as it holds a signal.
        quiet: show no line.
    """
    if plan.repeat_count > 1:
        label = f"{label} {plan.repeat_index}/{plan.repeat_count}"
    show = _ignore if quiet else ProgressLine(plan, label).show
    if plan.launcher == LOCAL:
        record = local.launch(plan, stop, show)
    else:
        record = submission.launch(plan, cluster, stop, show)
    if not quiet:
        end_line(f"{label}: {record.status}")
    return record


def _report_unchecked_data(plans: Iterable[Plan], show_remark: ShowRemark) -> None:
    """Report each folder of data that a dry run could not check: it is not on this machine.

    Nodes refuse a plan without the facts of its data, such as the number of samples.
    """
    # ``UNCHECKED`` stands in place of the layout that a check would have found.
    unchecked = [plan.data.folder for plan in plans if plan.data.layout == UNCHECKED]
    for folder in dict.fromkeys(unchecked):  # each once: several plans may have the same
        show_remark(
            f"{folder} is not on this machine, so its data could not be checked, and "
            "the nodes will refuse this plan. Submit it from a machine that has the "
            "data"
        )


def _report_unproven(plans: Iterable[Plan], show_remark: ShowRemark) -> None:
    """Show which devices and launchers have not done real runs yet.

    Each remark says what the device or launcher was tested on instead.
    """
    remarks = [remark for plan in plans for remark in plan.describe_unproven()]
    for remark in dict.fromkeys(remarks):  # each once: several plans may have the same
        show_remark(remark)


def plan_entries(
    request: RunRequest, *, show_remark: ShowRemark, dry_run: bool = False
) -> tuple[PlanFile, list[SeriesEntry]]:
    """Check every entry of a plan file; return the file, and the state of each entry.

    Args:
        show_remark: called with each remark, for example that a plugin cannot be loaded.
        dry_run: the plans are only shown. Data that only the nodes can see is then not checked, and
            no record is written if planning fails.

    Raises:
        UsageError, DataError, EnvironmentFault: before anything starts.
        UnplannableError: code of a case failed; nothing was started. Without ``dry_run``, the run
            has a record.
    """
    file = read_plan_file(request)
    for entry in file.entries:
        # Followers are the programs, such as MLflow, to which an entry hands its run. Called for
        # its checks; ``run_entries`` selects them again.
        select_followers(entry.follow, where=f"{entry.where}: follow")
    if request.device is None:  # the first vendor with a usable device is chosen
        _report_unusable_vendors(show_remark)
    with _record_failed_planning(show_remark=show_remark, dry_run=dry_run):
        entries = series.check_entries(file, dry_run=dry_run)
    plans = [entry.plan for entry in entries if entry.plan]  # a skipped entry has none
    # Without missing launches, nothing is written: a finished series may be in a read-only folder.
    # Jobs of other machines may be shown on a machine that does not have the folder of the nodes.
    missing = [plan for entry in entries for plan in entry.missing]
    if missing and (not dry_run or any(plan.launcher in (LOCAL, CONTAINER) for plan in missing)):
        refuse_unwritable(file.out)
    _report_unchecked_data(plans, show_remark)
    _report_unproven(plans, show_remark)  # devices and launchers that have done no real runs yet
    return file, entries


def run_entries(
    entries: Sequence[SeriesEntry], *, quiet: bool, show_remark: ShowRemark, deliver: bool = False
) -> list[SeriesEntry]:
    """Do the missing launches of a plan file and write their pages; return the entries as they end.

    Args:
        quiet: show no progress.
        deliver: deliver a stop signal again after the end, as ``note_stop_signals`` does.
    """
    with note_stop_signals(deliver=deliver) as stop:

        def launch(plan: Plan, cluster: Cluster, label: str, follow: tuple[str, ...]) -> Record:
            """Do one launch of an entry; ``follow`` names its programs as the plan file does."""
            targets = parse_targets(follow)
            return launch_once(
                plan, cluster, label, stop, quiet=quiet, show_remark=show_remark, follow=targets
            )

        concluded = series.run_entries(
            entries,
            stop,
            launch=launch,
            report=_ignore if quiet else end_line,  # prints a line in place of the progress
        )
        for entry in concluded:
            folder = entry.run_dir
            if folder is not None:  # the entry has a new or an earlier attempt
                write_pages_safely(folder, write_entry_pages, entry, show_remark=show_remark)
    return concluded


def submit_run(plan: Plan, cluster: Cluster) -> str:
    """Submit a run to its engine, such as Slurm, and return the job's id at once.

    ``trainmark run --detach`` calls this, so that the error names that option.

    Raises:
        UsageError: the launcher cannot submit, or the plan has several launches.
    """
    # Without node processes, the launcher starts the ranks on this machine itself.
    can_submit = plan.node_processes > 0 and submission.build_command(plan, cluster).submits
    obstacles = [] if can_submit else [f"launcher {plan.launcher}"]
    if plan.repeat_count > 1:
        obstacles.append(f"--repeat {plan.repeat_count}")
    if obstacles:
        raise UsageError(
            f"--detach cannot be used with {' and '.join(obstacles)}",
            where="--detach",
            rule="--detach needs a scheduler and a single launch",
            fix="remove --detach, or use --repeat 1 and a launcher that submits a job",
        )
    # This checks the plan and creates the run directory. The job starts only in the next line.
    start_job = submission.prepare_job(plan, cluster)
    return start_job().id


def attach_run(
    folder: Path,
    *,
    cancel: bool,
    quiet: bool,
    follow: Sequence[FollowTarget],
    show_remark: ShowRemark,
) -> Records:
    """Wait for the end of a submitted run, collect its files, record it, write its pages.

    Args:
        folder: the run directory.
        cancel: whether to cancel the job first.
        quiet: show no progress on standard error.
        follow: programs to which the run is handed meanwhile.
        show_remark: called with each remark.
    """
    plan, job = submission.attach(folder)
    # A request that already holds a signal makes ``submission.follow`` cancel the job.
    stop = StopRequest("SIGINT" if cancel else None)
    report = _ignore if quiet else ProgressLine(plan, plan.case).show
    with Followers(job.folder, follow) as followers:
        record = submission.follow(job, stop, report)
        followers.end_inputs()  # they hand over the rest while the pages are written
        write_pages_safely(folder, write_pages, [record], folder, show_remark=show_remark)
    for remark in followers.iterate_remarks():
        show_remark(remark)
    return Records([record], [folder])


def _ignore(line: object) -> None:
    """Report nothing."""
