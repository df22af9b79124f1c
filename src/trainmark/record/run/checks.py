"""Compare what ranks counted and trained with the data, the recipe and each other.

Owns the rules that need more than one rank or the plan; the loop has checked each rank
alone. A run that breaks one of them fails, because its figures would be wrong.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from trainmark.rank.parameters import NAMED
from trainmark.record.record import Cause
from trainmark.spec import Message, message

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from trainmark.plan.plan import Plan
    from trainmark.record.record import FigureEntry
    from trainmark.record.run.timeline import RunTimeline

# An adapter's first matrix has a zero gradient until its second one is not 0: one step later.
_UPDATES_TO_REACH_ALL = 2


def broken(plan: Plan, timeline: RunTimeline, figures: dict[str, FigureEntry]) -> Cause | None:
    """Return the first rule that a finished run breaks."""
    rules = (
        ("impossible_figure", _steps(plan, timeline)),
        ("impossible_figure", _whole(plan, timeline)),
        ("not_trained", _training(timeline)),
        ("ranks_differ", _replicas(plan, timeline)),
        ("changed_precision", _precision(timeline)),
        ("impossible_figure", _utilisation(figures)),
    )
    for kind, faults in rules:
        for fault in faults:
            return Cause(kind=kind, message=fault)
    return None


def _steps(plan: Plan, timeline: RunTimeline) -> Iterator[Message]:
    """Compare the steps of all ranks with each other and with the global batch."""
    series, steps = timeline.series, [rank.steps for rank in timeline.ranks]
    if min(steps) != max(steps):
        yield message("steps_differ_over_ranks", least=min(steps), most=max(steps))
    for step in np.flatnonzero(series.samples != series.announced)[:1].tolist():
        samples, announced = int(series.samples[step]), int(series.announced[step])
        if announced < 0:
            yield message("step_samples_differ_over_ranks", step=step + 1)
        yield message("samples_of_step", step=step + 1, samples=samples, step_samples=announced)
    recipe = plan.recipe
    most = recipe["micro_batch_size"] * recipe["grad_accum_steps"] * len(timeline.ranks)
    for step in np.flatnonzero(series.samples > most)[:1].tolist():
        yield message("samples_above_global_batch", step=step + 1, most=most,
                      samples=int(series.samples[step]))  # fmt: skip


def _whole(plan: Plan, timeline: RunTimeline) -> Iterator[Message]:
    """Compare epochs with the data, and tokens with the length of a sequence."""
    whole = min(rank.trained.whole_epochs if rank.trained else 0 for rank in timeline.ranks)
    own = timeline.ranks[0].facts.samples_per_epoch
    expected = plan.data.train_samples if own is None else own
    for epoch in sorted({epoch for rank in timeline.ranks for epoch in rank.samples_of_epochs}):
        samples = sum(rank.samples_of_epochs[epoch] for rank in timeline.ranks)
        if samples > expected or (epoch < whole and samples != expected):
            yield message("samples_of_epoch", epoch=epoch + 1, samples=samples, expected=expected)
    length, counts = plan.recipe.get("seq_length"), timeline.counts
    tokens, sequences = counts.tokens_padded, counts.sequences
    if length and tokens > sequences * length:
        yield message("tokens_above_length", tokens=tokens, sequences=sequences, length=length)


def _utilisation(figures: dict[str, FigureEntry]) -> Iterator[Message]:
    if (mfu := figures["MFU"].value or 0.0) > 100:
        yield message("mfu_above_one", share=mfu / 100)


def _replicas(plan: Plan, timeline: RunTimeline) -> Iterator[Message]:
    """Yield parameters that ranks hold whole and that differ: their gradients were not reduced."""
    reports = {rank.rank: rank.parameters.sums for rank in timeline.ranks if rank.parameters}
    if len(reports) < 2 or plan.recipe.get("tensor_parallel", 1) > 1:
        return  # plain shards of one name differ
    first: dict[str, int] = {}
    unlike: dict[str, int] = {}
    for rank, sums in reports.items():
        for name, value in sums.items():
            if first.setdefault(name, value) != value:
                unlike.setdefault(name, rank)
    if unlike:
        names = ", ".join(list(unlike)[:NAMED])
        yield message("parameters_differ", names=names, number=len(unlike), parameters=len(first),
                      rank=min(unlike.values()))  # fmt: skip


def _precision(timeline: RunTimeline) -> Iterator[Message]:
    """Yield the flags of precision that a job changed after they were set."""
    for rank in timeline.ranks:
        if rank.result.precision_changed:
            yield message("changed_precision", rank=rank.rank,
                          changes=", ".join(rank.result.precision_changed))  # fmt: skip


def _training(timeline: RunTimeline) -> Iterator[Message]:
    """Yield parameters that were not trained: by their gradients, or because no bit changed."""
    reports = [rank.parameters for rank in timeline.ranks if rank.parameters is not None]
    # A rank may hold rows of a table that no sample uses, so all ranks are judged together.
    changed = _on_any_rank(report.changed for report in reports)
    if not changed:
        yield message("no_trained_parameters")
    if not any(rank.phases["train"].steps for rank in timeline.ranks):
        return  # too short for a figure
    updates = max((report.updates for report in reports), default=0)
    if updates == 0:
        yield message("never_updated")
    if updates < _UPDATES_TO_REACH_ALL:
        return
    gradients = _on_any_rank(report.gradients for report in reports)
    if zero := [name for name, some in gradients.items() if not some]:
        names = ", ".join(zero[:NAMED])
        yield message("gradients_zero", names=names, number=len(zero), parameters=len(gradients))
    if never := [name for name, some in changed.items() if not some]:
        yield message("parameters_never_changed", names=", ".join(never[:NAMED]),
                      number=len(never), parameters=len(changed), updates=updates)  # fmt: skip


def _on_any_rank(reports: Iterable[dict[str, bool]]) -> dict[str, bool]:
    """Return what is true of a parameter on any rank, by name."""
    found: dict[str, bool] = {}
    for report in reports:
        for name, yes in report.items():
            found[name] = found.get(name, False) or yes
    return found
