"""Choose case, recipe, world and device of a request, before any data is inspected.

Defines the form of case keys, which name a piece of work in other systems, and the reasons for
which a run is refused or an entry of a plan file is skipped. A request is checked in full even if
this machine cannot run it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING

from trainmark import cases, devices
from trainmark.errors import EnvironmentFault, UsageError
from trainmark.plan.recipes import apply_overrides, choose_recipe
from trainmark.protocols.tested import NOT_STATED, REAL_RUNS
from trainmark.torch_version import read_installed_version, refuse_missing_features

if TYPE_CHECKING:
    from trainmark.plan.request import RunRequest
    from trainmark.protocols import Vendor
    from trainmark.recipe import Recipe
    from trainmark.spec import Case, Text

_SINGLE_MACHINE_LAUNCHERS = ("local", "container")
ACCELERATOR = "accelerator"  # any vendor with a device on this machine, never the processor
KEY_FORM = "model:framework[_version]:hardware:nnodes:nproc:repeat"
_KEY = re.compile(
    r"(?P<case>[^:]+):(?P<framework>[^:]+):(?P<hardware>[^:]+)"
    r":(?P<nnodes>[1-9][0-9]{0,5}):(?P<nproc>[1-9][0-9]{0,5}):(?P<repeat>[1-9][0-9]{0,5})"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The work that a request names, and on how many machines and ranks it runs.

    Args:
        recipe: with the changes that the request asks for.
        hardware: the device that the case key names; None: the request has no case key.
        repeat: number of launches.
    """

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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Target:
    """Case, hardware and numbers that the case argument names; without a key, one rank."""

    case: Case
    hardware: str | None = None
    nnodes: int = 1
    nproc: int = 1
    repeat: int = 1


def choose_work(request: RunRequest) -> Choice:
    """Return the case, recipe and numbers of machines, ranks and launches that ``request`` names.

    Raises:
        UsageError: an unknown case, recipe or field, a malformed case key, or a value that does not
            fit.
        EnvironmentFault: a case key asks for another version of the framework.
    """
    target = _read_target(request.case)
    case = target.case
    nnodes, nproc = _choose_world(request, target)
    recipe_name = choose_recipe(
        case, request.recipe, world=f"{nnodes}x{nproc}", real_data=request.data is not None
    )
    overrides = dict(request.overrides)
    # Options that set a recipe field, which may not be among the settings too.
    for option, field, value in (
        ("--timeout", "timeout_s", request.timeout),
        ("--seed", "seed", request.seed),
    ):
        if value is None:
            continue
        if field in overrides:
            raise UsageError(
                f"{field} is given twice",
                where=option,
                rule=f"{option} sets the recipe field {field}",
                fix=f"set {field} only once",
            )
        overrides[field] = str(value)
    recipe = apply_overrides(case.recipes[recipe_name], overrides)
    if recipe.precision == "fp8" and not recipe.has_fp8:
        raise UsageError(
            f"precision=fp8 cannot be used with {case.name}",
            where="recipe field precision",
            rule="precision=fp8 needs a case whose linear layers support fp8",
            fix="use precision=bf16",
        )
    recipe.check(nnodes * nproc)  # refuses values that contradict each other
    _check_replay(case, recipe)
    return Choice(
        case=case,
        recipe_name=recipe_name,
        recipe=recipe,
        hardware=target.hardware,
        nnodes=nnodes,
        nproc=nproc,
        repeat=request.repeat or target.repeat,
    )


