"""One optimizer step: every sample weighs the same however the step is cut."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from torch import nn

from support.real_ranks import call_on_ranks
from support.tiny_training import (
    ROWS,
    make_rows,
    new_model,
    new_stepper,
    read_weights,
    train,
    train_rank,
)
from trainmark.errors import DivergedError
from trainmark.protocols import Batch, Counts
from trainmark.train.stepper import add_over_ranks, clip_gradients

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("one_thread")


def test_accumulation_equals_one_large_batch() -> None:
    # ``new_model`` always returns the same weights; ``train`` takes 7 epochs. A step has 32 rows:
    # one micro-batch (``micro``) of 32, or 4 of 8 whose gradients are added.
    one_batch_model, accumulating_model = new_model(), new_model()
    whole_losses = train(new_stepper(one_batch_model), micro=32, accumulate=1)
    part_losses = train(new_stepper(accumulating_model), micro=8, accumulate=4)
    # 3 in each of 7 epochs, which have 71 rows (``ROWS``): two steps of 32 rows and one of 7.
    assert len(whole_losses) == 21
    np.testing.assert_allclose(part_losses, whole_losses, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(
        read_weights(accumulating_model), read_weights(one_batch_model), rtol=0, atol=1e-6
    )


def test_a_short_last_micro_batch_weighs_its_samples_equally() -> None:
    # The model always begins with the same weights; all gradients are read before they are used.
    features, targets = make_rows()
    model = new_model()
    stepper = new_stepper(model)
    gradients: list[torch.Tensor] = []
    stepper.optimizer.register_step_pre_hook(
        lambda *_: gradients.append(
            torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
        )
    )
    # A step of 11 rows in micro-batches of 4, 4 and 3.
    cut = [
        Batch(
            (features[a:b], targets[a:b]),
            Counts(samples=b - a),
            step_samples=11,
            closes_step=b == 11,
        )
        for a, b in ((0, 4), (4, 8), (8, 11))
    ]
    loss = stepper.step(iter(cut))
    reference = new_model()
    mean = ((reference(features[:11]) - targets[:11]) ** 2).mean()
    mean.backward()
    expected = torch.cat([parameter.grad.flatten() for parameter in reference.parameters()])
    torch.testing.assert_close(gradients[0], expected, rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(loss, mean.detach())


def test_the_learning_rate_follows_the_schedule() -> None:
    # ``make_rows`` returns ``ROWS``, 71, rows, which are one batch and one step here. The schedule
    # has a factor of the learning rate by the number of finished steps.
    features, targets = make_rows()
    factors = [1.0, 0.5, 0.25, 0.0]
    stepper = new_stepper(
        new_model(), learning_rate=0.08, schedule_lr=lambda finished: factors[finished]
    )
    learning_rates: list[float] = []
    stepper.optimizer.register_step_pre_hook(
        lambda optimizer, *_: learning_rates.append(optimizer.param_groups[0]["lr"])
    )
    batch = Batch((features, targets), Counts(samples=ROWS), step_samples=ROWS, closes_step=True)
    for _ in factors:
        before = read_weights(stepper.model)
        stepper.step(iter([batch]))
    assert learning_rates == [0.08, 0.04, 0.02, 0.0]  # 0.08 times each factor
    torch.testing.assert_close(read_weights(stepper.model), before)  # the last rate was 0


def test_the_gradient_is_clipped_to_the_norm() -> None:
    # ``make_rows`` returns ``ROWS``, 71, rows, which are one batch here. Their gradient is larger
    # than 0.01.
    features, targets = make_rows()
    model = new_model()
    stepper = new_stepper(model, max_grad_norm=0.01)
    norms: list[float] = []  # of all gradients together, when the optimizer takes its step
    stepper.optimizer.register_step_pre_hook(
        lambda *_: norms.append(
            float(torch.cat([parameter.grad.flatten() for parameter in model.parameters()]).norm())
        )
    )
    stepper.step(
        iter(
            [Batch((features, targets), Counts(samples=ROWS), step_samples=ROWS, closes_step=True)]
        )
    )
    assert norms == [pytest.approx(0.01, rel=1e-4)]


def test_model_without_gradients_has_nothing_to_clip() -> None:
    # No backward pass has run, so no parameter has a gradient; clipping must not fail.
    model = new_model()
    clip_gradients(model, max_norm=0.01)
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize(
    ("precision", "dtype"),
    [("fp32", torch.float32), ("bf16", torch.bfloat16), ("fp16", torch.float16)],
)
def test_the_forward_pass_runs_in_the_precision(precision: str, dtype: torch.dtype) -> None:
    # ``make_rows`` returns ``ROWS``, 71, rows, which are one batch here.
    features, targets = make_rows()
    # Of each forward pass, the dtypes of the model's output and of its weights.
    dtypes: list[tuple[torch.dtype, torch.dtype]] = []

    def compute_loss_sum(model: nn.Module, batch: Batch) -> torch.Tensor:
        out = model(batch.tensors[0])
        dtypes.append((out.dtype, next(model.parameters()).dtype))
        return ((out.float() - batch.tensors[1]) ** 2).sum()

    stepper = new_stepper(new_model(), precision=precision, loss_sum=compute_loss_sum)
    batch = Batch((features, targets), Counts(samples=ROWS), step_samples=ROWS, closes_step=True)
    loss = stepper.step(iter([batch]))
    assert dtypes == [(dtype, torch.float32)]  # weights stay fp32
    assert loss is not None
    assert loss.dtype == torch.float32


@pytest.mark.parametrize("max_grad_norm", [None, 1.0])
def test_an_overflow_is_a_skipped_step_and_counted(max_grad_norm: float | None) -> None:
    # ``make_rows`` returns ``ROWS``, 71, rows, which are one batch and one step here. In place of
    # its targets, a batch has the factor by which the model's outputs are multiplied.
    features, targets = make_rows()

    def compute_loss_sum(model: nn.Module, batch: Batch) -> torch.Tensor:
        factor = batch.tensors[1]
        return (model(batch.tensors[0]).float() * factor).sum()

    stepper = new_stepper(
        new_model(), precision="fp16", loss_sum=compute_loss_sum, max_grad_norm=max_grad_norm
    )
    skipped = []
    # With 1e38, gradients overflow fp16.
    for factor in (1e-3, 1e38, 1e-3, 1e38, 1e-3):
        before = read_weights(stepper.model)
        factors = torch.full_like(targets, factor)
        stepper.step(
            iter(
                [
                    Batch(
                        (features, factors),
                        Counts(samples=ROWS),
                        step_samples=ROWS,
                        closes_step=True,
                    )
                ]
            )
        )
        changed = not torch.equal(before, read_weights(stepper.model))
        skipped.append((changed, stepper.skipped_steps()))
    # Whether the weights changed, and the steps skipped so far.
    assert skipped == [(True, 0), (False, 1), (True, 1), (False, 2), (True, 2)]
    assert stepper.steps == 5


def test_loss_scale_at_its_minimum_ends_the_run() -> None:
    # A step whose gradient overflows is left out, and halves the scale; ``check`` raises an error
    # once the scale is below its minimum. All ``ROWS``, 71, are one batch and one step.
    features, targets = make_rows()

    def compute_overflowing_loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        return (model(batch.tensors[0]).float() * 1e38).sum()

    stepper = new_stepper(new_model(), precision="fp16", loss_sum=compute_overflowing_loss)
    batch = Batch((features, targets), Counts(samples=ROWS), step_samples=ROWS, closes_step=True)
    # The scale starts at 65,536 and is halved by each step, because each gradient overflows. Halved
    # sixteen times it is 1, the lowest that is allowed.
    for _ in range(16):
        stepper.step(iter([batch]))
        stepper.check()
    stepper.step(iter([batch]))
    with pytest.raises(DivergedError, match="loss_scale_at_floor") as caught:
        stepper.check()
    assert caught.value.details == {"scale": 0.5, "step": 17, "floor": 1.0}


def test_two_ranks_train_as_one_rank(tmp_path: Path) -> None:
    # ``train_rank`` trains 7 epochs of 71 rows, then a step of one row, which only rank 1 has. Its
    # ``total`` is the sum over both ranks of two numbers: rank + 1, and 10.
    first, second = call_on_ranks(2, tmp_path, train_rank)
    single_rank_model = new_model()
    stepper = new_stepper(single_rank_model)
    losses = train(stepper, micro=30, accumulate=1)  # 2 ranks x 3 micro-batches of 5
    features, targets = make_rows()
    stepper.step(
        iter(
            [
                Batch(
                    (features[:1], targets[:1]), Counts(samples=1), step_samples=1, closes_step=True
                )
            ]
        )
    )
    assert [samples for _, samples in losses] == [30, 30, 11] * 7
    # The mean over both ranks, weighted by their samples.
    together = [
        ((a * n + b * m) / (n + m), n + m)
        for (a, n), (b, m) in zip(first["steps"], second["steps"], strict=True)
    ]
    np.testing.assert_allclose(together, losses, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(first["weights"], second["weights"], rtol=0, atol=0)
    torch.testing.assert_close(first["weights"], read_weights(single_rank_model), rtol=0, atol=1e-6)
    # 1 + 2 and 10 + 10.
    assert first["total"] == second["total"] == [3, 20]
    # 22 steps (3 in each of 7 epochs, and 1): one all-reduce a step.
    assert first["reductions"] == second["reductions"] == 22


def test_sums_over_ranks_are_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    one_rank = {"world_size": 1, "device": torch.device("cpu")}
    # On one rank, each number is its own sum, and a large one is not rounded.
    assert add_over_ranks(2**60 + 1, 3, **one_rank) == [2**60 + 1, 3]
    assert add_over_ranks(0.25, 1.0, **one_rank) == [0.25, 1.0]
    # As if a second rank had the same numbers. Neither sum would be exact in a smaller type:
    # float64 lacks the first one, and float32 the one of 0.1.
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda total: total.mul_(2))
    two_ranks = one_rank | {"world_size": 2}
    assert add_over_ranks(2**60 + 1, 3, **two_ranks) == [2**61 + 2, 6]
    assert add_over_ranks(0.1, 1, **two_ranks) == [0.2, 2.0]
