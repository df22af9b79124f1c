"""Resume a run: find the last complete checkpoint of an earlier launch and check that it fits."""

from __future__ import annotations

import json
from math import ceil
from typing import TYPE_CHECKING, Any

from trainmark.errors import DataError, UsageError
from trainmark.plan.plan import CHECKPOINTS_DIR, Plan, Resumed
from trainmark.plan.recipes import compute_step_samples
from trainmark.protocols.job import PROGRESS_FILE, Progress
from trainmark.recipe import list_fields_with_rule

if TYPE_CHECKING:
    from pathlib import Path

    from trainmark.recipe import Recipe

RESUMED = "resumed"  # label
# torch writes this file when all other files of a checkpoint are complete.
_LAST_WRITTEN_FILE = ".metadata"
# Fields that the rules leave free, but that decide how training continues.
_FREE_BUT_DECISIVE = frozenset({"seed", "learning_rate", "precision"})
# A run is resumed to train longer, or on another number of machines.
_PURPOSE_OF_RESUMING = frozenset({"max_steps", "max_epochs", "world"})


def resume_plan(plan: Plan, run: Path) -> Plan:
    """Return ``plan`` as one that continues from the last complete checkpoint in ``run``.

    Raises:
        UsageError: ``run`` is not a run, its work differs, it has already done all steps, or
            ``plan`` has several launches.
        DataError: ``run`` has no complete checkpoint.
    """
    where = f"--resume {run}"
    earlier = _read_earlier_plan(run, where)
    if plan.repeat_count > 1:
        raise UsageError(
            f"the command asks for {plan.repeat_count} launches",
            where=where,
            rule="only a single launch can continue from a checkpoint",
            fix="remove --repeat",
        )
    _refuse_different_work(plan, earlier, where)
    checkpoint, progress = _find_last_checkpoint(run, earlier)
    _refuse_finished_training(plan, progress, where)
    earlier_runs = earlier.resumed.runs if earlier.resumed else []
    resumed = Resumed(
        runs=[*earlier_runs, earlier.run_id],
        checkpoint=str(checkpoint.resolve()),
        progress=progress,
    )
    return plan.model_copy(update={"resumed": resumed, "labels": [*plan.labels, RESUMED]})


def _refuse_finished_training(plan: Plan, progress: Progress, where: str) -> None:
    """Refuse a run that would train nothing, because all its steps or epochs are done.

    Args:
        progress: of the checkpoint from which the run would continue.
        where: the option, for errors.
    """
    limits = {"max_steps": plan.recipe["max_steps"]}  # steps, by the field that limits them
    # Only jobs that train all samples once in each epoch save checkpoints.
    samples_per_step = compute_step_samples(plan.recipe, plan.world_size)
    steps_per_epoch = ceil(plan.data.train_samples / samples_per_step)
    if steps_per_epoch > 0:  # 0: a dry run that could not check the data
        limits["max_epochs"] = plan.recipe["max_epochs"] * steps_per_epoch
    for name, limit in limits.items():
        if limit is not None and progress.steps >= limit:
            raise UsageError(
                f"{progress.steps} steps are already done, but {name} is {plan.recipe[name]}",
                where=where,
                rule="at least one step must remain",
                fix=f"raise {name}",
            )


def _read_earlier_plan(run: Path, where: str) -> Plan:
    """Return the plan of the run to continue.

    Args:
        where: the option, for errors.
    """
    try:
        return Plan.read(run)
    except (OSError, ValueError):
        raise UsageError(
            "not a run directory",
            where=where,
            rule="--resume needs the folder of an earlier launch",
            fix="list runs with `trainmark results`",
        ) from None


def _refuse_different_work(plan: Plan, earlier: Plan, where: str) -> None:
    """Refuse a run that changes a setting which must stay the same when it continues another.

    Args:
        plan: of the new run.
        earlier: the plan of the run to continue.
        where: the option, for errors.
    """
    # The type of both: a run of another case is refused for its case, which is compared first.
    recipe_type: type[Recipe] = plan.load_case().recipe_type
    settings = _collect_fixed_settings(plan, recipe_type)
    earlier_settings = _collect_fixed_settings(earlier, recipe_type)
    for name in settings | earlier_settings:
        if settings.get(name) != earlier_settings.get(name):
            raise UsageError(
                f"{name} is {settings.get(name)}, but was {earlier_settings.get(name)} in the "
                "earlier run",
                where=where,
                rule=(
                    "a resumed run must keep its model, data, schedule and number of samples per "
                    "step; only the number of samples on each rank may change"
                ),
                fix=f"repeat the command of {earlier.run_id}, or start over without --resume",
            )


def _collect_fixed_settings(plan: Plan, recipe_type: type[Recipe]) -> dict[str, Any]:
    """Return by name the settings that must be equal for one run to continue another.

    Args:
        recipe_type: states which fields may change.
    """
    # Fields whose change leaves the work the same, or is allowed by the closed rules.
    free = list_fields_with_rule(recipe_type, "free") | list_fields_with_rule(recipe_type, "closed")
    # Also the limits and the world, to change which a run is resumed (``_PURPOSE_OF_RESUMING``). Of
    # the free fields, those that decide how training continues must stay, such as the learning rate
    # (``_FREE_BUT_DECISIVE``).
    may_change = (free | _PURPOSE_OF_RESUMING) - _FREE_BUT_DECISIVE
    recipe = plan.recipe
    return {
        "case": plan.case,
        **{name: value for name, value in recipe.items() if name not in may_change},
        "data": plan.data.content_id,
        # Batch size and accumulation may change if the samples of a step stay the same.
        "samples of a step": compute_step_samples(recipe, plan.world_size),
    }


def _find_last_checkpoint(run: Path, earlier: Plan) -> tuple[Path, Progress]:
    """Return the folder of the last complete checkpoint in ``run``, and its progress.

    Args:
        run: the folder of the run to continue.
        earlier: the plan of this run.

    Raises:
        DataError: there is no complete checkpoint.
    """
    complete = [
        folder
        for folder in (run / CHECKPOINTS_DIR).glob("step-*")
        # torch writes the first file after all tensors; the second has the steps done so far.
        if (folder / _LAST_WRITTEN_FILE).is_file() and (folder / PROGRESS_FILE).is_file()
    ]
    if not complete:
        # A run that was itself resumed began with a checkpoint of another run.
        previous = earlier.resumed.checkpoint if earlier.resumed else None
        raise DataError(
            "the run has no complete checkpoint",
            where=str(run / CHECKPOINTS_DIR),
            rule="a run saves checkpoints only if checkpoint_every_steps is set",
            fix=f"resume the run that saved {previous}"
            if previous
            else "start over without --resume",
        )
    last = max(complete, key=lambda folder: int(folder.name.removeprefix("step-")))
    return last, Progress(**json.loads((last / PROGRESS_FILE).read_text()))
