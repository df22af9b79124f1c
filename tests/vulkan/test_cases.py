"""Three steps of every case on a Vulkan device, beside the same steps on the CPU."""

from __future__ import annotations

from typing import Any

import pytest

from support import tiny_jobs

STEPS = 3
RECIPE_FIELDS: dict[str, dict[str, Any]] = {
    "llama2_7b_lora": {"init": "random", "mmlu_mode": "off"}
}
TOLERANCE = {"fp32": 1e-6, "fp16": 3e-4}  # of a loss, relative

# Its losses differ by 1.1% from the first step on; the cause is not known yet.
DIFFERENT = pytest.mark.xfail(reason="llama2_7b_lora: other losses than on the CPU; cause unknown")
CASES = [
    pytest.param(name, marks=DIFFERENT) if name == "llama2_7b_lora" else name
    for name in tiny_jobs.CASES
]


def losses_on(device, generated, name, precision) -> list[float]:
    job = tiny_jobs.build(
        name, device, generated, precision=precision, kernels="library",
        **RECIPE_FIELDS.get(name, {}),
    )  # fmt: skip
    return tiny_jobs.losses(tiny_jobs.without_dropout(job), device, STEPS)


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("name", CASES)
def test_losses_are_those_of_the_cpu(name, precision, device, processor, generated):
    expected = losses_on(processor, generated, name, precision)
    losses = losses_on(device, generated, name, precision)
    assert losses == pytest.approx(expected, rel=TOLERANCE[precision])
    assert len(set(losses)) == STEPS  # each step trains
