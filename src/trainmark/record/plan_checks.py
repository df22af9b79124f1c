"""Compare the plan of a record with itself, its case, its vendor and the times of the run.

Each function yields values of the record with what they must be; if they differ, the record is
wrong. A value that must lie in a range is yielded only if it does not.

A shipped case is one that this program comes with. Cases and vendors of other packages may have
changed since the run, so that nothing is compared with them.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone
from functools import cache
from typing import TYPE_CHECKING, Any

from trainmark import __version__, cases, devices
from trainmark.events.schema import LAUNCHER_FILE, name_rank_file
from trainmark.plan.plan import BALANCED_BOUND, PLAN_FILE, SIMULATED
from trainmark.plan.recipes import compare_with_standard, find_standard_recipe
from trainmark.plan.resolving import UNUSED_ACCELERATOR
from trainmark.plan.resuming import RESUMED
from trainmark.record.compared import (
    ComparedValue,
    check_at_least,
    check_at_most,
    move_into_range,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainmark.plan.plan import Plan
    from trainmark.protocols import Vendor
    from trainmark.recipe import Recipe
    from trainmark.record.record import Record
    from trainmark.spec import Case, Sizes

_RUN_ID = re.compile(r"(?P<time>\d{8}T\d{6}Z)-(?P<case>\w+)-[0-9a-z]+(-r(?P<repeat>\d+))?")
_MAX_CLOCK_STEP = timedelta(hours=1)  # by which a clock is corrected between plan and launch
_MAX_QUEUE = timedelta(days=31)  # of a cluster, and of earlier launches in a plan file
_PREPARE_PREFIX = "prepare."  # of the names of changed rules of data preparation
# Labels that depend on the machine on which the run was planned.
_MACHINE_LABELS = {SIMULATED, UNUSED_ACCELERATOR, "oversubscribed"}
_MIN_FROZEN_BYTES = 1  # memory of a parameter that is not trained, in 8 bits
_MIN_TRAINED_BYTES = 4  # memory of a trained parameter in 16 bits, with its gradient


def compare_plan_values(record: Record) -> Iterator[ComparedValue]:
    """Yield values of a plan with what the run, the case and the vendor require."""
    plan = record.plan
    yield from _compare_identity(record)
    # None: the package of the plan's vendor is not installed.
    vendor = devices.list_vendors().get(plan.device.vendor)
    if vendor is not None:
        yield from _compare_device(record, vendor)
    # All other labels are compared below, and only if the case is one that Trainmark comes with.
    # This label is compared for every case: the plan itself says whether it resumes a run.
    has_label = RESUMED in plan.labels
    yield ComparedValue("plan.labels", has_label, plan.resumed is not None)
    case = _load_shipped_case(plan.case)
    recipe = None
    if case is not None:
        recipe = _make_recipe(plan, case)
        yield from _compare_with_case(plan, case, recipe, vendor)
    yield from _compare_model(record, recipe)
    yield from _compare_evidence(record)


@cache
def _load_shipped_case(name: str) -> Case | None:
    """Return a case that Trainmark comes with, read once in a process; None: there is none."""
    return cases.load(name) if cases.is_shipped(name) else None


@cache
def _load_sizes_module(name: str) -> Any:
    """Return the module ``sizes`` of a case that Trainmark comes with; None: there is none.

    Its ``find_sizes`` computes from a recipe what the model's size and FLOPs must be.
    """
    if cases.is_shipped(name) and cases.has_part(name, "sizes"):
        return cases.import_part(name, "sizes")
    return None


def _compare_identity(record: Record) -> Iterator[ComparedValue]:
    """Yield case, repeat and start, which must fit the run's id, and the number of repeats.

    The id is TIME-CASE-TOKEN or, with several launches, TIME-CASE-TOKEN-rREPEAT. TIME is when the
    run was planned. An id of another form is not compared.
    """
    plan = record.plan
    yield from check_at_least("plan.repeat_count", plan.repeat_count, plan.repeat_index)
    match = _RUN_ID.fullmatch(record.run_id)
    if match is None:
        return
    yield ComparedValue("run_id", match["case"], plan.case)
    if match["repeat"]:
        yield ComparedValue("plan.repeat_index", plan.repeat_index, int(match["repeat"]))
    # A run starts after it was planned and may wait in a queue. If the clock was corrected in
    # between, the start may seem to be earlier than the plan.
    planned = datetime.strptime(match["time"], "%Y%m%dT%H%M%SZ").replace(tzinfo=timezone.utc)
    started = datetime.fromisoformat(record.started).astimezone(timezone.utc)
    nearest = move_into_range(started, planned - _MAX_CLOCK_STEP, planned + _MAX_QUEUE)
    yield ComparedValue("started", started.isoformat(), nearest.isoformat())


def _compare_device(record: Record, vendor: Vendor) -> Iterator[ComparedValue]:
    """Yield what plan and ranks say of the devices, which must fit the plan's vendor.

    From the plan: how torch uses the devices, and the key of the case, which names the vendor.
    """
    plan = record.plan
    planned_device = plan.device
    vendor_name = planned_device.vendor
    yield ComparedValue("plan.device.torch_type", planned_device.torch_type, vendor.torch_type)
    yield ComparedValue(
        "plan.device.collective_backend",
        planned_device.collective_backend,
        vendor.collective_backend,
    )
    # The key is CASE:…:VENDOR:NODES:DEVICES_PER_NODE:…, whose other parts are not compared.
    case, _, key_vendor, *numbers = plan.case_key.split(":")
    yield ComparedValue("plan.case_key", case, plan.case)
    yield ComparedValue("plan.case_key", key_vendor, vendor_name)
    yield ComparedValue("plan.case_key", numbers[:2], [str(plan.nnodes), str(plan.nproc)])
    planned_products = planned_device.product_names
    # A vendor that counts cores is a CPU. The plan and a rank on the same machine read the name of
    # the CPU in the same way.
    is_local_cpu = vendor.counts_cores and plan.launcher == "local"
    for number, device in enumerate(record.environment["devices"]):
        facts: dict[str, Any] = dict(device or {})
        # A rank that reported no vendor is not wrong: its vendor counts as that of the plan.
        yield ComparedValue(
            f"environment.devices[{number}].vendor", facts.get("vendor", vendor_name), vendor_name
        )
        product = facts.get("name")
        if is_local_cpu and planned_products and product and product not in planned_products:
            yield ComparedValue(f"environment.devices[{number}].name", product, planned_products[0])


def _make_recipe(plan: Plan, case: Case) -> Recipe | None:
    """Return the recipe as its case's type; None: it has fields of another version."""
    try:
        return case.recipe_type(**plan.recipe)
    except TypeError:
        return None


