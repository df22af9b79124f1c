"""Reduce a run directory to its record, from its plan and events alone.

Never reads log text and never queries a process: the record contains only what is in the plan
and the events.
"""

from __future__ import annotations

from math import isnan
from typing import TYPE_CHECKING, Any, cast

from trainmark import __version__, cases
from trainmark.errors import RecordError
from trainmark.plan.plan import PLAN_FILE, Plan
from trainmark.record import figures as figures_of
from trainmark.record.compilation import compilation
from trainmark.record.evidence import evidence
from trainmark.record.record import (
    Environment,
    FigureEntry,
    Quality,
    QualityPoint,
    RankEntry,
    Record,
    RunCounts,
    Spans,
    Steps,
    Suite,
)
from trainmark.record.run import cause, checks, findings
from trainmark.record.run import telemetry as telemetry_of
from trainmark.record.run.timeline import RunTimeline, read_run
from trainmark.record.run.unlike import node_facts
from trainmark.record.series import RunSeries, lines_of
from trainmark.record.stats import STEADY_DRIFT, drift
from trainmark.record.trust import of_launch
from trainmark.spec import OwnFigures, message

if TYPE_CHECKING:
    from pathlib import Path

    from trainmark.spec import Figure, PageSpec


def _steps(timeline: RunTimeline) -> Steps:
    series = timeline.series
    warmup = timeline.warmup_steps
    moved = drift(series.step_ns[warmup:])
    return Steps(
        warmup=warmup,
        time_ns=series.step_ns.tolist(),
        loss=[None if isnan(value) else value for value in series.loss.tolist()],
        samples=series.samples.tolist(),
        drift=moved,
        steady=None if moved is None else abs(moved) <= STEADY_DRIFT,
    )


def _spans(timeline: RunTimeline) -> Spans:
    ended = [rank for rank in timeline.ranks if rank.last_ns is not None]
    if not ended:
        return Spans(rank=None, wall_ns=None, by_name_ns={}, train_parts_ns={}, reconciled=None)
    last = max(ended, key=lambda rank: rank.last_ns or 0)
    spans = last.all_spans_ns(timeline.launch_ns)
    wall = last.wall_ns(timeline.launch_ns)
    return Spans(
        rank=last.rank,
        wall_ns=wall,
        by_name_ns=spans,
        train_parts_ns=last.train_parts_ns(),
        reconciled=1 - spans["other"] / wall if wall else None,
    )


def _ranks(timeline: RunTimeline) -> list[RankEntry]:
    return [
        RankEntry(
            rank=rank.rank,
            pid=rank.pid,
            finished=rank.end_ns is not None,
            steps=rank.steps,
            samples=rank.counts.samples,
            wall_ns=rank.wall_ns(timeline.launch_ns),
            spans_ns=rank.all_spans_ns(timeline.launch_ns),
            step_ns=None if rank.median_step_ns is None else int(rank.median_step_ns),
            wait_ns=phase.wait_ns // phase.steps if phase.steps else None,
            matmul_flops_per_second=rank.facts.matmul_flops_per_second,
            used_bytes=rank.used_bytes,
            malformed_lines=rank.malformed_lines,
            torn_last_line=rank.torn,
        )
        for rank in timeline.ranks
        for phase in (rank.phases["train"],)
    ]


def _quality(plan: Plan, timeline: RunTimeline) -> Quality:
    rank, target = timeline.ranks[0], plan.target
    named = QualityPoint.model_fields
    history = [
        QualityPoint(**{name: getattr(event, name) for name in named}) for event in rank.evaluations
    ]
    last = history[-1] if history else None
    reason = None
    if last is None:
        reason = message("ended_before_evaluation" if plan.evaluates else "never_evaluates")
    elif last.value is None:
        reason = rank.evaluations[-1].reason or message("evaluation_not_finite")
    return Quality(
        metric=plan.about.metric,
        value=None if last is None else last.value,
        target=None if target is None else target.value,
        reached=None if target is None else rank.target_reached,
        best_possible=plan.data.best_quality,
        eval_samples=None if last is None else last.samples,
        history=history,
        reason=reason,
    )


