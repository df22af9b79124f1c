"""Reduce a run directory to its record, from its plan and events alone.

Never reads log text and never queries a process: the record contains only what is in the plan
and the events.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from trainmark import __version__, cases
from trainmark.digests import hash_stream
from trainmark.errors import CaseError, RecordError
from trainmark.events.timeline import RunTimeline, read_run
from trainmark.plan.plan import PLAN_FILE, read_plan
from trainmark.record.cause import decide_status, find_cause
from trainmark.record.figures import compute_case_figures, compute_figures, make_entries
from trainmark.record.findings import find_findings
from trainmark.record.measurement import Measurement
from trainmark.record.record import EVIDENCE_NAME, RECORD_FILE, Evidence, Record, Suite
from trainmark.record.trust import grade_launch
from trainmark.spec import OwnFigures
from trainmark.telemetry.summary import read_samples, summarize_samples

if TYPE_CHECKING:
    from pathlib import Path

    from trainmark.events.series import SeriesLine
    from trainmark.plan.plan import Plan
    from trainmark.telemetry.summary import Telemetry

_RUN_FILE_PATTERNS = (
    "events.*.jsonl",
    "telemetry*.jsonl",
    "log.*.txt",
    "stacks.*.txt",
    "*.json",
    "*.sh",
    "*.sbatch",
    "*.yaml",  # the plan, the cluster's file and what was submitted
)


def reduce(run_dir: Path, *, files: list[Evidence] | None = None) -> Record:
    """Compute the record of the run in ``run_dir`` from its plan and events.

    A case may have figures of its own, besides those that all cases have. If its code for them
    fails, the record has only those of all cases, and this error is the cause of the run's failure,
    unless the run failed before for another cause.

    Args:
        files: size and digest of the plan and event files, if a record already has them; None:
            they are computed.

    Raises:
        RecordError: no plan or no launcher events there, or a damaged file.
    """
    plan = read_plan(run_dir)
    timeline = _read_timeline(run_dir, plan)
    telemetry, series_lines = _read_telemetry(run_dir, plan, timeline)
    measurement = Measurement.from_timeline(plan, timeline, telemetry)
    common_figures = compute_figures(measurement)  # those of all cases
    case_figures = OwnFigures({})
    case_error = None
    try:
        case_figures = compute_case_figures(measurement, common_figures)
    except CaseError as error:
        case_error = error
    # A page declares the case's own figures with their units. It is that of the installed case,
    # because its code computed them: the page in the plan may be of an earlier version.
    page = cases.load(plan.case).page if case_figures.figures else plan.about.page
    all_figures = common_figures | dict(case_figures.figures)
    # Figures as the record holds them, with their units.
    entries = make_entries(all_figures, page, work_unit=plan.about.work_unit)
    cause = find_cause(plan, timeline, entries, case_error)
    status = decide_status(cause)
    findings = [*find_findings(measurement, entries, timeline), *case_figures.notes]
    launch = timeline.launcher.launch  # the first event of the run, with its time and command
    return Record(
        suite=Suite(version=__version__),
        run_id=plan.run_id,
        started=launch.started,
        status=status,
        cause=cause,
        trust=grade_launch(measurement, status=status, figures=entries, findings=findings),
        plan=plan,
        argv=launch.argv,
        environment=measurement.environment,
        counts=measurement.counts,
        spans=measurement.spans,
        ranks=measurement.ranks,
        steps=measurement.steps,
        telemetry=telemetry,
        series=series_lines,
        printed=measurement.printed,
        figures=entries,
        quality=measurement.quality,
        replays=measurement.replays,
        labels=measurement.labels,
        findings=findings,
        evidence=list_evidence(run_dir) if files is None else files,
    )


def _read_telemetry(
    run_dir: Path, plan: Plan, timeline: RunTimeline
) -> tuple[Telemetry | None, list[SeriesLine]]:
    """Return the summary of what samplers read of devices and hosts, and the lines of its charts.

    None and no lines: no samplers ran.
    """
    if plan.sample_every_s == 0:  # the plan asks for no samples
        return None, []
    samples = read_samples(run_dir, timeline)
    return summarize_samples(samples, timeline), list(samples.make_lines())


def _read_timeline(run_dir: Path, plan: Plan) -> RunTimeline:
    """Return the timeline of a run, which has the events of its launcher and of its ranks.

    Raises:
        RecordError: events are missing or damaged.
    """
    try:
        # ``node_processes``: number of processes that start the ranks of one machine each; 0 if the
        # launcher starts all ranks itself.
        return read_run(run_dir, plan.world_size, plan.node_processes)
    except (OSError, ValueError) as error:
        # Only an ``OSError`` knows its file.
        where = str(getattr(error, "filename", None) or run_dir)
        rule = f"the folder must contain {PLAN_FILE} and events"
        raise RecordError("not a run directory", where=where, rule=rule) from error


def list_evidence(run_dir: Path) -> list[Evidence]:
    """Return the files from which a record is computed, with size and digest, by name."""
    return [describe_evidence(path) for path in list_evidence_files(run_dir)]


def list_evidence_files(run_dir: Path) -> list[Path]:
    """Return the files from which a record is computed, sorted by name."""
    return [
        path
        for path in sorted(run_dir.iterdir())
        # No folder or pipe, even if it has such a name: reading a pipe would block.
        if re.fullmatch(EVIDENCE_NAME, path.name) and path.is_file()
    ]


def describe_evidence(path: Path) -> Evidence:
    """Return name, size and SHA-256 digest of a file."""
    with path.open("rb") as file:
        digest = hash_stream(file).hexdigest()
    return Evidence(name=path.name, bytes=path.stat().st_size, sha256=digest)


def list_run_files(run_dir: Path) -> list[Path]:
    """Return the files of a run: plan, scripts, events, samples, all output; not its record."""
    paths = {path for name in _RUN_FILE_PATTERNS for path in run_dir.glob(name) if path.is_file()}
    return sorted(path for path in paths if path.name != RECORD_FILE)