def _compare_with_case(
    plan: Plan, case: Case, recipe: Recipe | None, vendor: Vendor | None
) -> Iterator[ComparedValue]:
    """Yield values of a plan with what its case and recipe require.

    Args:
        case: the case of the plan, which this version of Trainmark comes with.
        recipe: the plan's recipe with the user's changes; None: it has fields of another version,
            and only what follows from the case is compared.
        vendor: None: the vendor's package is not installed, and labels are not compared.
    """
    about = plan.about
    yield ComparedValue("plan.about.metric", about.metric, case.metric)
    yield ComparedValue(
        "plan.about.higher_is_better", about.higher_is_better, case.higher_is_better
    )
    yield ComparedValue("plan.about.work_unit", about.work_unit, case.work_unit)
    if recipe is None:
        return
    # Both say whether the data are ``real`` or ``generated``.
    yield ComparedValue("plan.recipe.data", recipe.data, plan.data.origin)
    # Another version of Trainmark may have other recipes of these names.
    if plan.suite_version == __version__ and plan.recipe_name in case.recipes:
        yield from _compare_changes(plan, case, recipe)
    if vendor is not None:
        yield ComparedValue(
            "plan.labels", _list_checked_labels(plan), _list_expected_labels(plan, recipe)
        )


def _compare_changes(plan: Plan, case: Case, recipe: Recipe) -> Iterator[ComparedValue]:
    """Yield the changed fields that a plan lists, with the fields in which its recipe is changed.

    Changes are fields in which ``recipe``, the one of the run, differs from the standard recipe.
    ``fix_hp`` are changed hyper-parameters that the closed rules allow, ``extra`` all others.
    """
    nodes_by_ranks = f"{plan.nnodes}x{plan.nproc}"  # such as 1x8
    # Which recipe is the standard one depends on the numbers of nodes and of ranks, and on the
    # recipe that the user chose. The plan names it in ``compared_with``.
    standard_name = find_standard_recipe(case, plan.recipe_name, world=nodes_by_ranks)
    yield ComparedValue("plan.compared_with", plan.compared_with, standard_name)
    # ``named`` is the recipe that the user chose, without the user's changes. Of the result,
    # ``allowed`` belongs in ``fix_hp``, and ``other_work`` in ``extra``.
    changes = compare_with_standard(
        recipe, named=case.recipes[plan.recipe_name], standard=case.recipes[standard_name]
    )
    # Changed rules of data preparation are in ``extra`` too, but are no fields of the recipe. Their
    # names have a prefix.
    recipe_extra = {
        name: value for name, value in plan.extra.items() if not name.startswith(_PREPARE_PREFIX)
    }
    if "precision" not in plan.fix_hp:
        # A plan need not list a changed precision, because pages show it in a column of its own.
        changes.allowed.pop("precision", None)
    yield ComparedValue("plan.fix_hp", plan.fix_hp, changes.allowed)
    yield ComparedValue("plan.extra", recipe_extra, changes.other_work)
    # Any change that the closed rules do not allow makes a run one under the open rules.
    yield ComparedValue("plan.rules", plan.rules, "open" if plan.extra else "closed")


