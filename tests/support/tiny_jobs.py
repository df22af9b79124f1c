"""Jobs of the cases' tiny recipes in the test's own process, as a rank builds and runs them."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from trainmark import cases
from trainmark.cases import ensure_generated_data
from trainmark.protocols import JobContext
from trainmark.rank.loop import MeasuredLoop, Schedule
from trainmark.rank.parameters import ParameterCheck
from trainmark.train.parameters import GradientWatch, TensorDigest
from trainmark.train.read_ahead import iterate_batches

if TYPE_CHECKING:
    from pathlib import Path

    from trainmark.protocols import Device, Job

CASES = tuple(cases.list_names())


def build(name: str, device: Device, root: Path, **fields: Any) -> Any:
    """Return the job of a case's tiny recipe with ``fields``; its data is kept below ``root``."""
    case = cases.load(name)
    recipe = replace(case.recipes["tiny"], **fields)
    folder = ensure_generated_data(case, recipe, root)
    device.set_precision(recipe.precision)
    torch.manual_seed(recipe.seed)
    context = JobContext(recipe=recipe, data_dir=folder, rank=0, world_size=1, device=device)
    module = cases.import_part(name, "job")
    return module.build(context, module.load_data(context))


def disable_dropout(job: Any) -> Any:
    """Switch off all dropout: masks are drawn differently on each kind of device."""
    for module in job.stepper.model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    return job


def list_losses(job: Any, device: Device, steps: int) -> list[float]:
    """Return the losses of the first ``steps`` steps, read from the device after all of them."""
    batches = iterate_batches(job, device, epoch=0, depth=0)  # ``depth``: batches read ahead
    results = [job.step(batches) for _ in range(steps)]
    batches.close()
    device.synchronize()
    return device.read(results)


def run_measured(job: Job, device: Device, recipe: Any) -> list[dict[str, Any]]:
    """Run the measured loop over ``job`` as a rank does; return its events.

    Args:
        recipe: of the job, which says how long it trains and how many batches are read ahead.
    """
    events: list[dict[str, Any]] = []
    # The checks that a rank makes while it trains: that each parameter gets a gradient and changes.
    trained = job.trained_parameters()
    watch = GradientWatch(trained, num_steps=5)  # as many as the worker watches
    parameters = ParameterCheck(
        digest=TensorDigest(trained),
        gradients=watch,
        updates=job.updates,
        clock=time.perf_counter_ns,
    )
    parameters.start()
    MeasuredLoop(
        job=job,
        open_batches=partial(iterate_batches, job, device, depth=recipe.read_ahead_batches),
        schedule=Schedule.from_recipe(recipe, target=None),
        device=device,
        clock=time.perf_counter_ns,
        barrier=lambda: None,
        emit=lambda event, **fields: events.append({"event": event, **fields}),
        parameters=parameters,
    ).run()
    watch.close()
    return events
