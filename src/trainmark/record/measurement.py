"""Collect what was measured in a run, from its events or from its record.

Figures, findings and trust are computed from a measurement alone. A check of a record makes the
same measurement from it and so computes the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest
from math import isnan
from typing import TYPE_CHECKING, Any, cast

from trainmark.events.nodes import list_node_differences
from trainmark.events.timeline import NO_FACTS, NO_RESULT
from trainmark.protocols import Counts
from trainmark.record.evaluations import combine_scores
from trainmark.record.printed_speed import summarize_printed
from trainmark.record.record import (
    Environment,
    Quality,
    QualityPoint,
    RankEntry,
    RunCounts,
    ScoredEntry,
    Spans,
    Steps,
)
from trainmark.record.replays import summarize_replays
from trainmark.spec import message

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from trainmark.events.schema import Evaluate
    from trainmark.events.timeline import RankTimeline, RunTimeline
    from trainmark.events.values import JobFacts
    from trainmark.plan.plan import Plan
    from trainmark.record.printed_speed import PrintedSpeed
    from trainmark.record.record import Record
    from trainmark.record.replays import Replays
    from trainmark.spec import Message
    from trainmark.telemetry.summary import Telemetry


@dataclass(frozen=True)
class Measurement:
    """What plan, launcher, ranks and sampler reported of a run, and what follows from it.

    Args:
        evaluations: in their order.
        no_quality_reason: why the last evaluation gave no value, if it reported a reason.
        telemetry: None if nothing was sampled.
        replays: None if no window was repeated.
        printed: what a program of the user's own printed of its speed.
    """

    plan: Plan
    environment: Environment
    ranks: list[RankEntry]
    steps: Steps
    evaluations: list[QualityPoint]
    no_quality_reason: Message | None
    telemetry: Telemetry | None
    replays: Replays | None
    printed: list[PrintedSpeed]

    @classmethod
    def from_timeline(
        cls, plan: Plan, timeline: RunTimeline, telemetry: Telemetry | None = None
    ) -> Measurement:
        """Return the measurement of a run, computed from its plan and its events.

        Args:
            timeline: the events of the launcher and of all ranks.
            telemetry: what was read of devices and hosts; None: nothing was.
        """
        # Only what rank 0 reports of the quality counts: its value or, if it has none, the reason.
        evaluations_of_rank0 = timeline.ranks[0].evaluations
        return cls(
            plan=plan,
            environment=_merge_facts(timeline),
            ranks=_list_ranks(timeline),
            steps=_list_steps(timeline),
            evaluations=_list_evaluations(timeline),
            no_quality_reason=evaluations_of_rank0[-1].reason if evaluations_of_rank0 else None,
            telemetry=telemetry,
            # Windows that ranks repeated to compare the results.
            replays=summarize_replays([rank.replays for rank in timeline.ranks]),
            # The speeds that a user's own program prints; a case of Trainmark prints none.
            printed=summarize_printed(
                timeline.launcher.printed, steps=timeline.steps, warmup=timeline.warmup_steps
            ),
        )

    @classmethod
    def from_record(cls, record: Record) -> Measurement:
        """Return the measurement that a record contains; lists are shared, not copied."""
        return cls(
            plan=record.plan,
            environment=record.environment,
            ranks=record.ranks,
            steps=record.steps,
            evaluations=record.quality.history,
            # The record may also have a reason that no evaluation reported, but that
            # ``_explain_missing_quality`` chose. From it, that method returns the same reason.
            no_quality_reason=record.quality.reason,
            telemetry=record.telemetry,
            replays=record.replays,
            printed=record.printed,
        )

    @property
    def job(self) -> JobFacts | None:
        """Return facts of the training, such as the number of the model's parameters.

        Rank 0 reports them at its end. None: it ended without this report.
        """
        return self.environment["job"]

    @cached_property
    def counts(self) -> RunCounts:
        """Return the counts of the training, summed over all ranks."""
        totals = sum((rank.counts for rank in self.ranks), Counts())
        return RunCounts(
            samples=totals.samples,
            sequences=totals.sequences,
            tokens=totals.tokens,
            tokens_padded=totals.tokens_padded,
            # All ranks take part in each step, so that steps and epochs are not added up.
            steps=max(rank.steps for rank in self.ranks),
            micro_batches=sum(rank.micro_batches for rank in self.ranks),
            epochs=max(rank.epochs for rank in self.ranks),
            skipped_steps=(self.job or {}).get("skipped_steps"),  # by the loss scaler
        )

    @cached_property
    def spans(self) -> Spans:
        """Return the spans of the rank that ended last: the parts of its time from launch to end.

        The windows, each of which is some steps that are timed together, are divided further: into
        waiting for data, computing, and the time between steps.
        """
        # The times of all ranks begin at the launch, so the rank with the longest one ended last.
        # A rank that never started has the wall time None.
        last_rank = max(self.ranks, key=lambda rank: rank.wall_ns or 0)
        return Spans(
            rank=last_rank.rank,
            wall_ns=last_rank.wall_ns,
            by_name_ns=last_rank.spans_ns,
            train_parts_ns={
                "data_wait": last_rank.total_wait_ns,
                "compute": last_rank.total_step_ns - last_rank.total_wait_ns,
                "other": last_rank.total_windows_ns - last_rank.total_step_ns,  # between steps
            },
        )

    @cached_property
    def quality(self) -> Quality:
        """Return the quality that the run ended with, and whether it reaches the plan's target.

        The last evaluation counts. Without a target, ``reached`` is None.
        """
        plan = self.plan
        value: float | None = None
        num_samples: int | None = None
        if self.evaluations:
            value = self.evaluations[-1].value
            num_samples = self.evaluations[-1].samples
        target_value: float | None = None
        is_reached: bool | None = None
        if plan.target is not None:
            target_value = plan.target.value
            is_reached = value is not None and plan.target.reached(value)
        return Quality(
            metric=plan.about.metric,
            value=value,
            target=target_value,
            reached=is_reached,
            best_possible=plan.data.best_quality,
            eval_samples=num_samples,
            history=self.evaluations,
            reason=self._explain_missing_quality(),
        )

    def _explain_missing_quality(self) -> Message | None:
        """Return why there is no quality; None if there is one.

        A reason that the last evaluation reports is returned as it is.
        """
        if not self.evaluations:
            code = "ended_before_evaluation" if self.plan.evaluates else "never_evaluates"
            return message(code)
        # Without a reason, a value is missing because it was not a finite number.
        if self.evaluations[-1].value is None and self.no_quality_reason is None:
            return message("evaluation_not_finite")
        return self.no_quality_reason  # None with a value: a job gives a reason only without one

    @cached_property
    def labels(self) -> list[str]:
        """Return the plan's labels, and ``partial`` if training was cut off."""
        labels = list(self.plan.labels)
        # A run that ended before its first step has no training that could be partial.
        has_trained = any(rank.steps for rank in self.ranks)
        if has_trained and not all(rank.finished for rank in self.ranks):
            labels.append("partial")
        return labels


