"""Compute parameters and FLOPs from a recipe and the model's sizes in a record.

Records are checked against them, also without the events of the run.
"""

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
        return Sizes({})  # without the job's facts, nothing can be expected
    config = _rebuild_config(recorded)
    targets = parse_targets(recipe)
    num_trained = count_lora_parameters(config, recipe.lora_rank, targets)
    flops_per_token = compute_model_flops_per_token(
        config, rank=recipe.lora_rank, targets=targets, seq_length=recipe.seq_length
    )

    def compute_flops(counts: Counts) -> float:
        return flops_per_token * counts.tokens_padded  # the model also computes the padding

    expected: dict[str, Any] = {
        "parameters": count_parameters(config) + num_trained,
        "trainable_parameters": num_trained,
    }
    if recipe.data == "generated":  # then the model is a preset, not one of a folder
        expected["model_config"] = select_sizes(PRESETS[recipe.model_size])
    return Sizes(expected, compute_flops)


def _rebuild_config(recorded: Mapping[str, Any]) -> ModelConfig:
    """Return the model's config from its sizes in a record, as ``select_sizes`` chose them."""
    values: dict[str, Any] = {"model_type": "llama"}
    for name in SHOWN_SIZES:
        key = ModelConfig.model_fields[name].alias or name  # as in config.json
        values[key] = recorded[name]
    return ModelConfig.model_validate(values)
