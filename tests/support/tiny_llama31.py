"""A Llama 3.1 small enough to train in a test; apart from it because spawned ranks import it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from support.tiny_gpt import Split
from trainmark.cases.llama31_8b.case import Llama31Recipe
from trainmark.cases.llama31_8b.job import Llama31Job, build
from trainmark.devices.vendors.cpu import CpuDevice
from trainmark.protocols import JobContext

SAMPLES = 160  # 20 steps


def make_recipe(**changes: Any) -> Llama31Recipe:
    """Return the recipe of a small model with changes of its fields."""
    fields = {
        "num_layers": 2, "hidden_size": 32, "num_heads": 4, "num_kv_heads": 2, "ffn_size": 48,
        "seq_length": 12, "vocab_size": 100, "micro_batch_size": 8, "learning_rate": 1e-2,
        "lr_warmup_steps": 3, "lr_decay_steps": 20, "weight_decay": 0.1, "data": "generated",
        "kernels": "own",
    }  # fmt: skip
    return Llama31Recipe(**{**fields, **changes})


def new_job(*, rank: int = 0, world_size: int = 1, **changes: Any) -> Llama31Job:
    """Return the job of a rank on random tokens; ``changes``: of fields of the recipe."""
    context = JobContext(
        recipe=make_recipe(**changes),
        data_dir=Path(),
        rank=rank,
        world_size=world_size,
        device=CpuDevice(threads=1),
    )
    # Seven samples for validation are fewer than a usual micro-batch.
    return build(context, SimpleNamespace(train=Split(SAMPLES), validation=Split(7)))
