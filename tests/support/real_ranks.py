"""Call functions of importable modules on several real ranks, each a process of one thread."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed as dist

from trainmark.rank.process_group import leave_ranks

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def call_on_ranks(ranks: int, place: Path, work: Callable[..., Any], *more: Any) -> list[Any]:
    """Call ``work(rank, *more)`` on each rank of a group; return what each call returned.

    Args:
        place: an empty folder.
    """
    torch.multiprocessing.spawn(_work_on_rank, (ranks, place, work, more), nprocs=ranks)
    return [torch.load(place / f"rank{rank}.pt") for rank in range(ranks)]


def _work_on_rank(rank: int, ranks: int, place: Path, work: Callable[..., Any], more: Any) -> None:
    """Join the group as a rank, do the work, and save its result in the folder ``place``."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{place}/rendezvous", rank=rank, world_size=ranks
    )
    torch.save(work(rank, *more), place / f"rank{rank}.pt")
    dist.barrier()  # no rank leaves while another one may still need it
    leave_ranks()
    # As a worker ends: in Python's usual exit, a thread of torch 2.11 that asks for Python's lock
    # aborts the process.
    os._exit(0)
