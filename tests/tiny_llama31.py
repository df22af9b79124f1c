"""A Llama 3.1 small enough to train in a test, on one rank or on several real ones.

Apart from the tests because a spawned rank has to import it.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from tiny_gpt import Split, train
from trainmark.cases.llama31_8b.job import Llama31Job, build
from trainmark.cases.llama31_8b.recipe import Llama31Recipe
from trainmark.devices.vendors.cpu import CpuDevice
from trainmark.protocols import JobContext

SAMPLES = 40


def recipe(**changes: Any) -> Llama31Recipe:
    fields = {
        "num_layers": 2, "hidden_size": 32, "num_heads": 4, "num_kv_heads": 2, "ffn_size": 48,
        "seq_length": 12, "vocab_size": 100, "micro_batch_size": 8, "learning_rate": 1e-2,
        "lr_warmup_steps": 3, "lr_decay_steps": 20, "weight_decay": 0.1, "data": "generated",
        "kernels": "own",
    }  # fmt: skip
    return Llama31Recipe(**{**fields, **changes})


def new_job(*, rank: int = 0, world_size: int = 1, **changes: Any) -> Llama31Job:
    context = JobContext(
        recipe=recipe(**changes), data_dir=Path(), rank=rank, world_size=world_size,
        device=CpuDevice(threads=1),
    )  # fmt: skip
    return build(context, SimpleNamespace(train=Split(SAMPLES), validation=Split(7)))


def rank_main(rank: int, rendezvous: str, out: str, world_size: int, changes: Any) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=world_size
    )
    found = train(new_job(rank=rank, world_size=world_size, **changes))
    torch.save(found, f"{out}{rank}.pt")
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
