"""Hold the plan of a record against itself, its case, its vendor and the times of the run.

Yields values of a record that contradict others in it: their path, the value recorded, the value
that follows from the others. What only an installed case or vendor tells is checked if it is one
of ours: those of others may have changed since the run.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone
from functools import cache
from typing import TYPE_CHECKING, Any

from trainmark import __version__, cases, devices
from trainmark.events.schema import LAUNCHER_FILE, rank_file
from trainmark.plan.plan import BALANCED_BOUND, PLAN_FILE, SIMULATED
from trainmark.plan.recipes import compare_with_standard, find_standard_recipe
from trainmark.plan.resolving import UNUSED_ACCELERATOR
from trainmark.plan.resuming import RESUMED

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainmark.plan.plan import Plan
    from trainmark.protocols import Vendor
    from trainmark.recipe import Recipe
    from trainmark.record.record import Record
    from trainmark.spec import Case, Sizes

Difference = tuple[str, Any, Any]  # path of the value, as recorded, as computed again
_RUN_ID = re.compile(r"(?P<time>\d{8}T\d{6}Z)-(?P<case>\w+)-[0-9a-z]+(-r(?P<repeat>\d+))?")
_CLOCK_STEP = timedelta(hours=1)  # of a machine's clock that is set right between plan and launch
_LONGEST_QUEUE = timedelta(days=31)  # of a cluster, and of the launches before in a plan file
_PREPARED = "prepare."  # begins the names of changed rules of data preparation
# What the machine of the run told when it was planned.
_OF_THE_MACHINE = {SIMULATED, UNUSED_ACCELERATOR, "oversubscribed"}
_WEIGHT_BYTES, _TRAINED_BYTES = 1, 4  # at least: frozen in 8 bits; in 16 bits, with its gradient


def check_plan(record: Record) -> Iterator[Difference]:
    """Yield what of a plan contradicts itself, the run, its case or its vendor."""
    plan = record.plan
    yield from _identity(record)
    vendor = devices.all_vendors().get(plan.device.vendor)
    if vendor is not None:
        yield from _device(record, vendor)
    yield "plan.labels", RESUMED in plan.labels, plan.resumed is not None
    case, recipe = _shipped(plan.case), None
    if case is not None:
        recipe = _recipe(plan, case)
        yield from _case(plan, case, recipe, vendor)
    yield from _model(record, recipe)
    yield from _evidence(record)


@cache
def _shipped(name: str) -> Case | None:
    """Return a case of ours, read once in a process; None: it is not one."""
    return cases.load(name) if cases.is_shipped(name) else None


@cache
def _sizes_part(name: str) -> Any:
    """Return the module ``sizes`` of a case of ours; None: it has none."""
    if cases.is_shipped(name) and cases.has_part(name, "sizes"):
        return cases.part(name, "sizes")
    return None


def _identity(record: Record) -> Iterator[Difference]:
    """Yield a start that does not fit the run's id, which begins with the time of the plan.

    Ids of other forms tell nothing.
    """
    plan = record.plan
    yield "plan.repeat_count", plan.repeat_count, max(plan.repeat_count, plan.repeat_index)
    match = _RUN_ID.fullmatch(record.run_id)
    if match is None:
        return
    yield "run_id", match["case"], plan.case
    if match["repeat"]:
        yield "plan.repeat_index", plan.repeat_index, int(match["repeat"])
    planned = datetime.strptime(match["time"], "%Y%m%dT%H%M%SZ").replace(tzinfo=timezone.utc)
    started = datetime.fromisoformat(record.started).astimezone(timezone.utc)
    bounded = max(planned - _CLOCK_STEP, min(started, planned + _LONGEST_QUEUE))
    yield "started", started.isoformat(), bounded.isoformat()


def _device(record: Record, vendor: Vendor) -> Iterator[Difference]:
    """Yield what of the devices is not the plan's vendor's."""
    plan = record.plan
    place, name = plan.device, plan.device.vendor
    yield "plan.device.torch_type", place.torch_type, vendor.torch_type
    yield "plan.device.collective_backend", place.collective_backend, vendor.collective_backend
    case, _, hardware, *numbers = plan.case_key.split(":")
    yield "plan.case_key", case, plan.case
    yield "plan.case_key", hardware, name
    yield "plan.case_key", numbers[:2], [str(plan.nnodes), str(plan.nproc)]
    for number, device in enumerate(record.environment["devices"]):
        facts: dict[str, Any] = dict(device or {})
        yield f"environment.devices[{number}].vendor", facts.get("vendor", name), name
        # Of a processor both are read from the same place.
        product = facts.get("name")
        if product and place.product_names and vendor.counts_cores and plan.launcher == "local":
            known = product if product in place.product_names else place.product_names[0]
            yield f"environment.devices[{number}].name", product, known


def _recipe(plan: Plan, case: Case) -> Recipe | None:
    """Return the recipe as its case's type; None: it has fields of another version."""
    try:
        return case.recipe_type(**plan.recipe)
    except TypeError:
        return None


