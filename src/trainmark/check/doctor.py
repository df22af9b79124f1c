"""Examine a machine before a run: what stops it or spoils its figures, with a remedy for each.

Owns the table of checks, and those of devices and case, of which vendors and planning are asked.
Must not import torch.
"""

from __future__ import annotations

import json
import sys
from contextlib import closing
from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import TYPE_CHECKING, get_args

from trainmark import devices
from trainmark.check import host
from trainmark.check.host import Conditions, Subject, judged
from trainmark.devices.tool import run
from trainmark.errors import DataError, EnvironmentFault, TrainmarkError, UsageError
from trainmark.plan import case_key
from trainmark.plan.choosing import choose as choose_work
from trainmark.plan.choosing import refuse_ranks
from trainmark.plan.request import RunRequest
from trainmark.plan.resolving import resolve
from trainmark.protocols import DeviceSample, MonitorFault
from trainmark.recipe import Precision, Recipe
from trainmark.record.run.findings import BUSY_SHARE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from trainmark.protocols import Condition

    Check = Callable[[Subject], Conditions]

_OPEN = """
import json, sys
from trainmark.rank.worker import die_with_parent
die_with_parent()
from trainmark.check.doctor import opened
print(json.dumps(opened(sys.argv[1], int(sys.argv[2]))))
"""
_OPENING_S = 40.0  # torch from a cold network disk takes up to half a minute


@dataclass(frozen=True, slots=True)
class Examination:
    """All conditions of a machine: the document of ``--json``.

    Args:
        device: the vendor's name; without a vendor as the user named it.
        exit_code: 0 if nothing was found, 1 if something spoils figures, 2 if something stops a
            run.
        left_out: codes of the checks that were not made.
    """

    device: str | None
    nproc: int
    exit_code: int
    checks: list[Condition]
    left_out: list[str]
    schema_version: int = 1


def subject_of(
    case_word: str | None, *, out: Path, quick: bool, recipe: str | None = None,
    device: str | None = None, nproc: int | None = None, data: Path | None = None,
) -> Subject:  # fmt: skip
    """Return what is to be examined.

    Raises:
        UsageError: an unknown case, recipe or device, or a recipe without a case.
    """
    choice, vendor, fault = None, None, None
    if case_word is None and recipe is not None:
        raise UsageError("a recipe without its case", where="--recipe", remedy="name the case too")
    if case_word is not None:
        choice = choose_work(RunRequest.of(case=case_word, recipe=recipe, data=data, nproc=nproc))
        nproc = choice.nproc
        device = device or case_key.vendor_of(choice.hardware)
    try:
        vendor = devices.choose(device)
    except EnvironmentFault as error:
        fault = error
    if nproc is None:
        nproc = 1 if vendor is None or vendor.counts_cores else vendor.count()
    return Subject(
        vendor=vendor, fault=fault, device=device, nproc=nproc, choice=choice, out=out,
        data=data, quick=quick,
    )  # fmt: skip


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


def torch(subject: Subject) -> Conditions:
    """Import torch and open every device of the ranks, in a process that may crash or hang."""
    if subject.vendor is None:
        return
    words = [sys.executable, "-P", "-c", _OPEN, subject.vendor.name, str(subject.nproc)]
    try:
        output = run(words, timeout_s=_OPENING_S)
    except MonitorFault as fault:
        remedy = "see `python -c 'import torch'`, then the driver with the vendor's tool"
        yield judged(f"torch cannot be used: {fault.said}", remedy, stops=True)
        return
    what, remedy, refused = json.loads(output.splitlines()[-1])
    what += "".join(f"; not {precision}: {why}" for precision, why in refused.items())
    wanted = subject.choice is not None and subject.choice.recipe.precision in refused
    yield judged(what, remedy or "another precision", stops=bool(remedy) or wanted)


def opened(name: str, ranks: int) -> tuple[str, str, dict[str, str]]:
    """Open the device of each rank.

    Returns:
        What was found, the remedy if one does not open, and why an open one refuses a precision.
    """
    from trainmark.check.ceilings_rank import refusal

    refused = {}
    try:
        vendor = devices.choose(name)
        for rank in range(1 if vendor.counts_cores else ranks):
            device = vendor.open(rank, ranks)
            for precision in get_args(Precision):
                if why := refusal(vendor, device, precision):
                    refused[precision] = why
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


def data(subject: Subject) -> Conditions:
    """Plan the case's run: data, checkpoint, and whether its recipe fits; nothing is started.

    Generates a generated recipe's data if it is missing.
    """
    choice = subject.choice
    if choice is None or subject.vendor is None or (subject.quick and subject.data is None):
        return
    try:
        request = RunRequest.of(
            case=choice.case.name, recipe=choice.recipe_name, data=subject.data,
            device=subject.vendor.name, nnodes=choice.nnodes, nproc=subject.nproc, out=subject.out,
        )  # fmt: skip
        plan = resolve(request)
    except TrainmarkError as fault:
        what = "; ".join(filter(None, (fault.where, fault.what, fault.rule)))
        remedy = fault.remedy or "see `trainmark prepare --help`"
        code = "data" if isinstance(fault, DataError) else "recipe"
        yield judged(what, remedy, stops=True, code=code)
        return
    yield judged(f"{plan.recipe_name} fits {plan.nproc} rank(s)", code="recipe")
    found = plan.data
    yield judged(
        f"{found.train_samples:,} training, {found.eval_samples:,} evaluation samples, "
        f"{found.origin}; comparable quality: {found.quality_comparable}",
        "start from the published weights; from others only the speed compares",
        spoils=found.origin == "real" and not found.quality_comparable,
    )


# A check's code is its name.
CHECKS: tuple[Check, ...] = (
    host.memory, host.cores, host.governor, host.shared_memory, device, host.threads,
    host.strays, host.load, host.out_folder, occupants, device_state, monitor, driver, data,
)  # fmt: skip
SLOW: tuple[Check, ...] = (torch,)


def examine(subject: Subject, checks: Sequence[Check] = (*CHECKS, *SLOW)) -> Examination:
    """Make each check in turn; one that fails gives ``unknown``."""
    found: list[Condition] = []
    left_out = [check for check in checks if subject.quick and check in SLOW]
    for check in checks:
        if check in left_out:
            continue
        try:
            made = check(subject)
            found += (replace(one, code=one.code or check.__name__) for one in made)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - foreign vendors raise anything
            what = error.what if isinstance(error, TrainmarkError) else repr(error)
            remedy = getattr(error, "remedy", None) or "see why it cannot be read here"
            found.append(judged(what, remedy, unknown=True, code=check.__name__))
    severities = {one.severity for one in found}
    return Examination(
        device=subject.device if subject.vendor is None else subject.vendor.name,
        nproc=subject.nproc,
        exit_code=2 if "stops" in severities else 1 if "spoils" in severities else 0,
        checks=found,
        left_out=[check.__name__ for check in left_out],
    )
