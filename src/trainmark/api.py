"""The functions of Trainmark for Python: run, load and compare results; commands call them too.

Errors are those of ``trainmark.errors``. A launch that started and failed has a record, which is
returned like any other.
"""

from __future__ import annotations

import warnings
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from trainmark import devices
from trainmark.acceptance import acceptance
from trainmark.acceptance import cluster as acceptance_cluster
from trainmark.acceptance.baseline import (
    compute_baselines_of_runs,
    is_acceptance,
    read_baselines_of_acceptance,
)
from trainmark.acceptance.node_session import Acceptance
from trainmark.acceptance.request import AcceptRequest
from trainmark.documents import write_atomically
from trainmark.errors import RecordError, TrainmarkError, UsageError
from trainmark.export import tables
from trainmark.export.followers.following import FollowedRuns
from trainmark.export.followers.starting import Followers
from trainmark.export.followers.targets import OPTION, parse_targets, require_backends
from trainmark.extras import import_extra
from trainmark.judge.comparison import THRESHOLD
from trainmark.judge.comparison import compare as compare_results
from trainmark.judge.compliance import check_rules
from trainmark.launch import series, submission
from trainmark.launch.cluster import CONTAINER, LOCAL, read_cluster
from trainmark.launch.processes import StopRequest, note_stop_signals
from trainmark.launch.progress import ProgressLine, end_line, launch_with_progress
from trainmark.launch.run_dir import make_record, record_failed_planning, refuse_used
from trainmark.pages.acceptance import build_acceptance_document
from trainmark.pages.page import HTML_PAGE, build_documents, write_entry_pages, write_pages
from trainmark.pages.pictures import to_notebook_html
from trainmark.pages.rendering import render_template, to_html, to_markdown
from trainmark.pages.repeats import build_summary
from trainmark.pages.results import build_launch_table
from trainmark.pages.terminal import show
from trainmark.pages.texts import LANGUAGES
from trainmark.plan.plan import PLAN_FILE, UNCHECKED
from trainmark.plan.plan_file import is_plan_file, read_plan_file
from trainmark.plan.request import RunRequest
from trainmark.plan.resolving import UNUSED_ACCELERATOR, UnplannableError, list_launches, resolve
from trainmark.published.audit import audit
from trainmark.published.audit.views import view_record, view_row
from trainmark.record.record import RECORD_FILE, Record
from trainmark.results.bundle import pack, verify
from trainmark.results.selection import select_results

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
    from typing import Any, Literal

    import pandas as pd
    import pyarrow as pa
    from typing_extensions import Unpack

    from trainmark.acceptance.baseline import Baselines
    from trainmark.acceptance.result import AcceptanceResult
    from trainmark.acceptance.session import OpenedSession
    from trainmark.export.followers.following import Following
    from trainmark.export.followers.targets import FollowTarget
    from trainmark.judge.comparison import Comparison
    from trainmark.launch.cluster import Cluster
    from trainmark.launch.series import SeriesEntry
    from trainmark.pages.repeats import RepeatSummary
    from trainmark.plan.plan import Plan
    from trainmark.plan.plan_file import PlanFile
    from trainmark.plan.request import RunFields
    from trainmark.published.audit import Finding
    from trainmark.results.selection import Selection

    Compared = Record | Sequence[Record] | Sequence[str | Path] | str | Path
    ShowRemark = Callable[[object], None]

__all__ = [
    "Records",
    "accept",
    "audit_results",
    "check_rules",
    "compare",
    "follow",
    "frame",
    "load",
    "pack",
    "run",
    "table",
    "verify",
]


