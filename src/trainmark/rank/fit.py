"""The memory that the ranks of a run have, and the refusal of a recipe that needs more.

Planning refuses where it knows the memory of devices; this is for where only torch knows it.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainmark import cases
from trainmark.train.step_memory import memory_of_rank

if TYPE_CHECKING:
    from trainmark.plan.plan import Plan
    from trainmark.protocols import Device, Vendor
    from trainmark.spec import RankMemory


def agreed_memory(device: Device, world_size: int) -> RankMemory | None:
    """Return the least memory of all ranks, the same on each; None if devices do not tell it.

    Ranks that place tables by different figures would not find each other's rows.
    """
    import torch

    found = memory_of_rank(device, world_size)
    if found is None or world_size == 1:
        return found
    least = device.place(torch.tensor(found.rank_bytes))
    torch.distributed.all_reduce(least, torch.distributed.ReduceOp.MIN)
    return replace(found, rank_bytes=int(least))


def memory_that_fits(plan: Plan, recipe: Any, vendor: Vendor, device: Device) -> RankMemory | None:
    """Return the memory that all ranks have, the same on each; None if devices do not tell it.

    Raises:
        EnvironmentFault: the recipe needs more, and planning could not know; it names a recipe
            that fits.
    """
    memory = agreed_memory(device, plan.world_size)
    data = cases.part(plan.case, "data")
    unchecked = vendor.rank_memory(plan.nproc) is None and hasattr(data, "check_fit")
    if memory is not None and unchecked:
        data.check_fit(Path(plan.data.folder), recipe, plan.world_size, memory)
    return memory
