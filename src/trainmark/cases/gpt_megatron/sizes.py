"""Compute the parameters and FLOPs that follow from a recipe of this case.

Records are checked against them, also without the events of the run.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from trainmark.train.step_memory import compute_next_token_flops, compute_next_token_sizes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trainmark.spec import Sizes

    from .case import GptRecipe


def find_sizes(recipe: GptRecipe, facts: Mapping[str, Any]) -> Sizes:
    """Return the facts that the job must report, and the formula of the model FLOPs.

    Args:
        facts: what the job reported; not used, because all sizes follow from the recipe.
    """
    del facts
    hidden = recipe.hidden_size
    tables = (recipe.padded_vocab_size + recipe.seq_length) * hidden
    # Of a block. Matrices, in units of hidden x hidden: query, key, value and result 4,
    # feed-forward layers 4 + 4. In units of hidden: biases of the same layers 3 + 1 and 4 + 1;
    # weight and bias of two norms.
    matrices = 12 * hidden**2
    biases_and_norms = (3 + 1 + 4 + 1) * hidden + 2 * 2 * hidden
    last_norm = 2 * hidden
    parameters = tables + recipe.num_layers * (matrices + biases_and_norms) + last_norm
    sizes = compute_next_token_sizes(parameters, compute_next_token_flops(recipe))
    return replace(sizes, facts={**sizes.facts, "padded_vocab_size": recipe.padded_vocab_size})
