"""Llama 3.1 8B, pre-trained from random weights as MLPerf's small-LLM benchmark; no torch here."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from trainmark.spec import Case, Mission, PrepareOption, Text

from .recipe import Llama31Recipe


def _standard(world: str) -> Llama31Recipe:
    """Return the published training: a global batch of 32 sequences to a perplexity of e^3.3."""
    nodes, devices = (int(number) for number in world.split("x"))
    micro_batch_size = 2  # config_H200_1x8x1_8b.sh:69
    return Llama31Recipe(
        world=world, precision="bf16", micro_batch_size=micro_batch_size,
        grad_accum_steps=32 // (micro_batch_size * nodes * devices),  # :67, global batch 32
        learning_rate=5e-4, weight_decay=0.1, kernels="own",  # :70; NeMo, optim/adam.py
        checkpoint_activations="selective", max_epochs=100, max_steps=1_200_000,
        eval_every_epochs=None, eval_every_samples=12_288, target_value=3.3,  # :76; README.md
        shuffled_together=1_200_000 * 32,  # pretrain_llama31.py:436
        timeout_s=3 * 86_400.0,
    )  # fmt: skip


def _throughput(world: str, **fields: Any) -> Llama31Recipe:
    """Return a run that measures speed only, on generated text."""
    return replace(
        _standard(world), data="generated", max_steps=60, warmup_steps=20, eval_every_samples=None,
        timeout_s=3_600.0, target_value=None, shuffled_together=1, **fields,
    )  # fmt: skip


CASE = Case(
    name="llama31_8b",
    title=Text("Llama 3.1 8B pre-training", "Llama 3.1 8B 预训练"),
    task=Text("Language Modelling", "语言模型"),
    model="llama3.1_8b",
    dataset="C4 en, Megatron indexed tokens",
    metric="log_perplexity",
    metric_note=Text("validation log perplexity, nats a token", "验证集对数困惑度（nat/token）"),
    higher_is_better=False,
    sample_note=Text(
        "one stretch of seq_length tokens", "一段连续的 seq_length 个 token"
    ),
    work_unit="tokens",
    mission=Mission("nlp", "llama3.1-8b", "语义表示", 1),
    recipe_type=Llama31Recipe,
    recipes={
        "tiny": Llama31Recipe(
            data="generated", num_layers=4, hidden_size=256, num_heads=4, num_kv_heads=2,
            ffn_size=512, seq_length=128, vocab_size=256, eval_samples=256, micro_batch_size=16,
            learning_rate=3e-3, weight_decay=0.1, lr_warmup_steps=20, lr_decay_steps=320,
            max_epochs=1, eval_every_epochs=None, eval_every_samples=512, target_value=1.82,
            timeout_s=600.0,
        ),
        "standard-1x8": _standard("1x8"),
        "standard-2x8": _standard("2x8"),
        # Another model: as many layers as a card of 80 GB holds with their optimizer in fp32.
        "throughput-1x1-8-layers": _throughput("1x1", num_layers=8, grad_accum_steps=4),
        "throughput-1x8": _throughput("1x8"),
        "throughput-2x8": _throughput("2x8"),
    },
    data_fields=frozenset({"seed", "vocab_size", "seq_length"}),
    prepare_options=(
        PrepareOption("tokenizer", Path, "folder of Llama 3.1's tokenizer; always needed"),
        PrepareOption("workers", int, "processes; default: one a usable core", range(1, 513)),
    ),
    aliases=("llama3",),
    layers={"mlp": (16_384, 4096, 14_336), "head": (16_384, 4096, 128_256)},
)  # fmt: skip
