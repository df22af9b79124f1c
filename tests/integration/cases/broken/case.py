"""The toy case of which one function raises: the tests of errors in a case's own code."""

from __future__ import annotations

from dataclasses import dataclass, replace

from trainmark.cases.toy.case import CASE as TOY
from trainmark.recipe import Recipe, recipe_field


@dataclass(frozen=True, kw_only=True)
class BrokenRecipe(Recipe):
    broken: str = recipe_field("nothing", "name of the function that raises")
    raised: str = recipe_field("KeyError", "type of what it raises")


CASE = replace(
    TOY,
    name="broken",
    recipe_type=BrokenRecipe,
    data_fields=frozenset({"seed", "broken", "raised"}),
    recipes={
        "tiny": BrokenRecipe(
            data="generated",
            micro_batch_size=64,
            max_epochs=1,
            warmup_steps=2,
            window_steps=2,
            timeout_s=1_800.0,
        )
    },
)
