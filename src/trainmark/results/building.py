"""Build the record of a run directory from its plan and events alone.

Never reads log text and never asks a process anything: what is not in the events is not
in the record.
"""

from __future__ import annotations

from math import isnan, sqrt
from typing import TYPE_CHECKING

from trainmark import __version__
from trainmark.errors import RecordError
from trainmark.measure import figures as figures_of
from trainmark.measure.stats import STEADY_DRIFT, drift
from trainmark.measure.timeline import RunTimeline, read_run
from trainmark.measure.traffic import bound_by
from trainmark.planning.plan import PLAN_FILE, Plan
from trainmark.results import cause as cause_of
from trainmark.results import checks, findings
from trainmark.results.evidence import evidence, redactor_of
from trainmark.results.record import (
    Cause,
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
from trainmark.results.trust import BUSY_SHARE, of_launch
from trainmark.spec import Message, message

if TYPE_CHECKING:
    from pathlib import Path


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
            used_bytes=rank.used_bytes,
            malformed_lines=rank.malformed_lines,
            torn_last_line=rank.torn,
        )
        for rank in timeline.ranks
    ]


def _quality(plan: Plan, timeline: RunTimeline) -> Quality:
    target = plan.target
    history = [
        QualityPoint(
            epoch=event["epoch"],
            step=event["step"],
            value=event["value"],
            samples=event["samples"],
            detail=event["detail"],
            parts=event.get("parts", {}),
        )
        for event in timeline.ranks[0].evaluations
    ]
    value = history[-1].value if history else None
    reason = None
    if not history:
        reason = message("ended_before_evaluation" if plan.evaluates else "never_evaluates")
    elif value is None:
        told = timeline.ranks[0].evaluations[-1].get("reason")
        reason = Message(**told) if told else message("evaluation_not_finite")
    return Quality(
        metric=plan.about.metric,
        value=value,
        target=None if target is None else target.value,
        reached=None if target is None else timeline.ranks[0].target_reached,
        best_possible=plan.data.best_quality,
        eval_samples=history[-1].samples if history else None,
        history=history,
        reason=reason,
    )


def _counts(timeline: RunTimeline) -> RunCounts:
    total = timeline.counts
    skipped = timeline.ranks[0].result.get("job", {}).get("skipped_steps")
    return RunCounts(
        **total.as_dict(),
        steps=max(rank.steps for rank in timeline.ranks),
        micro_batches=sum(rank.micro_batches for rank in timeline.ranks),
        epochs=max(rank.epochs for rank in timeline.ranks),
        skipped_steps=skipped,
    )


def _notes(
    plan: Plan,
    steps: Steps,
    quality: Quality,
    timeline: RunTimeline,
    figures: dict[str, FigureEntry],
) -> list[Message]:
    """Return what a careful reader should be told beside the figures."""
    bound = bound_by({name: entry.value for name, entry in figures.items()})
    notes = [] if bound is None else [bound]
    if steps.steady is False:
        notes.append(message("not_steady", drift=steps.drift))
    if steps.steady is None:
        notes.append(message("steadiness_unknown"))
    notes += _loss_note(steps, quality)
    missed = quality.reached is False and quality.value is not None
    if missed and plan.target is not None and not plan.target.required:
        notes.append(
            message(
                "target_missed_not_required",
                metric=quality.metric, value=quality.value, target=quality.target,
            )
        )  # fmt: skip
    best, value = quality.best_possible, quality.value
    is_share = plan.about.higher_is_better  # an error's sampling spread is not known here
    if is_share and best and value and value > best + _sampling_slack(quality):
        notes.append(message("quality_above_best", metric=quality.metric, value=value, best=best))
    others = timeline.others_cpu_share
    if others is not None and others > BUSY_SHARE:
        notes.append(message("machine_busy", share=others))
    if "oversubscribed" in plan.labels:
        notes.append(message("oversubscribed"))
    notes += [
        message("malformed_event_lines", rank=rank.rank, lines=rank.malformed_lines)
        for rank in timeline.ranks
        if rank.malformed_lines
    ]
    return notes


def _loss_note(steps: Steps, quality: Quality) -> list[Message]:
    """Say so where nothing was evaluated and the training loss did not fall either.

    A fall within the noise of the steps is none.
    """
    known = [loss for loss in steps.loss if loss is not None]
    tenth = len(known) // 10
    if quality.history or tenth == 0:
        return []
    (first, first_error), (last, last_error) = _mean(known[:tenth]), _mean(known[-tenth:])
    if first - last > 2 * sqrt(first_error**2 + last_error**2):
        return []
    return [message("loss_did_not_fall", first=first, last=last)]


