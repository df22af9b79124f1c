"""Resolve a request into a plan: check everything before anything starts.

Owns also which checkpoint of an earlier launch a run goes on from, and whether it may. It starts
nothing and does not import torch.
"""

from __future__ import annotations

import json
import secrets
from dataclasses import asdict, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainmark import cases, devices
from trainmark.errors import EXIT_FAILED, CaseError, DataError, TrainmarkError, UsageError
from trainmark.plan.choosing import capable_vendor, case_key, choose
from trainmark.plan.overrides import changes, standard_of
from trainmark.plan.plan import (
    CHECKPOINTS_DIR,
    RUNS_DIR,
    SIMULATED,
    UNCHECKED,
    Plan,
    PlannedCase,
    PlannedData,
    PlannedDevice,
    Resumed,
)  # fmt: skip
from trainmark.protocols.job import PROGRESS_FILE, Progress
from trainmark.recipe import fields_under
from trainmark.spec import DataFacts

if TYPE_CHECKING:
    from trainmark.plan.choosing import Choice, Elsewhere
    from trainmark.plan.request import RunRequest
    from trainmark.recipe import Recipe
    from trainmark.spec import Case

PASSED_OVER = "accelerator-not-used"  # label
RESUMED = "resumed"  # label
_TORCH_WRITES_LAST = ".metadata"
# Rules say which fields leave the work as it is. Of those, these decide how it goes on.
_DECIDE = frozenset({"seed", "learning_rate", "precision"})
_MAY_DIFFER = frozenset({"max_steps", "max_epochs", "world"})


def _check_work(case: Case, recipe: Recipe, facts: DataFacts, folder: Path) -> None:
    """Refuse a run that cannot end as its recipe asks."""
    target, best = case.target(recipe), facts.best_quality
    if target and best is not None and not target.reached(best):
        raise UsageError(
            f"target_value={target.value:g} cannot be reached", where="recipe field target_value",
            rule=f"the best {case.metric} any model can score on this data is {best:.4g}",
            remedy="choose a target below it" if case.higher_is_better else "choose one above it",
        )  # fmt: skip
    if recipe.eval_from_sample is not None and recipe.eval_every_samples is None:
        raise UsageError(
            f"eval_from_sample={recipe.eval_from_sample} has nothing to begin",
            where="recipe field eval_from_sample",
            remedy="set eval_every_samples too, or eval_from_sample=none",
        )
    if target and not recipe.evaluates:
        raise UsageError(
            f"target_value={target.value:g} cannot be reached without an evaluation",
            where="recipe field eval_every_epochs", remedy="add target_value=none",
        )  # fmt: skip
    needed = {"training": facts.train_samples}
    if recipe.evaluates:
        needed["evaluation"] = facts.eval_samples
    for split, rows in needed.items():
        if rows < 1:
            raise DataError(f"no {split} samples", where=str(folder), rule="at least 1 is needed")


class UnplannableError(TrainmarkError):
    """Code of a case failed while a run was planned.

    Args:
        fault: how the case failed.
        plan: of the first launch, without what the case should have told of its data.
    """

    exit_code = EXIT_FAILED

    def __init__(self, fault: CaseError, plan: Plan) -> None:
        super().__init__(fault.what, where=fault.where, rule=fault.rule, remedy=fault.remedy)
        self.fault = fault
        self.plan = plan


def _place_of_data(choice: Choice, request: RunRequest, root: Path) -> tuple[Path, Recipe]:
    """Return the folder of the data, which may have to be generated, and the recipe that reads it.

    Args:
        root: the cache of generated data.

    Raises:
        UsageError: the recipe trains on real data, and no folder is named.
    """
    if request.data is not None:
        # Data from outside has no known best score, whatever recipe trains on it.
        return request.data, replace(choice.recipe, data="real")
    if choice.recipe.data == "generated":
        return cases.place_of_generated(choice.case, choice.recipe, root), choice.recipe
    raise UsageError(
        f"recipe {choice.recipe_name} trains on real data",
        where="--data",
        rule="a real recipe needs the folder that holds it",
        remedy="add --data DIR (see `trainmark prepare --help`), or use --recipe tiny",
    )


