"""What does not fail a run, but a reader should doubt, each with its arithmetic.

Owns the thresholds. Computed from events and figures alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from trainmark.results.checks import samples_per_epoch
from trainmark.spec import Message, message

if TYPE_CHECKING:
    from trainmark.measure.timeline import RunTimeline
    from trainmark.planning.plan import Plan
    from trainmark.results.record import FigureEntry

# A row's forward pass is a third of its training step. Evaluations may take longer rows,
# other batches and code that is not compiled; not ten times a whole step.
_EVALUATION_FACTOR = 10.0
_EVALUATION_FLOOR_S = 1.0  # below, what each evaluation costs once outweighs its rows
_CONSTANT_LOSS_STEPS = 10
_ROUNDING = 1e-12
# Of the steps that were not dropped by the loss scaler. A schedule may begin with a rate of 0.
_LEAST_UPDATES = 0.9
_NS_PER_S = 1e9


def find(plan: Plan, timeline: RunTimeline, figures: dict[str, FigureEntry]) -> list[Message]:
    """Return the findings of a run."""
    found = [
        _evaluation(timeline),
        _loss(timeline),
        _flops(figures),
        _epoch(plan, timeline),
        _rows(plan, timeline),
        _updates(timeline),
    ]
    return [item for item in found if item is not None]


def _evaluation(timeline: RunTimeline) -> Message | None:
    """Hold the time of an evaluated row against the time of a trained sample."""
    rank = timeline.ranks[0]
    rows = sum(event["samples"] for event in rank.evaluations)
    samples = timeline.counts.samples
    trained_s = sum(phase.windows_ns for phase in rank.phases.values()) / _NS_PER_S
    evaluated_s = rank.evaluate_ns / _NS_PER_S
    if not (rows and samples and trained_s) or evaluated_s < _EVALUATION_FLOOR_S:
        return None
    row_s, sample_s = evaluated_s / rows, trained_s / samples
    if row_s <= _EVALUATION_FACTOR * sample_s:
        return None
    return message(
        "evaluation_far_longer",
        evaluation_s=evaluated_s,
        rows=rows,
        row_s=row_s,
        sample_s=sample_s,
        factor=row_s / sample_s,
        limit=_EVALUATION_FACTOR,
    )


def _loss(timeline: RunTimeline) -> Message | None:
    """Tell of a loss that is the same in every step, but for how means over ranks round."""
    loss = timeline.series.loss
    if len(loss) < _CONSTANT_LOSS_STEPS or not np.ptp(loss) <= _ROUNDING * abs(loss[0]):
        return None
    return message("loss_never_changes", loss=float(loss[0]), steps=len(loss))


def _flops(figures: dict[str, FigureEntry]) -> Message | None:
    rate, matmul = (
        figures[name].value for name in ("model_flops_per_device", "matmul_flops_per_device")
    )
    if not rate or not matmul or rate <= matmul:
        return None
    return message(
        "flops_above_preflight",
        tflops=rate / 1e12,
        matmul_tflops=matmul / 1e12,
        share=rate / matmul,
    )


def _epoch(plan: Plan, timeline: RunTimeline) -> Message | None:
    """Tell where the job itself says that an epoch is not its data once."""
    samples, rows = samples_per_epoch(plan, timeline), plan.data.train_samples
    return None if samples == rows else message("own_epoch", samples=samples, rows=rows)


def _rows(plan: Plan, timeline: RunTimeline) -> Message | None:
    """Hold the rows of the last evaluation against the validation data."""
    evaluations, rows = timeline.ranks[0].evaluations, plan.data.eval_samples
    if not evaluations or evaluations[-1]["samples"] == rows:
        return None
    return message("evaluated_rows", scored=evaluations[-1]["samples"], rows=rows)


def _updates(timeline: RunTimeline) -> Message | None:
    """Tell of steps that took a batch, and time, without changing anything."""
    rank = timeline.ranks[0]
    if rank.parameters is None or rank.result is None:
        return None
    skipped = (rank.result.get("job") or {}).get("skipped_steps") or 0
    updates, due = rank.parameters["updates"], rank.steps - skipped
    if updates >= _LEAST_UPDATES * due:
        return None
    return message("few_updates", updates=updates, steps=rank.steps, skipped=skipped)
