"""Trainmark from Python: run, load, compare and look at results; the verbs call these functions.

Owns the arguments and what is returned. Errors are the tree of ``trainmark.errors``; a launch that
started and failed leaves and returns its record like any other.
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
from trainmark.launch.run_dir import make_record, record_unplannable, refuse_used
from trainmark.pages.acceptance import build_acceptance_document
from trainmark.pages.page import HTML_PAGE, build_documents, write_pages, write_summary
from trainmark.pages.pictures import to_notebook_html
from trainmark.pages.rendering import render_template, to_html, to_markdown
from trainmark.pages.repeats import build_summary
from trainmark.pages.results import launch_table
from trainmark.pages.terminal import show
from trainmark.pages.texts import LANGUAGES
from trainmark.plan.plan import PLAN_FILE, UNCHECKED
from trainmark.plan.plan_file import is_plan_file, read_plan_file
from trainmark.plan.request import RunRequest
from trainmark.plan.resolving import UNUSED_ACCELERATOR, UnplannableError, launches, resolve
from trainmark.published.audit import audit
from trainmark.published.audit.subject import view_record, view_row
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

    Compared = Sequence[Record] | Sequence[str | Path] | str | Path
    Say = Callable[[object], None]

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
    """Records, one a launch.

    Args:
        places: the run directory or file of each.
    """

    def __init__(self, records: Iterable[Record] = (), places: Iterable[Path | str] = ()) -> None:
        super().__init__(records)
        self.places = [Path(place) for place in places]

    def __repr__(self) -> str:
        return show([launch_table(self)], width=10_000)

    def _repr_html_(self) -> str:
        if len(self) == 1:
            return _record_html(self[0])
        return render_template("table.html.j2", "en", table=launch_table(self), heading="launches")

    def summary(self) -> RepeatSummary:
        """Return mean, 95% interval and CV of every figure over launches of the same work.

        Raises:
            RecordError: no record, or work that differs.
        """
        return build_summary(self)

    def page(self, lang: Literal["en", "zh"] = "en", *, html: bool = False) -> str:
        """Return the result page as Markdown, or as HTML: a file in both languages."""
        return (to_html if html else to_markdown)(build_documents(self), lang)


def _record_html(record: Record) -> str:
    """Return what a notebook shows of a record: the first screen of its page."""
    return to_notebook_html(build_documents([record])[0])


# A record knows no pages, which stand above it; a notebook looks for this method.
Record._repr_html_ = _record_html  # type: ignore[attr-defined]


def plan_run(request: RunRequest, *, say: Say, dry_run: bool = False) -> tuple[Plan, Cluster]:
    """Check everything and return the plan of a run, with the settings of its launcher's cluster.

    Args:
        say: called with each remark, for example which device cannot be used.
        dry_run: the plan is only shown; see ``resolve``.

    Raises:
        UsageError, DataError, EnvironmentFault: before anything starts.
        UnplannableError: code of the case failed; the run has a record.
    """
    if request.device is None:  # the first vendor that works is chosen
        _report_unusable_vendors(say)
    settings = read_cluster(request.cluster)
    with _recording_failed_planning(say=say, dry_run=dry_run):
        plan = resolve(
            request, remote=settings.find_remote_target(request.launcher), dry_run=dry_run
        )
    _remark_unchecked([plan], say)
    _remark_unproven([plan], say)
    if UNUSED_ACCELERATOR in plan.labels:
        for remark in (*devices.list_unusable(), f"runs on {plan.device.vendor} instead"):
            say(remark)
    is_remote = plan.launcher not in (LOCAL, CONTAINER)
    named = request.device or settings.device or ":" in request.case
    if is_remote and plan.device.vendor == "cpu" and not named:
        # A login node has no accelerator, the nodes that it submits to most often have.
        say(
            "the run uses the CPUs of the nodes: no accelerator was found on this machine, and "
            "neither --device nor `device` in the cluster file names one of the nodes"
        )
    return plan, settings


def _report_unusable_vendors(say: Say) -> None:
    _, faults = devices.load_all()
    for fault in faults:
        say(fault)


@contextmanager
def _recording_failed_planning(*, say: Say, dry_run: bool) -> Iterator[None]:
    """Write the record of a run whose planning in the block fails in the code of its case."""
    try:
        yield
    except UnplannableError as error:
        if not dry_run:
            _record_failed_planning(error, say)
        raise


def _record_failed_planning(error: UnplannableError, say: Say) -> None:
    """Write the record and the pages of a run that could not be planned."""
    folder = Path(error.plan.run_dir)
    try:
        record = record_unplannable(error)
    except TrainmarkError as fault:  # the caller raises ``error``, which matters more
        say(fault)
        return
    _write_pages_or_explain(write_pages, [record], folder, say=say)
    say(f"record: {folder}/{RECORD_FILE}")


def select_followers(words: Sequence[str] | None, *, where: str = OPTION) -> list[FollowTarget]:
    """Return what runs are handed to, after checking that the programs are installed.

    Args:
        words: as ``tensorboard`` or ``mlflow=http://host:5000``.
        where: what has the words, for errors.

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
    say: Say,
    follow: Sequence[FollowTarget] = (),
) -> Records:
    """Launch as often as the plan says and write the pages; return the records.

    A failed launch does not stop the others, unless it reached its time limit: the others would
    reach it too. After that, or after a stop signal, there are fewer records than planned launches.
    """
    if plan.repeat_count > 1:
        refuse_used(Path(plan.run_dir))
    records = Records()
    for single in launches(plan):
        if stop.signal_name is not None:
            break
        record = launch_one(single, cluster, plan.case, stop, quiet=quiet, say=say, follow=follow)
        records.append(record)
        records.places.append(Path(single.run_dir))
        if records[-1].status == "timed_out" and len(records) < plan.repeat_count:
            num_skipped = plan.repeat_count - len(records)
            say(f"skipped {num_skipped} more launches: they would also time out")
            break
    if plan.repeat_count > 1 and records:
        _write_pages_or_explain(write_pages, records, Path(plan.run_dir), say=say)
    return records


