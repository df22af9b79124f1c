"""What follows from a recipe of this case."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trainmark.train.step_memory import next_token_flops, next_token_sizes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trainmark.spec import Sizes

    from .case import Llama31Recipe


def find_sizes(recipe: Llama31Recipe, facts: Mapping[str, Any]) -> Sizes:
    """Return what follows from ``recipe``."""
    del facts
    # The table beside the head, which the matrix products have, and the norms.
    hidden, layers = recipe.hidden_size, recipe.num_layers
    beside = recipe.vocab_size * hidden + (2 * layers + 1) * hidden
    return next_token_sizes(recipe.matmul_weights + beside, next_token_flops(recipe))