def _counts(timeline: RunTimeline) -> RunCounts:
    return RunCounts(
        **timeline.counts.as_dict(),
        steps=max(rank.steps for rank in timeline.ranks),
        micro_batches=sum(rank.micro_batches for rank in timeline.ranks),
        epochs=max(rank.epochs for rank in timeline.ranks),
        skipped_steps=timeline.ranks[0].result.job.get("skipped_steps"),
    )


def _environment(timeline: RunTimeline) -> Environment:
    """Merge the facts of launcher and ranks; keys that a record does not have are dropped."""
    rank0 = timeline.ranks[0]
    reported = [rank.facts for rank in timeline.ranks if rank.reported_facts]
    facts: dict[str, Any] = {
        **timeline.launcher.launch.environment,
        "others_cpu_share": timeline.others_cpu_share,
        **({"nodes": node_facts(timeline)} if timeline.nodes else {}),
        "devices": [facts.device for facts in reported],
        "placement": [facts.placement for facts in reported],
        "precision_flags": rank0.facts.precision_flags,
        "collective": rank0.facts.collective,
        "job": rank0.result.job if rank0.reported_result else None,
    }
    return cast("Environment", {k: facts[k] for k in facts if k in Environment.__annotations__})


def _own(plan: Plan, timeline: RunTimeline, known: dict[str, Figure]) -> OwnFigures:
    """Return the case's own figures; none if the case is not installed."""
    if plan.case not in cases.names() or not cases.has_part(plan.case, "figures"):
        return OwnFigures({})
    found: OwnFigures = cases.part(plan.case, "figures").compute(
        [rank.work for rank in timeline.ranks], known
    )
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


def reduce(run_dir: Path) -> Record:
    """Compute the record of ``run_dir`` from its plan and events.

    Raises:
        RecordError: no plan or no launcher events there.
    """
    try:
        plan = Plan.read(run_dir)
        timeline = read_run(run_dir, plan.world_size, plan.node_processes)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RecordError(
            "not a run directory", where=str(run_dir), rule=f"it needs {PLAN_FILE} and events"
        ) from error
    samples = telemetry_of.read_samples(run_dir, timeline) if plan.sample_every_s else []
    telemetry = telemetry_of.summarize(samples, timeline) if samples else None
    computed = figures_of.compute(
        timeline,
        precision=plan.recipe["precision"],
        recipe_warmup_steps=plan.recipe["warmup_steps"],
        work_unit=plan.about.work_unit,
        given_tflops=plan.peak_tflops,
        telemetry=telemetry,
        on_processor=plan.device.vendor == "cpu",
    )
    own = _own(plan, timeline, computed)
    # The installed case declares the units of its figures; a plan of an earlier version does not.
    page = cases.load(plan.case).page if own.figures else plan.about.page
    figures = _entries(computed | dict(own.figures), page, work_unit=plan.about.work_unit)
    ending = cause.find(timeline, plan.target)
    if ending.status in ("passed", "target_missed"):
        ending = checks.broken(plan, timeline, figures) or ending
    steps, quality = _steps(timeline), _quality(plan, timeline)
    launch = timeline.launcher.launch
    cut_off = not timeline.finished and any(rank.steps for rank in timeline.ranks)
    labels = [*plan.labels, *(["partial"] if cut_off else [])]
    inputs = findings.Inputs(plan, timeline, figures, telemetry)
    doubts, notes = findings.find(inputs), [*own.notes, *findings.notes(inputs, steps, quality)]
    swings = [rank.facts.matmul_swing for rank in timeline.ranks]
    return Record(
        suite=Suite(version=__version__),
        run_id=plan.run_id,
        case_key=plan.case_key,
        started=launch.started,
        status=ending.status,
        cause=ending.cause,
        trust=of_launch(
            passed=ending.status == "passed",
            labels=labels,
            notes=[*doubts, *notes],
            figures=figures,
            swing=max((swing for swing in swings if swing is not None), default=None),
        ),
        plan=plan,
        argv=launch.argv,
        environment=_environment(timeline),
        counts=_counts(timeline),
        spans=_spans(timeline),
        ranks=_ranks(timeline),
        steps=steps,
        compilation=compilation(plan, timeline),
        telemetry=telemetry,
        series=RunSeries(lines=list(lines_of(samples))),
        figures=figures,
        quality=quality,
        fix_hp=plan.fix_hp,
        extra=plan.extra,
        labels=labels,
        findings=doubts,
        notes=notes,
        evidence=evidence(run_dir),
    )