class Records(list[Record]):
    """A list of records, one for each launch.

    Args:
        records: the records.
        places: the run directory or file of each record.
    """

    def __init__(self, records: Iterable[Record] = (), places: Iterable[Path | str] = ()) -> None:
        super().__init__(records)
        self.places = [Path(place) for place in places]

    def __repr__(self) -> str:
        return show([build_launch_table(self)], width=10_000)  # so wide that no row folds

    def _repr_html_(self) -> str:
        """Return the page of a single record, or a table of several; notebooks call this."""
        if len(self) == 1:
            return _render_record(self[0])
        return render_template(
            "table.html.j2", "en", table=build_launch_table(self), heading="launches"
        )

    def summary(self) -> RepeatSummary:
        """Return mean, 95% interval and CV of every figure over launches of the same work.

        Raises:
            RecordError: no record, or work that differs.
        """
        return build_summary(self)

    def page(self, lang: Literal["en", "zh"] = "en", *, html: bool = False) -> str:
        """Return the result page as text, in Markdown or HTML.

        Args:
            lang: the language of the Markdown. HTML has both languages; it shows this one first.
            html: whether to return HTML instead of Markdown.
        """
        documents = build_documents(self)
        return to_html(documents, lang) if html else to_markdown(documents, lang)


def _render_record(record: Record) -> str:
    """Return the HTML that a notebook shows for a record: the first screen of its page."""
    return to_notebook_html(build_documents([record])[0])


# Notebooks call this method. It is set here because ``record`` must not import ``pages``.
Record._repr_html_ = _render_record  # type: ignore[attr-defined]


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
    # This machine has an accelerator that cannot be used, and the user chose no device.
    if UNUSED_ACCELERATOR in plan.labels:
        for remark in (*devices.list_device_faults(), f"runs on {plan.device.vendor} instead"):
            show_remark(remark)
    has_other_machines = plan.launcher not in (LOCAL, CONTAINER)
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
    _write_pages_safely(folder, write_pages, [record], folder, show_remark=show_remark)
    show_remark(f"record: {folder}/{RECORD_FILE}")


def select_followers(words: Sequence[str] | None, *, where: str = OPTION) -> list[FollowTarget]:
    """Return the programs to which runs are handed, after checking that they are installed.

    Args:
        words: such as ``tensorboard`` or ``mlflow=http://host:5000``; None: no programs.
        where: the option that has the words, for errors.

    Raises:
        UsageError: an unknown backend.
        EnvironmentFault: a program is not installed.
    """
    targets = parse_targets(words or (), where=where)
    require_backends(targets, where=where)
    return targets


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
        _write_pages_safely(folder, write_pages, records, folder, show_remark=show_remark)
    return records


def _write_pages_safely(
    folder: Path,
    write: Callable[..., None],
    *arguments: Any,
    show_remark: Callable[[str], None],
    advice: str | None = None,
) -> None:
    """Call a function that writes pages with ``arguments``; report an error without raising it.

    The result has been written before: the record of a run, or the verdicts of an acceptance. So an
    error here does not change it.

    Args:
        folder: gets the pages.
        advice: how the user draws the page later; None: as the page of a run.
    """
    try:
        write(*arguments)
    except Exception as error:  # noqa: BLE001 - see above
        what = str(error) or type(error).__name__
        if isinstance(error, OSError):  # such as a full disk; a failed write names no file
            what = f"{folder}: the page cannot be written: {error.strerror or error}"
        if advice is None:
            advice = f"run `trainmark report {folder} -o page.html` to draw the page later"
        show_remark(f"{what}; {advice}")


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
        record = launch_with_progress(plan_of_launch, cluster, label, stop, quiet=quiet)
        followers.end_inputs()  # they hand over the rest while the pages are written
        folder = Path(plan_of_launch.run_dir)
        _write_pages_safely(folder, write_pages, [record], folder, show_remark=show_remark)
    for remark in followers.iterate_remarks():
        show_remark(remark)
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
    _report_unchecked_data(plans, show_remark)
    _report_unproven(plans, show_remark)  # devices and launchers that have done no real runs yet
    return file, entries