def _list_ranks(timeline: RunTimeline) -> list[RankEntry]:
    """Return the entry of each rank."""
    first_job = timeline.ranks[0].result.job  # facts that rank 0 reported of its training
    return [_describe_rank(rank, first_job) for rank in timeline.ranks]


def _describe_rank(rank: RankTimeline, first_job: dict[str, Any]) -> RankEntry:
    """Return a rank's entry.

    Args:
        first_job: facts of rank 0's training, such as the number of the model's parameters. The
            record has them in its environment. Entries of ranks with the same facts, rank 0 too,
            leave them out.
    """
    job = cast("JobFacts", rank.result.job)
    return RankEntry(
        rank=rank.rank,
        finished=rank.finished,
        epochs=rank.epochs,
        wall_ns=rank.wall_ns,
        spans_ns=rank.spans_ns,
        train_ns=rank.train_ns,
        phases=rank.phases,
        step_ns=rank.step_ns,
        matmul_flops_per_second=rank.facts.matmul_flops_per_second,
        matmul_swing=rank.facts.matmul_swing,
        memory_scope=rank.facts.memory_scope,
        used_bytes=rank.used_bytes,
        allocator_peak_bytes=rank.result.allocator_peak_bytes,
        job=None if job == first_job else job,
    )


def _list_steps(timeline: RunTimeline) -> Steps:
    """Return the time, the loss and the number of samples of each step of the run.

    The time of a step is that of its slowest rank; the loss is the mean over the samples of all
    ranks.
    """
    series = timeline.series  # arrays, ``(steps,)``; a loss is NaN if a rank does not know its own
    return Steps(
        warmup=timeline.warmup_steps,
        time_ns=series.step_ns.tolist(),
        loss=[None if isnan(value) else value for value in series.loss.tolist()],
        samples=_list_counts(series.samples),
    )