def resolve(
    request: RunRequest,
    *,
    elsewhere: Elsewhere | None = None,
    dry_run: bool = False,
    generated_root: Path | None = None,
    now: datetime | None = None,
    run_token: str | None = None,
) -> Plan:
    """Check everything and return the plan of the first launch.

    Args:
        elsewhere: the machines of a launcher; None: this one.
        dry_run: the plan is only shown: data that other machines see and this one does not is
            taken as ``UNCHECKED``.
        generated_root: the cache of generated data; None: the user's.

    Generates a generated recipe's data into ``generated_root`` when it is not there yet.

    Raises:
        UsageError, DataError, EnvironmentFault: before anything starts.
        UnplannableError: code of the case failed.
    """
    from trainmark import __version__

    choice = choose(request)
    case, nproc = choice.case, choice.nproc
    vendor = capable_vendor(choice, request.device, elsewhere=elsewhere, ranks_share_cores=True)
    here = elsewhere is None
    folder, recipe = _place_of_data(choice, request, generated_root or cases.default_root())
    other_files = elsewhere is not None and not elsewhere.has_our_files
    failure: CaseError | None = None
    facts = DataFacts(0, 0, UNCHECKED, UNCHECKED)
    try:
        if request.data is None:
            cases.generated_folder(case, recipe, generated_root or cases.default_root())
        if folder.exists() or not (dry_run and other_files):
            facts = cases.check_data(case.name, folder, recipe)
            _check_work(case, recipe, facts, folder)
        memory = vendor.rank_memory(nproc) if here else None
        if memory is not None:
            cases.check_fit(case.name, folder, recipe, choice.nnodes * nproc, memory)
    except CaseError as error:
        failure = error
    standard = standard_of(case, choice.recipe_name, world=choice.world)
    fix_hp, extra = changes(
        recipe, named=case.recipes[choice.recipe_name], standard=case.recipes[standard]
    )  # fmt: skip
    extra |= {f"prepare.{name}": value for name, value in facts.changed_rules.items()}
    about_data = {name: value for name, value in asdict(facts).items() if name != "changed_rules"}
    stamp = (now or datetime.now(timezone.utc)).strftime("%Y%m%dT%H%M%SZ")
    run_id = f"{stamp}-{case.name}-{run_token or secrets.token_hex(3)}"
    names = vendor.product_names() if here else []
    no_target = recipe.target_value is None
    # What a reader of the figures must know at first sight.
    labels = {
        "self-reported": True,
        SIMULATED: devices.named_only(vendor),
        "performance-only": no_target or (recipe.data == "real" and not facts.quality_comparable),
        "generated-data": recipe.data == "generated",
        "oversubscribed": here and vendor.counts_cores and nproc > vendor.count(),
        # Nobody asked for the processor: an accelerator that is here cannot be used.
        PASSED_OVER: here and vendor.counts_cores and bool(devices.unusable())
        and request.device is None and choice.hardware is None,
        "given-peak": request.peak_tflops is not None,
        f"recipe-written-for-{recipe.world}": recipe.world not in (None, choice.world),
    }  # fmt: skip
    plan = Plan(
        suite_version=__version__,
        run_id=run_id,
        case=case.name,
        about=PlannedCase.of(case),
        case_key=case_key(choice, vendor.name),
        recipe_name=choice.recipe_name,
        recipe=asdict(recipe),
        compared_with=standard,
        fix_hp=fix_hp,
        extra=extra,
        rules="open" if extra else "closed",
        labels=[x for x, told in labels.items() if told],
        device=PlannedDevice(
            vendor=vendor.name,
            torch_type=vendor.torch_type,
            collective_backend=vendor.collective_backend,
            product_names=names if vendor.counts_cores else names[:nproc],
        ),
        peak_tflops=request.peak_tflops,
        nnodes=choice.nnodes,
        nproc=nproc,
        repeat_index=1,
        repeat_count=choice.repeat,
        data=PlannedData(folder=str(folder.resolve()), origin=recipe.data, **about_data),
        run_dir=str((request.out or RUNS_DIR / run_id).resolve()),
        launcher="local" if elsewhere is None else elsewhere.launcher,
        sample_every_s=request.sample_every,
    )
    if failure is not None:
        raise UnplannableError(failure, launches(plan)[0]) from failure
    return plan if request.resume is None else continued(plan, request.resume)


def of_repeat(plan: Plan, index: int) -> Plan:
    """Return the plan of launch number ``index``, in its own folder under the first's."""
    base = Path(plan.run_dir)
    return plan.model_copy(
        update={
            "repeat_index": index,
            "run_id": f"{plan.run_id}-r{index}",
            "run_dir": str(base / f"r{index}"),
        }
    )


def launches(plan: Plan) -> list[Plan]:
    """Return the plan of each launch, in order."""
    count = plan.repeat_count
    return [plan] if count == 1 else [of_repeat(plan, index + 1) for index in range(count)]


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