def run_entries(
    entries: Sequence[SeriesEntry], *, quiet: bool, show_remark: ShowRemark, deliver: bool = False
) -> None:
    """Do the missing launches of the entries of a plan file, and write their pages.

    Args:
        quiet: show no progress.
        deliver: deliver a stop signal again after the end, as ``note_stop_signals`` does.
    """
    with note_stop_signals(deliver=deliver) as stop:

        def launch(plan: Plan, cluster: Cluster, label: str, follow: list[str]) -> Record:
            """Do one launch of an entry; ``follow`` names its programs as the plan file does."""
            targets = parse_targets(follow)
            return launch_once(
                plan, cluster, label, stop, quiet=quiet, show_remark=show_remark, follow=targets
            )

        series.run_entries(
            entries,
            stop,
            launch=launch,
            report=_ignore if quiet else end_line,  # prints a line in place of the progress
        )
        for entry in entries:
            folder = entry.run_dir
            if folder is not None:  # the entry has a new or an earlier attempt
                _write_pages_safely(folder, write_entry_pages, entry, show_remark=show_remark)


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
    cancel: bool = False,
    quiet: bool = True,
    follow: Sequence[FollowTarget] = (),
    show_remark: ShowRemark | None = None,
) -> Records:
    """Wait for the end of a submitted run, collect its files, record it, write its pages.

    Args:
        folder: the run directory.
        cancel: whether to cancel the job first.
        quiet: show no progress on standard error.
        follow: programs to which the run is handed meanwhile.
        show_remark: called with each remark; None: a remark becomes a warning.
    """
    show_remark = show_remark or _warn
    job = submission.attach(folder)
    # A request that already holds a signal makes ``submission.follow`` cancel the job.
    stop = StopRequest("SIGINT" if cancel else None)
    report = _ignore if quiet else ProgressLine(job.plan, job.plan.case).show
    with Followers(job.folder, follow) as followers:
        record = submission.follow(job, stop, report)
        followers.end_inputs()  # they hand over the rest while the pages are written
        _write_pages_safely(folder, write_pages, [record], folder, show_remark=show_remark)
    for remark in followers.iterate_remarks():
        show_remark(remark)
    return Records([record], [folder])


def run(
    case: str,
    overrides: Mapping[str, str | float | bool | None] | None = None,
    *,
    quiet: bool = True,
    **fields: Unpack[RunFields],
) -> Records:
    """Run a case, or the missing launches of a plan file; return the record of each launch.

    The ranks are separate processes, so that a script needs no ``__main__`` guard. A stop signal
    (Ctrl-C) ends the ranks; after the record is written, the signal is delivered again, which
    raises KeyboardInterrupt for Ctrl-C.

    Args:
        case: a case's name, alias or key, or a plan file.
        overrides: recipe fields to change, such as ``{"bs": 96, "precision": "bf16"}``.
        quiet: show no progress on standard error.
        fields: further fields of ``plan.request.RunRequest``: recipe, data, nproc, repeat, out …

    Raises:
        UsageError, DataError, EnvironmentFault: before anything starts.
    """
    request = RunRequest.build(case=case, overrides=overrides or None, **fields)
    # The programs to which the run is handed. With a plan file, this is called only so that a wrong
    # word fails before planning: the programs are selected again for the launches of its entries.
    followers = select_followers(request.follow)
    if is_plan_file(case):
        _, entries = plan_entries(request, show_remark=_warn)
        run_entries(entries, quiet=quiet, show_remark=_warn, deliver=True)
        results = Records()
        for entry in entries:
            # "skipped": this machine cannot run it. "left": a stop signal came before its last
            # launch. ``contradiction``: which of its records do not match their events.
            if entry.state in ("skipped", "left") or entry.contradiction:
                _warn(f"{entry.name}: {entry.contradiction or entry.reason}")
            results.extend(entry.records)
            results.places.extend(entry.folders)
        return results
    plan, settings = plan_run(request, show_remark=_warn)
    with note_stop_signals(deliver=True) as stop:
        return launch_run(plan, settings, stop, quiet=quiet, show_remark=_warn, follow=followers)


