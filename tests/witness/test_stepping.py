"""Steps of optimizers that step others, that fail, and that replace others."""

from __future__ import annotations

from collections import OrderedDict
from itertools import count
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.optim import SGD, Optimizer
from torch.optim import optimizer as optimizers

from trainmark.witness import hooks
from trainmark.witness.batches import BatchCounter
from trainmark.witness.flops import FlopCounter
from trainmark.witness.process import WitnessedProcess
from trainmark.witness.rank import StatedStep, WitnessedRank
from trainmark.witness.weights import TrainedWeights

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class OuterOptimizer(Optimizer):
    """An optimizer that steps another one."""

    def __init__(self, inner: Optimizer) -> None:
        super().__init__(inner.param_groups, {})
        self.inner = inner

    def step(self, closure: Any = None) -> None:
        """Step the other optimizer."""
        self.inner.step(closure)


def make_optimizer() -> Optimizer:
    """Return an optimizer of a new tensor that has a gradient."""
    tensor = torch.nn.Parameter(torch.ones(3))
    tensor.grad = torch.ones(3)
    return SGD([tensor], lr=0.1)


def fail() -> float:
    """Raise an exception; the closure of a step that fails."""
    raise RuntimeError("out of memory")


def make_rank() -> WitnessedRank:
    """Return a rank of a program with one optimizer, on a device whose time stands still.

    The file of ``--witness`` does not say how many samples a step has, so they would be counted.
    There is no warm-up, and each step is a window, at whose end the weights are checked. The host's
    clock shows 1 ns more at each call. Events are not written.
    """
    ticks = count()
    rank = WitnessedRank(
        stated=StatedStep(
            counts=None,
            samples_of_all=0,
            flops_per_unit=1.0,
            unit="samples",
            optimizers=1,
            warmup_steps=0,
            window_steps=1,
            target_loss=None,
        ),
        events=SimpleNamespace(emit=lambda _name, **_fields: None),  # type: ignore[arg-type]
        device=SimpleNamespace(  # type: ignore[arg-type]
            mark=lambda: 0,
            synchronize=lambda: None,
            elapsed_ns=lambda _before, _after: 0,
            memory=lambda: SimpleNamespace(used_bytes=0),
        ),
        clock=lambda: next(ticks),
        weights=TrainedWeights(lambda: next(ticks)),
        flops=FlopCounter(),
        batches=BatchCounter(),
        count_graphs=lambda: 0,
    )
    rank.begin(0)
    return rank


@pytest.fixture(name="process")
def _process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WitnessedProcess:
    """Return this process as one whose optimizers are watched; it is no rank yet."""
    process = WitnessedProcess(tmp_path, start_ns=0)
    monkeypatch.setattr(hooks, "process", process)
    # Torch's hooks for all optimizers; those that are added here are removed again.
    monkeypatch.setattr(optimizers, "_global_optimizer_pre_hooks", OrderedDict())
    monkeypatch.setattr(optimizers, "_global_optimizer_post_hooks", OrderedDict())
    hooks._hook_optimizers()
    return process


def test_optimizer_that_steps_another_one_counts_once(process: WitnessedProcess) -> None:
    process.rank = rank = make_rank()
    optimizer = OuterOptimizer(make_optimizer())  # its step is one of the inner optimizer
    for _ in range(2):
        optimizer.step()
    # ``_optimizer_steps`` has the steps of each optimizer that is watched: of the outer one alone.
    assert (rank.steps, rank._optimizer_steps) == (2, [2])


def test_steps_after_a_failed_one_of_another_optimizer_count(process: WitnessedProcess) -> None:
    # The program catches an exception in the step of one optimizer, and goes on with another one.
    process.rank = rank = make_rank()
    failing = make_optimizer()
    # ``fail`` is a closure, which the optimizer calls in its step, and which raises the error.
    with pytest.raises(RuntimeError, match="out of memory"):
        failing.step(fail)
    optimizer = make_optimizer()
    for _ in range(3):
        optimizer.step()
    # The steps of the training, and those of each optimizer.
    assert (rank.steps, rank._optimizer_steps) == (3, [0, 3])


def make_claim(process: WitnessedProcess) -> Callable[[], float]:
    """Return a closure of a step whose backward pass makes the process a rank."""

    def claim() -> float:
        rank = make_rank()
        process.rank = rank
        # As ``claim_rank`` does, which also reads the plan and opens the device.
        outermost = process._stepping.find_outermost()
        assert outermost is not None
        rank.note_optimizer_start(outermost)
        return 0.0

    return claim


def test_step_that_does_the_first_backward_pass_counts(process: WitnessedProcess) -> None:
    # ``make_claim`` returns a closure, which an optimizer calls in its step, and which makes the
    # process a rank, as the first backward pass does. Here the optimizer is stepped by another one.
    # Before, a step has failed, by the closure ``fail``.
    with pytest.raises(RuntimeError, match="out of memory"):
        make_optimizer().step(fail)
    OuterOptimizer(make_optimizer()).step(make_claim(process))
    assert process.is_watching  # the probe has not failed
    assert process.rank is not None
    # The steps of the training, and those of each optimizer.
    assert (process.rank.steps, process.rank._optimizer_steps) == (1, [1])


def test_optimizer_that_replaces_another_one_is_watched() -> None:
    # The second optimizer is made after the first one was deleted, and gets its id.
    rank = make_rank()
    optimizer = make_optimizer()
    first_id = id(optimizer)
    step(rank, optimizer)
    del optimizer
    others = []  # optimizers that have got another id: they stay, so that their ids are not free
    while id(optimizer := make_optimizer()) != first_id:
        others.append(optimizer)
        assert len(others) < 1000
    for _ in range(2):
        step(rank, optimizer)
    assert rank._optimizer_steps == [1, 2]  # of each optimizer
    # The only tensor is that of the second optimizer (1), in its first group, the first of it.
    assert list(rank.weights.collect_tensors()) == ["1.0.0"]
    assert not rank.weights.violations


def test_tensors_of_optimizer_that_steps_seldom_are_not_said_to_lack_gradients() -> None:
    # Gradients are watched in five steps, in which only the first optimizer steps: whether those of
    # the second one's tensor exist is not known.
    rank = make_rank()
    frequent, seldom = make_optimizer(), make_optimizer()
    for _ in range(2):
        for _ in range(6):
            step(rank, frequent)
        step(rank, seldom)
    assert not rank.weights.violations


def step(rank: WitnessedRank, optimizer: Optimizer) -> None:
    """Step an optimizer, and report it to the rank."""
    rank.note_optimizer_start(optimizer)
    optimizer.step()
    rank.note_optimizer_end(optimizer)
