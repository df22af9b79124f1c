"""What to do after a run that was for trying: how the same case gives a figure to quote."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainmark import cases
from trainmark.pages.document import Block, Code, Paragraph
from trainmark.pages.texts import phrase
from trainmark.record.stats import INTERVAL_MIN_LAUNCHES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainmark.record.record import Record
    from trainmark.spec import Case


def suggest_next_steps(records: Sequence[Record]) -> list[Block]:
    """Return what to do after a trial, which is a run on generated data that passed.

    The blocks say that the run was a trial, and give the commands that prepare real data and train
    on it. The training has a recipe, which is a named set of settings of the case. If no recipe is
    for real data, one sentence says that instead. Empty if the run was not a trial, and if its case
    is not installed here.

    Args:
        records: of the launches of the run.
    """
    plan = records[0].plan
    is_trial = plan.data.origin == "generated" and all(record.passed for record in records)
    if not is_trial or plan.case not in cases.list_names():
        return []
    case = cases.load(plan.case)
    recipe = _find_recipe_on_real_data(case, f"{plan.nnodes}x{plan.nproc}")
    if recipe is None:
        return [Paragraph(phrase("trial.generated_only"), "muted")]
    data_folder = f"data/{case.name}"
    commands = []
    if cases.has_part(case.name, "prepare"):  # a module that makes the data from downloads
        # Placeholders for the values that a user must give: ` limit=LIMIT`.
        options = "".join(f" {x.name}={x.name.upper()}" for x in case.prepare_options if x.required)
        commands.append(
            f"trainmark prepare {case.name}{options} --from DOWNLOADS --data {data_folder}"
        )
    repeats = f"--repeat {INTERVAL_MIN_LAUNCHES}"  # as many launches as a 95% interval needs
    commands.append(f"trainmark run {case.name} --data {data_folder} --recipe {recipe} {repeats}")
    return [
        Paragraph(phrase("trial.what"), "muted"),
        Paragraph(phrase("trial.next"), "muted"),
        *(Code(f"  {command}") for command in commands),  # indented below the sentence
    ]


def _find_recipe_on_real_data(case: Case, world: str) -> str | None:
    """Return a recipe on real data: for this number of nodes and ranks, or else the first.

    None if the case has no recipe on real data.

    Args:
        world: nodes and ranks on each, ``1x8``.
    """
    names = [name for name, recipe in case.recipes.items() if recipe.data == "real"]
    for name in names:
        if case.recipes[name].world == world:
            return name
    return names[0] if names else None
