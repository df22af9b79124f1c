"""Reduce a run directory to its record, from its plan and events alone.

Never reads log text and never queries a process: the record contains only what is in the plan
and the events.
"""

from __future__ import annotations

import re
from itertools import zip_longest
from math import isnan
from typing import TYPE_CHECKING, Any, cast

from trainmark import __version__, cases
from trainmark.digests import hash_stream
from trainmark.errors import CaseError, RecordError
from trainmark.plan.plan import PLAN_FILE, Plan, read_plan
from trainmark.protocols import Counts
from trainmark.record import figures as figures_of
from trainmark.record.record import (
    EVIDENCE_NAME,
    RECORD_FILE,
    Environment,
    Evidence,
    FigureEntry,
    Quality,
    QualityPoint,
    RankEntry,
    Record,
    RunCounts,
    ScoredEntry,
    Spans,
    Steps,
    Suite,
)
from trainmark.record.run import cause, findings
from trainmark.record.run import telemetry as telemetry_of
from trainmark.record.run.evaluations import over_ranks
from trainmark.record.run.nodes import node_facts
from trainmark.record.run.timeline import NO_FACTS, NO_RESULT, RunTimeline, read_run
from trainmark.record.trust import of_launch
from trainmark.spec import OwnFigures, message

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from trainmark.record.run.telemetry import Telemetry
    from trainmark.record.shapes import JobFacts
    from trainmark.spec import Figure, Message, PageSpec

_OUTPUTS = (
    "events.*.jsonl", "telemetry*.jsonl", "log.*.txt", "stacks.*.txt",
    "*.json", "*.sh", "*.sbatch", "*.yaml",  # the plan, the cluster's file and what was submitted
)  # fmt: skip


def _ranks(timeline: RunTimeline) -> list[RankEntry]:
    """Return each rank's entry, of which its timeline, its facts or its result has each field."""
    found, first = [], timeline.ranks[0].result.job
    for rank in timeline.ranks:
        known = {name: getattr(source, name) for source in (rank.result, rank.facts, rank)
                 for name in RankEntry.model_fields if hasattr(source, name)}  # fmt: skip
        known["job"] = None if rank.result.job == first else rank.result.job
        found.append(RankEntry(**known))
    return found


def _steps(timeline: RunTimeline) -> Steps:
    series = timeline.series
    return Steps(
        warmup=timeline.warmup_steps,
        time_ns=series.step_ns.tolist(),
        loss=[None if isnan(value) else value for value in series.loss.tolist()],
        samples=series.samples.tolist(),
    )


def _counts_of(ranks: Sequence[RankEntry], job: JobFacts | None) -> RunCounts:
    """Return the counts of a run with these ranks."""
    return RunCounts(
        **sum((rank.counts for rank in ranks), Counts()).as_dict(),
        steps=max(rank.steps for rank in ranks),
        micro_batches=sum(rank.sum_of("micro_batches") for rank in ranks),
        epochs=max(rank.epochs for rank in ranks),
        skipped_steps=(job or {}).get("skipped_steps"),
    )


def _spans_of(ranks: Sequence[RankEntry]) -> Spans:
    """Return the spans of the rank that ended last."""
    last = max(ranks, key=lambda rank: rank.wall_ns or 0)
    windows_ns, steps_ns, waits_ns = map(last.sum_of, ("windows_ns", "step_ns", "wait_ns"))
    parts_ns = {
        "data_wait": waits_ns, "compute": steps_ns - waits_ns, "other": windows_ns - steps_ns,
    }  # fmt: skip
    return Spans(
        rank=last.rank,
        wall_ns=last.wall_ns,
        by_name_ns=last.spans_ns,
        train_parts_ns=parts_ns,
    )