def _check_replay(case: Case, recipe: Recipe) -> None:
    """Refuse ``replay_every_windows`` if repeats are impossible, useless, or not certain to occur.

    They are useless if a difference between both passes could not be traced to a rank.

    A window is the steps between two synchronisations. With ``replay_every_windows=N``, every Nth
    measured window is repeated from the same state, and both passes are compared bit by bit.
    """
    if recipe.replay_every_windows is None:
        return
    setting = f"replay_every_windows={recipe.replay_every_windows}"
    where = "recipe field replay_every_windows"
    fix = "use replay_every_windows=none"
    if not case.can_replay:
        raise UsageError(
            f"{setting} cannot be used with {case.name}",
            where=where,
            rule=(
                "a window can be repeated only if everything that its steps change can be "
                "restored, but the steps of this case also change tables or counts that cannot be "
                "restored"
            ),
            fix=fix,
        )
    if getattr(recipe, "tensor_parallel", 1) > 1:  # only the recipes of some cases have it
        raise UsageError(
            f"{setting} cannot be used with tensor_parallel={recipe.tensor_parallel}",  # type: ignore[attr-defined]
            where=where,
            rule=(
                "ranks that share a replica exchange activations, so a difference between the "
                "two passes of a window would appear on all of these ranks and could not be traced "
                "to one of them"
            ),
            fix=f"{fix}, or tensor_parallel=1",
        )
    if recipe.max_steps is None:
        return  # the number of windows depends on the data, which is checked later
    # The least number of windows in ``max_steps`` steps: if none ends early. The end of an epoch or
    # an evaluation may end windows early, so that there are more, but how many depends on the data,
    # which is not known yet. So a run that takes all these steps is sure to repeat a window, unless
    # it is refused.
    min_windows = ceil(max(0, recipe.max_steps - recipe.warmup_steps) / recipe.window_steps)
    if min_windows < recipe.replay_every_windows:
        raise UsageError(
            f"{setting}, but the run might have only {min_windows} measured windows",
            where=where,
            rule=(
                "replay_every_windows must not exceed the minimum number of measured windows, "
                "which is (max_steps - warmup_steps) / window_steps, rounded up"
            ),
            fix="use a smaller value, or more steps",
        )


def _read_target(text: str) -> _Target:
    """Return what the case argument names: a case, or all parts of a case key.

    A case key names a case with its framework, hardware and numbers of machines, ranks on each and
    launches: ``distilbert:pytorch_2.13:cpu:1:2:1``.
    """
    if ":" not in text:  # only a case key has colons
        return _Target(case=cases.load(text))
    match = _KEY.fullmatch(text)
    if match is None:
        raise UsageError(
            f"{text!r} is not a case key",
            where="CASE",
            rule=f"a case key has the form {KEY_FORM}",
            fix="use, for example, distilbert:pytorch_2.13:cpu:1:2:1",
        )
    case = cases.load(match["case"])
    _check_framework(case, match["framework"])
    return _Target(
        case=case,
        hardware=match["hardware"],
        nnodes=int(match["nnodes"]),
        nproc=int(match["nproc"]),
        repeat=int(match["repeat"]),
    )


def _choose_world(request: RunRequest, target: _Target) -> tuple[int, int]:
    """Return the number of machines and of ranks on each.

    Options decide first, then a case key, then the world for which the recipe was written.
    """
    nnodes = target.nnodes
    nproc = target.nproc
    is_case_key = target.hardware is not None  # else a case alone, which names no hardware
    # A case key names the world too. --nproc then changes the ranks on each machine of the key, and
    # leaves the number of machines.
    if not is_case_key:
        # An unknown recipe is refused by the caller.
        recipe = target.case.recipes.get(request.recipe or "")
        if recipe is not None and recipe.world:
            nnodes, nproc = map(int, recipe.world.split("x"))  # such as "2x8"
        # --nproc without --nnodes means one machine, also with a recipe for several: the world of
        # the recipe is then not used at all.
        if request.nproc is not None:
            nnodes = 1
    return request.nnodes or nnodes, request.nproc or nproc


