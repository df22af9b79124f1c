"""The toy case with a fault planted at one rank and step: what the fault tests run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from trainmark.cases.toy.case import CASE as TOY
from trainmark.recipe import PositiveInt, Recipe, recipe_field


@dataclass(frozen=True, kw_only=True)
class FaultyRecipe(Recipe):
    fault: Literal[
        "hide_child",
        "none",
        "raise",
        "wait",
        "hold",
        "spin",
        "oom",
        "nan",
        "evaluation_not_reduced",
        "evaluation_of_training_rows",
        "evaluation_without_last_batch",
        "evaluation_of_batch_means",
        "evaluation_silent",
    ] = recipe_field("none", "what goes wrong")
    fault_rank: int = recipe_field(0, "on which rank")
    fault_step: PositiveInt = recipe_field(15, "before which step")


CASE = replace(
    TOY,
    name="faulty",
    recipe_type=FaultyRecipe,
    recipes={
        "tiny": FaultyRecipe(
            data="generated",
            micro_batch_size=64,
            max_epochs=1,
            warmup_steps=2,
            window_steps=2,
            timeout_s=1_800.0,
        )
    },
)
