"""Three steps of every case on a Vulkan device give the losses of the CPU."""

from __future__ import annotations

from typing import Any

import pytest

from support import tiny_jobs

STEPS = 3
RECIPE_FIELDS: dict[str, dict[str, Any]] = {
    "llama2_7b_lora": {"init": "random", "mmlu_mode": "off"}
}
DRAWS_WEIGHTS_ON_DEVICE = {"llama2_7b_lora"}  # whose random numbers are not those of the CPU
TOLERANCE = {"fp32": 1e-6, "fp16": 3e-4}  # of a loss, relative
# torchvulkan adds the 1146 terms of its loss one after the other: see README.md.
TOLERANCE_OF_LONG_SUMS = {("llama2_7b_lora", "fp32"): 3e-6}


def build_job(device, generated, name, precision) -> Any:
    """Return the job of a case's tiny recipe without dropout; ``generated``: folder of its data.

    ``RECIPE_FIELDS``: by case, further changes: random first weights, and no evaluation by MMLU.
    """
    job = tiny_jobs.build(
        name,
        device,
        generated,
        precision=precision,
        kernels="library",
        **RECIPE_FIELDS.get(name, {}),
    )
    return tiny_jobs.disable_dropout(job)


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("name", tiny_jobs.CASES)
def test_losses_are_those_of_the_cpu(name, precision, device, processor, generated):
    # ``processor`` and ``device`` are a CPU and a Vulkan device. ``DRAWS_WEIGHTS_ON_DEVICE``: the
    # cases whose first weights are drawn on the device. ``TOLERANCE`` is relative, by precision; a
    # case that adds many terms one after the other has a larger one, in ``TOLERANCE_OF_LONG_SUMS``.
    # ``STEPS`` is 3.
    reference = build_job(processor, generated, name, precision)
    job = build_job(device, generated, name, precision)
    if name in DRAWS_WEIGHTS_ON_DEVICE:  # with other random numbers than on the CPU
        job.stepper.model.load_state_dict(reference.stepper.model.state_dict())
    expected = tiny_jobs.list_losses(reference, processor, STEPS)
    losses = tiny_jobs.list_losses(job, device, STEPS)
    tolerance = TOLERANCE_OF_LONG_SUMS.get((name, precision), TOLERANCE[precision])
    assert losses == pytest.approx(expected, rel=tolerance)
    assert len(set(losses)) == STEPS  # the loss changes in each step
