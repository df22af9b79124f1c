"""Llama-2 with low-rank adapters on dialogue summaries, scored on MMLU; no torch here."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le, Lt

from trainmark.errors import UsageError, suggest_nearest
from trainmark.recipe import (
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Recipe,
    recipe_field,
)
from trainmark.spec import Case, Mission, Text

TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")

_Weights = Literal["fp32", "bf16", "fp16"]
_Precision = Literal["fp32", "tf32", "bf16", "fp16"]


@dataclass(frozen=True, kw_only=True)
class LlamaRecipe(Recipe):
    """How adapters are trained; the model's sizes come from ``model/config.json``."""

    seq_length: PositiveInt = recipe_field(
        512, "tokens per sample; dialogues are packed into samples"
    )
    shuffle: bool = recipe_field(
        False,
        "shuffle the rows every epoch; false: keep the order of the files, as in the published "
        "results",
    )
    short_row: Literal["drop", "train"] = recipe_field(
        "drop",
        "what to do with the last training row if it is shorter than seq_length; drop: discard "
        "it, as in the published results; train: train on it",
    )
    lora_rank: Annotated[int, Gt(0), Le(65_536)] = recipe_field(8, "rank of the LoRA adapters")
    lora_alpha: PositiveFloat = recipe_field(
        32.0, "LoRA alpha; adapter outputs are scaled by alpha / rank"
    )
    lora_dropout: Annotated[float, Ge(0), Lt(1)] = recipe_field(
        0.05, "dropout probability for the inputs of the LoRA adapters"
    )
    lora_targets: str = recipe_field(
        "q_proj,v_proj", "linear layers in each block that get LoRA adapters"
    )
    lr_gamma: Annotated[float, Gt(0), Le(1)] = recipe_field(
        0.85, "factor applied to the learning rate after each epoch"
    )
    max_grad_norm: PositiveFloat | None = recipe_field(
        None, "maximum gradient norm; none: no clipping"
    )
    init: Literal["pretrained", "random"] = recipe_field(
        "pretrained",
        "frozen weights: loaded from model/, or random (to measure speed only)",
        rule="scope",
    )
    model_size: Literal["tiny", "1b", "7b", "7b-2layers", "13b"] = recipe_field(
        "7b", "size of the model that is generated with the data"
    )
    weights_dtype: _Weights = recipe_field(
        "fp32", "dtype of the frozen weights; adapters are always fp32", rule="closed"
    )
    checkpoint_activations: bool = recipe_field(
        False, "recompute blocks in the backward pass to save memory", rule="closed"
    )
    fsdp: bool = recipe_field(
        False, "shard parameters, gradients and optimizer state across ranks (FSDP2)", rule="closed"
    )
    mmlu_mode: Literal["full", "legacy", "off"] = recipe_field(
        "full",
        "full: evaluate MMLU with all shots; legacy: evaluate it as in the published results; "
        "off: skip MMLU",
        rule="scope",
    )
    mmlu_shots: NonNegativeInt = recipe_field(
        5, "number of few-shot examples before each MMLU question"
    )

    def check(self, world_size: int) -> None:
        """Refuse fields that contradict each other.

        Raises:
            UsageError: a field is invalid; the error has its rule and fix.
        """
        del world_size  # no rule depends on it
        parse_targets(self)  # refuses unknown names
        if self.seq_length < 2:
            raise UsageError(
                f"seq_length={self.seq_length} is too short",
                where="recipe field seq_length",
                rule="next-token prediction needs sequences of at least 2 tokens",
                fix="set seq_length to 2 or more, for example seq_length=512",
            )
        if self.weights_dtype not in ("fp32", self.precision):
            raise UsageError(
                f"weights_dtype={self.weights_dtype} cannot be used with "
                f"precision={self.precision}",
                where="recipe field weights_dtype",
                rule="weights_dtype must be fp32 or the same as precision",
                fix=f"add precision={self.weights_dtype}, or use weights_dtype=fp32",
            )
        if self.target_value is None:
            return
        if self.mmlu_mode == "off":
            raise self._make_target_error(
                "mmlu_mode", "off", "the target is an MMLU score, so MMLU must be scored"
            )
        # Generated data is allowed: its scores are never compared with published ones.
        if self.init == "random" and self.data != "generated":
            rule = "a run with random weights cannot reach a target; it can only measure speed"
            raise self._make_target_error("init", "random", rule)

    def _make_target_error(self, field: str, value: str, rule: str) -> UsageError:
        """Return the error for ``field=value`` with a target that the run can never reach."""
        return UsageError(
            f"target_value={self.target_value:g} cannot be reached with {field}={value}",
            where=f"recipe field {field}",
            rule=rule,
            fix="add target_value=none and eval_every_epochs=none",
        )