def _quality_of(plan: Plan, history: list[QualityPoint], reason: Message | None) -> Quality:
    """Return the quality that a run ended with.

    Args:
        reason: why the last evaluation gave no value, where it said so.
    """
    last, target = history[-1] if history else None, plan.target
    if last is None:
        reason = message("ended_before_evaluation" if plan.evaluates else "never_evaluates")
    elif last.value is None:
        reason = reason or message("evaluation_not_finite")
    value = None if last is None else last.value
    return Quality(
        metric=plan.about.metric,
        value=value,
        target=None if target is None else target.value,
        reached=None if target is None else value is not None and target.reached(value),
        best_possible=plan.data.best_quality,
        eval_samples=None if last is None else last.samples,
        history=history,
        reason=reason,
    )


def _labels_of(plan: Plan, ranks: Sequence[RankEntry]) -> list[str]:
    """Return the plan's labels, and that of a run that was cut off."""
    cut_off = any(rank.steps for rank in ranks) and not all(rank.finished for rank in ranks)
    return [*plan.labels, *(["partial"] if cut_off else [])]


DERIVED = {"counts", "labels", "quality", "spans"}


def completed(known: Record) -> Record:
    """Return a record with the fields that follow from plan, ranks, steps and evaluations.

    Args:
        known: a record, or one that has the rest alone.
    """
    plan, ranks, quality = known.plan, known.ranks, known.quality
    return known.model_copy(update={
        "counts": _counts_of(ranks, known.environment["job"]),
        "labels": _labels_of(plan, ranks),
        "quality": _quality_of(plan, quality.history, quality.reason),
        "spans": _spans_of(ranks),
    })  # fmt: skip


def _environment(timeline: RunTimeline) -> Environment:
    """Merge the facts of launcher and ranks; keys that a record does not have are dropped."""
    rank0 = timeline.ranks[0]
    ended = timeline.launcher.ranks_ended
    told = [None if rank.facts is NO_FACTS else rank.facts for rank in timeline.ranks]
    facts: dict[str, Any] = {
        **timeline.launcher.launch.environment,
        "others_cpu_share": ended and ended.others_cpu_share,
        **({"nodes": node_facts(timeline.nodes, told)} if timeline.nodes else {}),
        "devices": [one and one.device for one in told],
        "precision_flags": rank0.facts.precision_flags,
        "collective": rank0.facts.collective,
        "job": None if rank0.result is NO_RESULT else rank0.result.job,
    }
    if rank0.result.attention:
        facts["attention"] = ", ".join(rank0.result.attention)
    if rank0.facts.attention_flags:
        facts["attention_flags"] = rank0.facts.attention_flags
    return cast("Environment", {k: facts[k] for k in facts if k in Environment.__annotations__})


def figures_of_case(record: Record, known: dict[str, Figure] | None = None) -> OwnFigures:
    """Return the case's own figures; none if the case is not installed.

    Args:
        known: the figures that every case has; None: computed from the record.
    """
    plan, first = record.plan, record.environment["job"] or {}
    if plan.case not in cases.names() or not cases.has_part(plan.case, "figures"):
        return OwnFigures({})
    works = [rank.work_with(dict(first if rank.job is None else rank.job)) for rank in record.ranks]
    known = figures_of.compute(record) if known is None else known
    compute = cases.part(plan.case, "figures").compute
    with cases.raising_case_errors(plan.case, cause.FIGURES_PLACE):
        found: OwnFigures = compute(works, known)
    return found


def _entries(
    figures: dict[str, Figure], page: PageSpec, *, work_unit: str
) -> dict[str, FigureEntry]:
    """Return the figures as a record holds them, each in its declared unit."""
    specs = figures_of.specs(page)
    return {
        name: FigureEntry(
            value=item.value,
            unit=specs[name].unit.replace("{work}", work_unit),
            reason=item.reason,
            note=item.note,
        )
        for name, item in figures.items()
    }


def _history(timeline: RunTimeline) -> list[QualityPoint]:
    """Return each evaluation as rank 0 reports it, with what all ranks scored."""
    history = []
    for of_ranks in zip_longest(*(rank.evaluations for rank in timeline.ranks)):
        first = of_ranks[0]
        if first is None:
            break  # another rank went on alone
        point = QualityPoint.model_validate(first, from_attributes=True)
        scored = over_ranks([None if one is None else one.scores for one in of_ranks])
        if scored is not None:
            entry = ScoredEntry(
                rows=scored.rows, digest=scored.digest, mean=scored.mean, of=scored.of
            )
            point = point.model_copy(update={"scored": entry})
        history.append(point)
    return history


