"""A GPT-OSS small enough to train in a test; apart from it because spawned ranks import it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from support.tiny_gpt import Split
from trainmark.cases.gpt_oss_20b.case import GptOssRecipe
from trainmark.cases.gpt_oss_20b.job import GptOssJob, build
from trainmark.devices.vendors.cpu import CpuDevice
from trainmark.protocols import JobContext

SAMPLES = 160  # 20 steps


def make_recipe(**changes: Any) -> GptOssRecipe:
    """Return the recipe of a small model with changes of its fields."""
    fields = {
        "num_layers": 2, "hidden_size": 32, "num_heads": 4, "num_kv_heads": 2, "head_dim": 16,
        "sliding_window": 5, "num_experts": 8, "top_k": 2, "ffn_size": 48, "seq_length": 12,
        "vocab_size": 100, "micro_batch_size": 8, "learning_rate": 1e-2, "lr_warmup_steps": 3,
        "lr_decay_steps": 20, "weight_decay": 0.1, "data": "generated", "kernels": "own",
    }  # fmt: skip
    return GptOssRecipe(**{**fields, **changes})


def new_job(*, rank: int = 0, world_size: int = 1, **changes: Any) -> GptOssJob:
    """Return the job of a rank on random tokens; ``changes``: of fields of the recipe.

    ``SAMPLES``, 160, are trained in an epoch: on one rank 20 steps of 8. ``Split`` makes random
    tokens of so many samples.
    """
    context = JobContext(
        recipe=make_recipe(**changes),
        data_dir=Path(),
        rank=rank,
        world_size=world_size,
        device=CpuDevice(threads=1),
    )
    # Seven samples for validation are fewer than a usual micro-batch.
    return build(context, SimpleNamespace(train=Split(SAMPLES), validation=Split(7)))
