"""Build a case's job in this process, as a rank would."""

from __future__ import annotations

import tempfile
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Generator

    from trainmark.protocols import Batch, Device


def iterate_batches_endlessly(job: Any) -> Generator[Batch, None, None]:
    """Yield the batches of one epoch after the other as the loop hands them to ``job``."""
    from trainmark.train.read_ahead import iterate_batches

    context = job.context
    depth = context.recipe.read_ahead_batches
    for epoch in count():
        yield from iterate_batches(job, context.device, epoch, depth=depth)


def on_data(
    case_name: str, recipe: Any, folder: Path, *, device_name: str = "cpu", data: Any = None
) -> Any:
    """Return the case's own job of ``recipe``; it opens the device.

    Args:
        data: what the job trains; none: the data in ``folder``.
    """
    import torch

    from trainmark import cases, devices
    from trainmark.protocols import JobContext

    device = devices.choose_vendor(device_name).open(0, 1)
    device.set_precision(recipe.precision)
    torch.manual_seed(recipe.seed)
    module = cases.import_part(case_name, "job")
    context = JobContext(recipe=recipe, data_dir=folder, rank=0, world_size=1, device=device)
    return module.build(context, data or module.load_data(context))


def build(case_name: str, *, device_name: str = "cpu", **overrides: object) -> tuple[Any, Device]:
    """Return the job of ``case_name``'s generated recipe with ``overrides``, and its device."""
    from trainmark.plan.request import RunRequest
    from trainmark.plan.resolving import resolve

    arguments = {name: str(value) for name, value in overrides.items()}
    with tempfile.TemporaryDirectory() as cache:
        plan = resolve(
            RunRequest(case=case_name, overrides=arguments, device=device_name),
            generated_root=Path(cache),
        )
        job = on_data(
            plan.case, plan.load_recipe(), Path(plan.data.folder), device_name=plan.device.vendor
        )
        return job, job.context.device
