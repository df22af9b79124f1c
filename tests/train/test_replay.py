"""A saved state gives the same steps again, and a flipped bit is found on its rank."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from benchmarks.bit_flips import KINDS, Flip, WindowOutcome, plan_flips, run_ranks

from support import tiny_gpt
from support.fakes import FakeClock, SyncDevice
from support.old_torch import needs_fsdp
from trainmark.record.replays import ReplayDifference, summarize_replays
from trainmark.train.read_ahead import iterate_batches
from trainmark.train.replay import StepDigests, StepperState

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("one_thread")
FSDP = pytest.param(True, marks=needs_fsdp, id="fsdp")
DDP = pytest.param(False, id="ddp")


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_steps_from_a_saved_state_are_the_same_to_the_bit(precision: str) -> None:
    # Dropout draws random numbers, whose state must be saved too; fp16 has a loss scale.
    job = tiny_gpt.new_job(rank=0, world_size=1, precision=precision, dropout=0.2)
    batches = list(iterate_batches(job, SyncDevice(FakeClock()), 0, depth=0))
    job.step(iter(batches[:1]))
    # An epoch has 20 samples in micro-batches of 8, so two steps are left.
    state = StepperState(job.stepper)
    state.save()

    passes = []
    for _ in range(2):
        state.restore()
        losses = [float(job.step(iter([batch]))) for batch in batches[1:]]
        weights = {name: item.clone() for name, item in job.trained_parameters().items()}
        passes.append((losses, weights, job.stepper.read_counts()))

    (losses, weights, counts), (losses_again, weights_again, counts_again) = passes
    assert losses == losses_again
    assert all(torch.equal(weights[name], weights_again[name]) for name in weights)
    assert counts.steps == counts_again.steps == 3  # one before the state was saved, two after
    assert counts.steps_with_lr == counts_again.steps_with_lr
    assert torch.equal(counts.scale, counts_again.scale)


def test_digest_of_a_step_has_gradients_in_the_order_of_the_backward_pass() -> None:
    job = tiny_gpt.new_job(rank=0, world_size=1)  # a model of two blocks, trained by Adam
    digests = StepDigests(job.trained_parameters(), job.stepper)
    (first, second, *_) = iterate_batches(job, SyncDevice(FakeClock()), 0, depth=0)
    # The first step has a learning rate of 0, so only the second one changes weights.
    job.step(iter([first]))
    digests.start()

    # A digest is a number computed from all bits of a weight or gradient, to compare two passes.
    loss = float(job.step(iter([second])))
    digests.end_step()
    step, remaining_parts = digests.finish([loss])

    assert step.loss == loss.hex()
    assert set(step.weights) == set(step.gradients) == set(job.trained_parameters())
    # The backward pass comes to the last block, number 1, first.
    names = list(step.gradients)
    assert names.index("blocks.1.up.weight") < names.index("blocks.0.up.weight")
    # Weights of a step are those before it; those after the last step come with the optimizer.
    assert remaining_parts.weights["blocks.0.up.weight"] != step.weights["blocks.0.up.weight"]
    # ``exp_avg``: the mean of a weight's gradients, which Adam keeps.
    assert "blocks.0.up.weight exp_avg" in remaining_parts.weights


def test_optimizer_states_of_all_unnamed_parameters_are_digested() -> None:
    job = tiny_gpt.new_job(rank=0, world_size=1)
    (batch, *_) = iterate_batches(job, SyncDevice(FakeClock()), 0, depth=0)
    job.step(iter([batch]))  # makes the optimizer's state
    named = StepDigests(job.trained_parameters(), job.stepper)
    unnamed = StepDigests({}, job.stepper)  # the optimizer has parameters, but none has a name
    for digests in (named, unnamed):
        digests.start()

    # ``finish`` takes the losses of the steps since ``start``, here none. It returns digests for
    # each step and, last, for the state after them: of the named weights, and of the optimizer's
    # tensors.
    (named_state,) = named.finish([])
    (unnamed_state,) = unnamed.finish([])

    num_weights = len(job.trained_parameters())
    assert len(unnamed_state.weights) == len(named_state.weights) - num_weights


def locate_difference(
    outcomes: Sequence[list[WindowOutcome]], window: int
) -> list[ReplayDifference]:
    """Return how the repeats of a window differ from it on any rank; empty: they are equal.

    Args:
        outcomes: by rank and window, what the rank saw of it; ``replay`` is what its repeats gave.
    """
    replays = summarize_replays([[outcome[window].replay] for outcome in outcomes])
    assert replays is not None
    return replays.differences


@pytest.mark.parametrize("fsdp", [DDP, FSDP])
def test_flipped_bit_is_found_on_its_rank_without_false_alarms(tmp_path: Path, fsdp: bool) -> None:
    # One bit flip of each kind (``KINDS`` has four: in a weight, a gradient, an activation, a
    # collective), in windows 0 to 3 and on both ranks in turn; windows 4 and 5 have none. A window
    # is a group of steps, which is run again to compare. ``DDP``: each rank has the whole model;
    # ``FSDP``: a shard of it. A seed chooses the bit.
    flips = [
        Flip(window=number, kind=kind, rank=number % 2, seed=40 + number)
        for number, kind in enumerate(KINDS)
    ]

    outcomes = run_ranks(2, tmp_path, fsdp=fsdp, num_windows=6, flips=flips)

    assert [[x.rank] for x in flips] == [
        difference.ranks for x in flips for difference in locate_difference(outcomes, x.window)
    ]
    # In clean windows the first repeat equals the window, so no control pass is needed. (Two of
    # them would show whether the steps give the same bits each time, or differ without an error.)
    for window in (4, 5):
        assert [outcome[window].replay.control for outcome in outcomes] == ["not_needed"] * 2


@pytest.mark.nightly
@pytest.mark.parametrize("fsdp", [DDP, FSDP])
def test_bits_of_four_ranks_are_found_or_change_nothing(tmp_path: Path, fsdp: bool) -> None:
    # One bit flip in each of windows 0 to 31; windows 32 to 63 have none. A window is a group of
    # steps, which is run again to compare. ``DDP``: each rank has the whole model; ``FSDP``: a
    # shard of it. ``plan_flips`` takes the four kinds of places and the four ranks in turn;
    # ``outcomes`` has, by rank and window, what the rank saw: ``flipped`` and ``changed`` there,
    # and what repeats gave.
    flips = plan_flips(32, world_size=4, seed=11)

    outcomes = run_ranks(4, tmp_path, fsdp=fsdp, num_windows=64, flips=flips)

    for flip in flips:
        assert outcomes[flip.rank][flip.window].flipped
        # A flip without an effect on weights, optimizer or losses need not be found.
        if any(outcome[flip.window].changed for outcome in outcomes):
            (difference,) = locate_difference(outcomes, flip.window)
            assert difference.ranks == [flip.rank]
    clean: list[Any] = [locate_difference(outcomes, window) for window in range(32, 64)]
    assert clean == [[]] * 32
