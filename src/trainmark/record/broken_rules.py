"""Check that a finished run agrees with its plan, its data and itself.

A run that reached its end fails if what ranks did contradicts the data, the recipe or each other.
Each check yields what is wrong; the first is the cause of the failure.
"""

from __future__ import annotations

from itertools import zip_longest
from typing import TYPE_CHECKING

import numpy as np

from trainmark.events.steps import RANKS_DISAGREE
from trainmark.plan.recipes import get_ranks_per_model
from trainmark.rank.parameters import MAX_NAMED
from trainmark.record.evaluations import (
    MIN_TRAINED_ROWS,
    MIN_TRAINED_SHARE,
    MIN_WEIGHT,
    combine_scores,
    is_same_quality,
)
from trainmark.record.record import Cause
from trainmark.spec import message

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from trainmark.events.schema import Evaluate
    from trainmark.events.timeline import RunTimeline
    from trainmark.plan.plan import Plan
    from trainmark.record.evaluations import CombinedScores
    from trainmark.record.record import FigureEntry
    from trainmark.spec import Message

# An adapter's first matrix has a zero gradient until its second one is not 0: one step later.
_UPDATES_TO_REACH_ALL = 2


def find_broken_rule(
    plan: Plan, run: RunTimeline, figures: Mapping[str, FigureEntry]
) -> Cause | None:
    """Return the first rule that a finished run breaks; None: it breaks none.

    A user's own program is checked only against the peak of the devices: the module ``witnessed``
    reports as findings what else is wrong with it.
    """
    # The kind of the cause, and what breaks the rule. A check runs only when it is iterated over,
    # so that none runs after the first rule that is broken.
    rules: list[tuple[str, Iterator[Message]]] = []
    if plan.witness is None:  # the ranks ran a case, not a user's own program
        rules += [
            ("impossible_figure", _check_steps(plan, run)),
            ("impossible_figure", _check_epochs(plan, run)),
            ("impossible_figure", _check_tokens(plan, run)),
            ("wrong_evaluation", _check_evaluations(plan, run)),
            ("not_trained", _check_training(run)),
            ("ranks_differ", _check_replicas(plan, run)),
            ("changed_precision", _check_precision(run)),
        ]
    rules.append(("impossible_figure", _check_mfu(figures)))
    for kind, violations in rules:
        first_violation = next(violations, None)
        if first_violation is not None:
            return Cause(kind=kind, message=first_violation)
    return None


def _check_steps(plan: Plan, run: RunTimeline) -> Iterator[Message]:
    """Compare the steps of all ranks with each other and with the global batch."""
    series = run.series
    steps = [rank.steps for rank in run.ranks]
    if min(steps) != max(steps):
        yield message("steps_differ_over_ranks", least=min(steps), most=max(steps))
    # ``samples``: what each rank trained in a step, added up over ranks. ``global_samples``: what
    # each rank says that all ranks train in that step; ``RANKS_DISAGREE`` if they say different
    # numbers.
    differing_steps = np.flatnonzero(series.samples != series.global_samples)
    if len(differing_steps):
        index = int(differing_steps[0])
        step = index + 1  # messages number steps from 1
        samples = int(series.samples[index])
        declared = int(series.global_samples[index])
        if declared == RANKS_DISAGREE:
            yield message("step_samples_differ_over_ranks", step=step)
        else:
            yield message("samples_of_step", step=step, samples=samples, step_samples=declared)
    # The batches of all ranks: a step may have fewer samples, but not more. Samples that several
    # ranks share may count once for each of them.
    recipe = plan.recipe
    max_samples = recipe["micro_batch_size"] * recipe["grad_accum_steps"] * len(run.ranks)
    large_steps = np.flatnonzero(series.samples > max_samples)
    if len(large_steps):
        index = int(large_steps[0])
        samples = int(series.samples[index])
        yield message(
            "samples_above_global_batch", step=index + 1, most=max_samples, samples=samples
        )


