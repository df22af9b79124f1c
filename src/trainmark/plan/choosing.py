"""Case, recipe, world and device of a request, before any data is inspected.

Owns the form of case keys, which name a piece of work in other systems, and the reasons for which a
run is refused, or one of a plan file skipped. What a request names is checked in full also where
this machine cannot run it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainmark import cases, devices
from trainmark.errors import EnvironmentFault, UsageError, nearest
from trainmark.plan.overrides import apply_overrides, choose_recipe
from trainmark.torch_version import installed_torch, require_torch

if TYPE_CHECKING:
    from trainmark.plan.request import RunRequest
    from trainmark.protocols import Vendor
    from trainmark.recipe import Recipe
    from trainmark.spec import Case

_ON_ONE_MACHINE = ("local", "container")  # launchers
ACCELERATOR = "accelerator"  # any vendor with a device here, but never the processor
KEY_FORM = "model:framework[_version]:hardware:nnodes:nproc:repeat"
_KEY = re.compile("([^:]+):([^:]+):([^:]+):" + ":".join(["([1-9][0-9]{0,5})"] * 3))


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What a request names; ``hardware`` is that of a case key, None without one."""

    case: Case
    recipe_name: str
    recipe: Recipe
    hardware: str | None
    nnodes: int
    nproc: int
    repeat: int

    @property
    def world(self) -> str:
        """Machines x ranks on each, ``1x8``."""
        return f"{self.nnodes}x{self.nproc}"


def choose_work(request: RunRequest) -> Choice:
    """Return what ``request`` names.

    Raises:
        UsageError: an unknown case, recipe or field, a malformed case key, or a value that does not
            fit.
        EnvironmentFault: a case key asks for another version of the framework.
    """
    name, hardware, (machines, ranks, repeat) = request.case, None, (1, 1, 1)
    if ":" in request.case:
        found = _KEY.fullmatch(request.case)
        if found is None:
            raise UsageError(
                f"{request.case!r} is not a case key", where="CASE", rule=f"a key is {KEY_FORM}",
                fix="for example distilbert:pytorch_2.13:cpu:1:2:1",
            )  # fmt: skip
        name, framework, hardware, *numbers = found.groups()
        machines, ranks, repeat = map(int, numbers)
        _check_framework(cases.load(name), framework)
    case = cases.load(name)
    named = case.recipes.get(request.recipe or "")
    if named and named.world and hardware is None:  # it was written for some machines and ranks
        machines, ranks = map(int, named.world.split("x"))
    if request.nproc is not None and hardware is None:
        machines = 1
    nnodes, nproc = request.nnodes or machines, request.nproc or ranks
    recipe_name = choose_recipe(
        case, request.recipe, world=f"{nnodes}x{nproc}", real_data=request.data is not None
    )
    options = {"timeout_s": request.timeout, "seed": request.seed}
    texts = {field: str(value) for field, value in options.items() if value is not None}
    recipe = apply_overrides(case.recipes[recipe_name], {**request.overrides, **texts})
    if recipe.precision == "fp8" and not recipe.has_fp8:
        raise UsageError(
            f"precision=fp8 in {case.name}", where="recipe field precision",
            rule="the case's linear layers compute in fp8", fix="use precision=bf16",
        )  # fmt: skip
    recipe.check(nnodes * nproc)
    return Choice(
        case=case, recipe_name=recipe_name, recipe=recipe, hardware=hardware, nnodes=nnodes,
        nproc=nproc, repeat=request.repeat or repeat,
    )  # fmt: skip


def format_case_key(choice: Choice, hardware: str) -> str:
    """Return the key of a choice as it runs here; the form is ``KEY_FORM``."""
    case = choice.case
    framework = f"{case.framework}_{'.'.join(installed_torch().split('.')[:2])}"
    world = f"{choice.nnodes}:{choice.nproc}:{choice.repeat}"
    return f"{case.name}:{framework}:{hardware}:{world}"


def _check_framework(case: Case, framework: str) -> None:
    """Refuse a key that names another framework, or a version that is not installed.

    Raises:
        EnvironmentFault: so that no record answers for work it did not do.
    """
    here = f"{case.framework}_{installed_torch()}"
    if framework != case.framework and not f"{here}.".startswith(f"{framework}."):
        raise EnvironmentFault(
            f"the key asks for {framework}, and {here} is here", where="CASE",
            fix=f"install that version, or write {case.framework} in the key",
        )  # fmt: skip


