"""The kinds of device that ranks can run on, found without importing torch.

This is the registry of vendors. A vendor is a module here, or an installed package that offers a
class with the ``Vendor`` Protocol under the entry-point group ``trainmark.devices``.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from trainmark.devices.vendors.amd import Amd
from trainmark.devices.vendors.apple import Apple
from trainmark.devices.vendors.ascend import Ascend
from trainmark.devices.vendors.cambricon import Cambricon
from trainmark.devices.vendors.cpu import Cpu
from trainmark.devices.vendors.hygon import Hygon
from trainmark.devices.vendors.iluvatar import Iluvatar
from trainmark.devices.vendors.intel import Intel
from trainmark.devices.vendors.kunlunxin import Kunlunxin
from trainmark.devices.vendors.metax import MetaX
from trainmark.devices.vendors.mthreads import MThreads
from trainmark.devices.vendors.nvidia import Nvidia
from trainmark.errors import EnvironmentFault, TrainmarkError, UsageError, suggest_nearest
from trainmark.plugins import find_entry_points
from trainmark.protocols import Diagnoses, Occupant, Vendor, list_missing_members
from trainmark.protocols.tested import NOT_STATED

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from importlib.metadata import EntryPoint

    from trainmark.spec import Text

ENTRY_POINT_GROUP = "trainmark.devices"
# In the order in which they are tried without ``--device``. Vendors of packages come after these.
_ACCELERATORS: tuple[Callable[[], Vendor], ...] = (
    Nvidia,
    Amd,
    Hygon,
    Kunlunxin,
    Intel,
    Ascend,
    Cambricon,
    Iluvatar,
    MThreads,
    MetaX,
    Apple,
)
_GLOO_TYPES = ("cpu", "cuda")


@cache
def load_all() -> tuple[dict[str, Vendor], list[EnvironmentFault]]:
    """Return every vendor by name, and a fault for each that cannot be used.

    Only vendors that other installed packages add, as entry points, can have a fault. Accelerators
    come first, the CPU last. Each call returns the same objects, so that a vendor's tool is asked
    only once in a process.
    """
    vendors: dict[str, Vendor] = {}
    for make_vendor in _ACCELERATORS:
        vendor = make_vendor()
        vendors[vendor.name] = vendor
    faults = []
    for entry in find_entry_points(ENTRY_POINT_GROUP):
        try:
            vendor = _load(entry, taken=(*vendors, Cpu.name))
        except EnvironmentFault as fault:
            faults.append(fault)
        else:
            vendors[vendor.name] = vendor
    vendors[Cpu.name] = Cpu()
    return vendors, faults


def _load(entry: EntryPoint, *, taken: tuple[str, ...]) -> Vendor:
    """Return the vendor of an entry point.

    Args:
        taken: names of the vendors that were loaded before.

    Raises:
        EnvironmentFault: the vendor cannot be used; the caller skips it.
    """
    try:
        vendor: Vendor = entry.load()()  # the entry point is the vendor's class
        missing = list_missing_members(vendor, Vendor)
        if missing:
            fault = f"the vendor lacks {', '.join(missing)}"
        elif vendor.name in taken:
            fault = f"the name {vendor.name} is already taken by another vendor"
        else:
            vendor.count()  # every command calls it, so an error must show here
            return vendor
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a foreign package may raise anything
        fault = f"cannot be used: {type(error).__name__}: {error}"
    package = f" of {entry.dist.name}" if entry.dist else ""
    raise EnvironmentFault(
        f"skipped: {fault}",
        where=f"device {entry.name}{package} ({entry.value})",
        rule="a vendor must be an importable class that implements the Vendor Protocol",
        fix="fix or remove the package; docs/adding-a-device.md shows how to check it",
    )


def list_vendors() -> dict[str, Vendor]:
    """Return the working vendors by name; accelerators first, the CPU last."""
    return load_all()[0]


def has_collectives(vendor: Vendor) -> bool:
    """Tell whether ranks on a vendor's devices can exchange tensors.

    Torch's gloo moves only the memory of processors and of CUDA devices. A backend that makes gloo
    move its devices' memory too has a name that says so, ``npu:gloo`` for example.
    """
    if vendor.collective_backend == "gloo":
        return vendor.torch_type in _GLOO_TYPES
    return bool(vendor.collective_backend)


def list_device_faults() -> list[EnvironmentFault]:
    """Return a fault for each vendor whose devices are here and cannot be used."""
    faults = []
    for vendor in list_vendors().values():
        if not is_named_only(vendor):  # such a vendor is used only on request: a simulated one
            faults += _list_faults(vendor, where=f"device {vendor.name}")
    return faults


def _list_faults(vendor: Vendor, *, where: str) -> list[EnvironmentFault]:
    """Return the fault of a vendor whose devices are here and cannot be used; empty: none.

    Args:
        where: the place that the fault's message names.
    """
    # ``Diagnoses`` has functions that a vendor need not have.
    refusal = vendor.unusable() if isinstance(vendor, Diagnoses) else None
    if refusal is None:
        return []
    return [EnvironmentFault(refusal.why, where=where, fix=refusal.fix)]


def list_occupants(name: str, nproc: int) -> list[Occupant]:
    """Return the processes on the devices that ``nproc`` ranks of a vendor would use.

    Empty if the vendor does not look for them.
    """
    vendor = list_vendors()[name]
    return vendor.occupants(nproc) if isinstance(vendor, Diagnoses) else []


def find_first_vendor(*, accelerator: bool = False) -> Vendor | None:
    """Return the first vendor that has a device here; None: none has.

    Vendors that are used only if ``--device`` names them, such as simulated ones, are left out.

    Args:
        accelerator: leave the processor out.
    """
    for vendor in list_vendors().values():
        is_processor = vendor.counts_cores  # the devices of all others are accelerators
        if is_named_only(vendor) or (accelerator and is_processor):
            continue
        if vendor.count() > 0:
            return vendor
    return None


def is_named_only(vendor: Vendor) -> bool:
    """Tell whether a vendor is used only if ``--device`` names it, as simulated devices are."""
    return bool(getattr(vendor, "named_only", False))


def get_tested(vendor: Vendor) -> Text:
    """Return the text of what a vendor was tested on; if its class has none, "not stated …"."""
    tested: Text = getattr(vendor, "tested", NOT_STATED)
    return tested


def list_choices() -> list[str]:
    """Return what ``--device`` takes: the vendors' names, then torch's types of their devices.

    Some vendors, such as a simulated one, can be chosen only by name: their types are left out.
    """
    vendors = list_vendors()
    torch_types = [vendor.torch_type for vendor in vendors.values() if not is_named_only(vendor)]
    return list(dict.fromkeys([*vendors, *torch_types]))  # each once


def choose_vendor(name: str | None) -> Vendor:
    """Return a vendor that has a device here.

    Args:
        name: a vendor's name, or torch's type of its devices; None: choose the first vendor that
            has a device.

    Raises:
        UsageError: no vendor has that name or type, or several of that type have devices here.
        EnvironmentFault: the vendor has no device here.
    """
    vendors = list_vendors()
    if name is None:
        vendor = find_first_vendor()
        assert vendor is not None, "a processor is always here"
        return vendor
    candidates = _list_candidates(name)
    if not candidates:
        raise _explain_unknown_device(name)
    present = [vendor for vendor in candidates if vendor.count() > 0]
    if len(present) == 1:
        return present[0]
    if present:
        raise UsageError(
            f"several vendors have devices of the torch device type {name}: "
            + ", ".join(vendor.name for vendor in present),
            where="--device",
            fix="set --device to the name of one of these vendors",
        )
    for vendor in candidates:
        faults = _list_faults(vendor, where="--device")
        if faults:
            raise faults[0]
    usable_names = [
        vendor.name
        for vendor in vendors.values()
        if not is_named_only(vendor) and vendor.count() > 0
    ]
    raise EnvironmentFault(
        f"no {name} device is usable",
        where="--device",
        rule=f"a {name} device needs its driver and a torch build that supports it",
        fix=f"choose another device: {', '.join(usable_names)}; see `trainmark list devices`",
    )


def _list_candidates(name: str) -> list[Vendor]:
    """Return the vendor called ``name``, or else all vendors whose torch type is ``name``.

    Some vendors, such as a simulated one, can be chosen only by name, not by type.
    """
    vendors = list_vendors()
    if name in vendors:
        return [vendors[name]]
    return [
        vendor
        for vendor in vendors.values()
        if vendor.torch_type == name and not is_named_only(vendor)
    ]


def _explain_unknown_device(name: str) -> TrainmarkError:
    """Return the error for a name that no working vendor has.

    If an entry point that cannot be used has this name, the error is the fault of its package: the
    name of a vendor that was not loaded is not known, so that of its entry point stands for it.
    """
    _, package_faults = load_all()
    for fault in package_faults:
        # ``_load`` writes the place of a fault: it begins with the name of the entry point.
        if fault.where and fault.where.startswith(f"device {name} "):
            return fault
    return make_unknown_device_error(f"unknown device {name!r}", name, list_choices())


def make_unknown_device_error(what: str, name: str, choices: Collection[str]) -> UsageError:
    """Return the error of a value of ``--device`` that is none of ``choices``.

    Args:
        what: the sentence of the error.
        name: the value. Torch's name of one device, a valid choice with an index such as ``cpu:0``,
            gets its own advice.
        choices: what ``--device`` takes, as vendors' names and torch's types of their devices.
    """
    choice, _, index = name.lower().partition(":")
    if index.isdecimal() and choice in choices:
        fix = f"set --device {choice}, and --nproc to the number of devices"
        variables = [vendor.visible_devices for vendor in _list_candidates(choice)]
        names = dict.fromkeys(variable for variable in variables if variable is not None)
        if names:
            fix += f"; the environment variable {' or '.join(names)} selects them"
        rule = "--device names a kind of device, without an index"
        return UsageError(what, where="--device", rule=rule, fix=fix)
    return UsageError(what, where="--device", fix=suggest_nearest(choice, choices))
