"""Which checkpoint of an earlier launch a run goes on from, and whether it may. No torch."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from trainmark.errors import DataError, UsageError
from trainmark.plan.plan import Plan, Resumed
from trainmark.protocols.job import PROGRESS_FILE, Progress
from trainmark.recipe import fields_under

if TYPE_CHECKING:
    from pathlib import Path

CHECKPOINTS_DIR = "checkpoints"  # in a run's folder
RESUMED = "resumed"  # label
_TORCH_WRITES_LAST = ".metadata"
# Rules say which fields leave the work as it is. Of those, these decide how it goes on.
_DECIDE = frozenset({"seed", "learning_rate", "precision"})
_MAY_DIFFER = frozenset({"max_steps", "max_epochs", "world"})


def continued(plan: Plan, run: Path) -> Plan:
    """Return ``plan`` as one that goes on from the last complete checkpoint in ``run``.

    Raises:
        UsageError: not a run, or one of other work.
        DataError: it has no complete checkpoint.
    """
    where = f"--resume {run}"
    try:
        earlier = Plan.read(run)
    except (OSError, ValueError):
        raise UsageError(
            "not a run directory", where=where, rule="the folder of an earlier launch",
            remedy="see `trainmark results`",
        ) from None  # fmt: skip
    if plan.repeat_count > 1:
        raise UsageError(
            f"{plan.repeat_count} launches", where=where,
            rule="one launch goes on from a checkpoint", remedy="leave out --repeat",
        )  # fmt: skip
    now, before = _fixed(plan), _fixed(earlier)
    for name in now | before:
        if now.get(name) != before.get(name):
            raise UsageError(
                f"{name} was {before.get(name)} and is {now.get(name)}", where=where,
                rule="what goes on has the same model, data, schedule and samples of a step; "
                "how it is cut over ranks may differ",
                remedy=f"repeat the command of {earlier.run_id}, or start anew without --resume",
            )  # fmt: skip
    checkpoint, progress = _last_complete(run, earlier)
    most = plan.recipe["max_steps"]
    if most is not None and progress.steps >= most:
        raise UsageError(
            f"{progress.steps} of max_steps={most} are done", where=where,
            rule="a step is left to do", remedy="raise max_steps",
        )  # fmt: skip
    runs = [*(earlier.resumed.runs if earlier.resumed else []), earlier.run_id]
    resumed = Resumed(runs=runs, checkpoint=str(checkpoint.resolve()), progress=progress)
    return plan.model_copy(update={"resumed": resumed, "labels": [*plan.labels, RESUMED]})


def _fixed(plan: Plan) -> dict[str, Any]:
    """Return what must be equal for one to go on where the other stopped, by name."""
    recipe, of_case = plan.recipe, plan.load_case().recipe_type
    free = fields_under(of_case, "closed") | fields_under(of_case, "free") | _MAY_DIFFER
    rows = recipe["micro_batch_size"] * recipe["grad_accum_steps"] * plan.world_size
    return {
        "case": plan.case,
        **{name: value for name, value in recipe.items() if name not in free - _DECIDE},
        "data": plan.data.content_id,
        "samples of a step": rows // recipe.get("tensor_parallel", 1),
    }


def _last_complete(run: Path, earlier: Plan) -> tuple[Path, Progress]:
    found: list[tuple[int, Path]] = []
    for folder in (run / CHECKPOINTS_DIR).glob("step-*"):
        if (folder / _TORCH_WRITES_LAST).is_file() and (folder / PROGRESS_FILE).is_file():
            found.append((int(folder.name.removeprefix("step-")), folder))
    if not found:
        before = earlier.resumed and earlier.resumed.checkpoint
        raise DataError(
            "no complete checkpoint", where=str(run / CHECKPOINTS_DIR),
            rule="a run with checkpoint_every_steps saves them",
            remedy=f"resume the run of {before}" if before else "start anew without --resume",
        )  # fmt: skip
    folder = max(found)[1]
    return folder, Progress(**json.loads((folder / PROGRESS_FILE).read_text()))
