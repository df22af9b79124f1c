"""Resolve a request into a plan: check everything before anything starts.

Starts nothing and does not import torch.
"""

from __future__ import annotations

import secrets
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING

from trainmark import __version__, cases, devices
from trainmark.errors import EXIT_FAILED, CaseError, DataError, TrainmarkError, UsageError
from trainmark.plan.choosing import choose_work, format_case_key, list_unproven, select_vendor
from trainmark.plan.plan import (
    BALANCED_BOUND,
    RUNS_DIR,
    SIMULATED,
    UNCHECKED,
    Plan,
    PlannedCase,
    PlannedData,
    PlannedDevice,
    format_run_id,
)
from trainmark.plan.recipes import (
    compare_with_standard,
    compute_step_samples,
    find_standard_recipe,
)
from trainmark.plan.resuming import resume_plan
from trainmark.spec import DataFacts

if TYPE_CHECKING:
    from trainmark.plan.choosing import Choice, RemoteTarget
    from trainmark.plan.request import RunRequest
    from trainmark.protocols import Vendor
    from trainmark.recipe import Recipe
    from trainmark.spec import Case

UNUSED_ACCELERATOR = "accelerator-not-used"  # label


def _refuse_impossible_run(choice: Choice, recipe: Recipe, facts: DataFacts, folder: Path) -> None:
    """Refuse a run that cannot end as its recipe asks.

    Args:
        facts: of the data, such as the numbers of its samples.
        folder: of the data.
    """
    _check_target(choice.case, recipe, facts)
    if recipe.eval_from_sample is not None and recipe.eval_every_samples is None:
        raise UsageError(
            f"eval_from_sample={recipe.eval_from_sample} has no effect without eval_every_samples",
            where="recipe field eval_from_sample",
            fix="set eval_every_samples too, or use eval_from_sample=none",
        )
    if facts.train_samples < 1:
        raise DataError(
            "there are no training samples",
            where=str(folder),
            rule="a run needs at least one training sample",
        )
    if recipe.evaluates and facts.eval_samples < 1:
        raise DataError(
            "there are no evaluation samples",
            where=str(folder),
            rule="a run needs at least one evaluation sample",
        )
    _check_replay_windows(recipe, facts.train_samples, world_size=choice.nnodes * choice.nproc)


