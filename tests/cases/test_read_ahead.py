"""Every case trains and evaluates to the same figures however far its batches are read ahead."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from trainmark import cases
from trainmark.cases import generated_folder
from trainmark.devices.vendors.cpu import CpuDevice
from trainmark.protocols import JobContext
from trainmark.train.read_ahead import batches_of

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("one_thread")

STEPS = 5


class Copying(CpuDevice):
    """A CPU that copies what it pins and what it places, as an accelerator does."""

    def pin(self, tensor: Any) -> Any:
        return tensor.clone()

    def place(self, value: Any) -> Any:
        return value.clone() if isinstance(value, torch.Tensor) else value


def figures(name: str, folder: Path, recipe: Any) -> tuple[list[float], list[Any], Any]:
    """Return losses and counts of the first steps of a new job, dropout included, and its score."""
    device = Copying(threads=1)
    context = JobContext(recipe=recipe, data_dir=folder, rank=0, world_size=1, device=device)
    module = cases.part(name, "job")
    torch.manual_seed(recipe.seed)
    job = module.build(context, module.load_data(context))
    losses, counts = [], []
    with closing(batches_of(job, device, 0, depth=recipe.read_ahead_batches)) as batches:
        for _ in range(STEPS):
            batch = next(batches)
            counts.append(batch.counts)
            losses.append(float(job.step(iter([replace(batch, closes_step=True)]))))
    return losses, counts, job.evaluate()


@pytest.mark.parametrize("name", cases.names())
def test_a_case_gives_the_same_figures_at_any_depth(name: str, tmp_path: Path) -> None:
    case = cases.load(name)
    recipe = case.recipes["tiny"]
    folder = generated_folder(case, recipe, tmp_path)
    plain, ahead = (
        figures(name, folder, replace(recipe, read_ahead_batches=depth)) for depth in (0, 2)
    )
    assert ahead == plain
    assert len(set(plain[0])) == STEPS