def _mean(values: list[float]) -> tuple[float, float]:
    """Return the mean and its standard error."""
    mean = sum(values) / len(values)
    spread = sum((value - mean) ** 2 for value in values) / len(values)
    return mean, sqrt(spread / len(values))


def _sampling_slack(quality: Quality) -> float:
    """Return three standard errors of an accuracy on the evaluated rows."""
    best = quality.best_possible or 0.0
    return 3 * sqrt(best * (1 - best) / max(quality.eval_samples or 1, 1))


def _swing(timeline: RunTimeline) -> float | None:
    """Return how far the matmul rate moved on the rank where it moved most."""
    swings = [rank.facts.get("matmul_swing") for rank in timeline.ranks]
    return max((swing for swing in swings if swing is not None), default=None)


def _impossible(
    plan: Plan, timeline: RunTimeline, entries: dict[str, FigureEntry]
) -> cause_of.Ending | None:
    found = checks.broken(plan, timeline)
    if found is not None:
        return found
    mfu = entries["MFU"].value
    if mfu is not None and mfu > 100:
        said = message("mfu_above_one", share=mfu / 100)
        return cause_of.Ending("failed", {"kind": "impossible_figure", "message": said.as_dict()})
    return None


def build(run_dir: Path) -> Record:
    """Compute the record of ``run_dir`` from its plan and events, redacted.

    Raises:
        RecordError: no plan or no launcher events there.
    """
    built = compute(run_dir)
    # The evidence is redacted as a rule; the disk may have been too full for it.
    return Record(**redactor_of(built.plan, run_dir).document(built.model_dump()))


def compute(run_dir: Path) -> Record:
    """Compute the record of ``run_dir`` from its plan and events as they stand there.

    Raises:
        RecordError: no plan or no launcher events there.
    """
    try:
        plan = Plan.read(run_dir)
        timeline = read_run(run_dir, plan.world_size)
    except (OSError, StopIteration, ValueError, KeyError, TypeError) as error:
        raise RecordError(
            "not a run directory", where=str(run_dir), rule=f"it needs {PLAN_FILE} and events"
        ) from error
    ending = cause_of.find(timeline, plan.target)
    computed = figures_of.compute(
        timeline,
        precision=plan.recipe["precision"],
        recipe_warmup_steps=plan.recipe["warmup_steps"],
        work_unit=plan.about.work_unit,
    )
    entries = {
        name: FigureEntry(value=item.value, unit=item.unit, reason=item.reason, note=item.note)
        for name, item in computed.items()
    }
    if ending.status in ("passed", "target_missed"):
        ending = _impossible(plan, timeline, entries) or ending
    steps, quality = _steps(timeline), _quality(plan, timeline)
    launch = next(event for event in timeline.launcher if event["event"] == "launch")
    rank0 = timeline.ranks[0]
    doubts = findings.find(plan, timeline, entries)
    notes = _notes(plan, steps, quality, timeline, entries)
    return Record(
        suite=Suite(version=__version__),
        run_id=plan.run_id,
        case_key=plan.case_key,
        started=launch["started"],
        status=ending.status,
        cause=None if ending.cause is None else Cause(**ending.cause),
        trust=of_launch(
            passed=ending.status == "passed",
            labels=plan.labels,
            notes=[*doubts, *notes],
            figures=entries,
            swing=_swing(timeline),
        ),
        plan=plan,
        argv=launch["argv"],
        environment=launch["environment"]
        | {
            "others_cpu_share": timeline.others_cpu_share,
            "devices": [rank.facts.get("device") for rank in timeline.ranks if rank.facts],
            "precision_flags": rank0.facts.get("precision_flags"),
            "collective": rank0.facts.get("collective"),
            "job": rank0.result.get("job"),
        },
        counts=_counts(timeline),
        spans=_spans(timeline),
        ranks=_ranks(timeline),
        steps=steps,
        figures=entries,
        quality=quality,
        fix_hp=plan.fix_hp,
        extra=plan.extra,
        labels=plan.labels,
        findings=doubts,
        notes=notes,
        evidence=evidence(run_dir),
    )
