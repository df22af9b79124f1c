"""Compute the parameters and FLOPs that follow from a recipe of this case.

Records are checked against them, also without the events of the run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trainmark.spec import Sizes

from .data import FEATURES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trainmark.recipe import Recipe

HIDDEN = 32  # width of the hidden layer
CLASSES = 2


def find_sizes(recipe: Recipe, facts: Mapping[str, Any]) -> Sizes:
    """Return the facts that the job must report; every model of this case has the same size.

    Args:
        recipe, facts: the run's recipe, and what the job reported; no size depends on them.
    """
    del recipe, facts
    first_layer = (FEATURES + 1) * HIDDEN  # weights and biases
    second_layer = (HIDDEN + 1) * CLASSES
    return Sizes({"parameters": first_layer + second_layer})