def _check_epochs(plan: Plan, run: RunTimeline) -> Iterator[Message]:
    """Compare the samples of epochs with the data; an epoch that was cut off may have fewer.

    With tensor parallelism, several ranks train the same samples, but only one of them counts these
    (see ``Batch.shared_samples``). So the sum over ranks counts each sample once.
    """
    # Epochs are counted from 0: the first ``num_whole_epochs`` were whole on all ranks. A rank that
    # did not report the end of its training has no epoch that is known to be whole.
    num_whole_epochs = min(rank.trained.whole_epochs if rank.trained else 0 for rank in run.ranks)
    # What rank 0 reports, which is the same on all ranks. None: the case defines no epoch of its
    # own, so an epoch has all training samples.
    own_epoch_samples = run.ranks[0].facts.samples_per_epoch
    expected = plan.data.train_samples if own_epoch_samples is None else own_epoch_samples
    epochs = {epoch for rank in run.ranks for epoch in rank.samples_of_epochs}
    for epoch in sorted(epochs):
        samples = sum(rank.samples_of_epochs[epoch] for rank in run.ranks)  # 0 if a rank lacks it
        has_too_few = epoch < num_whole_epochs and samples < expected
        if samples > expected or has_too_few:
            yield message("samples_of_epoch", epoch=epoch + 1, samples=samples, expected=expected)


def _check_tokens(plan: Plan, run: RunTimeline) -> Iterator[Message]:
    """Yield that sequences have more tokens, padding included, than the recipe's length allows."""
    length = plan.recipe.get("seq_length")  # None: the case's recipes have no such field
    counts = run.counts
    tokens, sequences = counts.tokens_padded, counts.sequences
    if length and tokens > sequences * length:
        yield message("tokens_above_length", tokens=tokens, sequences=sequences, length=length)


def _check_evaluations(plan: Plan, run: RunTimeline) -> Iterator[Message]:
    """Compare the ranks' evaluations with each other, the validation data and the training rows.

    Ranks share the rows of an evaluation and sum their scores, so all report the same quality and
    the same number of rows.
    """
    # The reports of all ranks on each evaluation; None: the rank ended before.
    reports_by_evaluation = zip_longest(*(rank.evaluations for rank in run.ranks))
    for number, reports in enumerate(reports_by_evaluation, 1):
        first_rank, first = next(
            (rank, report) for rank, report in enumerate(reports) if report is not None
        )
        for rank, report in enumerate(reports):
            if report is None:
                continue
            if not is_same_quality(report.value, first.value) or report.samples != first.samples:
                yield message(
                    "evaluation_differs_over_ranks",
                    rank=rank,
                    first_rank=first_rank,
                    value=report.value,
                    first=first.value,
                    samples=report.samples,
                    samples_first=first.samples,
                )
        scored = combine_scores([None if report is None else report.scores for report in reports])
        if scored is not None:
            yield from _check_scores(plan, scored, first, number)


def _check_scores(
    plan: Plan, scored: CombinedScores, first: Evaluate, number: int
) -> Iterator[Message]:
    """Compare the rows that ranks scored with the data, and the quality with their scores.

    Args:
        scored: what all ranks scored.
        first: the evaluation as the first rank reports it.
        number: number of the evaluation, from 1.
    """
    data = plan.data
    # An evaluation has a value, the quality, and details: further figures by name, such as the loss
    # from which a perplexity follows. The mean of the scores must be the detail that ranks name, or
    # the value if they name none.
    detail_name = scored.detail_name
    claimed = first.detail.get(detail_name) if detail_name else first.value
    # Two numbers of scored rows: the sum over ranks, and ``samples`` as the evaluation reports it.
    for rows in (scored.rows, first.samples):
        if rows != data.eval_samples:
            yield message("evaluation_rows", number=number, rows=rows, expected=data.eval_samples)
    # The total score is divided by the total weight, to which each row must add at least 1. If
    # means of batches are averaged, a whole batch adds 1, so that a row weighs far less.
    if scored.weight is not None and scored.weight < MIN_WEIGHT * scored.rows:
        yield message("evaluation_weights", number=number, weight=scored.weight, rows=scored.rows)
    if scored.mean is not None and not is_same_quality(claimed, scored.mean):
        name = detail_name or plan.about.metric
        yield message(
            "evaluation_not_the_mean", number=number, name=name, value=claimed, mean=scored.mean
        )
    # Ranks note some training rows while they train. An evaluation of training rows instead of
    # validation rows would score a part of the noted rows again. Of these, a few may be scored in
    # any case, because both splits of the data have them.
    suspicious_rows = MIN_TRAINED_SHARE * scored.compute_expected_noted_rows(data.train_samples)
    if scored.trained_rows >= max(MIN_TRAINED_ROWS, suspicious_rows):
        yield message(
            "evaluation_of_training_rows",
            number=number,
            rows=scored.trained_rows,
            known=scored.noted_rows,
        )


