"""Compiled steps give every trained parameter the gradients of the same steps in eager mode."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import torch

import tiny_jobs
from trainmark import cases
from trainmark.cases import generated_folder
from trainmark.devices.vendors.cpu import CpuDevice
from trainmark.protocols import JobContext

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    # The compiler makes an instance of each autograd function that it meets.
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),
    # It looks for one wherever a graph begins with what another has computed.
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
]

# What turns off dropout: its masks are drawn differently when compiled.
FIELDS: dict[str, dict[str, Any]] = {
    "distilbert_sst2": {},
    "glm_superglue": {"dropout": 0.0},
    "gpt_megatron": {"dropout": 0.0},
    "llama2_7b_lora": {"lora_dropout": 0.0},
    "toy": {},
}


def gradients_of_second_step(
    name: str, folder: Path, recipe: Any
) -> tuple[float, dict[str, Tensor]]:
    """Return loss and gradients of the last of two steps of a new job."""
    context = JobContext(
        recipe=recipe, data_dir=folder, rank=0, world_size=1, device=CpuDevice(threads=1)
    )
    torch.manual_seed(recipe.seed)  # as the worker does
    module = cases.part(name, "job")
    job = module.build(context, module.load_data(context))
    found: dict[str, Tensor] = {}

    def keep(*_: Any) -> None:
        for parameter_name, parameter in job.trained_parameters().items():
            assert parameter.grad is not None, parameter_name
            found[parameter_name.replace("_orig_mod.", "")] = parameter.grad.clone()

    tiny_jobs.without_dropout(job)
    job.stepper.optimizer.register_step_pre_hook(keep)
    batches = iter(job.batches(0))
    for _ in range(2):  # what one step leaves behind must not reach into the next one's graph
        loss = job.step(iter([replace(next(batches), closes_step=True)]))
    return float(loss), found


@pytest.mark.parametrize("name", FIELDS)
def test_compiled_and_eager_steps_have_the_same_gradients(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Without generated C++, which takes a minute a model and has no part in gradients.
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    case = cases.load(name)
    recipe = replace(case.recipes["tiny"], micro_batch_size=4, **FIELDS[name])
    folder = generated_folder(case, recipe, tmp_path)
    loss, expected = gradients_of_second_step(name, folder, recipe)
    assert len(expected) > 1
    compiled_loss, found = gradients_of_second_step(name, folder, replace(recipe, compile=True))
    assert compiled_loss == pytest.approx(loss, rel=1e-5)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-5)
    assert max(float(grad.abs().max()) for grad in found.values()) > 1e-4
