"""What a case's ``case.py`` must keep: recipes, texts, generated data. No torch.

Owns the rules; a package that offers a case calls ``description_faults`` from its own tests.
"""

from __future__ import annotations

import filecmp
from dataclasses import fields
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from trainmark import cases
from trainmark.spec import Text, field_docs, message

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainmark.spec import Case, DataFacts, Message, Recipe


def description_faults(name: str) -> list[Message]:
    """Return what is wrong with the case called ``name`` before any job is built.

    Generates the data of each generated recipe twice.

    Raises:
        UsageError: no such case, or its ``case.py`` cannot be read.
    """
    case = cases.load(name)
    found = [*_texts(case), *_fields(case)]
    for recipe_name, recipe in case.recipes.items():
        found += _recipe(case, recipe_name, recipe)
        if recipe.data == "generated":
            found += _generated(case, recipe_name, recipe)
    if not any(recipe.data == "generated" for recipe in case.recipes.values()):
        found.append(message("check_no_generated_recipe"))
    return found


def _texts(case: Case) -> Iterator[Message]:
    for item in fields(case):
        value = getattr(case, item.name)
        sentence = value.en if isinstance(value, Text) else value
        if isinstance(sentence, str) and not sentence.strip():
            yield message("check_text_missing", field=item.name)


def _fields(case: Case) -> Iterator[Message]:
    for field, doc in field_docs(case.recipe_type).items():
        if not doc:
            yield message("check_field_undescribed", field=field)


def _recipe(case: Case, name: str, recipe: Recipe) -> Iterator[Message]:
    if type(recipe) is not case.recipe_type:
        yield message("check_recipe_type", recipe=name, type=case.recipe_type.__name__)
    if recipe.max_steps is not None and recipe.max_steps <= recipe.warmup_steps:
        steps = recipe.max_steps
        yield message(
            "check_nothing_measured", recipe=name, steps=steps, warmup=recipe.warmup_steps
        )
    if recipe.target_value is not None and not recipe.evaluates:
        yield message("check_target_unevaluated", recipe=name)


def _generated(case: Case, name: str, recipe: Recipe) -> Iterator[Message]:
    """Generate twice: the bytes must be alike, readable, and let the target be reached."""
    with TemporaryDirectory(prefix="trainmark-check-") as place:
        first, second = (
            cases.generated_folder(case, recipe, Path(place) / folder) for folder in "ab"
        )
        files = sorted(path.relative_to(first) for path in first.rglob("*") if path.is_file())
        others = sorted(path.relative_to(second) for path in second.rglob("*") if path.is_file())
        _, different, odd = filecmp.cmpfiles(first, second, map(str, files), shallow=False)
        if files != others or different or odd:
            shown = ", ".join([*different, *odd][:3]) or "file names"
            yield message("check_data_not_repeatable", recipe=name, files=shown)
        facts: DataFacts = cases.part(case.name, "data").check(first, recipe)
        if facts.train_samples < 1 or (recipe.evaluates and facts.eval_samples < 1):
            yield message("check_data_empty", recipe=name)
        target = case.target(recipe)
        if target and facts.best_quality is not None and not target.reached(facts.best_quality):
            yield message(
                "check_target_unreachable",
                recipe=name,
                target=target.value,
                best=facts.best_quality,
            )