def measured(plan: Plan, timeline: RunTimeline, telemetry: Telemetry | None = None) -> Record:
    """Return a record with what was measured alone: the fields from which others are computed."""
    evaluations = timeline.ranks[0].evaluations
    history = _history(timeline)
    reason = evaluations[-1].reason if evaluations else None
    return completed(Record.model_construct(
        plan=plan,
        environment=_environment(timeline),
        ranks=_ranks(timeline),
        steps=_steps(timeline),
        quality=Quality.model_construct(history=history, reason=reason),
        telemetry=telemetry,
    ))  # fmt: skip


def reduce(run_dir: Path, *, files: list[Evidence] | None = None) -> Record:
    """Compute the record of ``run_dir`` from its plan and events.

    Args:
        files: size and digest of the files, as the record has them; None: they are computed.

    Raises:
        RecordError: no plan or no launcher events there, or a damaged file.
    """
    plan = read_plan(run_dir)
    try:
        timeline = read_run(run_dir, plan.world_size, plan.node_processes)
    except (OSError, ValueError) as error:
        where = str(getattr(error, "filename", None) or run_dir)
        rule = f"it needs {PLAN_FILE} and events"
        raise RecordError("not a run directory", where=where, rule=rule) from error
    samples = telemetry_of.read_samples(run_dir, timeline) if plan.sample_every_s else None
    telemetry = telemetry_of.summarize(samples, timeline) if samples else None
    known = measured(plan, timeline, telemetry)
    computed = figures_of.compute(known)
    why = cause.find(timeline, plan.target)
    own = OwnFigures({})
    try:
        own = figures_of_case(known, computed)
    except CaseError as error:
        why = why or cause.of_case_error(error)
    # The installed case declares the units of its figures; a plan of an earlier version does not.
    page = cases.load(plan.case).page if own.figures else plan.about.page
    figures = _entries(computed | dict(own.figures), page, work_unit=plan.about.work_unit)
    if why is None or why.kind == "target_missed":
        why = cause.broken(plan, timeline, figures) or why
    known = known.model_copy(update={"figures": figures, "status": cause.status_of(why)})
    told = [*findings.find(known, timeline), *own.notes]
    known = known.model_copy(update={"findings": told})
    launch = timeline.launcher.launch
    return Record.model_validate(dict(known) | {
        "suite": Suite(version=__version__),
        "run_id": plan.run_id,
        "started": launch.started,
        "cause": why,
        "trust": of_launch(known),
        "argv": launch.argv,
        "series": list(samples.lines()) if samples else [],
        "evidence": evidence(run_dir) if files is None else files,
    })  # fmt: skip


def evidence(run_dir: Path) -> list[Evidence]:
    """Return the files from which a record is computed, with size and digest, by name."""
    return [describe_evidence(path) for path in evidence_files(run_dir)]


def evidence_files(run_dir: Path) -> list[Path]:
    """Return the files from which a record is computed, by name."""
    return [
        path
        for path in sorted(run_dir.iterdir())
        if re.fullmatch(EVIDENCE_NAME, path.name) and path.is_file()  # a pipe would block
    ]


def describe_evidence(path: Path) -> Evidence:
    """Return size and digest of a file."""
    with path.open("rb") as file:
        digest = hash_stream(file).hexdigest()
    return Evidence(name=path.name, bytes=path.stat().st_size, sha256=digest)


def outputs(run_dir: Path) -> list[Path]:
    """Return plan, scripts, events, samples and all output of a run, without its record."""
    found = {path for name in _OUTPUTS for path in run_dir.glob(name) if path.is_file()}
    return sorted(path for path in found if path.name != RECORD_FILE)