def _write_pages_or_explain(write: Callable[..., None], *arguments: Any, say: Say) -> None:
    """Write pages; if that fails, say so: the run's record is written already."""
    try:
        write(*arguments)
    except Exception as error:  # noqa: BLE001 - no error of a page may lose the run's result
        say(f"{error or type(error).__name__}; `trainmark report -o page.html` draws it later")


def launch_one(
    single: Plan,
    cluster: Cluster,
    label: str,
    stop: StopRequest,
    *,
    quiet: bool,
    say: Say,
    follow: Sequence[FollowTarget] = (),
) -> Record:
    """Launch once, with a process for each target of ``follow``, and write the pages."""
    runs_on_this_machine = single.node_processes == 0
    if runs_on_this_machine:
        for occupant in devices.list_occupants(single.device.vendor, single.nproc):
            if occupant.computes:
                say(f"{occupant.description()}: do not quote the figures of this run")
    with Followers(Path(single.run_dir), follow) as followers:
        followers.wait_until_ready(stop)
        record = launch_with_progress(single, cluster, label, stop, quiet=quiet)
        followers.end_inputs()
        _write_pages_or_explain(write_pages, [record], Path(single.run_dir), say=say)
    for remark in followers.iterate_remarks():
        say(remark)
    return record


def _remark_unchecked(plans: Iterable[Plan], say: Say) -> None:
    """Name the data that a dry run could not check."""
    for folder in dict.fromkeys(x.data.folder for x in plans if x.data.layout == UNCHECKED):
        say(
            f"{folder} is not on this machine: its data could not be checked, and nodes refuse "
            "this plan. Submit it from a machine that has the data"
        )


def _remark_unproven(plans: Iterable[Plan], say: Say) -> None:
    """Say what each device and launcher without real runs yet was tested on."""
    for remark in dict.fromkeys(line for plan in plans for line in plan.describe_unproven()):
        say(remark)


