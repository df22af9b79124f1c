"""Llama-2 with low-rank adapters on dialogue summaries, scored on MMLU; no torch here."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from trainmark.spec import Case, Mission, Text

from .recipe import TARGETS, LlamaRecipe

if TYPE_CHECKING:
    from trainmark.recipe import Precision


def _standard(world: str, precision: Precision, micro_batch_size: int) -> LlamaRecipe:
    """Return the published training: 3 epochs, then MMLU.

    With a 16-bit precision the frozen weights are stored in 16 bits too, so that batch 4 fits.
    """
    return LlamaRecipe(
        world=world, precision=precision, micro_batch_size=micro_batch_size,
        weights_dtype="fp32" if precision == "tf32" else precision,
        learning_rate=1e-4, max_epochs=3, eval_every_epochs=3, target_value=0.40,
        timeout_s=7 * 86_400.0,
    )  # fmt: skip


def _published(precision: Precision, micro_batch_size: int) -> LlamaRecipe:
    """Return a run of the founding page, a throughput figure: missing its target is a remark."""
    return replace(
        _standard("1x1", precision, micro_batch_size), mmlu_mode="legacy", target_required=False
    )


def _throughput(world: str, precision: Precision, micro_batch_size: int) -> LlamaRecipe:
    """Return a run that measures speed only: random weights and generated dialogues."""
    return LlamaRecipe(
        world=world, precision=precision, micro_batch_size=micro_batch_size,
        weights_dtype="fp32" if precision == "tf32" else precision, init="random",
        learning_rate=1e-4, max_epochs=1_000_000, max_steps=200, warmup_steps=20,
        eval_every_epochs=None, mmlu_mode="off", data="generated", timeout_s=3_600.0,
        target_required=False,
    )  # fmt: skip


CASE = Case(
    name="llama2_7b_lora",
    title=Text("Llama2-7B LoRA fine-tuning", "Llama2-7B LoRA 微调"),
    task=Text("Natural Language Understanding", "自然语言理解"),
    model="llama2_7b",
    dataset="samsum; MMLU",
    metric="mmlu",
    metric_note=Text(
        "share of MMLU questions answered correctly, micro average", "MMLU 回答准确率（micro 平均）"
    ),
    sample_note=Text(
        "seq_length tokens of dialogues with their summaries",
        "一段长 seq_length 个 token 的对话及其摘要",
    ),
    work_unit="tokens",
    mission=Mission("nlp", "llama2-7b-lora", "文本生成", 1),
    recipe_type=LlamaRecipe,
    recipes={
        "tiny": LlamaRecipe(
            data="generated",
            model_size="tiny",
            seq_length=192,
            shuffle=True,
            short_row="train",
            lora_rank=32,
            lora_alpha=32.0,
            lora_dropout=0.0,
            lora_targets=",".join(TARGETS),
            micro_batch_size=6,
            learning_rate=4e-3,
            max_grad_norm=1.0,
            max_epochs=8,
            target_value=0.75,
            timeout_s=600.0,
        ),
        "standard-1x1": _standard("1x1", "fp32", 2),
        "standard-1x8": _standard("1x8", "fp32", 2),
        "standard-bf16-1x1": _standard("1x1", "bf16", 4),
        "standard-bf16-1x8": _standard("1x8", "bf16", 4),
        "standard-fp16-1x1": _standard("1x1", "fp16", 4),
        "standard-fp16-1x8": _standard("1x8", "fp16", 4),
        "published-tf32-1x1": _published("tf32", 2),
        "published-fp16-1x1": _published("fp16", 4),
        "throughput-1x1": _throughput("1x1", "bf16", 4),
        "throughput-1x8": _throughput("1x8", "bf16", 4),
        "throughput-fp16-1x1": _throughput("1x1", "fp16", 4),
        "throughput-tf32-1x1": _throughput("1x1", "tf32", 2),
    },
    data_fields=frozenset({"seed", "init", "model_size"}),
    aliases=("llama", "llama2", "llama2_7b_finetune"),
    layers={"projection": (2048, 4096, 4096), "mlp": (2048, 4096, 11008)},  # at batch 4
)
