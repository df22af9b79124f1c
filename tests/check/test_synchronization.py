"""Which work is found to make the host wait for the device, and which is not."""

from __future__ import annotations

import pytest
import torch

from trainmark.check.probe import SynchronizedError, no_synchronization

VALUES, MASK, PLACES = torch.arange(6.0), torch.arange(6) % 2 == 0, torch.tensor([3, 1])
WAITING = {
    "item": VALUES[0].item,
    "int": lambda: int(PLACES[0]),
    "truth": lambda: bool(MASK[0]),
    "tolist": VALUES.tolist,
    "cpu": VALUES.cpu,
    "numpy": VALUES.numpy,
    "equal": lambda: torch.equal(VALUES, VALUES),
    "nonzero": MASK.nonzero,
    "read by mask": lambda: VALUES[MASK],
    "written by mask": lambda: VALUES.clone().index_put_((MASK,), VALUES[:3]),
    "masked_select": lambda: VALUES.masked_select(MASK),
    "unique": PLACES.unique,
    "repeats of unknown sum": lambda: VALUES[:2].repeat_interleave(PLACES),
    "non-finite norm is an error": lambda: torch.nn.utils.clip_grad_norm_(
        _with_gradient(), 1.0, error_if_nonfinite=True
    ),
}
QUEUED = {
    "read by places": lambda: VALUES[PLACES],
    "written by places": lambda: VALUES.clone().index_put_((PLACES,), VALUES[:2]),
    "where": lambda: torch.where(MASK, VALUES, 0.0),
    "masked_fill": lambda: VALUES.masked_fill(MASK, 0.0),
    "repeats of known sum": lambda: VALUES[:2].repeat_interleave(PLACES, output_size=4),
    "clipped norm": lambda: torch.nn.utils.clip_grad_norm_(_with_gradient(), 1.0),
    "another type": lambda: VALUES.to(torch.bfloat16),
}


def _with_gradient():
    parameter = torch.nn.Parameter(torch.ones(3))
    parameter.grad = torch.ones(3)
    return parameter


@pytest.mark.parametrize("work", WAITING.values(), ids=WAITING)
def test_work_that_waits_is_refused(work, sync_device):
    work()
    with pytest.raises(SynchronizedError), no_synchronization(sync_device):
        work()


@pytest.mark.parametrize("work", QUEUED.values(), ids=QUEUED)
def test_work_that_is_queued_is_not(work, sync_device):
    with no_synchronization(sync_device):
        work()


def test_a_wait_in_a_backward_pass_is_refused(sync_device):
    weight = torch.nn.Parameter(torch.ones(3))
    weight.register_hook(lambda grad: None if grad.sum() > 0 else grad)
    loss = (weight * 2).sum()
    with pytest.raises(SynchronizedError), no_synchronization(sync_device):
        loss.backward()


def test_a_scaled_step_of_an_optimizer_that_is_not_fused_is_refused(sync_device):
    weight = torch.nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.SGD([weight], lr=1.0, foreach=True)
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(weight.sum()).backward()
    with no_synchronization(sync_device), pytest.raises(SynchronizedError):
        scaler.step(optimizer)


@pytest.mark.parametrize("options", [{}, {"foreach": True}, {"foreach": False}, {"fused": True}])
@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW, torch.optim.Adagrad])
def test_an_optimizers_own_counter_of_steps_is_no_wait(sync_device, kind, options):
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = kind([weight], lr=0.1, **options)
    for _ in range(2):  # the counters are there after the first step
        (weight * 2).sum().backward()
        if optimizer.state:
            with no_synchronization(sync_device):
                optimizer.step()
        else:
            optimizer.step()