def plan_entries(
    request: RunRequest, *, say: Say, dry_run: bool = False
) -> tuple[PlanFile, list[SeriesEntry]]:
    """Check every entry of a plan file; return the file, and what is to be done of each.

    Args:
        say: called with each device that cannot be used.
        dry_run: the plans are only shown; see ``resolve``.

    Raises:
        UsageError, DataError, EnvironmentFault: before anything starts.
        UnplannableError: code of a case failed; its run has a record, and nothing was started.
    """
    file = read_plan_file(request)
    for entry in file.entries:
        select_followers(entry.follow, where=f"{entry.where}: follow")
    if request.device is None:
        _report_unusable_vendors(say)
    with _recording_failed_planning(say=say, dry_run=dry_run):
        entries = series.check_entries(file, dry_run=dry_run)
    plans = [entry.plan for entry in entries if entry.plan]
    _remark_unchecked(plans, say)
    _remark_unproven(plans, say)
    return file, entries


def run_entries(
    entries: Sequence[SeriesEntry], *, quiet: bool, say: Say, deliver: bool = False
) -> None:
    """Launch what is not done yet of the entries, and write their pages.

    Args:
        deliver: raise a stop signal again once all records are written; see ``note_stop_signals``.
    """
    with note_stop_signals(deliver=deliver) as stop:

        def launch(plan: Plan, cluster: Cluster, label: str, follow: list[str]) -> Record:
            targets = parse_targets(follow)
            return launch_one(plan, cluster, label, stop, quiet=quiet, say=say, follow=targets)

        series.run_entries(
            entries,
            stop,
            launch=launch,
            report=_discard if quiet else end_line,
        )
        for entry in entries:
            _write_pages_or_explain(write_summary, entry, say=say)


def submit_run(plan: Plan, cluster: Cluster) -> str:
    """Submit a run to its engine and return the job's number at once.

    Raises:
        UsageError: the launcher does not go on alone, or several launches.
    """
    can_submit = plan.node_processes > 0 and submission.build_command(plan, cluster).submits
    if not can_submit or plan.repeat_count > 1:
        raise UsageError(
            f"{plan.repeat_count} launch(es) on {plan.launcher}",
            where="--detach",
            rule="an engine must keep the job, and a job is one launch",
            fix="leave out --detach, or use --repeat 1 and a launcher that submits its job",
        )
    return submission.prepare_job(plan, cluster)().id


def attach_run(
    folder: Path,
    *,
    cancel: bool = False,
    quiet: bool = True,
    follow: Sequence[FollowTarget] = (),
    say: Say | None = None,
) -> Records:
    """Wait for the end of a submitted run, collect its files, record it, write its pages.

    Args:
        folder: of the run.
        cancel: whether to end the job first.
        follow: what the run is handed to meanwhile.
        say: called with each remark; None: it becomes a warning.
    """
    say = say or _warn
    job = submission.attach(folder)
    stop = StopRequest("SIGINT" if cancel else None)
    report = _discard if quiet else ProgressLine(job.plan, job.plan.case).show
    with Followers(job.folder, follow) as followers:
        record = submission.follow(job, stop, report)
        followers.end_inputs()
        _write_pages_or_explain(write_pages, [record], folder, say=say)
    for remark in followers.iterate_remarks():
        say(remark)
    return Records([record], [folder])


def run(
    case: str,
    overrides: Mapping[str, str | float | bool | None] | None = None,
    *,
    quiet: bool = True,
    **fields: Unpack[RunFields],
) -> Records:
    """Run a case, or what is left of a plan file, and return the record of each launch.

    The ranks are processes of their own, so that a script needs no ``__main__`` guard. A signal
    to stop (Ctrl-C) ends the ranks; when the record is written, the signal is delivered again,
    which after Ctrl-C raises KeyboardInterrupt.

    Args:
        case: a case's name, alias or key, or a plan file.
        overrides: recipe fields to change, as ``{"bs": 96, "precision": "bf16"}``.
        quiet: show no progress on standard error.
        fields: further ones of ``plan.request.RunRequest``: recipe, data, nproc, repeat, out …

    Raises:
        UsageError, DataError, EnvironmentFault: before anything starts.
    """
    request = RunRequest.of(case=case, overrides=overrides or None, **fields)
    followers = select_followers(request.follow)
    if is_plan_file(case):
        _, entries = plan_entries(request, say=_warn)
        run_entries(entries, quiet=quiet, say=_warn, deliver=True)
        results = Records()
        for entry in entries:
            if entry.state in ("skipped", "left") or entry.contradiction:
                _warn(f"{entry.name}: {entry.contradiction or entry.reason}")
            results.extend(entry.records)
            results.places.extend(entry.folders)
        return results
    plan, settings = plan_run(request, say=_warn)
    with note_stop_signals(deliver=True) as stop:
        return launch_run(plan, settings, stop, quiet=quiet, say=_warn, follow=followers)


