"""Llama-2 with low-rank adapters on dialogue summaries, scored on MMLU; no torch here."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

from annotated_types import Ge, Gt, Le, Lt

from trainmark.errors import UsageError, nearest
from trainmark.spec import (
    Case,
    DataFacts,
    Mission,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Precision,
    Recipe,
    Text,
    recipe_field,
)

if TYPE_CHECKING:
    from pathlib import Path

    from trainmark.spec import RankMemory

TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


@dataclass(frozen=True, kw_only=True)
class LlamaRecipe(Recipe):
    """How adapters are trained; the model's shape comes from ``model/config.json``."""

    seq_length: PositiveInt = recipe_field(512, "tokens of a sample, dialogues packed into it")
    shuffle: bool = recipe_field(
        False, "train rows in a new order each epoch; false: in the files' order, as published"
    )
    short_row: Literal["drop", "train"] = recipe_field(
        "drop", "training's last row, shorter than seq_length: left out as published, or trained"
    )
    lora_rank: Annotated[int, Gt(0), Le(65_536)] = recipe_field(8, "rank of an adapter")
    lora_alpha: PositiveFloat = recipe_field(32.0, "an adapter's output is scaled by alpha / rank")
    lora_dropout: Annotated[float, Ge(0), Lt(1)] = recipe_field(
        0.05, "probability of dropping an adapter's input"
    )
    lora_targets: str = recipe_field("q_proj,v_proj", "linear layers of a block with an adapter")
    lr_gamma: Annotated[float, Gt(0), Le(1)] = recipe_field(
        0.85, "factor on the learning rate after each epoch"
    )
    max_grad_norm: PositiveFloat | None = recipe_field(None, "clip gradients to it; none: no clip")
    init: Literal["pretrained", "random"] = recipe_field(
        "pretrained", "frozen weights: of model/, or random, then about speed only", rule="scope"
    )
    model_size: str = recipe_field("7b", "shape of the model that is generated with the data")
    weights_dtype: Literal["fp32", "bf16", "fp16"] = recipe_field(
        "fp32", "type of the frozen weights; adapters stay fp32", rule="closed"
    )
    checkpoint_activations: bool = recipe_field(
        False, "recompute blocks in the backward pass to save memory", rule="closed"
    )
    fsdp: bool = recipe_field(
        False, "shard parameters, gradients and optimizer over ranks (FSDP2)", rule="closed"
    )
    cross_document: Literal["attend", "separate"] = recipe_field(
        "attend", "whether a token sees the dialogues packed before its own"
    )
    mmlu_mode: Literal["full", "legacy", "off"] = recipe_field(
        "full", "score MMLU with all shots, as the published page did, or not at all", rule="scope"
    )
    mmlu_shots: NonNegativeInt = recipe_field(5, "solved examples before an MMLU question")


def targets(recipe: LlamaRecipe) -> list[str]:
    """Return the names of the linear layers that get an adapter.

    Raises:
        UsageError: a name that is none of ``TARGETS``, or one given twice.
    """
    names = recipe.lora_targets.split(",")
    strange = next((name for name in names if name not in TARGETS), None)
    if strange is not None:
        raise UsageError(
            f"no linear layer is called {strange!r}",
            where="recipe field lora_targets",
            rule="names with commas between, no spaces",
            remedy=nearest(strange, TARGETS),
        )
    if len(set(names)) < len(names):
        raise UsageError(
            f"{recipe.lora_targets} names a layer twice",
            where="recipe field lora_targets",
            remedy="name it once",
        )
    return names


def check_recipe(recipe: LlamaRecipe, world_size: int) -> None:
    """Refuse fields that contradict each other.

    Raises:
        UsageError: naming the field, its rule and the way out.
    """
    from .model_files import PRESETS

    del world_size
    targets(recipe)
    if recipe.seq_length < 2:
        raise UsageError(
            f"seq_length={recipe.seq_length}",
            where="recipe field seq_length",
            rule="a token is foretold from those before it: at least 2",
            remedy="add seq=512",
        )
    if recipe.model_size not in PRESETS:
        raise UsageError(
            f"unknown model_size {recipe.model_size!r}",
            where="recipe field model_size",
            remedy=nearest(recipe.model_size, PRESETS),
        )
    if recipe.weights_dtype not in ("fp32", recipe.precision):
        raise UsageError(
            f"weights_dtype={recipe.weights_dtype} with precision={recipe.precision}",
            where="recipe field weights_dtype",
            rule="frozen weights are fp32, or of the type that is multiplied in",
            remedy=f"add precision={recipe.weights_dtype}, or leave weights_dtype at fp32",
        )
    if recipe.target_value is None:
        return
    for field, value, why in (
        ("mmlu_mode", "off", "the target is a score on MMLU"),
        ("init", "random", "random weights know no answers: such a run is about speed"),
    ):
        if getattr(recipe, field) == value and (field, recipe.data) != ("init", "generated"):
            raise UsageError(
                f"{field}={value} with target_value={recipe.target_value:g}",
                where=f"recipe field {field}",
                rule=why,
                remedy="add target=none eval_every_epochs=none",
            )


def generate(folder: Path, recipe: LlamaRecipe) -> None:
    """Write dialogues, questions and a model; see ``generate.generate``."""
    from .generate import generate as write

    write(folder, recipe)


def check_data(folder: Path, recipe: LlamaRecipe) -> DataFacts:
    """Check every file that ``recipe`` reads; see ``data.check``."""
    from .data import check

    return check(folder, recipe)


def check_fit(folder: Path, recipe: LlamaRecipe, world_size: int, memory: RankMemory) -> None:
    """Refuse what a rank with ``memory`` cannot hold; see ``memory.refuse_too_little``."""
    from .data import MODEL
    from .memory import refuse_too_little
    from .model_files import read_config

    refuse_too_little(read_config(folder / MODEL), recipe, world_size, memory.rank_bytes)


def prepare(raw: Path, data: Path, say: Any, **options: Any) -> None:
    """Turn raw downloads into the case's folder; see ``prepare.prepare``."""
    from .prepare import prepare as run

    run(raw, data, say, **options)


def _standard(world: str, precision: Precision, micro_batch_size: int) -> LlamaRecipe:
    """Return the published training: 3 epochs, then MMLU.

    In 16 bits the frozen weights are held in 16 bits too, which is what lets batch 4 fit.
    """
    return LlamaRecipe(
        world=world, precision=precision, micro_batch_size=micro_batch_size,
        weights_dtype="fp32" if precision == "tf32" else precision,
        learning_rate=1e-4, max_epochs=3, eval_every_epochs=3, target_value=0.40,
        timeout_s=7 * 86_400.0,
    )  # fmt: skip


def _published(precision: Precision, micro_batch_size: int) -> LlamaRecipe:
    """Return a run of the founding page, which is about throughput: MMLU is a remark there."""
    return replace(
        _standard("1x1", precision, micro_batch_size), mmlu_mode="legacy", target_required=False
    )


def _throughput(world: str, precision: Precision, micro_batch_size: int) -> LlamaRecipe:
    """Return a run for speed alone: random weights of the published shape, made-up dialogues."""
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
        "share of MMLU questions answered rightly, micro average", "MMLU 回答准确率（micro 平均）"
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
    generate=generate,
    data_fields=frozenset({"seed", "init", "model_size"}),
    check_recipe=check_recipe,
    check_data=check_data,
    check_fit=check_fit,
    prepare=prepare,
    aliases=("llama", "llama2", "llama2_7b_finetune"),
)