def _case(
    plan: Plan, case: Case, recipe: Recipe | None, vendor: Vendor | None
) -> Iterator[Difference]:
    """Yield what of a plan does not follow from its case and recipe."""
    for name in ("metric", "higher_is_better", "work_unit"):
        yield f"plan.about.{name}", getattr(plan.about, name), getattr(case, name)
    if recipe is None:
        return
    yield "plan.recipe.data", recipe.data, plan.data.origin
    # A later version may ship other recipes of these names.
    if plan.suite_version == __version__ and plan.recipe_name in case.recipes:
        yield from _changes(plan, case, recipe)
    if vendor is not None:
        yield "plan.labels", _labels(plan), _expected_labels(plan, recipe)


def _changes(plan: Plan, case: Case, recipe: Recipe) -> Iterator[Difference]:
    """Yield changes of the recipe that the plan does not name, or names otherwise."""
    world = f"{plan.nnodes}x{plan.nproc}"
    standard = find_standard_recipe(case, plan.recipe_name, world=world)
    yield "plan.compared_with", plan.compared_with, standard
    fix_hp, extra = compare_with_standard(
        recipe, named=case.recipes[plan.recipe_name], standard=case.recipes[standard]
    )
    named = {name: x for name, x in plan.extra.items() if not name.startswith(_PREPARED)}
    if "precision" not in plan.fix_hp:
        fix_hp.pop("precision", None)  # which pages show for itself
    yield "plan.fix_hp", plan.fix_hp, fix_hp
    yield "plan.extra", named, extra
    yield "plan.rules", plan.rules, "open" if plan.extra else "closed"


def _labels(plan: Plan) -> list[str]:
    return sorted(set(plan.labels) - _OF_THE_MACHINE)


def _expected_labels(plan: Plan, recipe: Recipe) -> list[str]:
    """Return the labels that follow from a plan, without those that its machine told."""
    world, data = f"{plan.nnodes}x{plan.nproc}", plan.data
    no_target = recipe.target_value is None
    known = {
        "self-reported": True,
        "performance-only": no_target or (recipe.data == "real" and not data.quality_comparable),
        "generated-data": recipe.data == "generated",
        BALANCED_BOUND: recipe.is_bound,
        "given-peak": plan.peak_tflops is not None,
        f"recipe-written-for-{recipe.world}": recipe.world not in (None, world),
        RESUMED: plan.resumed is not None,
    }
    return sorted(name for name, holds in known.items() if holds)


def _model(record: Record, recipe: Recipe | None) -> Iterator[Difference]:
    """Yield sizes and FLOPs of the model that do not follow from its recipe, or do not fit.

    Args:
        recipe: of a case of ours; None: of another, or of another version.
    """
    job: dict[str, Any] = dict(record.environment["job"] or {})
    parameters, trained = job.get("parameters"), job.get("trainable_parameters")
    if parameters is not None and trained is not None:
        yield "environment.job.trainable_parameters", trained, min(trained, parameters)
    totals = [(device or {}).get("memory_total_bytes") for device in record.environment["devices"]]
    known = [total for total in totals if total]
    if parameters and len(known) == record.plan.world_size:
        trained = parameters if trained is None else trained
        size = (parameters - trained) * _WEIGHT_BYTES + trained * _TRAINED_BYTES
        yield "environment.job.parameters", size, min(size, sum(known))
    part = _sizes_part(record.plan.case)
    if recipe is None or part is None or not job:
        return
    sizes: Sizes = part.find_sizes(recipe, job)
    for name, value in sizes.facts.items():
        if name in job:
            yield f"environment.job.{name}", job[name], value
    for rank in record.ranks if sizes.flops else ():
        for name, phase in rank.phases.items():
            if sizes.flops and phase.model_flops is not None:
                flops = sizes.flops(phase.counts)
                yield f"ranks[{rank.rank}].phases.{name}.model_flops", phase.model_flops, flops


def _evidence(record: Record) -> Iterator[Difference]:
    """Yield files that the record must have been computed from and does not name."""
    named = {entry.name for entry in record.evidence}
    needed = {PLAN_FILE, LAUNCHER_FILE}
    needed |= {rank_file(rank.rank) for rank in record.ranks if rank.wall_ns is not None}
    if named:
        yield "evidence", sorted(named & needed), sorted(needed)