def select_vendor(
    choice: Choice, device: str | None, *, remote: RemoteTarget | None, ranks_share_cores: bool
) -> Vendor:
    """Return the vendor that can run ``choice``.

    Args:
        device: as for ``--device``, or ``accelerator``; None: the case key's hardware, or the
            first that is here.
        remote: the machines of a launcher; None: this one.
        ranks_share_cores: whether there may be more ranks than cores of a processor; they run,
            but compete for it.

    Raises:
        UsageError: no vendor is called so.
        EnvironmentFault: it is not here, has too few devices, or refuses the recipe.
    """
    wanted = device or choice.hardware
    nodes: int | None = 1
    on_node: int | None = None
    if remote is not None:
        nodes, on_node = remote.nodes, remote.devices_per_node
        if wanted in (None, ACCELERATOR):
            wanted = remote.device or wanted
    if wanted == ACCELERATOR:
        vendor = _select_accelerator()
    elif remote is None or wanted is None:
        vendor = devices.choose(wanted)
    elif wanted in (known := devices.all_vendors()):  # it need not be on this machine
        vendor = known[wanted]
    else:
        raise UsageError(f"no vendor {wanted!r}", where="--device", fix=nearest(wanted, known))
    for asked, most, unit, option in (
        (choice.nnodes, nodes, "nodes", "--nnodes"),
        (choice.nproc, on_node, f"{vendor.name} devices on a node", "--nproc"),
    ):
        if most is not None and asked > most:
            launcher = "local" if remote is None else remote.launcher
            if option == "--nnodes" and launcher in _ON_ONE_MACHINE:
                rule = f"launcher {launcher} runs on one machine"
                fix = "choose a --launcher for several machines (see `trainmark list launchers`)"
            else:
                rule = "the cluster file says so"
                fix = "correct the file"
            raise EnvironmentFault(
                f"{asked} {unit} are needed, at most {most} can be used",
                where=f"CASE, --recipe or {option}",
                rule=rule,
                fix=f"use {option} {most} or less, or {fix}",
            )
    _refuse_without_collectives(vendor, choice.nnodes * choice.nproc)
    if remote is None:
        refuse_unsuitable_device(
            vendor, choice.recipe, choice.nproc, ranks_share_cores=ranks_share_cores
        )
    return vendor


def _refuse_without_collectives(vendor: Vendor, ranks: int) -> None:
    if ranks > 1 and not devices.has_collectives(vendor):
        backend = vendor.collective_backend or "none"
        raise EnvironmentFault(
            f"{ranks} ranks on {vendor.torch_type} devices, whose collective backend is {backend}",
            where=f"device {vendor.name}",
            rule="ranks exchange gradients in the devices' memory, which torch's gloo does not "
            "reach on these devices",
            fix="use --nproc 1 on one machine",
        )


def _refuse_old_torch(vendor: Vendor, recipe: Recipe, nproc: int) -> None:
    """Refuse what torch 2.7.1 lacks; 2.11 is the oldest version after it that was tried."""
    if getattr(recipe, "checkpoint_every_steps", None) is not None:
        # One process saves with async_save(no_dist=True), which 2.7.1 does not take.
        require_torch(
            "2.11", "checkpoint_every_steps",
            where="recipe field checkpoint_every_steps", fix="leave the field out",
        )  # fmt: skip
    if nproc > 1 and getattr(recipe, "fsdp", False) and vendor.collective_backend == "gloo":
        # FSDP2 of 2.7.1 asks gloo for the mean of gradients and gets their sum.
        require_torch(
            "2.11", f"fsdp=true on {vendor.name} devices",
            where="recipe field fsdp", fix="use fsdp=false or --nproc 1",
        )  # fmt: skip


def refuse_unsuitable_device(
    vendor: Vendor, recipe: Recipe, nproc: int, *, ranks_share_cores: bool
) -> None:
    """Refuse ``recipe`` on ``nproc`` ranks of this machine; see ``select_vendor``."""
    _refuse_without_collectives(vendor, nproc)
    _refuse_old_torch(vendor, recipe, nproc)
    # Before the count, because it knows why there are fewer devices than there could be.
    refusal = vendor.refuse(recipe, nproc)
    if refusal is not None:
        raise EnvironmentFault(refusal.why, where=f"device {vendor.name}", fix=refusal.fix)
    here = vendor.count()
    if nproc > here and not (vendor.counts_cores and ranks_share_cores):
        unit = "cores" if vendor.counts_cores else f"{vendor.name} devices"
        raise EnvironmentFault(
            f"{nproc} {unit} needed, {here} here",
            where="--nproc",
            rule="each rank has a device of its own",
            fix=f"use --nproc {here} or less; see `trainmark list devices`",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteTarget:
    """The machines that a launcher starts a run on, as the cluster's file describes them.

    Args:
        device: vendor of their devices; None: as ``--device`` says, or as this machine has.
        nodes: that a run may have; None: unknown.
        devices_per_node: None: unknown.
        has_our_files: they see every folder that this machine sees, as its own container does.
    """

    launcher: str
    device: str | None = None
    nodes: int | None = None
    devices_per_node: int | None = None
    has_our_files: bool = False


def _select_accelerator() -> Vendor:
    vendor = devices.first(accelerator=True)
    if vendor is not None:
        return vendor
    for fault in devices.unusable():
        raise fault
    raise EnvironmentFault(
        "no accelerator here; --device cpu takes the processor",
        fix="for other machines name their device in the file of --cluster",
    )
