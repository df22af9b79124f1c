"""A model small enough to train in a test, on one rank or on two real ones.

Apart from the tests because a spawned rank has to import it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

from fakes import FakeClock, SyncDevice
from trainmark.protocols import Batch, Counts, JobContext
from trainmark.recipe import Recipe
from trainmark.train.parallel import Ranks, parallelize
from trainmark.train.shards import Sharding
from trainmark.train.stepper import Stepper, add_over_ranks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trainmark.recipe import Precision

FEATURES = 6
ROWS = 71  # in steps of 30 the last holds 11: uneven over 2 ranks and their micro-batches


def rows_of_data() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    features = torch.randn(ROWS, FEATURES, generator=generator)
    return features, features @ torch.randn(FEATURES, 1, generator=generator)


def new_model() -> nn.Module:
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(FEATURES, 5), nn.Tanh(), nn.Linear(5, 1))


def context_of(precision: Precision, *, world_size: int = 1) -> JobContext:
    device: Any = SyncDevice(FakeClock())
    return JobContext(Recipe(precision=precision), Path(), 0, world_size, device)


def new_stepper(
    model: nn.Module,
    *,
    learning_rate: float = 0.05,
    world_size: int = 1,
    precision: Precision = "fp32",
    loss_sum: Callable[[nn.Module, Batch], torch.Tensor] | None = None,
    **fields: Any,
) -> Stepper:
    def squared_error(batch: Batch) -> torch.Tensor:
        if loss_sum is not None:
            return loss_sum(stepper.model, batch)
        features, targets = batch.tensors
        return ((stepper.model(features).float() - targets) ** 2).sum()

    ranks = Ranks(data_size=world_size)
    stepper = Stepper(
        context_of(precision, world_size=world_size),
        parallelize(model, ranks),
        torch.optim.SGD(model.parameters(), lr=learning_rate, momentum=0.9),
        squared_error,
        ranks=ranks,
        **fields,
    )
    return stepper


def batches(sharding: Sharding, epoch: int) -> Iterator[Batch]:
    features, targets = rows_of_data()
    for part in sharding.micro_batches(epoch):
        count = 0 if part.weightless else len(part.rows)
        tensors = features[part.rows], targets[part.rows]
        yield Batch(tensors, Counts(samples=count), part.step_samples, part.closes_step)


def train(
    stepper: Stepper,
    *,
    micro: int,
    accumulate: int,
    world_size: int = 1,
    rank: int = 0,
    epochs: int = 7,
) -> list[tuple[float, int]]:
    """Return (mean loss, samples) of each step on this rank."""  # fmt: skip
    sharding = Sharding(
        num_rows=ROWS, micro_batch_size=micro, grad_accum_steps=accumulate,
        world_size=world_size, rank=rank, seed=1,
    )  # fmt: skip
    steps = []
    for epoch in range(epochs):
        source = list(batches(sharding, epoch))
        held = iter(source)
        position = 0
        while (loss := stepper.step(held)) is not None:
            samples = 0
            while True:
                samples += source[position].counts.samples
                position += 1
                if source[position - 1].closes_step:
                    break
            steps.append((float(loss), samples))
    return steps


def weights(model: nn.Module) -> torch.Tensor:
    return torch.cat([item.detach().flatten() for item in model.parameters()])


def train_rank(rank: int) -> dict[str, Any]:
    model = new_model()
    stepper = new_stepper(model, world_size=2)
    reductions = 0

    def count(state, bucket):  # type: ignore[no-untyped-def]  # torch reads annotations
        nonlocal reductions
        reductions += 1
        return allreduce_hook(state, bucket)

    stepper.model.register_comm_hook(None, count)  # type: ignore[operator]
    # The last step's 11 rows are 5 on rank 0, one micro-batch, and 6 on rank 1, two of them.
    steps = train(stepper, micro=5, accumulate=3, world_size=2, rank=rank)
    # An epoch of one row: rank 0 has none and takes part without weight.
    features, targets = rows_of_data()
    single = Batch((features[:1], targets[:1]), Counts(samples=rank), 1, closes_step=True)
    stepper.step(iter([single]))
    total = add_over_ranks(rank + 1, 10, world_size=2, device=torch.device("cpu"))
    return {"steps": steps, "weights": weights(model), "total": total, "reductions": reductions}
