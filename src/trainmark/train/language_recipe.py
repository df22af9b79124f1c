"""The recipe fields that language models pre-trained on indexed tokens share; no torch here.

A case adds its feed-forward layers and overrides the defaults that its reference has otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from annotated_types import Ge, Gt, Le, Lt

from trainmark.errors import UsageError
from trainmark.recipe import NonNegativeFloat, PositiveFloat, PositiveInt, Recipe, recipe_field

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


@dataclass(frozen=True, kw_only=True)
class LanguageRecipe(Recipe):
    """Sizes of the model, AdamW with a cosine, and how replicas are sharded and recomputed."""

    num_layers: Annotated[int, Gt(0), Le(10_000)] = recipe_field(
        32, "transformer blocks; other numbers are other models", rule="scope"
    )
    hidden_size: PositiveInt = recipe_field(4096, "width of the residual stream")
    num_heads: PositiveInt = recipe_field(32, "attention heads")
    num_kv_heads: PositiveInt = recipe_field(8, "heads of keys and values")
    seq_length: PositiveInt = recipe_field(8192, "tokens of a sample")
    vocab_size: PositiveInt = recipe_field(128_256, "rows of the token table")
    eval_samples: PositiveInt = recipe_field(
        1024, "sequences that an evaluation scores, the first of the validation data", rule="scope"
    )
    shuffled_together: PositiveInt = recipe_field(
        1, "as many epochs as hold so many samples are shuffled together", rule="scope"
    )
    adam_beta2: Annotated[float, Ge(0), Lt(1)] = recipe_field(0.95, "second moment's decay")
    adam_eps: PositiveFloat = recipe_field(1e-5, "added to the second moment's root")
    max_grad_norm: PositiveFloat | None = recipe_field(1.0, "clip gradients to it; none: no clip")
    min_lr_fraction: NonNegativeFloat = recipe_field(0.1, "where the cosine ends, of the peak rate")
    lr_warmup_steps: PositiveInt = recipe_field(512, "steps with a linearly rising learning rate")
    lr_decay_steps: PositiveInt = recipe_field(1_200_000, "steps of warm-up and cosine together")
    fsdp: bool = recipe_field(
        True, "shard parameters, gradients and optimizer over replicas (FSDP2)", rule="closed"
    )
    checkpoint_activations: Literal["none", "selective", "full"] = recipe_field(
        "none",
        "recompute in the backward pass: full blocks, or all of a block but matmuls and attention",
        rule="closed",
    )
    checkpoint_every_steps: PositiveInt | None = recipe_field(
        None,
        "optimizer steps between two checkpoints of the training; none: none is saved",
        rule="closed",
    )


def refuse_undivided(pairs: Iterable[tuple[str, int, str, int]], rule: str) -> None:
    """Refuse a number that must divide another one and does not.

    Args:
        pairs: recipe field and its value, what it must divide and its size.

    Raises:
        UsageError: naming the field and what it must divide.
    """
    for name, value, of, whole in pairs:
        if whole % value:
            raise UsageError(
                f"{name}={value} does not divide {of} {whole}",
                where=f"recipe field {name}",
                rule=rule,
                fix=f"use a divisor of {whole}",
            )


def mlperf_keys(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Return what MLPerf's rulesets of language models ask of a log beside what every log has."""
    return {
        "max_sequence_length": recipe["seq_length"],
        "max_steps": recipe["max_steps"],
        "opt_name": "adamw",
        "opt_end_learning_rate": recipe["learning_rate"] * recipe["min_lr_fraction"],
        "opt_learning_rate_warmup_steps": recipe["lr_warmup_steps"],
        "opt_learning_rate_decay_steps": recipe["lr_decay_steps"] - recipe["lr_warmup_steps"],
        "opt_learning_rate_decay_schedule": "cosine with linear warmup",
        "opt_adamw_beta_1": 0.9,  # torch's default, which jobs leave
        "opt_adamw_beta_2": recipe["adam_beta2"],
        "opt_adamw_epsilon": recipe["adam_eps"],
        "opt_adamw_weight_decay": recipe["weight_decay"],
        "opt_gradient_clip_norm": recipe["max_grad_norm"],
    }
