"""The toy case's data, whose functions raise if the recipe says so."""

from __future__ import annotations

import builtins

from trainmark.cases.toy import data


def raise_if_broken(recipe, name):
    """Raise an error of the recipe's type if its broken function is the one called ``name``.

    The recipe has the name of the function that raises in ``broken``, and the name of a built-in
    type of exception in ``raised``.
    """
    if recipe.broken == name:
        raise getattr(builtins, recipe.raised)(f"planted in {name}")


def generate(folder, recipe):
    """Generate the data of toy, or raise if the recipe breaks ``data_generate``."""
    raise_if_broken(recipe, "data_generate")
    data.generate(folder, recipe)


def check(folder, recipe):
    """Check the data as toy does, or raise if the recipe breaks ``data_check``."""
    raise_if_broken(recipe, "data_check")
    return data.check(folder, recipe)


def check_fit(folder, recipe, world_size, memory):
    """Raise if the recipe breaks ``data_check_fit``; otherwise the data fits any run."""
    raise_if_broken(recipe, "data_check_fit")
