"""How DistilBERT is trained: the fields of its recipe."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from trainmark.recipe import PositiveInt, Recipe, recipe_field


@dataclass(frozen=True, kw_only=True)
class DistilbertRecipe(Recipe):
    """How DistilBERT is trained; its size comes from ``model/config.json`` in the data folder."""

    seq_length: PositiveInt = recipe_field(512, "tokens every sentence is padded to")
    init: Literal["pretrained", "random"] = recipe_field(
        "pretrained",
        "weights to start from; random: speed only, no quality to compare",
        rule="scope",
    )
