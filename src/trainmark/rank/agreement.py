"""What the ranks of a run must share: package versions, memory that fits, the quality.

Planning refuses a recipe where it knows the memory of devices; ranks do where only torch knows it.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainmark import cases
from trainmark.errors import ContradictionError, RunError
from trainmark.events.schema import drop_non_finite
from trainmark.train.step_memory import memory_of_rank

if TYPE_CHECKING:
    from trainmark.plan.plan import Plan
    from trainmark.protocols import Device, Evaluation, Vendor
    from trainmark.spec import RankMemory


def refuse_other_packages(described: str | None, nnodes: int) -> None:
    """Compare this node's package versions with those of rank 0's node.

    One broadcast: what is sent grows with the number of ranks, not with its square.

    Args:
        described: the node's number and package versions, as its node process tells them in JSON.

    Raises:
        RunError: they differ; names the first such package and both versions.
    """
    import torch

    if nnodes == 1:
        return
    assert described is not None, "ranks on several nodes are started by a node process"
    versions = json.loads(described)
    sent = [versions["packages"]]
    torch.distributed.broadcast_object_list(sent, src=0)
    first, here = sent[0], versions["packages"]
    for name in sorted(first.keys() | here.keys()):
        if first.get(name) != here.get(name):
            raise RunError(
                "packages_differ",
                node=versions["node"],
                package=name,
                here=here.get(name) or "absent",
                first=first.get(name) or "absent",
            )


def refuse_other_quality(world_size: int, result: Evaluation) -> None:
    """Compare an evaluation of this rank with that of rank 0: both are of all ranks.

    One broadcast; every rank must call it. Without it ranks that do not agree would go on to train
    different numbers of steps, and wait for each other until the time limit.

    Raises:
        ContradictionError: they differ: the scores were not added up over ranks.
    """
    import torch

    if world_size == 1:
        return
    sent = [(float(result.value), int(result.samples))]
    torch.distributed.broadcast_object_list(sent, src=0)
    value, samples = sent[0]
    same_value = math.isclose(result.value, value, rel_tol=1e-6, abs_tol=1e-12)
    if math.isnan(result.value) and math.isnan(value):
        same_value = True
    if not same_value or result.samples != samples:
        raise ContradictionError(
            "evaluation_differs_over_ranks",
            rank=torch.distributed.get_rank(),
            value=drop_non_finite(result.value),
            first=drop_non_finite(value),
            samples=result.samples,
            samples_first=samples,
        )


def agree_on_memory(plan: Plan, recipe: Any, vendor: Vendor, device: Device) -> RankMemory | None:
    """Return the least memory of all ranks, the same on each; None if devices do not tell it.

    Ranks that place tables by different figures would not find each other's rows.

    Raises:
        EnvironmentFault: the recipe needs more, and planning could not know; it names the
            largest batch and number of layers that fit.
    """
    import torch

    memory = memory_of_rank(device, plan.world_size)
    if memory is None:
        return None
    if plan.world_size > 1:
        min_bytes = device.place(torch.tensor(memory.rank_bytes))
        torch.distributed.all_reduce(min_bytes, torch.distributed.ReduceOp.MIN)
        memory = replace(memory, rank_bytes=int(min_bytes))
    if vendor.rank_memory(plan.nproc) is None:
        cases.check_fit(plan.case, Path(plan.data.folder), recipe, plan.world_size, memory)
    return memory
