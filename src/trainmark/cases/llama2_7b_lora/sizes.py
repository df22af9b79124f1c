"""Compute parameters and FLOPs from a recipe and the model's sizes in a record."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trainmark.spec import Sizes

from .case import parse_targets
from .estimates import compute_model_flops_per_token
from .model_files import PRESETS, ModelConfig, count_lora_parameters, count_parameters

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trainmark.protocols import Counts

    from .case import LlamaRecipe

SHOWN_SIZES = (
    "vocab_size",
    "hidden_size",
    "num_layers",
    "num_heads",
    "key_value_heads",
    "intermediate_size",
    "max_positions",
    "tie_embeddings",
)


def select_sizes(config: ModelConfig) -> dict[str, Any]:
    """Return the sizes of a model that a record contains."""
    return {name: getattr(config, name) for name in SHOWN_SIZES}


def find_sizes(recipe: LlamaRecipe, facts: Mapping[str, Any]) -> Sizes:
    """Return the expected facts and the FLOPs formula for ``recipe`` and the job's facts."""
    recorded = facts.get("model_config")
    if recorded is None:
        return Sizes({})
    aliases = {name: field.alias or name for name, field in ModelConfig.model_fields.items()}
    values = {aliases[name]: recorded[name] for name in SHOWN_SIZES}
    config = ModelConfig.model_validate({"model_type": "llama", **values})
    names = parse_targets(recipe)
    trained = count_lora_parameters(config, recipe.lora_rank, names)
    flops_per_token = compute_model_flops_per_token(
        config, rank=recipe.lora_rank, targets=names, seq_length=recipe.seq_length
    )

    def compute_flops(counts: Counts) -> float:
        return flops_per_token * counts.tokens_padded

    expected: dict[str, Any] = {
        "parameters": count_parameters(config) + trained,
        "trainable_parameters": trained,
    }
    if recipe.data == "generated":
        expected["model_config"] = select_sizes(PRESETS[recipe.model_size])
    return Sizes(expected, compute_flops)