def follow(*runs: str | Path, to: str | Sequence[str]) -> list[Following]:
    """Hand runs to other programs, until they have ended; return how far each was handed over.

    Args:
        runs: folders of runs, or of several runs, that are under way or over.
        to: as ``tensorboard`` or ``["wandb", "mlflow=http://host:5000"]``.

    Raises:
        UsageError, EnvironmentFault: an unknown backend, or one that is not installed.
        RecordError: a folder that has no run.
    """
    targets = select_followers([to] if isinstance(to, str) else to, where="to")
    return list(iterate_followed(runs, targets))


def iterate_followed(
    runs: Sequence[str | Path], targets: Sequence[FollowTarget]
) -> Iterator[Following]:
    """Hand runs to other programs; yield each run and target when it is done.

    Raises:
        RecordError: a folder that has no run.
    """
    folders = [folder for word in runs for folder in _find_run_folders(Path(word))]
    for folder in folders:
        # It fails for a run that is under way, or never began: what is there is handed over.
        with suppress(RecordError):
            make_record(folder)
    yield from FollowedRuns(folders, targets).iterate_done()


def _find_run_folders(folder: Path) -> list[Path]:
    """Return the folders below a folder that have a run, or the folder itself."""
    below = ("", "*/", "*/*/")
    plans = [plan for part in below for plan in sorted(folder.glob(f"{part}{PLAN_FILE}"))]
    if not plans:
        raise RecordError(
            "no run in this folder", where=str(folder), fix="name the folder of a run"
        )
    return [plan.parent for plan in plans]


def _discard(line: object) -> None:
    """Report nothing."""


def _warn(remark: object) -> None:
    warnings.warn(str(remark), stacklevel=3)


def accept(
    case: str | None = None,
    overrides: Mapping[str, str | float | bool | None] | None = None,
    **fields: Any,
) -> AcceptanceResult:
    """Find which devices of this machine to exclude, or which nodes; return the verdicts.

    Args:
        case: whose training is measured; None: the default.
        overrides: recipe fields to change.
        fields: further ones of ``acceptance.request.AcceptRequest``: nproc, phases, rounds, out …

    Raises:
        UsageError, DataError, EnvironmentFault: before anything starts.
    """
    request = AcceptRequest.of(case=case, overrides=overrides or None, **fields)
    with prepare_acceptance(request) as prepared, note_stop_signals(deliver=True) as stop:
        return measure_acceptance(prepared, stop, show=lambda _: None)


def plan_acceptance(request: AcceptRequest) -> Acceptance | OpenedSession:
    """Check the options and return what an acceptance would measure; write and start nothing.

    Raises:
        UsageError, DataError, EnvironmentFault: the options do not fit.
    """
    if request.launcher in (None, LOCAL):
        return acceptance.plan_acceptance(request, dry_run=True)[0]
    return acceptance_cluster.plan_session(request, dry_run=True)[0]


def prepare_acceptance(
    request: AcceptRequest, *, attach: Path | None = None
) -> AbstractContextManager[Acceptance | OpenedSession]:
    """Check everything for an acceptance of this machine's devices, or of a launcher's nodes.

    Args:
        attach: folder of one whose job was submitted and is waited for; the request is ignored.

    Raises:
        UsageError, DataError, EnvironmentFault, RecordError: nothing is started.
    """
    if attach is not None:
        return acceptance_cluster.attach_session(attach)
    read_baselines = None
    if request.baseline is not None:
        read_baselines = partial(_read_baselines, request.baseline)
    if request.launcher in (None, LOCAL):
        return acceptance.prepare_acceptance(request, read_baselines=read_baselines)
    return acceptance_cluster.prepare_session(request, read_baselines=read_baselines)