def _check_replay_windows(recipe: Recipe, train_samples: int, *, world_size: int) -> None:
    """Refuse ``replay_every_windows`` if the data is too small for a window to be repeated.

    A window is the steps between two synchronisations; with ``replay_every_windows=N``, every Nth
    measured window is repeated.

    Args:
        train_samples: samples of an epoch.
    """
    interval = recipe.replay_every_windows
    if interval is None:
        return
    samples_per_step = compute_step_samples(asdict(recipe), world_size)
    steps_per_epoch = ceil(train_samples / samples_per_step)
    num_steps = recipe.max_epochs * steps_per_epoch
    if recipe.max_steps is not None:
        num_steps = min(num_steps, recipe.max_steps)
    num_epochs = ceil(num_steps / steps_per_epoch)
    measured_steps = max(0, num_steps - recipe.warmup_steps)
    max_windows = ceil(measured_steps / recipe.window_steps)
    # Each epoch but the last may end a window early, after which one more is needed. So may each
    # evaluation that is due within an epoch, after a number of samples.
    max_windows += num_epochs - 1
    if recipe.eval_every_samples is not None:
        num_samples = num_steps * samples_per_step  # or fewer: the last step of an epoch has less
        samples_after_first = num_samples - (recipe.eval_from_sample or recipe.eval_every_samples)
        max_windows += max(0, samples_after_first // recipe.eval_every_samples + 1)
    max_windows = min(max_windows, measured_steps)  # a window has at least one step
    if max_windows < interval:
        raise UsageError(
            f"replay_every_windows={interval}, but the run has at most {max_windows} measured "
            "windows",
            where="recipe field replay_every_windows",
            rule=(
                "replay_every_windows must not exceed the number of measured windows: the run has "
                f"at most {num_steps:,} steps, the first {recipe.warmup_steps:,} are not measured, "
                f"and a window has up to {recipe.window_steps:,} steps"
            ),
            fix="use a smaller value, or more epochs or steps",
        )


def _check_target(case: Case, recipe: Recipe, facts: DataFacts) -> None:
    """Refuse a target that no model can reach on the data, or that is never evaluated."""
    target = case.target(recipe)
    best = facts.best_quality  # None: not known
    if target is None:
        return
    if best is not None and not target.reached(best):
        raise UsageError(
            f"target_value={target.value:g} cannot be reached",
            where="recipe field target_value",
            rule=(
                f"the best {case.metric} that a model can be expected to reach on this data is "
                f"{best:.4g}"
            ),
            fix="choose a lower target" if case.higher_is_better else "choose a higher target",
        )
    if not recipe.evaluates:
        raise UsageError(
            f"target_value={target.value:g} cannot be reached without an evaluation",
            where="recipe field eval_every_epochs",
            fix="add target_value=none",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Resolution:
    """What the steps of planning chose and checked.

    Args:
        remote: the machines of a launcher; None: this one.
        recipe: that of ``choice``; ``data`` says whether it reads generated or real data.
        folder: of the data.
        facts: of the data; ``UNCHECKED`` until it is checked.
    """

    request: RunRequest
    choice: Choice
    vendor: Vendor
    remote: RemoteTarget | None
    recipe: Recipe
    folder: Path
    facts: DataFacts


class UnplannableError(TrainmarkError):
    """Code of a case failed while a run was planned.

    Args:
        fault: how the case failed.
        plan: of the first launch, with which the caller records the failure; if the check of the
            data failed, without its facts.
    """

    exit_code = EXIT_FAILED

    def __init__(self, fault: CaseError, plan: Plan) -> None:
        # The user sees the words of ``fault``; the caller writes a record with ``plan``.
        super().__init__(fault.what, where=fault.where, rule=fault.rule, fix=fault.fix)
        self.fault = fault
        self.plan = plan


def _locate_data(choice: Choice, request: RunRequest, root: Path) -> tuple[Path, Recipe]:
    """Return the folder of the data, and the recipe that reads it.

    Generated data may not be in the folder yet.

    Args:
        root: the cache of generated data.

    Raises:
        UsageError: the recipe trains on real data, and no folder is named.
    """
    if request.data is not None:
        # Not ``generated``, even if the recipe is for generated data: that has a known best score,
        # and data from outside has not.
        return request.data, replace(choice.recipe, data="real")
    if choice.recipe.data == "generated":
        return cases.locate_generated_data(choice.case, choice.recipe, root), choice.recipe
    raise UsageError(
        f"recipe {choice.recipe_name} trains on real data",
        where="--data",
        rule="a recipe that trains on real data needs a data folder",
        fix="add --data DIR (see `trainmark prepare --help`), or use --recipe tiny",
    )


def resolve(
    request: RunRequest,
    *,
    remote: RemoteTarget | None = None,
    dry_run: bool = False,
    generated_root: Path | None = None,
    now: datetime | None = None,
    run_token: str | None = None,
) -> Plan:
    """Check a request and return its plan; of several launches, what they have in common.

    ``list_launches`` returns the plan of each. The data of a generated recipe is generated into
    ``generated_root`` if it is not there yet.

    Args:
        remote: the machines of a launcher; None: this one.
        dry_run: the plan is only shown. Data that only other machines can see is then recorded as
            ``UNCHECKED``.
        generated_root: the cache of generated data; None: the user's.
        now: the run's time, which is part of its id; None: the current time.
        run_token: the random end of the run's id; None: a new one.

    Raises:
        UsageError, DataError, EnvironmentFault: before anything starts.
        UnplannableError: code of the case failed.
    """
    started = now or datetime.now(timezone.utc)
    token = run_token or secrets.token_hex(3)
    if request.witness is not None:
        # A user's own program is run, and a probe in it measures: it has no recipe and no data.
        from trainmark.plan.witnessing import resolve_witnessed

        return resolve_witnessed(
            request, remote=remote, started=started, run_token=token, dry_run=dry_run
        )
    choice = choose_work(request)
    # If ranks are more than the cores of a processor, they run, and the plan says `oversubscribed`.
    vendor = select_vendor(choice, request.device, remote=remote, ranks_share_cores=True)
    root = generated_root or cases.get_cache_root()
    folder, recipe = _locate_data(choice, request, root)
    resolution = _Resolution(
        request=request,
        choice=choice,
        vendor=vendor,
        remote=remote,
        recipe=recipe,
        folder=folder,
        # Until the data is checked below.
        facts=DataFacts(train_samples=0, eval_samples=0, content_id=UNCHECKED, layout=UNCHECKED),
    )
    run_id = format_run_id(choice.case.name, started, token)
    try:
        resolution = replace(resolution, facts=_check_data(resolution, root, dry_run=dry_run))
        if remote is None:  # the memory of other machines is known to their ranks alone
            _check_memory(choice, recipe, folder, vendor)
    except CaseError as error:
        plan = _assemble_plan(resolution, run_id)
        # The caller writes a record of the failure, and a record is that of one launch.
        first_launch = list_launches(plan)[0]
        raise UnplannableError(error, first_launch) from error
    plan = _assemble_plan(resolution, run_id)
    return plan if request.resume is None else resume_plan(plan, request.resume)


def _check_data(resolution: _Resolution, root: Path, *, dry_run: bool) -> DataFacts:
    """Generate data if the recipe asks for it, check the data, and return its facts.

    The facts stay ``UNCHECKED`` in a dry run for other machines that alone can see the data.

    Args:
        root: the cache of generated data.
        dry_run: the plan is only shown.
    """
    case = resolution.choice.case
    recipe = resolution.recipe
    folder = resolution.folder
    remote = resolution.remote
    if resolution.request.data is None:
        cases.ensure_generated_data(case, recipe, root)
    # Only a dry run may do without the data on this machine. The plan of a real run must have the
    # facts of the data, because nodes refuse a plan without them.
    is_on_this_machine = remote is None or remote.has_our_files
    if dry_run and not is_on_this_machine and not folder.exists():
        return resolution.facts
    facts = cases.check_data(case.name, folder, recipe)
    _refuse_impossible_run(resolution.choice, recipe, facts, folder)
    return facts


def _check_memory(choice: Choice, recipe: Recipe, folder: Path, vendor: Vendor) -> None:
    """Refuse a recipe that does not fit into the memory of this machine's devices."""
    memory = vendor.rank_memory(choice.nproc)
    if memory is not None:
        world_size = choice.nnodes * choice.nproc
        # Raises if it does not fit; the predicted memory is not needed here.
        cases.check_fit(choice.case.name, folder, recipe, world_size, memory)


def _assemble_plan(resolution: _Resolution, run_id: str) -> Plan:
    """Return the plan of a run; with several launches, the one from which theirs are made."""
    request = resolution.request
    choice = resolution.choice
    recipe = resolution.recipe
    remote = resolution.remote
    case = choice.case
    # The recipe with which this one is compared; it may be the chosen one itself.
    standard_name = find_standard_recipe(case, choice.recipe_name, world=choice.world)
    changes = compare_with_standard(
        recipe, named=case.recipes[choice.recipe_name], standard=case.recipes[standard_name]
    )
    data_facts = asdict(resolution.facts)
    changed_rules = data_facts.pop("changed_rules")
    # Data that was prepared by other rules than the published ones is different work, too.
    other_work = changes.other_work | {
        f"prepare.{name}": value for name, value in changed_rules.items()
    }
    return Plan(
        suite_version=__version__,
        run_id=run_id,
        case=case.name,
        about=PlannedCase.from_case(case),
        case_key=format_case_key(choice, resolution.vendor.name),
        recipe_name=choice.recipe_name,
        recipe=asdict(recipe),
        compared_with=standard_name,
        fix_hp=changes.allowed,  # changes of the standard recipe that the closed rules allow
        extra=other_work,  # all other changes
        rules="open" if other_work else "closed",
        labels=_choose_labels(resolution),
        device=PlannedDevice.from_vendor(
            resolution.vendor, choice.nproc, is_remote=remote is not None
        ),
        unproven=list_unproven(resolution.vendor, remote),
        peak_tflops=request.peak_tflops,
        nnodes=choice.nnodes,
        nproc=choice.nproc,
        repeat_index=1,  # of the only launch; ``plan_launch`` sets it if there are several
        repeat_count=choice.repeat,
        data=PlannedData(folder=str(resolution.folder.resolve()), origin=recipe.data, **data_facts),
        run_dir=str((request.out or RUNS_DIR / run_id).resolve()),
        launcher="local" if remote is None else remote.launcher,
        sample_every_s=request.sample_every,
    )


def _choose_labels(resolution: _Resolution) -> list[str]:
    """Return the labels that a reader of the figures must see first."""
    request = resolution.request
    choice = resolution.choice
    vendor = resolution.vendor
    recipe = resolution.recipe
    runs_on_processor_here = resolution.remote is None and vendor.counts_cores
    device_was_chosen = request.device is not None or choice.hardware is not None
    has_no_target = recipe.target_value is None
    is_not_comparable = recipe.data == "real" and not resolution.facts.quality_comparable
    # By label, whether it applies.
    labels = {
        "self-reported": True,  # every run is measured by whoever publishes it
        SIMULATED: devices.is_named_only(vendor),  # vendors used only if named are simulated
        "performance-only": has_no_target or is_not_comparable,
        "generated-data": recipe.data == "generated",
        # There are more ranks than cores; the cores of other machines are not known here.
        "oversubscribed": runs_on_processor_here and choice.nproc > vendor.count(),
        # The processor was taken because an accelerator of this machine cannot be used.
        UNUSED_ACCELERATOR: (
            runs_on_processor_here and not device_was_chosen and bool(devices.list_device_faults())
        ),
        BALANCED_BOUND: recipe.is_upper_bound,  # no real training: it shows how fast one could be
        "given-peak": request.peak_tflops is not None,
        f"recipe-written-for-{recipe.world}": recipe.world not in (None, choice.world),
    }
    return [label for label, applies in labels.items() if applies]


def plan_launch(plan: Plan, index: int) -> Plan:
    """Return the plan of launch number ``index`` (from 1), in a folder below the run's."""
    base = Path(plan.run_dir)
    return plan.model_copy(
        update={
            "repeat_index": index,
            "run_id": f"{plan.run_id}-r{index}",
            "run_dir": str(base / f"r{index}"),
        }
    )


def list_launches(plan: Plan) -> list[Plan]:
    """Return the plan of each launch, in order."""
    if plan.repeat_count == 1:
        return [plan]
    return [plan_launch(plan, index + 1) for index in range(plan.repeat_count)]
