"""Hold what ranks counted and trained against the data, the recipe and each other.

Owns the rules that need more than one rank or the plan; the loop has checked each rank
alone. A run that breaks one of them fails: its figures would not be true.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from trainmark.measure.parameters import NAMED
from trainmark.results.cause import Ending
from trainmark.spec import Message, message

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainmark.measure.timeline import RunTimeline
    from trainmark.planning.plan import Plan

# An adapter's first matrix has no gradient before its second one is off 0: one step later.
_UPDATES_TO_REACH_ALL = 2


def broken(plan: Plan, timeline: RunTimeline) -> Ending | None:
    """Return the first rule that a finished run breaks."""
    contradiction = next(_contradictions(plan, timeline), None)
    if contradiction is not None:
        return _failed("impossible_figure", contradiction)
    untrained = _untrained(timeline)
    return None if untrained is None else _failed("not_trained", untrained)


def samples_per_epoch(plan: Plan, timeline: RunTimeline) -> int:
    """Return the samples of a whole epoch over all ranks: of the data, or as the job says."""
    own: int | None = timeline.ranks[0].facts.get("samples_per_epoch")
    return plan.data.train_samples if own is None else own


def _failed(kind: str, found: Message) -> Ending:
    return Ending("failed", {"kind": kind, "message": found.as_dict()})


def _contradictions(plan: Plan, timeline: RunTimeline) -> Iterator[Message]:
    yield from _of_steps(plan.recipe, timeline)
    whole = min(rank.whole_epochs for rank in timeline.ranks)
    expected = samples_per_epoch(plan, timeline)
    epochs = sorted({epoch for rank in timeline.ranks for epoch in rank.samples_of_epochs})
    for epoch in epochs:
        samples = sum(rank.samples_of_epochs.get(epoch, 0) for rank in timeline.ranks)
        if samples > expected or (epoch < whole and samples != expected):
            yield message("samples_of_epoch", epoch=epoch + 1, samples=samples, expected=expected)
    length, counts = plan.recipe.get("seq_length"), timeline.counts
    if length and counts.tokens_padded > counts.sequences * length:
        yield message(
            "tokens_above_length",
            tokens=counts.tokens_padded,
            sequences=counts.sequences,
            length=length,
        )


def _of_steps(recipe: dict[str, Any], timeline: RunTimeline) -> Iterator[Message]:
    """Hold the steps of all ranks against each other and against the global batch."""
    series, steps = timeline.series, [rank.steps for rank in timeline.ranks]
    if min(steps) != max(steps):
        yield message("steps_differ_over_ranks", least=min(steps), most=max(steps))
    if series.disagreed is not None:
        yield message("step_samples_differ_over_ranks", step=series.disagreed + 1)
    for number in np.flatnonzero(series.samples != series.announced)[:1]:
        yield message(
            "samples_of_step",
            step=int(number) + 1,
            samples=int(series.samples[number]),
            step_samples=int(series.announced[number]),
        )
    most = recipe["micro_batch_size"] * recipe["grad_accum_steps"] * len(timeline.ranks)
    for number in np.flatnonzero(series.samples > most)[:1]:
        yield message(
            "samples_above_global_batch",
            step=int(number) + 1,
            samples=int(series.samples[number]),
            most=most,
        )


def _untrained(timeline: RunTimeline) -> Message | None:
    """Return what says that a parameter, or all of them, were not trained."""
    told = [rank.parameters for rank in timeline.ranks if rank.parameters]
    # A rank may hold rows of a table that no sample asks for: what counts is the whole of it.
    changed, unchanged = _on_any_rank(told, "changed", "unchanged")
    if not changed and not unchanged:
        return message("no_trained_parameters")
    updates = max(event["updates"] for event in told)
    if not any(rank.phases["train"].steps for rank in timeline.ranks):
        return None  # too short for a figure
    if updates == 0:
        return message("never_updated")
    return _unreached(told, updates) if updates >= _UPDATES_TO_REACH_ALL else None


def _unreached(told: list[dict[str, Any]], updates: int) -> Message | None:
    """Return which parameters training never reached, by their gradients or their bits."""
    seen, zero = _on_any_rank(told, "gradient", "no_gradient")
    if zero:
        number, all_of_them = len(zero), len(seen) + len(zero)
        names = ", ".join(zero[:NAMED])
        return message("gradients_zero", names=names, number=number, parameters=all_of_them)
    changed, unchanged = _on_any_rank(told, "changed", "unchanged")
    if not unchanged:
        return None
    return message(
        "parameters_never_changed",
        names=", ".join(unchanged[:NAMED]),
        number=len(unchanged),
        parameters=len(changed) + len(unchanged),
        updates=updates,
    )


def _on_any_rank(told: list[dict[str, Any]], yes: str, no: str) -> tuple[set[str], list[str]]:
    """Return the names any rank lists under ``yes``, and those listed under ``no`` alone."""
    found = {name for event in told for name in event[yes]}
    others = dict.fromkeys(name for event in told for name in event[no])
    return found, [name for name in others if name not in found]