def _list_counts(counts: NDArray[np.int64]) -> list[int]:
    """Return the values of an array, ``(steps,)``; equal values are the same object.

    Nearly all steps have equally many samples. A list of a million numbers takes 8 MB if they share
    one object, and 40 MB if each is an object of its own.
    """
    shared: dict[int, int] = {}
    return [shared.setdefault(count, count) for count in counts.tolist()]


def _list_evaluations(timeline: RunTimeline) -> list[QualityPoint]:
    """Return each evaluation: its quality as rank 0 reports it, and the scores of all ranks."""
    points = []
    # The reports of all ranks on each evaluation; None: the rank ended before.
    for reports in zip_longest(*(rank.evaluations for rank in timeline.ranks)):
        first: Evaluate | None = reports[0]
        if first is None:
            break  # rank 0 ended before this evaluation
        point = QualityPoint(
            epoch=first.epoch,
            step=first.step,
            value=first.value,
            samples=first.samples,
            detail=first.detail,
            parts=first.parts,
            scored=_combine_scores_of_ranks(reports),
        )
        points.append(point)
    return points


def _combine_scores_of_ranks(reports: Sequence[Evaluate | None]) -> ScoredEntry | None:
    """Return how many rows of the data all ranks scored in an evaluation, and their mean score.

    Args:
        reports: each rank's event of this evaluation; None: the rank ended before.

    Returns:
        None if a rank reported no scores: those of the others are not the whole evaluation.
    """
    scored = combine_scores([None if report is None else report.scores for report in reports])
    if scored is None:
        return None
    return ScoredEntry(
        rows=scored.rows,
        digest=scored.digest,  # identifies the rows that were scored
        mean=scored.mean,
        of=scored.detail_name,  # the value that the mean must equal; empty: the quality itself
    )


def _list_node_names(timeline: RunTimeline) -> list[str | None]:
    """Return the name of each machine with ranks; None instead of a name that is not reported."""
    # ``timeline.nodes`` has the machines whose ranks a node process started. Without any, the
    # launcher started all ranks on its own machine.
    if not timeline.nodes:
        return [timeline.launcher.launch.node_name]
    launches = [node.events.get("launch") for node in timeline.nodes]
    return [None if launch is None else launch.node_name for launch in launches]


def _merge_facts(timeline: RunTimeline) -> Environment:
    """Return the facts of launcher, nodes and ranks for which a record has a field."""
    rank0 = timeline.ranks[0]
    ended = timeline.launcher.ranks_ended  # event of the launcher; None: it did not write it
    # ``NO_FACTS`` and ``NO_RESULT`` stand for an event that a rank did not write: all their fields
    # are empty.
    facts_of_ranks = [None if rank.facts is NO_FACTS else rank.facts for rank in timeline.ranks]
    merged: dict[str, Any] = {
        **timeline.launcher.launch.environment,
        "others_cpu_share": None if ended is None else ended.others_cpu_share,
        "devices": [None if facts is None else facts.device for facts in facts_of_ranks],
        "precision_flags": rank0.facts.precision_flags,
        "collective": rank0.facts.collective,
        # What the training reports of itself, such as the number of the model's parameters.
        "job": None if rank0.result is NO_RESULT else rank0.result.job,
    }
    node_names = _list_node_names(timeline)
    if any(node_names):
        merged["node_names"] = node_names
    if timeline.nodes:  # for each machine, the facts in which it differs from the first
        merged["nodes"] = list_node_differences(timeline.nodes, facts_of_ranks)
    if rank0.result.attention:
        merged["attention"] = ", ".join(rank0.result.attention)
    if rank0.facts.attention_flags:
        merged["attention_flags"] = rank0.facts.attention_flags
    # The launcher may report facts for which a record has no field: they are left out.
    facts = {name: value for name, value in merged.items() if name in Environment.__annotations__}
    return cast("Environment", facts)
