"""The recipe of the case: its fields, what they must not be, and what follows from them.

Owns the rules of the layers' widths. Imports no other module of the case.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from trainmark.errors import UsageError
from trainmark.recipe import NonNegativeInt, PositiveInt, Recipe, recipe_field

WIDTH = re.compile("0*[1-9][0-9]{0,11}")


@dataclass(frozen=True, kw_only=True)
class DlrmRecipe(Recipe):
    """How the model is shaped, trained and cut over ranks."""

    embedding_dim: PositiveInt = recipe_field(128, "numbers of an embedding row")
    bottom_layers: str = recipe_field(
        "512,256,128", "widths of the bottom MLP; the last is embedding_dim"
    )
    top_layers: str = recipe_field(
        "1024,1024,512,256,1", "widths of the top MLP; the last is 1, the logit"
    )
    max_table_rows: PositiveInt | None = recipe_field(
        None, "rows of a table at most, larger ones are folded by remainder; none: as the data"
    )
    warmup_lr_steps: NonNegativeInt = recipe_field(
        8_000, "steps with a linearly rising learning rate"
    )
    decay_start_step: NonNegativeInt = recipe_field(
        48_000, "step from which the learning rate falls to 0 as a square"
    )
    decay_steps: PositiveInt = recipe_field(24_000, "steps that fall takes")
    shuffle_batches: bool = recipe_field(
        False, "train batches in random order; rows stay in theirs", rule="closed"
    )

    def check(self, world_size: int) -> None:
        """Refuse what tables updated within the backward pass cannot do.

        Raises:
            UsageError: naming the field and its rule.
        """
        del world_size
        layers(self)
        for field, plain in (("grad_accum_steps", 1), ("weight_decay", 0.0), ("compile", False)):
            if getattr(self, field) != plain:
                raise UsageError(
                    f"{field}={str(getattr(self, field)).lower()} does not go with fused tables",
                    where=f"recipe field {field}",
                    rule="each backward pass updates the rows it looked up, plain SGD, uncompiled",
                    remedy=f"leave {field} at {str(plain).lower()}",
                )


def widths(words: str, *, field: str, last: int) -> list[int]:
    """Return a list of layer widths from text such as ``512,256,128``.

    Raises:
        UsageError: a width is not a whole number above 0, or the last one is not ``last``.
    """
    rule = f"whole numbers above 0 with commas between, ending in {last}"
    parts = words.split(",")
    if not all(WIDTH.fullmatch(part) for part in parts):
        raise UsageError(
            f"{words!r} is no list of widths", where=f"recipe field {field}", rule=rule
        )
    found = [int(part) for part in parts]
    if found[-1] != last:
        raise UsageError(
            f"{field}={words} ends in {found[-1]}", where=f"recipe field {field}", rule=rule,
            remedy="end bottom_layers in embedding_dim and top_layers in 1",
        )  # fmt: skip
    return found


def layers(recipe: DlrmRecipe) -> tuple[list[int], list[int]]:
    """Return the widths of the bottom and of the top MLP; see ``widths``."""
    return (
        widths(recipe.bottom_layers, field="bottom_layers", last=recipe.embedding_dim),
        widths(recipe.top_layers, field="top_layers", last=1),
    )


def table_rows(cardinalities: tuple[int, ...], recipe: DlrmRecipe) -> tuple[int, ...]:
    """Return the rows that each table gets."""
    most = recipe.max_table_rows
    return tuple(rows if most is None else min(rows, most) for rows in cardinalities)