def parse_targets(recipe: LlamaRecipe) -> list[str]:
    """Return the names of the linear layers that get an adapter.

    Raises:
        UsageError: a name is not in ``TARGETS``, or is given twice.
    """
    names = recipe.lora_targets.split(",")
    for name in names:
        if name not in TARGETS:
            raise UsageError(
                f"there is no linear layer {name!r}",
                where="recipe field lora_targets",
                rule="layer names must be separated by commas, without spaces",
                fix=suggest_nearest(name, TARGETS),
            )
    if len(set(names)) < len(names):
        raise UsageError(
            f"lora_targets={recipe.lora_targets} lists a layer twice",
            where="recipe field lora_targets",
            fix="list each layer only once",
        )
    return names


SEED = 42  # of the published runs


def _make_standard_recipe(world: str, precision: _Precision, micro_batch_size: int) -> LlamaRecipe:
    """Return the published training: 3 epochs, then MMLU.

    With a 16-bit precision, frozen weights are stored in 16 bits too. This leaves memory for a
    larger micro-batch.

    Args:
        world: number of nodes and of ranks on each, as in ``1x8``.
    """
    return LlamaRecipe(
        seed=SEED,
        world=world,
        precision=precision,
        micro_batch_size=micro_batch_size,
        weights_dtype="fp32" if precision == "tf32" else precision,
        learning_rate=1e-4,
        max_epochs=3,
        eval_every_epochs=3,
        target_value=0.40,
        timeout_s=7 * 86_400.0,
    )


def _make_published_recipe(precision: _Precision, micro_batch_size: int) -> LlamaRecipe:
    """Return a recipe of FlagPerf's published results.

    A run that does not reach the target passes with a remark.
    """
    return replace(
        _make_standard_recipe("1x1", precision, micro_batch_size),  # one node with one rank
        mmlu_mode="legacy",  # its score can be compared with the published one
        target_required=False,
    )


def _make_throughput_recipe(
    world: str, precision: _Precision, micro_batch_size: int
) -> LlamaRecipe:
    """Return a recipe that measures only speed, with random weights and generated dialogues.

    Args:
        world: number of nodes and of ranks on each, as in ``1x8``.
    """
    return LlamaRecipe(
        seed=SEED,
        world=world,
        precision=precision,
        micro_batch_size=micro_batch_size,
        weights_dtype="fp32" if precision == "tf32" else precision,
        init="random",
        learning_rate=1e-4,
        max_epochs=1_000_000,  # more than any run reaches: ``max_steps`` ends it
        max_steps=200,
        warmup_steps=20,
        eval_every_epochs=None,
        mmlu_mode="off",
        data="generated",
        timeout_s=3_600.0,
        target_required=False,
    )


CASE = Case(
    name="llama2_7b_lora",
    title=Text("Llama2-7B LoRA fine-tuning", "Llama2-7B LoRA 微调"),
    task=Text("Natural Language Understanding", "自然语言理解"),
    model="llama2_7b",
    dataset="samsum; MMLU",
    metric="mmlu",
    metric_note=Text(
        "fraction of MMLU questions answered correctly, micro-average",
        "MMLU 题目的回答准确率（微平均）",
    ),
    sample_note=Text(
        "seq_length tokens of dialogues with their summaries",
        "一段长度为 seq_length 个 token 的对话及其摘要",
    ),
    work_unit="tokens",
    mission=Mission("nlp", "llama2-7b-lora", "文本生成", 1),
    recipe_type=LlamaRecipe,
    can_replay=True,
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
            timeout_s=1_800.0,
        ),
        "standard-1x1": _make_standard_recipe("1x1", "fp32", 2),
        "standard-1x8": _make_standard_recipe("1x8", "fp32", 2),
        "standard-bf16-1x1": _make_standard_recipe("1x1", "bf16", 4),
        "standard-bf16-1x8": _make_standard_recipe("1x8", "bf16", 4),
        "standard-fp16-1x1": _make_standard_recipe("1x1", "fp16", 4),
        "standard-fp16-1x8": _make_standard_recipe("1x8", "fp16", 4),
        "published-tf32-1x1": _make_published_recipe("tf32", 2),
        "published-fp16-1x1": _make_published_recipe("fp16", 4),
        "throughput-1x1": _make_throughput_recipe("1x1", "bf16", 4),
        "throughput-1x8": _make_throughput_recipe("1x8", "bf16", 4),
        "throughput-fp16-1x1": _make_throughput_recipe("1x1", "fp16", 4),
        "throughput-tf32-1x1": _make_throughput_recipe("1x1", "tf32", 2),
    },
    data_fields=frozenset({"seed", "init", "model_size"}),
    aliases=("llama", "llama2", "llama2_7b_finetune"),
)
