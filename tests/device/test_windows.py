"""The host never waits for the device inside a window of the measured loop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from support import tiny_jobs
from trainmark.errors import EnvironmentFault

if TYPE_CHECKING:
    from trainmark.protocols import Device

# What a recipe may add to a step; tested together with our own kernels.
CHANGES_FOR_OWN_KERNELS: dict[str, dict[str, Any]] = {
    "glm_superglue": {"checkpoint_activations": True},
    "llama2_7b_lora": {"checkpoint_activations": True},
    "gpt_megatron": {"checkpoint_activations": True},
}


class Guarded:
    """A device whose marks, too, may not make the host wait."""

    def __init__(self, device: Device) -> None:
        self._device = device

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)

    def mark(self) -> Any:
        with self._device.forbid_synchronization():
            return self._device.mark()


@pytest.fixture(autouse=True)
def _skip_if_waits_are_not_detected(device):
    """Skip the tests if the device has no means to make waiting calls fail.

    The stand-in, a simulated device that computes on the processor, has them.
    """
    if not hasattr(device, "forbid_synchronization"):
        pytest.skip("it cannot tell where the host waits: the stand-in of tests/devices can")


@pytest.mark.parametrize(
    ("precision", "kernels"), [("fp32", "library"), ("bf16", "library"), ("fp16", "own")]
)
@pytest.mark.parametrize("name", tiny_jobs.CASES)
def test_no_step_waits_for_the_device(name, precision, kernels, device, generated):
    """Neither a step of any case nor a mark within a window makes the host wait for the device.

    Within ``forbid_synchronization`` a call that waits raises an error. ``tiny_jobs.CASES`` are the
    names of all cases; ``CHANGES_FOR_OWN_KERNELS`` adds activation checkpointing to GLM, Llama 2
    and GPT, so that it is tested too.

    The case gpt_oss_20b multiplies the rows of each expert by other weights. Only in bf16, and only
    on some devices, one kernel of torch does so for all experts; otherwise the host waits for the
    number of rows of each.
    """
    if name == "gpt_oss_20b" and (precision, device.torch_type) != ("bf16", "cuda"):
        pytest.skip("the host waits for the numbers of rows of experts; see train/experts.py")
    more = CHANGES_FOR_OWN_KERNELS.get(name, {}) if kernels == "own" else {}
    try:
        job = tiny_jobs.build(
            name,
            device,
            generated,
            precision=precision,
            kernels=kernels,
            warmup_steps=2,
            window_steps=3,
            max_steps=7,
            max_epochs=1,
            eval_every_epochs=None,
            target_value=None,
            **more,
        )
    except EnvironmentFault as refused:
        pytest.skip(str(refused))
    step = job.step

    def step_without_synchronization(batches):
        with device.forbid_synchronization():
            return step(batches)

    job.step = step_without_synchronization
    # ``Guarded``: the device's marks must not wait either.
    events = tiny_jobs.run_measured(job, Guarded(device), job.context.recipe)
    windows = [
        (event["phase"], len(event["loss"])) for event in events if event["event"] == "window"
    ]
    # All seven steps were taken: the first of two warm-up steps compiles, then windows of three.
    assert windows == [("compile", 1), ("warmup", 1), ("train", 3), ("train", 2)]


def test_device_detects_a_wait(device):
    value = device.place(torch.ones(3)).sum()
    with pytest.raises(RuntimeError), device.forbid_synchronization():
        value.item()
    assert value.item() == 3.0  # allowed again