def format_case_key(choice: Choice, hardware: str) -> str:
    """Return the case key of a choice, such as ``distilbert:pytorch_2.13:cpu:1:2:1``.

    Its parts are the case, the framework with its installed version, the hardware, the number of
    machines, of ranks on each, and of launches.
    """
    case = choice.case
    major_and_minor = ".".join(read_installed_version().split(".")[:2])
    framework = f"{case.framework}_{major_and_minor}"
    world = f"{choice.nnodes}:{choice.nproc}:{choice.repeat}"
    return f"{case.name}:{framework}:{hardware}:{world}"


def _check_framework(case: Case, framework: str) -> None:
    """Refuse a key that names another framework, or a version that is not installed.

    Otherwise a record would claim work that was not done.

    Raises:
        EnvironmentFault: the key does not fit.
    """
    installed = f"{case.framework}_{read_installed_version()}"
    # The dots let `pytorch_2.1` stand for 2.1.3, but not for 2.13.
    if framework != case.framework and not f"{installed}.".startswith(f"{framework}."):
        raise EnvironmentFault(
            f"the case key asks for {framework}, but {installed} is installed",
            where="CASE",
            fix=f"install that version, or use {case.framework} in the key",
        )


def select_vendor(
    choice: Choice, device: str | None, *, remote: RemoteTarget | None, ranks_share_cores: bool
) -> Vendor:
    """Return the vendor that can run ``choice``.

    Args:
        device: a vendor's name, as for ``--device``; ``accelerator``: the first accelerator of this
            machine; None: the case key's hardware, else the first device of this machine.
        remote: the machines of a launcher; None: this one.
        ranks_share_cores: whether there may be more ranks than cores of a processor; they run,
            but compete for it.

    Raises:
        UsageError: no vendor has this name.
        EnvironmentFault: its devices are missing or too few, or it refuses the recipe.
    """
    name = device or choice.hardware
    if remote is not None and name in (None, ACCELERATOR):
        # The cluster file may name the device. If it does not, the other machines are assumed to
        # have the devices of this one, so one must be here.
        name = remote.device or name
    if name == ACCELERATOR:
        vendor = _select_accelerator()
    elif remote is None or name is None:
        vendor = devices.choose_vendor(name)
    else:  # a vendor of the other machines is named: this one need not have its devices
        vendor = _find_vendor(name)
    _refuse_oversized_world(choice, vendor, remote)
    _refuse_without_collectives(vendor, choice.nnodes * choice.nproc)
    if remote is None:  # devices of other machines can only be asked there
        refuse_unsuitable_device(
            vendor, choice.recipe, choice.nproc, ranks_share_cores=ranks_share_cores
        )
    return vendor


def _find_vendor(name: str) -> Vendor:
    """Return the vendor called ``name``, whose devices need not be on this machine."""
    vendors = devices.list_vendors()
    if name not in vendors:
        raise devices.make_unknown_device_error(f"there is no vendor {name!r}", name, vendors)
    return vendors[name]


def _refuse_oversized_world(choice: Choice, vendor: Vendor, remote: RemoteTarget | None) -> None:
    """Refuse more nodes, or more devices on a node, than the run can have."""
    launcher = "local" if remote is None else remote.launcher
    # None: no limit is known here. The devices of this machine are counted later.
    max_nodes = 1 if remote is None else remote.nodes
    max_devices = None if remote is None else remote.devices_per_node
    if max_nodes is not None and choice.nnodes > max_nodes:
        rule = "a run cannot use more nodes than the cluster file lists"
        fix = "correct the cluster file"
        if launcher in _SINGLE_MACHINE_LAUNCHERS:
            rule = f"launcher {launcher} runs on one machine"
            fix = "choose a --launcher for several machines (see `trainmark list launchers`)"
        raise EnvironmentFault(
            f"{choice.nnodes} nodes are needed, but at most {max_nodes} can be used",
            where="CASE, --recipe or --nnodes",
            rule=rule,
            fix=f"set --nnodes to at most {max_nodes}, or {fix}",
        )
    if max_devices is not None and choice.nproc > max_devices:
        raise EnvironmentFault(
            f"{choice.nproc} {vendor.name} devices per node are needed, but at most "
            f"{max_devices} can be used",
            where="CASE, --recipe or --nproc",
            rule="a node cannot use more devices than the cluster file lists",
            fix=f"set --nproc to at most {max_devices}, or correct the cluster file",
        )


