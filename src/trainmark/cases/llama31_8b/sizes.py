"""Compute the parameters and FLOPs that follow from a recipe of this case.

Records are checked against them, also without the events of the run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trainmark.train.step_memory import compute_next_token_flops, compute_next_token_sizes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trainmark.spec import Sizes

    from .case import Llama31Recipe


def find_sizes(recipe: Llama31Recipe, facts: Mapping[str, Any]) -> Sizes:
    """Return the expected facts and the FLOPs formula for ``recipe``."""
    del facts  # the recipe has all sizes
    token_table = recipe.vocab_size * recipe.hidden_size
    norms = (2 * recipe.num_layers + 1) * recipe.hidden_size  # two in each block, and the last
    parameters = recipe.matmul_weights + token_table + norms
    return compute_next_token_sizes(parameters, compute_next_token_flops(recipe))
