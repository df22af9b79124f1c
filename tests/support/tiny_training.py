"""A model small enough to train in a test, on one rank or on two real ones.

Apart from the tests because a spawned rank has to import it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.device_mesh import init_device_mesh

from support.fakes import FakeClock, SyncDevice
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


def make_rows() -> tuple[torch.Tensor, torch.Tensor]:
    """Return random features (ROWS, FEATURES) and targets (ROWS, 1), a linear function of them."""
    generator = torch.Generator().manual_seed(3)
    features = torch.randn(ROWS, FEATURES, generator=generator)
    return features, features @ torch.randn(FEATURES, 1, generator=generator)


def new_model() -> nn.Module:
    """Return a model of ``FEATURES`` (6) inputs and one output; its weights are always the same."""
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(FEATURES, 5), nn.Tanh(), nn.Linear(5, 1))


def make_context(precision: Precision, *, world_size: int = 1) -> JobContext:
    """Return the context of a job on rank 0, without data, with fields of the recipe by default.

    ``SyncDevice`` computes on the processor and ends each call with its work; its clock is fake.
    """
    device: Any = SyncDevice(FakeClock())
    return JobContext(
        recipe=Recipe(precision=precision),
        data_dir=Path(),
        rank=0,
        world_size=world_size,
        device=device,
    )


def new_stepper(
    model: nn.Module,
    *,
    learning_rate: float = 0.05,
    world_size: int = 1,
    precision: Precision = "fp32",
    loss_sum: Callable[[nn.Module, Batch], torch.Tensor] | None = None,
    **fields: Any,
) -> Stepper:
    """Return a stepper that trains a model by SGD with momentum.

    Args:
        loss_sum: the loss, a sum over samples; None: the squared error.
        fields: other arguments of ``Stepper``.
    """

    def compute_loss_sum(batch: Batch) -> torch.Tensor:
        if loss_sum is not None:
            return loss_sum(stepper.model, batch)
        features, targets = batch.tensors
        return ((stepper.model(features).float() - targets) ** 2).sum()

    ranks = Ranks(data_size=world_size)
    stepper = Stepper(
        make_context(precision, world_size=world_size),
        parallelize(model, ranks),
        torch.optim.SGD(model.parameters(), lr=learning_rate, momentum=0.9),
        compute_loss_sum,
        ranks=ranks,
        **fields,
    )
    return stepper


def make_batches(sharding: Sharding, epoch: int) -> Iterator[Batch]:
    """Yield the micro-batches of a rank in an epoch, as its sharding cuts the rows.

    Of each micro-batch, the sharding has the numbers of its rows, the samples of its whole step
    over all ranks, and whether it is the last one of the step.
    """
    features, targets = make_rows()
    for part in sharding.micro_batches(epoch):
        # Rows without weight only keep a rank in step with the others.
        count = 0 if part.weightless else len(part.rows)
        tensors = features[part.rows], targets[part.rows]
        yield Batch(
            tensors,
            Counts(samples=count),
            step_samples=part.step_samples,
            closes_step=part.closes_step,
        )


def train(
    stepper: Stepper,
    *,
    micro: int,
    accumulate: int,
    world_size: int = 1,
    rank: int = 0,
    epochs: int = 7,
) -> list[tuple[float, int]]:
    """Return (mean loss, samples) of each step on this rank.

    Args:
        micro: samples of a micro-batch.
        accumulate: micro-batches of a step.
    """
    sharding = Sharding(
        num_rows=ROWS,
        micro_batch_size=micro,
        grad_accum_steps=accumulate,
        world_size=world_size,
        rank=rank,
        seed=1,
    )
    steps = []
    for epoch in range(epochs):
        source = list(make_batches(sharding, epoch))
        micro_batches = iter(source)
        position = 0  # of the next step's first micro-batch
        loss = stepper.step(micro_batches)
        while loss is not None:  # None: the epoch has ended
            samples = 0
            while True:  # over the micro-batches of the step that was taken
                samples += source[position].counts.samples
                position += 1
                if source[position - 1].closes_step:
                    break
            steps.append((float(loss), samples))
            loss = stepper.step(micro_batches)
    return steps


def read_weights(model: nn.Module) -> torch.Tensor:
    """Return a copy of all weights of a model in one dimension."""
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def train_rank(rank: int) -> dict[str, Any]:
    """Train on one of two ranks; return steps, weights, a sum over ranks, number of all-reduces."""
    model = new_model()
    stepper = new_stepper(model, world_size=2)
    reductions = 0

    # Without annotations: DDP refuses a hook whose annotations are text, as they are here.
    def count_and_reduce(state, bucket):  # type: ignore[no-untyped-def]
        nonlocal reductions
        reductions += 1
        return allreduce_hook(state, bucket)

    stepper.model.register_comm_hook(None, count_and_reduce)  # type: ignore[operator]
    # A step has 30 rows: 5 of a micro-batch x 3 micro-batches x 2 ranks. The last one of an epoch,
    # which has 71 rows, has 11: 5 on rank 0, one micro-batch, and 6 on rank 1, two of them.
    steps = train(stepper, micro=5, accumulate=3, world_size=2, rank=rank)
    # An epoch of one row: rank 0 has none and takes part without weight. So the number of samples
    # is 0 on rank 0 and 1 on rank 1, as their numbers.
    features, targets = make_rows()
    single = Batch(
        (features[:1], targets[:1]), Counts(samples=rank), step_samples=1, closes_step=True
    )
    stepper.step(iter([single]))
    # The first number differs from rank to rank, the second is the same on both.
    total = add_over_ranks(rank + 1, 10, world_size=2, device=torch.device("cpu"))
    return {
        "steps": steps,
        "weights": read_weights(model),
        "total": total,
        "reductions": reductions,
    }


def measure_sharded_gradients(rank: int) -> dict[str, Any]:
    """Return the sizes of the gradients after each micro-batch of a sharded model, and the weights.

    The step's two micro-batches are the rows of data from 0 to 16 and from 16 to 32; each rank
    takes half of both. A size is the number of a gradient's numbers that this rank holds.
    """
    features, targets = make_rows()
    model = new_model()
    # Each rank trains half of the rows and holds a shard of each layer; the second dimension would
    # be ranks that compute a layer together.
    mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("data", "tensor"))
    ranks = Ranks(data_rank=rank, data_size=2, mesh=mesh)
    stepper = Stepper(
        make_context("fp32", world_size=2),
        parallelize(model, ranks, shards=list(model)),
        torch.optim.SGD(model.parameters(), lr=0.05),
        lambda batch: ((stepper.model(batch.tensors[0]) - batch.tensors[1]) ** 2).sum(),
        ranks=ranks,
    )
    sizes: list[list[int]] = []

    def micro_batches() -> Iterator[Batch]:
        for first in (0, 16):
            if first > 0:  # the first micro-batch was trained
                sizes.append(
                    [_count_held_numbers(parameter.grad) for parameter in model.parameters()]
                )
            rows = slice(first + 8 * rank, first + 8 * rank + 8)
            yield Batch(
                (features[rows], targets[rows]),
                Counts(samples=8),
                step_samples=32,
                closes_step=first == 16,
            )

    # After the second micro-batch.
    stepper.optimizer.register_step_pre_hook(
        lambda *_: sizes.append(
            [_count_held_numbers(parameter.grad) for parameter in model.parameters()]
        )
    )
    stepper.step(micro_batches())
    full_tensors = [parameter.full_tensor().detach().flatten() for parameter in model.parameters()]  # type: ignore[attr-defined]
    return {"sizes": sizes, "weights": torch.cat(full_tensors)}


def _count_held_numbers(gradient: Any) -> int:
    """Return how many numbers of a gradient this rank holds; -1: it has none yet."""
    return -1 if gradient is None else gradient.to_local().numel()


def train_step_and_read_buffer(rank: int) -> float:
    """Return a buffer of a replica after a step that began with another value on each rank.

    It shows whether rank 0 sends its buffers to the other ranks, as DDP does by default.
    """
    # Of 71 rows, the first 4 are the batch of either rank: together 8 samples of the step.
    features, targets = make_rows()
    model = new_model()
    model.register_buffer("constant", torch.zeros(()))
    stepper = new_stepper(model, world_size=2)
    model.constant.fill_(rank + 1)  # type: ignore[operator,union-attr]
    batch = Batch((features[:4], targets[:4]), Counts(samples=4), step_samples=8, closes_step=True)
    stepper.step(iter([batch]))
    # On rank 1: 2 if it kept its own value, 1 if rank 0 sent its value.
    return float(model.constant)  # type: ignore[arg-type]
