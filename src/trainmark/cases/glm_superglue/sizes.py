"""Compute the parameters and FLOPs that follow from a recipe of this case.

Records are checked against them, also without the events of the run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trainmark.spec import Sizes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trainmark.protocols import Counts

    from .case import GlmRecipe


def find_sizes(recipe: GlmRecipe, facts: Mapping[str, Any]) -> Sizes:
    """Return the facts that the job must report, and the formula of the model FLOPs.

    With trimmed padding there is no formula. The length of sequences then varies, and with it the
    FLOPs per token.

    Args:
        facts: what the job reported. Not used here, because all sizes follow from the recipe; other
            cases need it.
    """
    del facts
    shape = recipe.shape

    def compute_flops(counts: Counts) -> float:
        # Without trimming, all sequences are padded to the recipe's length.
        return shape.compute_flops_per_token(recipe.seq_length) * counts.tokens_padded

    expected = {"parameters": shape.parameters, "trainable_parameters": shape.parameters}
    return Sizes(expected, None if recipe.trim_padding else compute_flops)
