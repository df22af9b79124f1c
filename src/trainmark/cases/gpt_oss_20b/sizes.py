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
    """Return the values that the job's facts must have, and the formula of the model FLOPs.

    The formula counts the experts that a token uses.

    Args:
        facts: what the job reported; not used, because all sizes follow from the recipe.
    """
    del facts
    sizes = compute_next_token_sizes(recipe.parameters, recipe.flops_per_token)
    expert_facts = {"active_parameters": recipe.active_parameters, "routing": recipe.routing}
    return replace(sizes, facts={**sizes.facts, **expert_facts})