def _read_baselines(word: str, plans: Sequence[Plan]) -> Baselines:
    """Return the times of an earlier acceptance, or of the runs that a word names."""
    if is_acceptance(Path(word)):
        return read_baselines_of_acceptance(Path(word), plans)
    selection = _select((word,), verify=True, rows=False)
    return compute_baselines_of_runs(selection.records, plans, word)


def measure_acceptance(
    prepared: Acceptance | OpenedSession, stop: StopRequest, *, show: Callable[[str], None]
) -> AcceptanceResult:
    """Measure and judge an acceptance, and write its pages; return the verdicts."""
    if isinstance(prepared, Acceptance):
        result = acceptance.measure(prepared, stop, show=show)
    else:
        result = acceptance_cluster.measure_nodes(prepared, stop, show=show)
    pages = [build_acceptance_document(result)]
    texts = {f"page.{lang}.md": to_markdown(pages, lang) for lang in LANGUAGES}
    texts[HTML_PAGE] = to_html(pages)
    for name, text in texts.items():
        with write_atomically(prepared.folder / name) as file:
            file.write(text.encode())
    return result


def load(*words: str | Path, verify: bool = True) -> Records:
    """Return the records that ``words`` name; without any, of the newest run under ``./runs``.

    Args:
        words: run directories, ``record.json`` files, folders of runs, bundles.
        verify: whether to compare records with their evidence; ``record.trust`` has the result.

    Raises:
        RecordError: a word names nothing that can be read.
    """
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
    """Compare the launches ``b`` with the launches ``a``; see ``comparison.compare``.

    Args:
        a: records, or words as ``load`` takes them.
        figures: names as in a record; None: the throughputs that both sides have.
        threshold: share by which a ratio must differ from 1, with its whole interval.
        allow: keys of the work in which the sides may differ.

    Raises:
        UsageError: other work, naming the key and both values; an unknown figure.
        RecordError: a word names nothing that can be read.
    """
    if isinstance(figures, str):
        figures = [figures]
    if isinstance(allow, str):
        allow = [allow]
    return compare_results(
        _load_side(a), _load_side(b), figures=figures, threshold=threshold, allow=allow
    )


def _load_side(side: Compared) -> list[Record]:
    """Return the records of one side of a comparison."""
    items = [side] if isinstance(side, str | Path) else side
    records: list[Record] = []
    for item in items:
        if isinstance(item, Record):
            records.append(item)
        else:
            records += _select([item], rows=False).records
    return records


def _select(words: Sequence[str | Path], *, verify: bool = True, rows: bool = True) -> Selection:
    """Return what words name, with a warning for each record that cannot be read."""
    selection = select_results([str(word) for word in words], verify=verify, rows=rows)
    for fault in selection.skipped:
        _warn(fault)
    return selection


def audit_results(*words: str | Path) -> list[Finding]:
    """Return what the audit finds in records and published figures, errors first.

    Args:
        words: as ``load`` takes them; files, folders and ``reference:CASE`` of others' figures too.

    Raises:
        RecordError: a word names nothing that can be read.
    """
    return audit_selection(_select(words))


def audit_selection(selection: Selection) -> list[Finding]:
    """Return what the audit finds in what words named."""
    subjects = [
        view_record(record, place)
        for record, place in zip(selection.records, selection.places, strict=True)
    ]
    return audit([*subjects, *(view_row(row) for row in selection.rows)])


def table(records: Sequence[Record], *, steps: bool = False) -> pa.Table:
    """Return a row a record with the columns of the CSV, or a row a step.

    A step has ``run_id``, ``step`` from 0, ``measured`` (after the warm-up), ``time_s`` of the
    slowest rank, ``loss`` as the mean over ranks, ``samples`` over all ranks.
    """
    columns, rows = tables.steps_table(records) if steps else tables.table(records)
    return tables.arrow(columns, rows)


def frame(records: Sequence[Record], *, steps: bool = False) -> pd.DataFrame:
    """Return what ``table`` returns as a pandas data frame.

    Raises:
        EnvironmentFault: pandas is not installed.
    """
    import_extra("pandas", where="trainmark.frame")
    return table(records, steps=steps).to_pandas()
