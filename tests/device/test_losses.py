"""Every case's tiny recipe has the CPU's losses on the device."""

from __future__ import annotations

from typing import Any

import pytest

from support import tiny_jobs
from trainmark.devices.cores import count_usable_cores
from trainmark.devices.vendors.cpu import Cpu

STEPS = 20
# Fields of a case's tiny recipe that make the losses comparable.
RECIPE_CHANGES: dict[str, dict[str, Any]] = {
    # Adam's first steps turn a rounding of a gradient near 0 into a whole step, and a ReLU in the
    # head then passes a sample's gradient or not: a tenth of the recipe's rate keeps both small.
    "distilbert_sst2": {"learning_rate": 1e-4},
    "glm_superglue": {"dropout": 0.0},  # of attention weights, which is no module
}


@pytest.mark.parametrize("name", tiny_jobs.CASES)
def test_first_losses_equal_those_of_library_kernels_on_a_cpu(name, device, generated):
    """The device uses the kernels of its own choice; ``generated`` is the folder of the data.

    ``tiny_jobs.CASES`` are the names of all cases, each of which has a tiny recipe.
    ``RECIPE_CHANGES`` changes recipes whose losses would otherwise differ by more than rounding: a
    smaller learning rate, no dropout. ``STEPS`` is 20.
    """
    changes = RECIPE_CHANGES.get(name, {})
    # With as many ranks as cores, each rank has one thread: other tests use the other cores.
    on_cpu = Cpu().open(local_rank=0, ranks_here=count_usable_cores())
    job_on_cpu = tiny_jobs.build(name, on_cpu, generated, kernels="library", **changes)
    expected = tiny_jobs.list_losses(tiny_jobs.disable_dropout(job_on_cpu), on_cpu, STEPS)
    job = tiny_jobs.build(name, device, generated, **changes)
    losses = tiny_jobs.list_losses(tiny_jobs.disable_dropout(job), device, STEPS)
    assert losses == pytest.approx(expected, rel=1e-4)
    assert len(set(expected)) == STEPS  # the loss changes in each step
