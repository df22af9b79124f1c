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

from trainmark import cases, devices
from trainmark.plan.plan import Plan
from trainmark.protocols import JobContext
from trainmark.rank.watch import StepWatch
from trainmark.train.read_ahead import iterate_batches, map_tensors

if TYPE_CHECKING:
    from trainmark.protocols import Batch, Device, Job

BATCHES_READ = 100  # at most
# Files of torch in a traceback, which are left out: the line that called torch is of interest.
_TORCH_FILES = re.compile(r"[/\\]torch[/\\]|contextlib\.py$")


def probe_job(plan_dir: Path) -> dict[str, Any]:
    """Return a report about the batches and a step of the job of the plan in ``plan_dir``.

    Returns:
        What reading batches changes: the random state that it ``draws`` from, and whether a batch
        is ``overwritten`` (``_probe_batches``); the job's ``model_flops`` and those that torch
        ``counted`` (``_count_flops``); and where the step ``waits`` (``_find_wait``).
    """
    plan = Plan.read(plan_dir)
    recipe = plan.load_recipe()
    device = devices.choose_vendor(plan.device.vendor).open(0, 1)  # local rank 0 of one rank
    device.set_precision(recipe.precision)
    torch.manual_seed(recipe.seed)
    module = cases.import_part(plan.case, "job")
    context = JobContext(
        recipe=recipe, data_dir=Path(plan.data.folder), rank=0, world_size=1, device=device
    )
    job = module.build(context, module.load_data(context))
    report = _probe_batches(job)
    # The batches of one step are read before the step, because reading may wait for the device.
    # A depth of 0 reads each only when it is asked for, in this thread.
    step_batches: list[Batch] = []
    with closing(iterate_batches(job, device, epoch=0, depth=0)) as batches:
        for batch in batches:
            step_batches.append(batch)
            if batch.closes_step:
                break
    report |= _count_flops(job, device, step_batches[0])
    report["waits"] = _find_wait(job, device, step_batches)
    return report


def _probe_batches(job: Job) -> dict[str, Any]:
    """Read batches of the first epoch, and return what reading them changes.

    Batches are read in a thread while another one trains, so reading must not change what training
    uses: global random states, and the batch before.

    Returns:
        ``draws``: name of the first module whose global random state they use; None: they use none.
        ``overwritten``: whether a batch writes to the tensors of the batch before.
    """
    overwritten = False
    last_tensors: list[tuple[Tensor, Tensor]] = []  # of the batch before, each with a copy

    def keep_copy(tensor: Tensor) -> Tensor:
        """Keep a tensor with a copy of its values, to see whether the next batch overwrites it."""
        last_tensors.append((tensor, tensor.clone()))
        return tensor

    states_before = _read_random_states()
    for batch in islice(job.batches(0), BATCHES_READ):
        if not all(tensor.equal(copy) for tensor, copy in last_tensors):
            overwritten = True
        last_tensors.clear()
        map_tensors(batch, keep_copy)  # called for its effect on ``last_tensors``
    states_after = _read_random_states()
    changed = [name for name in states_before if states_before[name] != states_after[name]]
    return {"draws": changed[0] if changed else None, "overwritten": overwritten}


def _read_random_states() -> dict[str, bytes]:
    """Return the global random states, from which training draws, by their modules' names."""
    return {
        "torch": torch.get_rng_state().numpy().tobytes(),
        "numpy": pickle.dumps(np.random.get_state()),
        "random": pickle.dumps(random.getstate()),
    }


def _count_flops(job: Job, device: Device, batch: Batch) -> dict[str, Any]:
    """Return the FLOPs of a step of one batch by the job's formula and as counted."""
    # The watch also notes the precision flags that a function returns at each matmul. They do not
    # matter here, so the function is ``dict``, which returns none.
    with StepWatch(dict) as watch:
        # As the last micro-batch of its step, so that the step needs no other.
        job.step(iter([replace(batch, closes_step=True)]))
    device.synchronize()  # a fault of the step on the device is raised here at the latest
    return {"model_flops": job.model_flops(batch.counts), "counted": watch.flops.total()}


def _find_wait(job: Job, device: Device, batches: list[Batch]) -> dict[str, str] | None:
    """Return the operation of a step that makes the host wait for the device, and its place.

    Args:
        batches: those of the step.

    Returns:
        ``operation`` and ``place``; empty: no operation makes it wait. None: the device cannot
        tell.
    """
    if not hasattr(device, "forbid_synchronization"):
        return None
    try:
        with device.forbid_synchronization():
            job.step(iter(batches))
    # ``probe_job`` has taken a step of this job before, in which waits were allowed. So a wait
    # caused this error, not a fault of the job.
    except RuntimeError as error:
        # The frames of the job's own code; the last one is where it called torch.
        frames = [
            frame
            for frame in traceback.extract_tb(error.__traceback__)
            if frame.filename != __file__ and not _TORCH_FILES.search(frame.filename)
        ]
        place = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "?"
        return {"operation": str(error).splitlines()[0], "place": place}
    return {}


if __name__ == "__main__":
    print(json.dumps(probe_job(Path(sys.argv[1]))))
