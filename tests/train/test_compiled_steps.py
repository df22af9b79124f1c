"""Compiled steps: what is counted of them; replayed graphs overwrite nothing that is kept."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor, nn

from fakes import FakeClock, SyncDevice
from tiny_training import batches, new_model, new_stepper
from trainmark.protocols import JobContext
from trainmark.recipe import Recipe
from trainmark.train.parallel import graphs_compiled
from trainmark.train.shards import Sharding
from trainmark.train.stepper import Stepper

if TYPE_CHECKING:
    from pathlib import Path

    from trainmark.protocols import Batch

pytestmark = pytest.mark.usefixtures("one_thread")


class Replayed(torch.autograd.Function):
    """Return the input in memory that every call overwrites, as a replayed graph does."""

    memory = torch.zeros(())

    @staticmethod
    def forward(ctx: Any, loss: Tensor) -> Tensor:
        del ctx
        return Replayed.memory.copy_(loss).detach()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        del ctx
        return gradient


def loss_in_graph_memory(model: nn.Module, batch: Batch) -> Tensor:
    features, targets = batch.tensors
    loss: Tensor = Replayed.apply(((model(features) - targets) ** 2).sum())
    return loss


def losses_of_an_epoch(stepper: Stepper) -> list[Tensor]:
    sharding = Sharding(
        num_rows=71, micro_batch_size=30, grad_accum_steps=1, world_size=1, rank=0, seed=1
    )
    stream = batches(sharding, 0)
    return [loss for loss in (stepper.step(stream) for _ in range(3)) if loss is not None]


def test_losses_kept_over_a_window_are_not_the_graphs_memory() -> None:
    kept = losses_of_an_epoch(new_stepper(new_model(), loss_sum=loss_in_graph_memory))
    expected = losses_of_an_epoch(new_stepper(new_model()))
    assert len({float(loss) for loss in kept}) == 3
    assert [float(loss) for loss in kept] == pytest.approx([float(loss) for loss in expected])


class GraphDevice(SyncDevice):
    def begin_step(self) -> None:
        self.calls.append("step begins")


def context_of(device: SyncDevice, recipe: Recipe, tmp_path: Path) -> JobContext:
    return JobContext(recipe=recipe, data_dir=tmp_path, rank=0, world_size=1, device=device)


@pytest.mark.parametrize("mode", ["reduce-overhead", True])
def test_each_step_starts_before_its_first_forward_pass(
    mode: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "compile", lambda model, **_: model)
    device = GraphDevice(FakeClock())
    calls, model = device.calls, new_model()

    def loss_sum(batch: Batch) -> Tensor:
        # What a graph left in gradients is gone before it runs again.
        assert [parameter.grad for parameter in model.parameters()] == [None] * 4
        calls.append("forward")
        features, targets = batch.tensors
        return ((model(features) - targets) ** 2).sum()

    context = context_of(device, Recipe(compile=mode), tmp_path)
    stepper = Stepper(context, model, torch.optim.SGD(model.parameters()), loss_sum)
    assert len(losses_of_an_epoch(stepper)) == 3
    begins = ["step begins"] if mode == "reduce-overhead" else []
    assert calls == [*begins, "forward"] * 3


def test_graphs_and_a_recompilation_are_counted() -> None:
    torch._dynamo.reset()
    before = graphs_compiled() or 0

    def broken(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        torch._dynamo.graph_break()
        return y + 1

    compiled = torch.compile(broken, backend="eager", dynamic=False)
    for rows in (4, 4, 5):  # the second runs what the first compiled; the third is a new shape
        compiled(torch.ones(rows))
    # Two around the break, for each shape.
    assert (graphs_compiled() or 0) - before == 4
