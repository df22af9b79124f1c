"""Which operations a recipe gets on which device, and that all of them train alike."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from trainmark import cases
from trainmark.cases import generated_folder
from trainmark.devices.vendors.cpu import CpuDevice
from trainmark.protocols import JobContext
from trainmark.recipe import Recipe
from trainmark.train.kernels import choose

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("one_thread")

TASKS = ("attention", "cross_entropy")
DROPS_NOTHING = 1e-9  # rounds to no drop at all, but takes the path with dropout


@pytest.mark.parametrize(
    ("fields", "torch_type", "own"),
    [
        ({}, "cpu", TASKS),
        ({}, "cuda", ()),
        ({"kernels": "library"}, "cpu", ()),
        ({"kernels": "own"}, "cuda", ("cross_entropy",)),
        ({"precision": "bf16"}, "cpu", ("cross_entropy",)),
        ({"compile": True}, "cpu", ("cross_entropy",)),
    ],
)
def test_recipe_and_device_decide(
    fields: dict[str, Any], torch_type: str, own: tuple[str, ...]
) -> None:
    found = choose(Recipe(**fields), torch_type)
    assert found.used(*TASKS) == {task: "own" if task in own else "library" for task in TASKS}


FIELDS: dict[str, dict[str, Any]] = {
    "distilbert_sst2": {},
    "glm_superglue": {"dropout": DROPS_NOTHING},
    "gpt_megatron": {"dropout": DROPS_NOTHING},
    "llama2_7b_lora": {"lora_dropout": 0.0},
}


def two_steps(name: str, folder: Path, recipe: Any) -> tuple[list[float], dict[str, Any], Any]:
    """Return the losses of two steps of a new job, the first one's gradients, and its kernels."""
    context = JobContext(
        recipe=recipe, data_dir=folder, rank=0, world_size=1, device=CpuDevice(threads=1)
    )
    module = cases.part(name, "job")
    torch.manual_seed(recipe.seed)
    job = module.build(context, module.load_data(context))
    for item in job.model.modules():
        if isinstance(item, nn.Dropout) and item.p:
            item.p = DROPS_NOTHING
    first: dict[str, torch.Tensor] = {}

    def keep(*_: Any) -> None:
        for parameter_name, parameter in job.trained_parameters().items():
            value = parameter if parameter.grad is None else parameter.grad
            first.setdefault(parameter_name, value.detach().clone())

    job.stepper.optimizer.register_step_pre_hook(keep)
    batches = iter(job.batches(0))
    losses = [float(job.step(iter([replace(next(batches), closes_step=True)]))) for _ in range(2)]
    return losses, first, job.facts()["kernels"]


@pytest.mark.parametrize("name", FIELDS)
def test_a_case_trains_alike_with_own_and_with_library_kernels(name: str, tmp_path: Path) -> None:
    case = cases.load(name)
    recipe = replace(case.recipes["tiny"], micro_batch_size=4, **FIELDS[name])
    folder = generated_folder(case, recipe, tmp_path)
    wanted = two_steps(name, folder, replace(recipe, kernels="library"))
    found = two_steps(name, folder, recipe)
    assert set(wanted[2].values()) == {"library"}
    assert set(found[2].values()) == {"own"}
    assert found[0] == pytest.approx(wanted[0], rel=1e-5)
    torch.testing.assert_close(found[1], wanted[1], rtol=1e-3, atol=1e-5)
    assert max(float(item.abs().max()) for item in found[1].values()) > 1e-4
