"""The loss scale of fp16 against a reading of the published rule in plain numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trainmark import cases
from trainmark.protocols import JobContext
from trainmark.spec import RankMemory
from trainmark.train.stepper import LossScaler

if TYPE_CHECKING:
    from pathlib import Path

    from support.fakes import SyncDevice

START = 2.0**32  # as Megatron-LM starts


def train_and_list_scales(
    overflows: list[bool], *, window: int, hysteresis: int
) -> tuple[list[float], list[float], int]:
    """Return the scale and the weight after each step, and the steps that were dropped.

    The scale is ``START``, 2**32, before the first step, and the weight is 0.

    Args:
        overflows: of each step, whether its gradient overflows; otherwise the step adds 1.
        window: steps without an overflow after which the scale doubles.
        hysteresis: overflows after which the scale halves.
    """
    weight = torch.nn.Parameter(torch.zeros(()))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    scaler = LossScaler(
        "cpu", torch.device("cpu"), enabled=True, window=window, hysteresis=hysteresis, start=START
    )
    scales, weights = [], []
    for overflow in overflows:
        optimizer.zero_grad()
        scaler.scale(weight * (float("inf") if overflow else -1.0)).backward()
        scaler.step_or_skip(optimizer)
        scales.append(scaler.get_scale())
        weights.append(float(weight.detach()))
    return scales, weights, scaler.skipped_steps()


def compute_published_scales(overflows: list[bool], *, window: int, hysteresis: int) -> list[float]:
    """Return the scale after each step as the published ``DynamicLossScaler`` defines it.

    It is ``START``, 2**32, before the first step.

    ``delayed_shift`` is the hysteresis, ``consecutive_hysteresis`` false, and the lower bound
    ``min_scale`` is left out: a run of ours ends there. Read on 2026-11-21 in
    https://github.com/FlagOpen/FlagPerf, training/benchmarks/glm/pytorch/optimizers.
    """
    # ``credit``: the overflows after which the scale falls, this one included.
    scale, credit, last_overflow, scales = START, hysteresis, -1, []
    for step, overflow in enumerate(overflows):
        if overflow and credit > 1:
            credit, last_overflow = credit - 1, step
        elif overflow:
            scale, last_overflow = scale / 2, step
        elif (step - last_overflow) % window == 0:
            scale, credit = scale * 2, hysteresis
        scales.append(scale)
    return scales


@given(
    overflows=st.lists(st.booleans(), max_size=30),
    window=st.integers(1, 5),
    hysteresis=st.integers(1, 4),
)
@settings(max_examples=60, deadline=None)
def test_loss_scale_follows_the_published_rules(
    overflows: list[bool], window: int, hysteresis: int
) -> None:
    # ``overflows``: of each step, whether a gradient overflows. The scale doubles after ``window``
    # steps without one, and halves after ``hysteresis`` of them.
    scales, weights, skipped = train_and_list_scales(
        overflows, window=window, hysteresis=hysteresis
    )
    assert scales == compute_published_scales(overflows, window=window, hysteresis=hysteresis)
    assert skipped == sum(overflows)
    if weights:  # each step that is not skipped adds 1
        assert weights[-1] == len(overflows) - sum(overflows)


@pytest.mark.parametrize(
    # ``window``: steps in a row without an overflow after which the scale grows.
    ("name", "start", "window"),
    [
        ("gpt_megatron", START, 1000),
        ("dlrm_criteo", 2.0**16, 10**9),  # no training takes so many steps: the scale never grows
    ],
)
def test_cases_scale_losses_as_published(
    name: str, start: float, window: int, tmp_path: Path, sync_device: SyncDevice
) -> None:
    # ``START`` is 2**32, as Megatron-LM starts; only fp16 needs a loss scale. The memory of 1 GiB
    # is any that fits: DLRM places its tables by it.
    case = cases.load(name)
    recipe = replace(case.recipes["tiny"], precision="fp16")
    folder = cases.ensure_generated_data(case, recipe, tmp_path)
    context = JobContext(
        recipe, folder, rank=0, world_size=1, device=sync_device, memory=RankMemory(1 << 30)
    )
    module = cases.import_part(name, "job")
    stepper = module.build(context, module.load_data(context)).stepper
    assert float(stepper.loss_scale()) == start
    assert stepper.scaler.get_growth_interval() == window
