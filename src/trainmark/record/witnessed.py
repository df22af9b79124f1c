"""Find what the probe saw of a user's own program, and withhold figures that it cannot know.

What makes a run of a case fail is only a finding here, and lowers the trust. All follows from a
record alone: the facts of the ranks' jobs hold what the probe saw. What the user says of the
program is stated in the file of ``--witness``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from trainmark.record.finding_kinds import FindingKind
from trainmark.spec import Figure, Message, message

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from trainmark.plan.witness import WitnessSpec
    from trainmark.record.measurement import Measurement

# Relative difference of the seen batch from the stated one: a shorter last batch is allowed.
_BATCH_TOLERANCE = 0.01
# The time of evaluations does not count as training. A program that switches to evaluation in about
# every second step leaves a part of its steps untimed: so many evaluations are reported, at least
# this number and for this part of the steps.
_MIN_EVALUATIONS = 10
_MIN_EVALUATIONS_PER_STEP = 0.5
_MAX_WITHOUT_BACKWARD = 0.1  # part of the steps without a backward pass
_MAX_NON_FINITE = 0.1  # part of the steps without a finite loss
# Types of the operands of most FLOPs, by the precision that the file names.
_MATMUL_TYPES: dict[str, tuple[str, ...]] = {
    "fp32": ("float32",),
    "tf32": ("float32",),
    "bf16": ("bfloat16",),
    "fp16": ("float16",),
    "fp8": ("bfloat16", "float8_e4m3fn", "float8_e5m2"),
}
# Figures that need the work of a step, and those that need the steps themselves.
_FIGURES_OF_WORK = (
    "p_whole",
    "p_train",
    "p_core",
    "token/p/s",
    "p_train_sequences",
    "p_train_tokens",
    "final_result",
    "model_flops_per_device",
    "MFU",
    "MAMFU",
    "energy_per_sample",
    "estimated_energy_per_sample",
)
_FIGURES_OF_STEPS = (
    "step_time_p50",
    "step_time_p90",
    "step_time_p99",
    "step_time_mad",
    "step_time_cv",
)
FINDING_KINDS: Mapping[str, FindingKind] = {
    "witness_batch": FindingKind("record", "do_not_quote"),
    "witness_tokens": FindingKind("record", "do_not_quote"),
    "witness_precision": FindingKind("record", "do_not_quote"),
    "witness_no_gradients": FindingKind("record", "do_not_quote"),
    "witness_pauses": FindingKind("record", "do_not_quote"),
    "witness_gradients": FindingKind("record", "do_not_quote"),
    "witness_changed_outside": FindingKind("record", "do_not_quote"),
    "witness_loss_not_finite": FindingKind("record", "do_not_quote"),
    "parameters_unchanged_in_window": FindingKind("record", "do_not_quote"),
    "gradients_zero": FindingKind("record", "do_not_quote"),
    "parameters_changed_after_training": FindingKind("record", "do_not_quote"),
    "witness_batches_unseen": FindingKind("record", "usable"),
}


def list_facts(measurement: Measurement) -> list[dict[str, Any]]:
    """Return for each rank the facts that the probe reported, such as the samples of a step.

    The probe watches the training inside a user's own program. It reports its facts at the rank's
    end. If rank 0 did not report its end, its facts are empty, and so are those of the ranks whose
    entry refers to them.
    """
    # ``measurement.job``: the facts of rank 0; None: it did not report its end.
    facts_of_rank_0: dict[str, Any] = dict(measurement.job or {})
    # ``rank.job``: the facts of the rank; None: it has the same facts as rank 0.
    return [facts_of_rank_0 if rank.job is None else dict(rank.job) for rank in measurement.ranks]


def withhold_figures(measurement: Measurement, figures: Mapping[str, Figure]) -> dict[str, Figure]:
    """Return all figures of a user's program; those that could not be measured are None.

    The probe measures: it watches the training inside the program. What it could not see is not
    known. Each figure that is None has the reason.
    """
    all_figures = dict(figures)
    # If the steps are unknown, so are their times and all figures of work per time. If only the
    # work of a step is unknown, the times of the steps are still known.
    reason = _explain_unknown_steps(measurement)
    names: tuple[str, ...] = (*_FIGURES_OF_WORK, *_FIGURES_OF_STEPS)
    if reason is None:
        reason = _explain_unknown_work(measurement)
        names = _FIGURES_OF_WORK
    if reason is not None:
        for name in names:
            if name in all_figures:
                all_figures[name] = Figure(None, reason)
    # Without FLOPs of a step these figures are None, with the reason of cases that the case has no
    # formula of FLOPs. The probe counts the FLOPs of a user's program, so that another reason
    # fits: why it did not count them.
    flops_reason = _explain_unknown_flops(measurement)
    for name in ("model_flops_per_device", "MFU", "MAMFU"):
        figure = all_figures[name]
        has_no_formula = figure.reason is not None and figure.reason.code == "no_flop_formula"
        if flops_reason is not None and has_no_formula:
            all_figures[name] = replace(figure, reason=flops_reason)
    return all_figures


def _explain_unknown_steps(measurement: Measurement) -> Message | None:
    """Return why it is not known what a training step of the program is; None: it is known.

    The file of ``--witness`` states a number of optimizers. As many must be seen, and all of them
    must step once in each training step.
    """
    expected = _get_spec(measurement).optimizers
    for facts in list_facts(measurement):
        # One number of steps for each optimizer that the probe saw.
        steps_of_optimizers = facts.get("optimizer_steps")
        if steps_of_optimizers is None:  # the rank did not report its end
            continue
        if len(steps_of_optimizers) != expected:
            return message(
                "witness_optimizers", optimizers=len(steps_of_optimizers), expected=expected
            )
        most = max(steps_of_optimizers)
        least = min(steps_of_optimizers)
        if most - least > 1:  # the run may end between the steps of two optimizers
            return message("witness_optimizers_uneven", most=most, least=least)
    return None


def _explain_unknown_work(measurement: Measurement) -> Message | None:
    """Return why it is not known how many samples a step trains on; None: it is known."""
    if _get_spec(measurement).step is not None:  # the file of ``--witness`` states the number
        return None
    for facts in list_facts(measurement):
        # The probe has this fact only if it saw batches whose samples it could count. It is 0 if
        # the batches were empty. Facts are empty if the rank did not report its end.
        if facts and not facts.get("seen_samples"):
            return message("witness_uncountable")
    return None


def _explain_unknown_flops(measurement: Measurement) -> Message | None:
    """Return why the probe did not count the FLOPs of a step, if it did not.

    The caller uses the reason only for figures that lack these FLOPs. None: the reason is not
    known, because rank 0 did not report its end, and with it what the probe saw.
    """
    facts = list_facts(measurement)[0]
    if not facts:
        return None
    # torch's counter of FLOPs does not see inside the graphs of torch.compile.
    if facts.get("graphs_compiled"):
        return message("witness_flops_compiled", graphs=facts["graphs_compiled"])
    # The other reason: it counts in a step of the warm-up, and saw none that was complete.
    return message("witness_flops_unseen")


def find_in_witness(measurement: Measurement) -> Iterator[Message]:
    """Yield findings on a user's program, from what the probe in it saw on each rank.

    Most are contradictions to what the file of ``--witness`` states, or rules of training that the
    program breaks.
    """
    spec = _get_spec(measurement)  # what the file states
    num_ranks = len(measurement.ranks)
    # What the probe saw on each rank, by names; empty if the rank did not report its end.
    all_facts = list_facts(measurement)
    if spec.step is not None:  # the file states how many samples and tokens a step trains on
        # What data loaders yielded for a step, on each rank where the probe could count it. It
        # counts 0 samples in empty batches, and 0 tokens if batches have none. The file states the
        # sum over all ranks, so that it is compared only if the number of each rank is known.
        samples = [facts["seen_samples"] for facts in all_facts if facts.get("seen_samples")]
        tokens = [
            facts["seen_tokens_padded"] for facts in all_facts if facts.get("seen_tokens_padded")
        ]
        if len(samples) == num_ranks:
            yield from _check_batch("witness_batch", spec.step.samples, sum(samples))
        if spec.step.tokens and len(tokens) == num_ranks:
            yield from _check_batch("witness_tokens", spec.step.tokens, sum(tokens))
        # No rank saw a batch that it could count. If rank 0 has no facts at all, it did not report
        # its end, and nothing is known of its loaders.
        if not samples and all_facts[0]:
            yield message("witness_batches_unseen")
    for rank, facts in zip(measurement.ranks, all_facts, strict=True):
        yield from _find_in_facts(spec, facts, steps=rank.steps)
        # Rules of training that the probe saw broken, such as gradients that are all zero.
        for violation in facts.get("violations", ()):
            yield message(violation["code"], **violation["args"])
    # The mean loss of each step over the ranks. It is None if one rank saw no loss, or saw one that
    # was not finite.
    losses = measurement.steps.loss
    num_missing = sum(loss is None for loss in losses)
    # The probe sees no loss in a step without a backward pass. How many steps lack their loss for
    # this reason is not reported, but only how many each rank had. As many as on the rank that had
    # the most are taken: ranks that train one model usually exchange gradients in the backward
    # pass, so that they lack it in the same steps. If they lack it in different steps, some of
    # these count as steps whose loss was not finite.
    num_unseen = max((facts.get("steps_without_backward", 0) for facts in all_facts), default=0)
    num_non_finite = num_missing - num_unseen
    if num_non_finite > _MAX_NON_FINITE * len(losses):
        yield message("witness_loss_not_finite", steps=num_non_finite, of=len(losses))


def _check_batch(code: str, stated: float, seen: float) -> Iterator[Message]:
    """Yield a finding if a step trained on another amount than the file of ``--witness`` states.

    A small difference is allowed, because the last batch may be shorter.

    Args:
        code: of the finding, which says what is counted, samples or tokens.
        stated: amount of a step on all ranks, as the file states it.
        seen: amount that the data loaders of all ranks yielded for a step.
    """
    if abs(stated - seen) > _BATCH_TOLERANCE * seen:
        yield message(code, stated=stated, seen=seen, share=stated / seen)


def _find_in_facts(spec: WitnessSpec, facts: Mapping[str, Any], *, steps: int) -> Iterator[Message]:
    """Yield findings on one rank: another precision than stated, no gradients, untimed steps.

    Args:
        spec: what the file of ``--witness`` states, such as the precision of the matmuls.
        facts: what the probe saw on the rank; empty: the rank did not report its end.
        steps: number of optimizer steps of the rank.
    """
    seen_type = facts.get("matmul_type")  # of the operands of most FLOPs
    if seen_type is not None and seen_type not in _MATMUL_TYPES[spec.precision]:
        yield message("witness_precision", stated=spec.precision, seen=seen_type)
    num_without_backward = facts.get("steps_without_backward", 0)
    if num_without_backward > _MAX_WITHOUT_BACKWARD * steps:
        yield message("witness_no_gradients", steps=num_without_backward, of=steps)
    # The time of evaluations is not counted as training. As many as one in every second step mean
    # that the program evaluates within its steps, so that a part of their time is not counted. A
    # few are no finding, even in a short run.
    num_evaluations = facts.get("evaluations", 0)
    if num_evaluations >= max(_MIN_EVALUATIONS, _MIN_EVALUATIONS_PER_STEP * steps):
        yield message("witness_pauses", pauses=num_evaluations, steps=steps)


def _get_spec(measurement: Measurement) -> WitnessSpec:
    """Return what the user's file of ``--witness`` states of the user's own program."""
    witness = measurement.plan.witness
    assert witness is not None, "the plan is of a user's own program"
    return witness.spec
