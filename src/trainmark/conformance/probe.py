"""Inspect a job on one rank without measuring it: batches, FLOPs, waits for the device.

Inside a window the host only hands out work. Where it reads a result back, it waits until the
device has finished everything before; the device then idles while the host prepares the next work.

Started as ``python -m trainmark.conformance.probe RUN_DIR`` with a plan for one rank; prints the
result as one JSON line. Knows no case and no vendor.
"""

from __future__ import annotations

import json
import pickle
import random
import re
import sys
import traceback
from contextlib import closing
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from trainmark.rank.watch import StepWatch
from trainmark.train.read_ahead import batches_of, map_tensors

if TYPE_CHECKING:
    from trainmark.protocols import Batch, Device, Job

BATCHES_READ = 100
_TORCH = re.compile(r"[/\\]torch[/\\]|contextlib\.py$")  # what called torch is of interest


def probe_job(plan_dir: Path) -> dict[str, Any]:
    """Return what the job of the plan in ``plan_dir`` does in its batches and in a step.

    It computes with the libraries' kernels, as on an accelerator, whose matmuls can be counted.
    """
    from trainmark import cases, devices
    from trainmark.plan.plan import Plan
    from trainmark.protocols import JobContext

    plan = Plan.read(plan_dir)
    recipe = replace(plan.load_recipe(), kernels="library")
    device = devices.choose(plan.device.vendor).open(0, 1)
    device.set_precision(recipe.precision)
    torch.manual_seed(recipe.seed)
    module = cases.part(plan.case, "job")
    context = JobContext(
        recipe=recipe, data_dir=Path(plan.data.folder), rank=0, world_size=1, device=device
    )
    job = module.build(context, module.load_data(context))
    report = _probe_batches(job)
    step: list[Batch] = []  # read before any is taken, because reading may wait
    with closing(batches_of(job, device, 0, depth=0)) as batches:
        for batch in batches:
            step.append(batch)
            if batch.closes_step:
                break
    return report | _count_flops(job, device, step[0]) | {"waits": _find_wait(job, device, step)}


def _probe_batches(job: Job) -> dict[str, Any]:
    """Read batches of the first epoch.

    ``draws`` names a global random state that they use, ``overwritten`` says whether one writes to
    the tensors of the one before: neither may happen in a thread of its own.
    """
    overwritten = False
    earlier: list[tuple[Tensor, Tensor]] = []  # of the batch before, with copies

    def note(tensor: Tensor) -> Tensor:
        earlier.append((tensor, tensor.clone()))
        return tensor

    states = _read_random_states()
    for batch in islice(job.batches(0), BATCHES_READ):
        overwritten = overwritten or not all(now.equal(then) for now, then in earlier)
        earlier.clear()
        map_tensors(batch, note)
    after = _read_random_states()
    draws = next((name for name in states if states[name] != after[name]), None)
    return {"draws": draws, "overwritten": overwritten}


def _read_random_states() -> dict[str, bytes]:
    """Return the global random states, which training uses too, by their modules' names."""
    return {
        "torch": torch.get_rng_state().numpy().tobytes(),
        "numpy": pickle.dumps(np.random.get_state()),
        "random": pickle.dumps(random.getstate()),
    }


def _count_flops(job: Job, device: Device, batch: Batch) -> dict[str, Any]:
    """Return the FLOPs of a step of one batch by the job's formula and as counted."""
    with StepWatch(dict) as watch:
        job.step(iter([replace(batch, closes_step=True)]))
    device.synchronize()
    return {"model_flops": job.model_flops(batch.counts), "counted": watch.flops.total()}


def _find_wait(job: Job, device: Device, step: list[Batch]) -> dict[str, str] | None:
    """Return which operation of a step makes the host wait, and where; empty if none does.

    None where the device cannot tell.
    """
    if not hasattr(device, "forbid_synchronization"):
        return None
    try:
        with device.forbid_synchronization():
            job.step(iter(step))
    except RuntimeError as error:  # a device's own error is any; the step worked before
        lines = [
            line
            for line in traceback.extract_tb(error.__traceback__)
            if line.filename != __file__ and not _TORCH.search(line.filename)
        ]
        place = f"{lines[-1].filename}:{lines[-1].lineno}" if lines else "?"
        return {"operation": str(error).splitlines()[0], "place": place}
    return {}


if __name__ == "__main__":
    print(json.dumps(probe_job(Path(sys.argv[1]))))
