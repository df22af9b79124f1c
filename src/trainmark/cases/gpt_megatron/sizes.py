"""Compute the parameters and FLOPs that follow from a recipe of this case."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from trainmark.train.step_memory import compute_next_token_flops, compute_next_token_sizes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trainmark.spec import Sizes

    from .case import GptRecipe


def find_sizes(recipe: GptRecipe, facts: Mapping[str, Any]) -> Sizes:
    """Return the expected facts and the FLOPs formula for ``recipe``."""
    del facts
    hidden, layers = recipe.hidden_size, recipe.num_layers
    tables = (recipe.padded_vocab_size + recipe.seq_length) * hidden
    blocks = layers * (12 * hidden**2 + 13 * hidden)  # biases 3 + 1 + 4 + 1, norms 4
    parameters = tables + blocks + 2 * hidden
    sizes = compute_next_token_sizes(parameters, compute_next_token_flops(recipe))
    return replace(sizes, facts={**sizes.facts, "padded_vocab_size": recipe.padded_vocab_size})
