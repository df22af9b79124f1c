"""Check that the ranks of a run agree: on package versions, on memory, on the quality.

Planning refuses a recipe that does not fit if it knows the memory of the devices. If they are on
other machines, or if only torch knows their memory, the ranks refuse the recipe here.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from trainmark import cases
from trainmark.errors import ContradictionError, RunError
from trainmark.events.schema import drop_non_finite
from trainmark.train.step_memory import read_rank_memory

if TYPE_CHECKING:
    from pathlib import Path

    from trainmark.plan.plan import Plan
    from trainmark.protocols import Device, Evaluation, Vendor
    from trainmark.spec import RankMemory


def refuse_other_packages(description: str | None, nnodes: int) -> None:
    """Refuse package versions of this node that differ from those of rank 0's node.

    This is one broadcast: its cost grows with the number of ranks, not with its square.

    Args:
        description: number and package versions of this node, in JSON, from its node process;
            None: on a single machine there is no such process.

    Raises:
        RunError: versions differ; the error names the first such package and both versions.
    """
    import torch

    if nnodes == 1:
        return
    assert description is not None, "ranks on several nodes are started by a node process"
    node = json.loads(description)
    packages: dict[str, str] = node["packages"]
    broadcast = [packages]  # whose item the call replaces by that of rank 0
    torch.distributed.broadcast_object_list(broadcast, src=0)
    first_packages = broadcast[0]
    for name in sorted(first_packages.keys() | packages.keys()):
        if first_packages.get(name) != packages.get(name):
            raise RunError(
                "packages_differ",
                node=node["node"],
                package=name,
                here=packages.get(name) or "absent",
                first=first_packages.get(name) or "absent",
            )


def refuse_other_quality(world_size: int, result: Evaluation) -> None:
    """Refuse a result of an evaluation that differs from that of rank 0.

    Each rank must return the result over the rows of all ranks. Without this check, ranks whose
    results differ would train different numbers of steps and wait for each other until the time
    limit. It is one broadcast, so every rank must call it.

    Raises:
        ContradictionError: results differ, so the scores were not summed over ranks.
    """
    import torch

    if world_size == 1:
        return
    broadcast = [(float(result.value), int(result.samples))]  # replaced by that of rank 0
    torch.distributed.broadcast_object_list(broadcast, src=0)
    first_value, first_samples = broadcast[0]
    # Ranks compute the value from the same sums, but may round differently.
    is_same_value = math.isclose(result.value, first_value, rel_tol=1e-6, abs_tol=1e-12)
    if math.isnan(result.value) and math.isnan(first_value):
        is_same_value = True  # both have no quality
    if not is_same_value or result.samples != first_samples:
        raise ContradictionError(
            "evaluation_differs_over_ranks",
            rank=torch.distributed.get_rank(),
            first_rank=0,
            value=drop_non_finite(result.value),
            first=drop_non_finite(first_value),
            samples=result.samples,
            samples_first=first_samples,
        )


def agree_on_memory(
    plan: Plan, recipe: Any, vendor: Vendor, device: Device, data_dir: Path
) -> RankMemory | None:
    """Return the smallest memory of any rank, the same on each rank; None if it is unknown.

    All ranks must use the same number: each computes by it which rank holds which rows of embedding
    tables, and all ranks must come to the same placement.

    Args:
        data_dir: the folder of the data on this node.

    Raises:
        EnvironmentFault: the recipe needs more memory, which planning could not know. The error
            names the largest batch and number of layers that fit.
    """
    import torch

    memory = read_rank_memory(device, plan.nproc)
    # No rank waits below, because the memory is then unknown on all of them: their devices are of
    # one vendor, and each vendor reports the total memory of all its devices or of none.
    if memory is None:
        return None
    if plan.world_size > 1:
        min_bytes = device.place(torch.tensor(memory.rank_bytes))
        torch.distributed.all_reduce(min_bytes, torch.distributed.ReduceOp.MIN)
        memory = replace(memory, rank_bytes=int(min_bytes))
    # Planning asks the vendor for the memory of its own machine's devices. A run with node
    # processes is on other machines, of which planning knows no memory.
    planning_has_checked = plan.node_processes == 0 and vendor.rank_memory(plan.nproc) is not None
    if not planning_has_checked:
        # Raises if it does not fit; the predicted memory is not needed here.
        cases.check_fit(plan.case, data_dir, recipe, plan.world_size, memory)
    return memory