def follow(*runs: str | Path, to: str | Sequence[str]) -> list[Following]:
    """Hand runs to other programs until they have ended; return how much each program received.

    Args:
        runs: folders of runs, or folders of several runs; they may be under way or have ended.
        to: such as ``tensorboard`` or ``["wandb", "mlflow=http://host:5000"]``.

    Raises:
        UsageError, EnvironmentFault: an unknown backend, or one that is not installed.
        RecordError: a folder that has no run.
    """
    targets = select_followers([to] if isinstance(to, str) else to, where="to")
    return list(follow_runs(runs, targets))


def follow_runs(runs: Sequence[str | Path], targets: Sequence[FollowTarget]) -> Iterator[Following]:
    """Hand runs to other programs; yield each pair of run and program when it is done.

    Nothing happens before the first pair is asked for; only then errors are raised.

    Raises:
        RecordError: a folder that has no run.
    """
    folders = [folder for word in runs for folder in _find_run_folders(Path(word))]
    for folder in folders:
        # A run whose launcher was killed gets its record. This fails if a run is under way or never
        # began; its events are handed over all the same.
        with suppress(RecordError):
            make_record(folder)
    yield from FollowedRuns(folders, targets).iterate_done()


def _find_run_folders(folder: Path) -> list[Path]:
    """Return the folders of runs in a folder, which may be the folder itself."""
    plans: list[Path] = []
    # The folder is that of a run, of the launches of a run or of several runs, or of several runs
    # with several launches.
    for prefix in ("", "*/", "*/*/"):
        plans += sorted(folder.glob(f"{prefix}{PLAN_FILE}"))
    if not plans:
        raise RecordError(
            "no run in this folder", where=str(folder), fix="pass the folder of a run"
        )
    return [plan.parent for plan in plans]


def _ignore(line: object) -> None:
    """Report nothing."""


def _warn(remark: object) -> None:
    """Show a remark as a Python warning."""
    warnings.warn(str(remark), stacklevel=3)  # 3: the caller of the function that warns


def accept(
    case: str | None = None,
    overrides: Mapping[str, str | float | bool | None] | None = None,
    **fields: Any,
) -> AcceptanceResult:
    """Find the devices of this machine that should be excluded; with a launcher, the nodes.

    A stop signal (Ctrl-C) ends the measurement; after the result is written, it is delivered again.

    Args:
        case: the case to train; None: the default case.
        overrides: recipe fields to change.
        fields: further fields of ``acceptance.request.AcceptRequest``: nproc, phases, rounds, out …

    Returns:
        The verdict on each device or node.

    Raises:
        UsageError, DataError, EnvironmentFault: before anything starts.
    """
    request = AcceptRequest.build(case=case, overrides=overrides or None, **fields)
    with prepare_acceptance(request) as prepared, note_stop_signals(deliver=True) as stop:
        return measure_acceptance(prepared, stop, show=_ignore)


def plan_acceptance(request: AcceptRequest) -> Acceptance | OpenedSession:
    """Check the options and return what an acceptance would measure; start nothing.

    An acceptance is a test that finds the devices or nodes to exclude. Nothing is written but
    generated data that is missing, which the checks need.

    Returns:
        Without a launcher, an ``Acceptance`` of the devices of this machine. With one, an
        ``OpenedSession``: a description of one job on the launcher's nodes, which is not started.

    Raises:
        UsageError, DataError, EnvironmentFault, RecordError: the options do not fit.
    """
    planned: Acceptance | OpenedSession
    # ``plans``: of the trainings that would be timed; baselines must be of the same work.
    if request.launcher in (None, LOCAL):
        planned, plans = acceptance.plan_acceptance(request, dry_run=True)
    else:
        planned, plans = acceptance_cluster.plan_session(request, dry_run=True)
    if request.baseline is not None:
        _read_baselines(request.baseline, plans)  # raises what a measurement would raise
    return planned


