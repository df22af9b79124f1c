"""The devices of the run: driver, torch, precisions, state, and who else is on them."""

from __future__ import annotations

import json
import sys
from contextlib import closing
from importlib.metadata import version
from typing import TYPE_CHECKING, get_args

from trainmark import devices
from trainmark.check.doctor.subject import Conditions, Subject, judged
from trainmark.devices.tool import run
from trainmark.errors import EnvironmentFault, TrainmarkError
from trainmark.plan.capabilities import refuse_ranks
from trainmark.protocols import DeviceSample, MonitorFault
from trainmark.record.findings import BUSY_SHARE
from trainmark.spec import Precision, Recipe

if TYPE_CHECKING:
    from collections.abc import Mapping

_OPEN = """
import json, sys
from trainmark.rank.worker import die_with_parent
die_with_parent()
from trainmark.check.doctor.devices import opened
print(json.dumps(opened(sys.argv[1], int(sys.argv[2]))))
"""
OPENING_S = 40.0  # torch from a cold network disk takes up to half a minute


def device(subject: Subject) -> Conditions:
    """Find the devices of the ranks."""
    vendor = subject.vendor
    try:
        if vendor is None:
            raise subject.fault or EnvironmentFault("no device")
        refuse_ranks(vendor, Recipe(), subject.nproc, ranks_share_cores=True)
    except EnvironmentFault as fault:
        yield judged(fault.what, fault.remedy or "see `trainmark list devices`", stops=True)
        return
    names = ", ".join(sorted(set(vendor.product_names())))
    yield judged(f"{vendor.count()} {'core(s)' if vendor.counts_cores else vendor.name}: {names}")


def driver(subject: Subject) -> Conditions:
    """Find devices that are here and cannot be used, and packages of vendors that do not work."""
    faults = [*devices.load_all()[1], *devices.unusable()]
    for fault in faults:  # one of the device that is asked for stops a run, as `device` says
        remedy = fault.remedy or "see the vendor's documentation"
        yield judged(f"{fault.where}: {fault.what}", remedy, spoils=True)
    if not faults:
        yield judged((subject.vendor and subject.vendor.driver_version()) or "no fault found")


def precisions(subject: Subject) -> Conditions:
    """Tell the precisions that planning refuses; the rest is known once a device is open."""
    if subject.vendor is None:
        return
    refused: dict[str, str] = {}
    for precision in (known := get_args(Precision)):
        if refusal := subject.vendor.refuse(Recipe(precision=precision), subject.nproc):
            refused[precision] = refusal.why
    left = ", ".join(precision for precision in known if precision not in refused)
    remedy = "another device, or a precision that is left"
    yield judged((left or "none") + _reasons(refused), remedy, stops=_wanted(subject, refused))


def _reasons(refused: Mapping[str, str]) -> str:
    return "".join(f"; not {precision}: {why}" for precision, why in refused.items())


def _wanted(subject: Subject, refused: Mapping[str, str]) -> bool:
    return subject.choice is not None and subject.choice.recipe.precision in refused


def torch(subject: Subject) -> Conditions:
    """Import torch and open every device of the ranks, in a process that may crash or hang."""
    if subject.vendor is None:
        return
    words = [sys.executable, "-P", "-c", _OPEN, subject.vendor.name, str(subject.nproc)]
    try:
        output = run(words, timeout_s=OPENING_S)
    except MonitorFault as fault:
        remedy = "see `python -c 'import torch'`, then the driver with the vendor's tool"
        yield judged(f"torch cannot be used: {fault.said}", remedy, stops=True)
        return
    what, remedy, refused = json.loads(output.splitlines()[-1])
    stops = bool(remedy) or _wanted(subject, refused)
    yield judged(what + _reasons(refused), remedy or "another precision", stops=stops)


def opened(name: str, ranks: int) -> tuple[str, str, dict[str, str]]:
    """Open the device of each rank.

    Returns:
        What was found, the remedy if one does not open, and why an open one refuses a precision.
    """
    refused = {}
    try:
        vendor = devices.choose(name)
        for rank in range(1 if vendor.counts_cores else ranks):
            device = vendor.open(rank, ranks)
            for precision in get_args(Precision):
                try:
                    device.set_precision(precision)
                except TrainmarkError as fault:
                    refused[precision] = fault.what
    except TrainmarkError as fault:
        return fault.what, fault.remedy or "see the vendor's tool", {}
    return f"torch {version('torch')} opens the device of each rank", "", refused


def occupants(subject: Subject) -> Conditions:
    """Name the processes on the devices of the ranks."""
    if subject.vendor is None or subject.vendor.counts_cores:
        return
    found = devices.occupants(subject.vendor.name, subject.nproc)
    for one in found:
        remedy = "end it, or hide the device with the vendor's variable"
        yield judged(one.description(), remedy, spoils=one.computes)
    if not found:
        yield judged("none that the vendor tells")


def device_state(subject: Subject) -> Conditions:
    """Ask the vendor for clocks, limits, ECC and others."""
    vendor = subject.vendor
    if vendor is not None and hasattr(vendor, "conditions"):
        yield from vendor.conditions(subject.nproc)
    elif vendor is not None and not vendor.counts_cores:
        what = f"clocks, power limits and ECC of {vendor.name} devices are not examined"
        yield judged(what, "look at them with the vendor's tool", unknown=True)


def monitor(subject: Subject) -> Conditions:
    """Read the devices once, as is done while ranks work, and find those that compute already."""
    vendor = subject.vendor
    if vendor is None or vendor.counts_cores:
        return
    what, samples = "no power or temperature is known of these devices", list[DeviceSample]()
    try:
        if reader := vendor.monitor():
            with closing(reader):
                samples = list(reader.read())
                what = f"{reader.name} reads {len(samples)} device(s)"
    except MonitorFault as fault:
        what = str(fault)
    remedy = "install the vendor's management library or tool, or see why it does not answer"
    yield judged(what, remedy, unknown=not samples)
    for index in vendor.monitored(subject.nproc) if samples else ():
        busy = next((one.utilization_percent for one in samples if one.index == index), None) or 0
        if busy > 100 * BUSY_SHARE:
            what, remedy = f"device {index} is busy {busy:.0f}% of the time", "end what works there"
            yield judged(what, remedy, spoils=True, code="occupants")