def _check_training(run: RunTimeline) -> Iterator[Message]:
    """Yield why the job did not train all its parameters.

    There are four reasons: the job names no parameter that it trains, no step should have changed
    parameters, some parameters had only zero gradients, or some have the same bits as before the
    training.
    """
    # Each rank reports by name of the parameter whether it changed (``changed``) and whether its
    # first gradients had a value other than 0 (``gradients``). None: the rank ended before that. A
    # run without any report counts as not trained.
    reports = [rank.parameters for rank in run.ranks if rank.parameters is not None]
    # A rank may hold rows of a table that no sample uses, so all ranks are judged together.
    changed = _merge_flags([report.changed for report in reports])
    if not changed:  # no rank names a parameter
        yield message("no_trained_parameters")
    if not any(rank.phases["train"].steps for rank in run.ranks):
        return  # the run ended before its warm-up did, and has no figures that could be wrong
    # Steps that should have changed parameters: those that the loss scaler did not skip and whose
    # learning rate was not 0.
    updates = max((report.updates for report in reports), default=0)
    if updates == 0:
        yield message("never_updated")
    if updates < _UPDATES_TO_REACH_ALL:
        return  # some parameters, such as an adapter's, have no gradient in the first update
    has_gradient = _merge_flags([report.gradients for report in reports])
    without_gradient = [name for name, is_nonzero in has_gradient.items() if not is_nonzero]
    if without_gradient:
        yield message(
            "gradients_zero",
            names=", ".join(without_gradient[:MAX_NAMED]),
            number=len(without_gradient),
            parameters=len(has_gradient),
        )
    unchanged = [name for name, is_changed in changed.items() if not is_changed]
    if unchanged:
        yield message(
            "parameters_never_changed",
            names=", ".join(unchanged[:MAX_NAMED]),
            number=len(unchanged),
            parameters=len(changed),
            updates=updates,
        )


def _merge_flags(reports: Sequence[Mapping[str, bool]]) -> dict[str, bool]:
    """Return for each parameter whether its flag is true on any rank.

    Args:
        reports: for each rank, the flags by name of the parameter. A rank may lack parameters.
    """
    names = dict.fromkeys(name for report in reports for name in report)
    return {name: any(report.get(name, False) for report in reports) for name in names}


def _check_replicas(plan: Plan, run: RunTimeline) -> Iterator[Message]:
    """Yield parameters that differ between ranks: their gradients were not reduced over ranks.

    Each rank reports checksums of those trained parameters that it holds whole, not of shards.
    """
    if get_ranks_per_model(plan.recipe) > 1:
        return  # ranks hold different shards under one name
    first_sums: dict[str, int] = {}  # by parameter, the checksum on the first rank that has it
    differing_ranks: dict[str, int] = {}  # by parameter, the first rank with another checksum
    for rank in run.ranks:
        if rank.parameters is None:  # the rank ended before it reported them
            continue
        for name, checksum in rank.parameters.sums.items():
            if name not in first_sums:
                first_sums[name] = checksum
            elif checksum != first_sums[name] and name not in differing_ranks:
                differing_ranks[name] = rank.rank
    if differing_ranks:
        yield message(
            "parameters_differ",
            names=", ".join(list(differing_ranks)[:MAX_NAMED]),
            number=len(differing_ranks),
            parameters=len(first_sums),
            rank=min(differing_ranks.values()),  # the message names only the first of these ranks
        )


def _check_precision(run: RunTimeline) -> Iterator[Message]:
    """Yield how the case changed the precision after Trainmark had set it."""
    for rank in run.ranks:
        # Each change is a text, such as ``NAME: OLD -> NEW`` of a torch flag.
        if rank.result.precision_changed:
            changes = ", ".join(rank.result.precision_changed)
            yield message("changed_precision", rank=rank.rank, changes=changes)


def _check_mfu(figures: Mapping[str, FigureEntry]) -> Iterator[Message]:
    """Yield that devices trained at more than their peak."""
    mfu = figures["MFU"].value  # percent of the devices' peak; None: unknown
    if mfu is not None and mfu > 100:
        yield message("mfu_above_one", share=mfu / 100)