def prepare_acceptance(
    request: AcceptRequest, *, attach: Path | None = None
) -> AbstractContextManager[Acceptance | OpenedSession]:
    """Check everything for an acceptance, and make or open its folder.

    An acceptance is a test that finds the devices or nodes to exclude. The folder of one that was
    not finished is opened, so that it continues. Entering the context checks; its value is what
    ``measure_acceptance`` takes: an ``Acceptance`` of this machine's devices, or an
    ``OpenedSession`` of a launcher's nodes. The folder is locked until the end of the context.

    Args:
        attach: folder of an acceptance whose job was submitted; the request is then ignored.

    Raises:
        UsageError, DataError, EnvironmentFault, RecordError: nothing is started.
    """
    if attach is not None:
        return acceptance_cluster.attach_session(attach)
    # Baselines must be of the same work as the plans, which are known only in the calls below.
    read_baselines = None
    if request.baseline is not None:
        read_baselines = partial(_read_baselines, request.baseline)
    if request.launcher in (None, LOCAL):
        return acceptance.prepare_acceptance(request, read_baselines=read_baselines)
    return acceptance_cluster.prepare_session(request, read_baselines=read_baselines)


def _read_baselines(word: str, plans: Sequence[Plan]) -> Baselines:
    """Return the times with which an acceptance compares its measurements.

    Args:
        word: folder of an earlier acceptance, or a word that names runs, such as a run directory.
        plans: of the trainings that the acceptance measures; the baseline must be of their work.

    Raises:
        UsageError: the baseline is of other work, or has no times.
        RecordError: ``word`` names nothing that can be read.
    """
    if is_acceptance(Path(word)):
        return read_baselines_of_acceptance(Path(word), plans)
    try:
        # ``rows=False``: the word must name records; figures that others published are refused.
        selection = _select((word,), verify=True, rows=False)
    except RecordError as error:
        raise RecordError(
            error.what,
            where=f"--baseline {word}",
            rule="a baseline must be the folder of an earlier acceptance test, or runs of the same "
            "work",
            fix=error.fix,
        ) from None
    return compute_baselines_of_runs(selection.records, plans, word)


def measure_acceptance(
    prepared: Acceptance | OpenedSession, stop: StopRequest, *, show: Callable[[str], None]
) -> AcceptanceResult:
    """Measure and judge the devices or nodes of an acceptance; write its pages, return verdicts.

    Args:
        prepared: of the devices of this machine, or (``OpenedSession``) of a launcher's nodes.
        stop: the measurement ends as soon as it holds a signal.
        show: called with each line about the progress, and if a page cannot be written.
    """
    if isinstance(prepared, Acceptance):
        result = acceptance.measure(prepared, stop, show=show)
    else:
        result = acceptance_cluster.measure_nodes(prepared, stop, show=show)
    folder = prepared.folder
    _write_pages_safely(
        folder,
        _write_acceptance_pages,
        result,
        folder,
        show_remark=show,
        advice=f"`trainmark accept --out {folder}` writes the pages without measuring again",
    )
    return result


def _write_acceptance_pages(result: AcceptanceResult, folder: Path) -> None:
    """Write the pages of an acceptance into its folder."""
    pages = [build_acceptance_document(result)]
    texts = {f"page.{lang}.md": to_markdown(pages, lang) for lang in LANGUAGES}
    texts[HTML_PAGE] = to_html(pages)
    for name, text in texts.items():
        with write_atomically(folder / name) as file:
            file.write(text.encode())


def load(*words: str | Path, verify: bool = True) -> Records:
    """Return the records that ``words`` name; without words, of the newest run under ``./runs``.

    Args:
        words: run directories, ``record.json`` files, folders of runs, bundles.
        verify: whether to compare records with their events; ``record.trust`` has the result.

    Raises:
        RecordError: a word names nothing that can be read.
    """
    # No rows: published figures, which have no record.
    selection = _select(words, verify=verify, rows=False)
    for path in selection.refuted:
        _warn(f"{path}: the record does not match its raw events")
    return Records(selection.records, selection.places)