def _refuse_without_collectives(vendor: Vendor, ranks: int) -> None:
    """Refuse several ranks on devices whose memory no collective backend can exchange."""
    if ranks > 1 and not devices.has_collectives(vendor):
        backend = vendor.collective_backend or "none"
        raise EnvironmentFault(
            f"{ranks} ranks cannot run on {vendor.torch_type} devices, whose collective backend is "
            f"{backend}",
            where=f"device {vendor.name}",
            rule=(
                "ranks must exchange gradients in device memory, which torch's gloo cannot "
                "access on these devices"
            ),
            fix="use --nproc 1 on one machine",
        )


def refuse_unsuitable_device(
    vendor: Vendor, recipe: Recipe, nproc: int, *, ranks_share_cores: bool
) -> None:
    """Refuse devices of this machine that cannot run ``recipe`` on ``nproc`` ranks, or are too few.

    Args:
        ranks_share_cores: whether there may be more ranks than cores of a processor; they run,
            but compete for it.

    Raises:
        EnvironmentFault: the devices cannot run it.
    """
    # ``select_vendor`` has done this for the ranks of all machines; other callers have not.
    _refuse_without_collectives(vendor, nproc)
    refuse_missing_features(recipe, vendor, nproc)  # those that the installed torch lacks
    # The vendor is asked before its devices are counted, because it knows why some are missing.
    refusal = vendor.refuse(recipe, nproc)
    if refusal is not None:
        raise EnvironmentFault(refusal.why, where=f"device {vendor.name}", fix=refusal.fix)
    num_devices = vendor.count()
    if nproc > num_devices and not (vendor.counts_cores and ranks_share_cores):
        unit = "cores" if vendor.counts_cores else f"{vendor.name} devices"
        raise EnvironmentFault(
            f"{nproc} {unit} are needed, but this machine has {num_devices}",
            where="--nproc",
            rule="each rank needs its own device",
            fix=f"set --nproc to at most {num_devices}; see `trainmark list devices`",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteTarget:
    """The machines that a launcher starts a run on, as the cluster's file describes them.

    Args:
        tested: what the launcher was tested on.
        device: vendor of their devices; None: that of ``--device``, else this machine's.
        nodes: maximum number of nodes of a run; None: unknown.
        devices_per_node: devices of each node; None: unknown.
        has_our_files: they see every folder of this machine, as a container on it does.
    """

    launcher: str
    tested: Text = NOT_STATED
    device: str | None = None
    nodes: int | None = None
    devices_per_node: int | None = None
    has_our_files: bool = False


def list_unproven(vendor: Vendor, remote: RemoteTarget | None) -> dict[str, Text]:
    """Return the vendor and the launcher of a run, if they did no real runs yet.

    Returns:
        What each was tested on, by its name.
    """
    tested = {vendor.name: devices.get_tested(vendor)}
    if remote is not None:
        tested[remote.launcher] = remote.tested
    # ``REAL_RUNS`` is the text of those that were tested by real runs.
    return {name: text for name, text in tested.items() if text != REAL_RUNS}


def _select_accelerator() -> Vendor:
    """Return the first vendor with an accelerator on this machine.

    Raises:
        EnvironmentFault: there is none, or it cannot be used.
    """
    vendor = devices.find_first_vendor(accelerator=True)
    if vendor is not None:
        return vendor
    faults = devices.list_device_faults()
    if faults:
        raise faults[0]  # why the first accelerator of this machine cannot be used
    raise EnvironmentFault(
        "no accelerator found on this machine",
        fix="use --device cpu to run on the CPU; for other machines, set `device` in the file "
        "passed with --cluster",
    )
