"""The devices of the run: driver, torch, precisions, state, and who else is on them."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, get_args

from trainmark import devices
from trainmark.devices import pci
from trainmark.doctor.subject import judged
from trainmark.errors import EnvironmentFault
from trainmark.planning.capabilities import refuse_ranks
from trainmark.protocols import DeviceSample, Examined, MonitorFault
from trainmark.results.findings import BUSY_SHARE
from trainmark.spec import Precision, Recipe

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainmark.doctor.subject import Subject
    from trainmark.protocols import Condition, Vendor

OPENING_S = 40.0  # torch from a cold network disk takes up to half a minute
# Classes of the PCI bus that only compute: 3D controllers, accelerators, co-processors. Of display
# controllers (0x0300, 0x0380) many are there to draw.
_COMPUTES = ("0x0302", "0x12", "0x0b")


def device(subject: Subject) -> Iterator[Condition]:
    """Find the devices of the ranks."""
    vendor = subject.vendor
    if vendor is None:
        yield judged(*subject.no_vendor, stops=True)
        return
    try:
        refuse_ranks(vendor, Recipe(), subject.nproc, ranks_share_cores=True)
    except EnvironmentFault as fault:
        yield judged(fault.what, fault.remedy or "see `trainmark list devices`", stops=True)
        return
    names = ", ".join(sorted(set(vendor.product_names())))
    yield judged(f"{vendor.count()} {'core(s)' if vendor.counts_cores else vendor.name}: {names}")


def driver(subject: Subject) -> Iterator[Condition]:
    """Find devices that are here and cannot be used, and packages of vendors that do not work."""
    known, broken = devices.load_all()
    faults = [*broken, *devices.unusable()]
    for vendor in known.values():
        if (bus := getattr(vendor, "pci_vendor", None)) is None or vendor.count():
            continue
        places = pci.accelerators(bus, root=subject.root)
        count = sum((place / "class").read_text().startswith(_COMPUTES) for place in places)
        if count and not any(_of(fault, vendor.name) for fault in faults):
            what, remedy = f"{count} on the PCI bus, and no driver", "load or install the driver"
            fault = EnvironmentFault(what, where=f"device {vendor.name}", remedy=remedy)
            faults.append(fault)
    named = subject.device
    asked = {named, *(one.name for one in known.values() if named in (one.name, one.torch_type))}
    for fault in faults:
        wanted = any(_of(fault, name) for name in asked)
        yield judged(
            f"{fault.where}: {fault.what}",
            fault.remedy or "see the vendor's documentation",
            stops=wanted,
            spoils=True,
        )
    if not faults:
        yield judged((subject.vendor and subject.vendor.driver_version()) or "no fault found")


def _of(fault: EnvironmentFault, vendor: str | None) -> bool:
    return f"{fault.where} ".startswith(f"device {vendor} ")


def precisions(subject: Subject) -> Iterator[Condition]:
    """Tell the precisions that planning refuses; the rest is known once a device is open."""
    if subject.vendor is not None:
        yield _precisions(subject, _refused(subject.vendor, subject.nproc))


def _refused(vendor: Vendor, nproc: int) -> dict[str, str]:
    recipes = (replace(Recipe(), precision=precision) for precision in get_args(Precision))
    found = {recipe.precision: vendor.refuse(recipe, nproc) for recipe in recipes}
    return {precision: refusal.why for precision, refusal in found.items() if refusal}


def _precisions(subject: Subject, refused: dict[str, str]) -> Condition:
    left = [precision for precision in get_args(Precision) if precision not in refused]
    reasons = "".join(f"; not {precision}: {why}" for precision, why in refused.items())
    return judged(
        f"{', '.join(left) or 'none'}{reasons}",
        "another device, or a precision that is left",
        stops=subject.request is not None and subject.request.recipe.precision in refused,
        code="precisions",
    )


def torch(subject: Subject) -> Iterator[Condition]:
    """Import torch and open every device of the ranks, in a process that may crash or hang."""
    if subject.vendor is None:
        return
    words = ["trainmark.doctor.opening", subject.vendor.name, str(subject.nproc)]
    try:
        said = subject.tool([sys.executable, "-P", "-m", *words], timeout_s=OPENING_S)
    except MonitorFault as fault:
        remedy = "see `python -c 'import torch'`, then the driver with the vendor's tool"
        yield judged(f"torch cannot be used: {fault.said}", remedy, stops=True)
        return
    found = json.loads(said.splitlines()[-1])
    yield judged(found["what"], found.get("remedy", ""), stops="remedy" in found)
    if found.get("refused"):  # more than planning knows
        yield _precisions(subject, _refused(subject.vendor, subject.nproc) | found["refused"])


def occupants(subject: Subject) -> Iterator[Condition]:
    """Name the processes on the devices of the ranks."""
    if subject.vendor is None or subject.vendor.counts_cores:
        return
    found = devices.occupants(subject.vendor.name, subject.nproc)
    for one in found:
        remedy = "end it, or hide the device with the vendor's variable"
        yield judged(one.said(), remedy, spoils=one.computes)
    if not found:
        yield judged("none that the vendor tells")


def device_state(subject: Subject) -> Iterator[Condition]:
    """Ask the vendor for clocks, limits, ECC and others."""
    vendor = subject.vendor
    if isinstance(vendor, Examined):
        yield from vendor.conditions(subject.nproc)
    elif vendor is not None and not vendor.counts_cores:
        what = f"clocks, power limits and ECC of {vendor.name} devices are not examined"
        yield judged(what, "look at them with the vendor's tool", unknown=True)


def monitor(subject: Subject) -> Iterator[Condition]:
    """Read the devices once, as is done while ranks work, and find those that compute already."""
    vendor = subject.vendor
    if vendor is None or vendor.counts_cores:
        return
    what, samples = "no power or temperature is known of these devices", list[DeviceSample]()
    try:
        if (reader := vendor.monitor()) is not None:
            try:
                samples = list(reader.read())
                what = f"{reader.name} reads {len(samples)} device(s)"
            finally:
                reader.close()
    except MonitorFault as fault:
        what = f"{fault.kind}: {fault.said}"
    remedy = "install the vendor's management library or tool, or see why it does not answer"
    yield judged(what, remedy, unknown=not samples)
    for index in vendor.monitored(subject.nproc) if samples else ():
        busy = next((one.utilization_percent for one in samples if one.index == index), None) or 0
        if busy > 100 * BUSY_SHARE:
            what, remedy = f"device {index} is busy {busy:.0f}% of the time", "end what works there"
            yield judged(what, remedy, spoils=True, code="occupants")