def compare(
    a: Compared,
    b: Compared,
    *,
    figures: Sequence[str] | None = None,
    threshold: float = THRESHOLD,
    allow: Collection[str] = (),
) -> Comparison:
    """Compare the launches ``b`` with the launches ``a``, figure by figure.

    Args:
        a: the reference: one or several records, or words as ``load`` takes them, such as run
            directories.
        b: what is compared with it, in the same form.
        figures: names of figures in a record; None: the throughputs that both sides have.
        threshold: a fraction. A figure counts as different if the whole 95% interval of its ratio
            b / a is more than this away from 1.
        allow: keys of the work in which the sides may differ, such as ``bs``.

    Raises:
        UsageError: the work differs, with the key and both values; or an unknown figure.
        RecordError: a word names nothing that can be read.
    """
    if isinstance(figures, str):  # a single name
        figures = [figures]
    if isinstance(allow, str):
        allow = [allow]
    return compare_results(
        _load_side(a), _load_side(b), figures=figures, threshold=threshold, allow=allow
    )


def _load_side(side: Compared) -> list[Record]:
    """Return the records of one side of a comparison."""
    items = [side] if isinstance(side, Record | str | Path) else side
    records: list[Record] = []
    for item in items:
        if isinstance(item, Record):
            records.append(item)
        else:
            # ``rows=False``: published figures, which have no record, are refused.
            records += _select([item], rows=False).records
    return records


def _select(words: Sequence[str | Path], *, verify: bool = True, rows: bool = True) -> Selection:
    """Return the results that words name; warn about each record that cannot be read.

    Args:
        words: run directories, record files, bundles and so on; empty: the newest run.
        verify: whether to compare records with their events.
        rows: whether a word may also name figures that others published; each set of them is a row
            of the selection instead of a record. If false, ``reference:CASE`` is refused, and other
            published files count as files without a record.
    """
    selection = select_results([str(word) for word in words], verify=verify, rows=rows)
    for fault in selection.skipped:  # the errors of records that cannot be read
        _warn(fault)
    return selection


def audit_results(*words: str | Path) -> list[Finding]:
    """Return the findings of the audit in records and published figures, errors first.

    Args:
        words: as for ``load``; also files and folders of published figures, and ``reference:CASE``,
            the published figures that are shipped with a case.

    Raises:
        RecordError: a word names nothing that can be read.
    """
    return audit_selection(_select(words))


def audit_selection(selection: Selection) -> list[Finding]:
    """Return the findings of the audit in selected records and rows, errors first."""
    records = zip(selection.records, selection.places, strict=True)
    subjects = [view_record(record, place) for record, place in records]
    subjects += [view_row(row) for row in selection.rows]
    return audit(subjects)


def table(records: Sequence[Record], *, steps: bool = False) -> pa.Table:
    """Return a table with a row for each record, or for each step.

    Rows of records have the columns of the CSV export. A row of a step has ``run_id``, ``step``
    from 0, ``measured`` (after the warm-up), ``time_s`` of the slowest rank, ``loss`` as the mean
    over ranks, and ``samples`` over all ranks.
    """
    columns, rows = (
        tables.build_steps_table(records) if steps else tables.build_record_table(records)
    )
    return tables.convert_to_arrow(columns, rows)


def frame(records: Sequence[Record], *, steps: bool = False) -> pd.DataFrame:
    """Return a pandas data frame with a row for each record, or for each step.

    The columns are those of ``table``, the same function for Arrow.

    Args:
        steps: whether each row is a step instead of a record.

    Raises:
        EnvironmentFault: pandas is not installed.
    """
    import_extra("pandas", where="trainmark.frame")  # called for its error if it is missing
    return table(records, steps=steps).to_pandas()
