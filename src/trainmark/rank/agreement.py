"""What the ranks of a run must share before training: package versions, and memory that fits.

Planning refuses a recipe where it knows the memory of devices; ranks do where only torch knows it.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainmark import cases
from trainmark.errors import RunError
from trainmark.train.step_memory import memory_of_rank

if TYPE_CHECKING:
    from trainmark.plan.plan import Plan
    from trainmark.protocols import Device, Vendor
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
    own = json.loads(described)
    sent = [own["packages"]]
    torch.distributed.broadcast_object_list(sent, src=0)
    first, here = sent[0], own["packages"]
    for name in sorted(first.keys() | here.keys()):
        if first.get(name) != here.get(name):
            raise RunError(
                "packages_differ",
                node=own["node"],
                package=name,
                here=here.get(name) or "absent",
                first=first.get(name) or "absent",
            )


def memory_that_fits(plan: Plan, recipe: Any, vendor: Vendor, device: Device) -> RankMemory | None:
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
        least = device.place(torch.tensor(memory.rank_bytes))
        torch.distributed.all_reduce(least, torch.distributed.ReduceOp.MIN)
        memory = replace(memory, rank_bytes=int(least))
    data = cases.part(plan.case, "data")
    if vendor.rank_memory(plan.nproc) is None and hasattr(data, "check_fit"):
        data.check_fit(Path(plan.data.folder), recipe, plan.world_size, memory)
    return memory
