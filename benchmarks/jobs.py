"""Build a case's job in this process, as a rank would."""

from __future__ import annotations

import tempfile
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainmark.protocols import Batch, Device


def chosen_kernels() -> Any:
    """Return the kernels that a job in fp32 gets on a CPU."""
    from trainmark.spec import Recipe
    from trainmark.training.kernels.choice import choose

    return choose(Recipe(), "cpu")


def endless_batches(job: Any) -> Iterator[Batch]:
    """Yield the batches of one epoch after the other as the loop hands them to ``job``."""
    from trainmark.training.read_ahead import batches_of

    context = job.context
    depth = context.recipe.read_ahead_batches
    for epoch in count():
        yield from batches_of(job, context.device, epoch, depth=depth)


def build(case_name: str, *, device_name: str = "cpu", **overrides: object) -> tuple[Any, Device]:
    """Return the job of ``case_name``'s generated recipe with ``overrides``, and its device."""
    import torch

    from trainmark import cases, devices
    from trainmark.planning.plan import resolve
    from trainmark.protocols import JobContext

    words = {name: str(value) for name, value in overrides.items()}
    with tempfile.TemporaryDirectory() as cache:
        plan = resolve(
            case_name, overrides=words, device_name=device_name, generated_root=Path(cache)
        )
        device = devices.choose(plan.device.vendor).open(0, 1)
        recipe = plan.load_recipe()
        device.set_precision(recipe.precision)
        torch.manual_seed(recipe.seed)
        context = JobContext(
            recipe=recipe, data_dir=Path(plan.data.folder), rank=0, world_size=1, device=device
        )
        module = cases.part(plan.case, "job")
        return module.build(context, module.load_data(context)), device
