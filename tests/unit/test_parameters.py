"""What jobs name as trained, and the steps they count as updates."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from benchmarks.jobs import build
from benchmarks.loop_overhead import Empty, Endless, loop_seconds
from torch import nn

from trainmark.protocols import Batch, Counts
from trainmark.training.parallel import Replicas
from trainmark.training.parameters import trained
from trainmark.training.stepper import Stepper

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainmark.spec import Precision


def test_frozen_parameters_are_left_out_and_no_copies_are_made() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    model[0].requires_grad_(False)
    found = trained(model)
    assert list(found) == ["1.weight", "1.bias"]
    assert found["1.weight"] is model[1].weight


def test_the_benchmarks_jobs_go_through_the_loop() -> None:
    job, device = build("toy")
    endless = Endless(job)
    assert loop_seconds(endless, device, 12, window_steps=5) > 0
    assert job.stepper.steps == 12
    assert loop_seconds(Empty(job, next(endless.stream)), device, 3) > 0
    assert job.stepper.steps == 12


@pytest.mark.parametrize(("precision", "skipped"), [("fp32", 0), ("fp16", 2)])
def test_steps_without_a_rate_or_dropped_by_the_scaler_are_no_updates(
    precision: Precision, skipped: int
) -> None:
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    factors, scales = [0.0, 1.0, 1.0, 0.5], [1.0, 1.0, torch.inf, 1.0]

    def loss_sum(batch: Batch) -> torch.Tensor:
        # Step 1 overflows as well: the first scale is more than fp16 holds.
        return model(batch.tensors).sum() * (scales[stepper.steps] if skipped else 1.0)

    def one() -> Iterator[Batch]:
        yield Batch(torch.ones(1, 1), Counts(1), 1, closes_step=True)

    stepper = Stepper(
        Replicas(model), optimizer, loss_sum, precision=precision, torch_type="cpu",
        data_size=1, schedule_lr=lambda steps: factors[steps],
    )  # fmt: skip
    updates = []
    for _ in factors:
        stepper.step(one())
        updates.append(stepper.updates())
    assert updates == ([0, 1, 1, 2] if skipped else [0, 1, 2, 3])
    assert stepper.skipped_steps() == skipped
