"""Call functions of importable modules on several real ranks, each a process of one thread."""

from __future__ import annotations

import multiprocessing
import os
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed as dist

from trainmark.rank.process_group import leave_ranks

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


# Most ranks need them, and importing them takes longer than most of the work.
_PRELOADED_MODULES = ["torch", "torch.distributed.fsdp", "torch.distributed.tensor.parallel"]


def call_on_ranks(ranks: int, place: Path, work: Callable[..., Any], *more: Any) -> list[Any]:
    """Call ``work(rank, *more)`` on each rank of a group; return what each call returned.

    The ranks are forked from a server process, which imports torch once for all calls.

    Args:
        ranks: how many.
        place: an empty folder, through which the ranks meet and return their results.
        work: a function of a module, with a result that ``torch.save`` can write.
        more: its arguments after the rank's number.
    """
    multiprocessing.set_forkserver_preload(_PRELOADED_MODULES)
    # The server process keeps the environment variables that it was started with.
    environment = dict(os.environ)
    torch.multiprocessing.start_processes(
        _work_on_rank,
        (environment, ranks, place, (work, *more)),
        nprocs=ranks,
        start_method="forkserver",
    )
    return [torch.load(place / f"rank{rank}.pt") for rank in range(ranks)]


def _work_on_rank(
    rank: int, environment: dict[str, str], ranks: int, place: Path, call: tuple[Any, ...]
) -> None:
    """Join the group as a rank, do the work, and save its result in the folder ``place``.

    Args:
        environment: all variables of the environment.
        call: the function to call, then its arguments after the rank.
    """
    os.environ.clear()
    os.environ.update(environment)
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{place}/rendezvous", rank=rank, world_size=ranks
    )
    work, *more = call
    torch.save(work(rank, *more), place / f"rank{rank}.pt")
    dist.barrier()  # no rank leaves while another one may still need it
    leave_ranks()
    # As a worker ends: in Python's usual exit, a thread of torch 2.11 that asks for Python's lock
    # aborts the process.
    os._exit(0)