def _list_checked_labels(plan: Plan) -> list[str]:
    """Return the labels of a plan that do not depend on its machine."""
    return sorted(set(plan.labels) - _MACHINE_LABELS)


def _list_expected_labels(plan: Plan, recipe: Recipe) -> list[str]:
    """Return the labels that follow from a plan and its recipe, sorted.

    Labels that depend on the machine, such as ``oversubscribed``, are left out.
    """
    nodes_by_ranks = f"{plan.nnodes}x{plan.nproc}"  # such as 1x8
    has_no_target = recipe.target_value is None
    # On real data, a run that does not start from the published weights reaches a quality that
    # nothing can be compared with. A run on generated data has the label ``generated-data``.
    is_not_comparable = recipe.data == "real" and not plan.data.quality_comparable
    conditions = {
        "self-reported": True,  # every run is measured by whoever publishes it
        "performance-only": has_no_target or is_not_comparable,
        "generated-data": recipe.data == "generated",
        BALANCED_BOUND: recipe.is_upper_bound,  # no real training: it shows how fast one could be
        "given-peak": plan.peak_tflops is not None,  # the user stated the peak of the device
        # ``recipe.world``: nodes x ranks that the recipe is intended for; None: any.
        f"recipe-written-for-{recipe.world}": recipe.world not in (None, nodes_by_ranks),
        RESUMED: plan.resumed is not None,
    }
    return sorted(name for name, holds in conditions.items() if holds)


def _compare_model(record: Record, recipe: Recipe | None) -> Iterator[ComparedValue]:
    """Yield sizes and FLOPs of the model, which must follow from its recipe and fit in memory.

    Args:
        recipe: the plan's recipe, if Trainmark comes with the case; None: it does not, or the
            recipe has fields of another version.
    """
    # Facts that rank 0 reported of its training, such as the number of parameters.
    job: dict[str, Any] = dict(record.environment["job"] or {})
    parameters = job.get("parameters")
    trained = job.get("trainable_parameters")
    if parameters is not None and trained is not None:
        yield from check_at_most("environment.job.trainable_parameters", trained, parameters)
    # Memory of each rank's device; a rank may have reported none.
    totals = [(device or {}).get("memory_total_bytes") for device in record.environment["devices"]]
    known_totals = [total for total in totals if total]
    if parameters and len(known_totals) == record.plan.world_size:
        num_trained = parameters if trained is None else trained
        num_frozen = parameters - num_trained
        # The smallest formats count: 8 bits for a frozen parameter; 16 bits for a trained one and
        # as many for its gradient.
        min_bytes = num_frozen * _MIN_FROZEN_BYTES + num_trained * _MIN_TRAINED_BYTES
        # Bytes are compared, not numbers of parameters: all parameters together must fit into the
        # memory of all devices together.
        yield from check_at_most("environment.job.parameters", min_bytes, sum(known_totals))
    module = _load_sizes_module(record.plan.case)
    if recipe is None or module is None or not job:
        return
    # What follows from the recipe: facts of the job, and a formula for the FLOPs.
    sizes: Sizes = module.find_sizes(recipe, job)
    for name, value in sizes.facts.items():
        if name in job:
            yield ComparedValue(f"environment.job.{name}", job[name], value)
    if sizes.flops is None:  # the case has no formula that is proportional to the counts
        return
    for rank in record.ranks:
        for name, phase in rank.phases.items():
            if phase.model_flops is not None:
                flops = sizes.flops(phase.counts)
                yield ComparedValue(
                    f"ranks[{rank.rank}].phases.{name}.model_flops", phase.model_flops, flops
                )


def _compare_evidence(record: Record) -> Iterator[ComparedValue]:
    """Yield the listed evidence files, which must include each file that every record needs.

    Evidence is every file beside a record from which it was computed: the plan, the events of the
    launcher, and the events of each rank. Other files may be listed too.
    """
    listed_files = {entry.name for entry in record.evidence}
    required_files = {PLAN_FILE, LAUNCHER_FILE}
    # A rank that never started wrote no file.
    required_files |= {
        name_rank_file(rank.rank) for rank in record.ranks if rank.wall_ns is not None
    }
    # A record that lists no files is not wrong: it only cannot be checked against its evidence.
    if listed_files:
        yield ComparedValue(
            "evidence", sorted(listed_files & required_files), sorted(required_files)
        )
