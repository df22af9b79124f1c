"""A GPT-2 shaped language model on Megatron's indexed tokens; no torch here."""

from __future__ import annotations

from pathlib import Path

from trainmark.spec import Case, Mission, PrepareOption, Text

from .recipe import GptRecipe


def _reproduction(micro_batch_size: int, precision: str, world: str) -> GptRecipe:
    """Return a run of the founding page: 200 steps, 20 of them skipped, speed only."""
    return GptRecipe(
        micro_batch_size=micro_batch_size, precision=precision, world=world,  # type: ignore[arg-type]
        learning_rate=1.5e-4, weight_decay=0.01, max_epochs=1_000_000, max_steps=200,
        warmup_steps=20, eval_every_epochs=None, timeout_s=900.0, data="generated",
    )  # fmt: skip


def _standard(world: str) -> GptRecipe:
    """Return the published training: 320,000 steps on a corpus of one's own."""
    return GptRecipe(
        micro_batch_size=8, world=world, learning_rate=1.5e-4, weight_decay=0.01,
        max_epochs=1_000_000, max_steps=320_000, timeout_s=30 * 86_400.0,
    )  # fmt: skip


CASE = Case(
    name="gpt_megatron",
    title=Text("GPT-2 pre-training, Megatron style", "GPT-2 预训练（Megatron）"),
    task=Text("Language Modelling", "语言模型"),
    model="gpt2",
    dataset="Megatron indexed tokens",
    metric="val_loss",
    metric_note=Text("validation cross-entropy, nats a token", "验证集交叉熵（nat/token）"),
    higher_is_better=False,
    sample_note=Text("one stretch of seq_length tokens", "一段连续的 seq_length 个 token"),
    work_unit="tokens",
    mission=Mission("nlp", "gpt", "语义表示", 1),
    recipe_type=GptRecipe,
    recipes={
        "tiny": GptRecipe(
            data="generated",
            num_layers=2,
            hidden_size=64,
            num_heads=2,
            seq_length=64,
            vocab_size=64,  # symbols of the generated language
            dropout=0.0,
            micro_batch_size=32,
            learning_rate=1e-2,
            min_learning_rate=1e-4,
            lr_decay_steps=1_400,
            lr_warmup_fraction=0.05,
            weight_decay=0.01,
            adam_beta2=0.95,
            max_epochs=6,
            target_value=1.77,
            timeout_s=300.0,
        ),
        "sp-bs8-fp32": _reproduction(8, "fp32", "1x1"),
        "sp-bs16-fp16": _reproduction(16, "fp16", "1x1"),
        "sp-bs16-bf16": _reproduction(16, "bf16", "1x1"),
        "mp-bs8-fp32": _reproduction(8, "fp32", "1x8"),
        "mp-bs16-fp16": _reproduction(16, "fp16", "1x8"),
        "mp-bs16-bf16": _reproduction(16, "bf16", "1x8"),
        "standard-1x1": _standard("1x1"),
        "standard-1x8": _standard("1x8"),
    },
    data_fields=frozenset({"seed", "vocab_size"}),
    prepare_options=(
        PrepareOption("tokenizer", Path, "folder of the tokenizer; always needed"),
        PrepareOption("text_key", str, "key of a line's text; default: text"),
        PrepareOption("workers", int, "processes; default: one a usable core", range(1, 513)),
    ),
    aliases=("gpt",),
    layers={"mlp": (8192, 768, 3072), "head": (8192, 768, 50304)},
)  # fmt: skip
