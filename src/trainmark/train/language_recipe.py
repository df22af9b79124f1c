"""The recipe fields that language models pre-trained on indexed tokens share, without torch.

A case adds its feed-forward layers and overrides defaults. Also has the facts that all cases on C4
share, and the recipes that they derive in the same way.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, TypeVar

from annotated_types import Ge, Gt, Le, Lt

from trainmark.errors import UsageError
from trainmark.recipe import NonNegativeFloat, PositiveFloat, PositiveInt, Recipe, recipe_field
from trainmark.spec import Case, PrepareOption, Text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from trainmark.spec import Mission


@dataclass(frozen=True, kw_only=True)
class LanguageRecipe(Recipe):
    """Sizes of the model, AdamW with a cosine, and how replicas are sharded and recomputed."""

    num_layers: Annotated[int, Gt(0), Le(10_000)] = recipe_field(
        32, "number of transformer blocks; another number makes a different model", rule="scope"
    )
    hidden_size: PositiveInt = recipe_field(4096, "width of the residual stream")
    num_heads: PositiveInt = recipe_field(32, "attention heads")
    num_kv_heads: PositiveInt = recipe_field(8, "number of key and value heads")
    seq_length: PositiveInt = recipe_field(8192, "tokens per sample")
    vocab_size: PositiveInt = recipe_field(128_256, "rows of the token embedding table")
    eval_samples: PositiveInt = recipe_field(
        1024,
        "number of sequences per evaluation, taken from the start of the validation data",
        rule="scope",
    )
    shuffled_together: PositiveInt = recipe_field(
        1, "number of samples to shuffle together, rounded up to whole epochs", rule="scope"
    )
    adam_beta2: Annotated[float, Ge(0), Lt(1)] = recipe_field(
        0.95, "decay rate of Adam's second-moment estimate"
    )
    adam_eps: PositiveFloat = recipe_field(
        1e-5, "Adam's epsilon, added to the square root of the second-moment estimate"
    )
    max_grad_norm: PositiveFloat | None = recipe_field(
        1.0, "maximum gradient norm; none: no clipping"
    )
    min_lr_fraction: NonNegativeFloat = recipe_field(
        0.1, "learning rate at the end of the cosine decay, relative to the peak"
    )
    lr_warmup_steps: PositiveInt = recipe_field(
        512, "steps over which the learning rate rises linearly"
    )
    lr_decay_steps: PositiveInt = recipe_field(
        1_200_000, "total number of warm-up and cosine decay steps"
    )
    fsdp: bool = recipe_field(
        True,
        "shard parameters, gradients and optimizer state across replicas (FSDP2)",
        rule="closed",
    )
    checkpoint_activations: Literal["none", "selective", "full"] = recipe_field(
        "none",
        "what to recompute in the backward pass; selective: everything in a block except matmuls "
        "and attention; full: whole blocks",
        rule="closed",
    )
    checkpoint_every_steps: PositiveInt | None = recipe_field(
        None,
        "optimizer steps between two checkpoints; none: no checkpoints",
        rule="closed",
    )


LanguageRecipeType = TypeVar("LanguageRecipeType", bound=LanguageRecipe)

# Fields of a small model's recipe on generated text, whose entropy is 1.690 nats per token.
TINY_TRAINING: dict[str, Any] = {
    "data": "generated",
    "seq_length": 128,
    "vocab_size": 64,
    "eval_samples": 256,
    "micro_batch_size": 16,
    "learning_rate": 1.5e-2,
    "weight_decay": 0.1,
    "lr_warmup_steps": 20,
    "lr_decay_steps": 320,
    "max_epochs": 1,
    "eval_every_epochs": None,
    "eval_every_samples": 512,
    "target_value": 1.84,
    "timeout_s": 1_800.0,
}


def make_throughput_recipe(recipe: LanguageRecipeType, **fields: Any) -> LanguageRecipeType:
    """Return ``recipe`` changed to measure only speed: generated text, few steps, no target.

    Args:
        fields: further fields of the recipe that change.
    """
    return replace(
        recipe,
        data="generated",
        max_steps=60,  # of which 40 follow the warm-up
        warmup_steps=20,
        eval_every_samples=None,
        timeout_s=3_600.0,
        target_value=None,
        # The number of samples to shuffle together is rounded up to whole epochs, so 1 stands for
        # one epoch. To shuffle the samples of a whole training together takes a large index, of
        # which these few steps would use little.
        shuffled_together=1,
        **fields,
    )


def make_case(
    name: str,
    *,
    title: Text,
    model: str,
    mission: Mission,
    recipes: Mapping[str, LanguageRecipe],
    **fields: Any,
) -> Case:
    """Return a case that trains a language model on C4.

    Args:
        model: name of the model, for the record.
        mission: names and codes of the case in the JSON record, the file that collections of
            results import.
        recipes: recipes of one type by name; the first is the case's default.
        fields: further fields of ``Case``.
    """
    return Case(
        name=name,
        title=title,
        task=Text("Language Modelling", "语言模型"),
        model=model,
        dataset="C4 en, Megatron indexed tokens",
        metric="log_perplexity",
        metric_note=Text(
            "validation log perplexity in nats per token", "验证集对数困惑度（nat/token）"
        ),
        higher_is_better=False,
        sample_note=Text(
            "one contiguous sequence of seq_length tokens",
            "一段连续文本，长度为 seq_length 个 token",
        ),
        work_unit="tokens",
        mission=mission,
        recipe_type=type(next(iter(recipes.values()))),
        recipes=recipes,
        # Fields of the recipe on which generated data depends.
        data_fields=frozenset({"seed", "vocab_size", "seq_length"}),
        prepare_options=(
            PrepareOption(
                "tokenizer", Path, "folder of Llama 3.1's tokenizer; required", required=True
            ),
            PrepareOption(
                "workers",
                int,
                "number of processes; default: one per usable core",
                choices=range(1, 513),
            ),
        ),
        **fields,
    )


class Division(NamedTuple):
    """A recipe field that must divide another number without remainder.

    Args:
        field: name of the recipe field.
        divisor: its value.
        dividend_name: what the other number is, for the error.
        dividend: the other number.
    """

    field: str
    divisor: int
    dividend_name: str
    dividend: int


def refuse_undivided(divisions: Iterable[Division], rule: str) -> None:
    """Refuse the first recipe field that does not divide its number without remainder.

    Args:
        divisions: each the name and value of a field, and the name and value of the number that
            the field must divide.
        rule: why the fields must divide these numbers, for the error.

    Raises:
        UsageError: with the names of both numbers.
    """
    for field, divisor, dividend_name, dividend in divisions:
        if dividend % divisor:
            raise UsageError(
                f"{field}={divisor} does not divide {dividend_name} ({dividend})",
                where=f"recipe field {field}",
                rule=rule,
                fix=f"use a divisor of {dividend}",
            )


def list_mlperf_keys(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Return what MLPerf's rulesets of language models require in a log: keys and their values."""
    return {
        "max_sequence_length": recipe["seq_length"],
        "max_steps": recipe["max_steps"],
        "opt_name": "adamw",
        "opt_end_learning_rate": recipe["learning_rate"] * recipe["min_lr_fraction"],
        "opt_learning_rate_warmup_steps": recipe["lr_warmup_steps"],
        # MLPerf counts from the end of the warm-up, the recipe from the first step.
        "opt_learning_rate_decay_steps": recipe["lr_decay_steps"] - recipe["lr_warmup_steps"],
        "opt_learning_rate_decay_schedule": "cosine with linear warmup",
        "opt_adamw_beta_1": 0.9,  # the same in all jobs: no recipe field
        "opt_adamw_beta_2": recipe["adam_beta2"],
        "opt_adamw_epsilon": recipe["adam_eps"],
        "opt_adamw_weight_decay": recipe["weight_decay"],
        "opt_gradient_clip_norm": recipe["max_grad_norm"],
    }
