"""Compute the parameters and FLOPs that follow from a recipe of this case.

Records are checked against them, also without the events of the run.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from trainmark.train.step_memory import compute_next_token_sizes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trainmark.spec import Sizes

    from .case import GptOssRecipe


def find_sizes(recipe: GptOssRecipe, facts: Mapping[str, Any]) -> Sizes:
    """Return the expected facts and the FLOPs formula, which counts a token's own experts."""
    del facts  # the recipe has all sizes
    sizes = compute_next_token_sizes(recipe.parameters, recipe.flops_per_token)
    expert_facts = {"active_parameters": recipe.active_parameters, "routing": recipe.routing}
    return replace(sizes, facts={**sizes.facts, **expert_facts})
