"""The toy job, one method of which raises."""

from __future__ import annotations

from trainmark.cases.toy import job as toy

from .data import raise_if_broken


def load_data(context):
    """Load the data of toy, or raise if the recipe breaks ``load_data``."""
    raise_if_broken(context.recipe, "load_data")
    return toy.load_data(context)


def build(context, data):
    """Return a job whose function ``recipe.broken`` raises, or that has no ``steps_per_epoch``.

    Other names of ``recipe.broken`` belong to this function or to the case's other modules.
    """
    recipe = context.recipe
    raise_if_broken(recipe, "build")
    job = BrokenJob(context, data)

    def fail(*_):  # replaces the broken method, and so always raises
        raise_if_broken(recipe, recipe.broken)

    if recipe.broken in (
        "step",
        "check",
        "updates",
        "evaluate",
        "model_flops",
        "facts",
        "batches",
        "trained_parameters",
        "save",
    ):
        setattr(job, recipe.broken, fail)
    if recipe.broken == "steps_per_epoch":
        del job.steps_per_epoch
    return job


class BrokenJob(toy.ToyJob):
    """The toy job, which tells the case's figures by its facts whether to raise."""

    def facts(self):
        """Return the facts of toy; if the recipe breaks ``figures``, with what lets them raise."""
        facts = super().facts()
        return {**facts, "figures": "raise"} if self.context.recipe.broken == "figures" else facts
