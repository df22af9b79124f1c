"""Examine a machine before a run: what stops it or spoils its figures, with a fix for each.

Owns the table of checks, and those of devices and case, of which vendors and planning are asked.
Their sentences stand in ``messages.toml`` beside this file. Must not import torch.
"""

from __future__ import annotations

import json
import os
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from trainmark import devices
from trainmark.check import host
from trainmark.check.host import Condition, Conditions, ExaminedMachine, judged
from trainmark.devices.tool import run
from trainmark.errors import DataError, EnvironmentFault, TrainmarkError, UsageError
from trainmark.launch.python_commands import build_code_command
from trainmark.plan.choosing import choose_work, refuse_unsuitable_device
from trainmark.plan.resolving import resolve
from trainmark.protocols import DeviceSample, MonitorFault
from trainmark.recipe import Precision, Recipe
from trainmark.record.findings import BUSY_SHARE
from trainmark.record.messages import render
from trainmark.spec import MESSAGES_FILE, Message, read_messages

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trainmark.plan.request import RunRequest

    Check = Callable[[ExaminedMachine], Conditions]

_OPEN = """
import json, sys
from trainmark.rank.parent import die_with_parent
die_with_parent(int(sys.argv[3]))
from trainmark.check.doctor import find_refusals
print(json.dumps(find_refusals(sys.argv[1], int(sys.argv[2]))))
"""
WITHOUT_CASE = "-"  # of a request without one
_OPENING_S = 40.0  # torch from a cold network disk takes up to half a minute


@dataclass(frozen=True, slots=True)
class Examination:
    """All conditions of a machine, in words: the document of ``--json``.

    Args:
        device: the vendor's name; without a vendor as the user named it.
        exit_code: 0 if nothing was found, 1 if something spoils figures, 2 if something stops a
            run.
    """

    device: str | None
    nproc: int
    exit_code: int
    checks: list[Condition]
    schema_version: int = 1


_SENTENCES = read_messages(Path(__file__).with_name(MESSAGES_FILE))


def render_sentence(said: Message | str, lang: str) -> str:
    """Return a sentence of the doctor."""
    return said if isinstance(said, str) else render(said, lang, _SENTENCES)


def describe_machine(request: RunRequest, *, quick: bool) -> ExaminedMachine:
    """Return what is to be examined.

    Raises:
        UsageError: an unknown case, recipe or device, or a recipe without a case.
    """
    choice, vendor, device, nproc = None, None, request.device, request.nproc
    if request.case != WITHOUT_CASE:
        choice = choose_work(request)
        device, nproc = device or choice.hardware, choice.nproc
    elif request.recipe is not None:
        raise UsageError("a recipe without its case", where="--recipe", fix="name the case too")
    with suppress(EnvironmentFault):  # which the check of devices tells
        vendor = devices.choose(device)
    if nproc is None:
        nproc = 1 if vendor is None or vendor.counts_cores else vendor.count()
    named = request.model_copy(update={"device": device})
    return ExaminedMachine(request=named, vendor=vendor, nproc=nproc, choice=choice, quick=quick)


def device(subject: ExaminedMachine) -> Conditions:
    """Find the devices of the ranks."""
    try:
        vendor = subject.vendor or devices.choose(subject.request.device)
        refuse_unsuitable_device(vendor, Recipe(), subject.nproc, ranks_share_cores=True)
    except EnvironmentFault as fault:
        yield judged("text", fault.fix, text=fault.what, stops=True)
        return
    names = ", ".join(sorted(set(vendor.product_names())))
    yield judged("device", count=vendor.count(), vendor=vendor.name, names=names)


def driver(subject: ExaminedMachine) -> Conditions:
    """Find devices that are here and cannot be used, and packages of vendors that do not work."""
    faults = [*devices.load_all()[1], *devices.unusable()]
    for fault in faults:  # one of the device that is asked for stops a run, as `device` says
        yield judged("text", fault.fix, text=f"{fault.where}: {fault.what}", spoils=True)
    if not faults:
        version_of = subject.vendor and subject.vendor.driver_version()
        yield judged("text", text=version_of) if version_of else judged("no_fault")


def torch(subject: ExaminedMachine) -> Conditions:
    """Import torch and open every device of the ranks, in a process that may crash or hang."""
    if subject.vendor is None or subject.quick:
        return
    given = [subject.vendor.name, str(subject.nproc), str(os.getpid())]
    try:
        output = run(build_code_command(_OPEN, *given), timeout_s=_OPENING_S)
    except MonitorFault as fault:
        yield judged("no_torch", text=fault.said, stops=True)
        return
    refused: dict[str, str] = json.loads(output.splitlines()[-1])
    precisions = [name for name in get_args(Precision) if name not in refused]
    yield judged("torch", version=version("torch"), precisions=", ".join(precisions))
    wanted = subject.choice and subject.choice.recipe.precision
    if wanted in refused:
        yield judged("no_precision", precision=wanted, text=refused[wanted], stops=True)


def find_refusals(name: str, ranks: int) -> dict[str, str]:
    """Open the device of each rank; return why one refuses a precision, by the precision.

    Raises:
        TrainmarkError: one does not open.
    """
    from trainmark.check.ceilings import find_refusal

    vendor = devices.choose(name)
    opened = [vendor.open(rank, ranks) for rank in range(1 if vendor.counts_cores else ranks)]
    return {
        precision: why
        for device in opened
        for precision in get_args(Precision)
        if (why := find_refusal(vendor, device, precision))
    }


def occupants(subject: ExaminedMachine) -> Conditions:
    """Name the processes on the devices of the ranks."""
    if subject.vendor is None or subject.vendor.counts_cores:
        return
    found = devices.occupants(subject.vendor.name, subject.nproc)
    for one in found:
        yield judged("occupant", text=one.description(), spoils=one.computes)
    if not found:
        yield judged("no_occupant")


def monitor(subject: ExaminedMachine) -> Conditions:
    """Read the devices once, as while ranks work; find those that are busy or have lowered clocks.

    At rest a device's clocks are lowered by a limit that somebody set, by heat or by its supply.
    """
    vendor = subject.vendor
    if vendor is None or vendor.counts_cores:
        return
    text, samples = vendor.name, list[DeviceSample]()
    try:
        if reader := vendor.monitor():
            with closing(reader):
                text, samples = reader.name, list(reader.read())
    except MonitorFault as fault:
        text = str(fault)
    if not samples:
        yield judged("monitor_silent", text=text, unknown=True)
        return
    yield judged("monitor", name=text, count=len(samples))
    by_index = {sample.index: sample for sample in samples}
    for index in vendor.monitored(subject.nproc):
        sample = by_index.get(index, DeviceSample(index=index))
        if (share := (sample.utilization_percent or 0) / 100) > BUSY_SHARE:
            yield judged("busy", index=index, share=share, spoils=True, code="occupants")
        # An idle device may say that its power is limited.
        if reasons := {*(sample.throttle_reasons or ())} - {"power_cap"}:
            text = ", ".join(sorted(reasons))
            yield judged("clocks", index=index, text=text, spoils=True, code="clocks")


def data(subject: ExaminedMachine) -> Conditions:
    """Plan the case's run: data, checkpoint, and whether its recipe fits; nothing is started.

    Generates a generated recipe's data if it is missing.
    """
    choice = subject.choice
    if choice is None or subject.vendor is None or (subject.quick and subject.request.data is None):
        return
    try:
        known = {"case": choice.case.name, "recipe": choice.recipe_name, "nnodes": choice.nnodes}
        known |= {"device": subject.vendor.name, "nproc": subject.nproc}
        plan = resolve(subject.request.model_copy(update=known))
    except TrainmarkError as fault:
        text = "; ".join(filter(None, (fault.where, fault.what, fault.rule)))
        code = "data" if isinstance(fault, DataError) else "recipe"
        yield judged("text", fault.fix, text=text, stops=True, code=code)
        return
    yield judged("recipe", recipe=plan.recipe_name, nproc=plan.nproc, code="recipe")
    found = plan.data
    yield judged(
        "data" if found.quality_comparable else "data_apart", train=found.train_samples,
        eval=found.eval_samples, origin=found.origin,
        spoils=found.origin == "real" and not found.quality_comparable,
    )  # fmt: skip


# A check's code is its name.
CHECKS: tuple[Check, ...] = (
    host.memory, host.cores, host.shared_memory, host.network, device,
    host.other_runs, host.load, host.out_folder, occupants, monitor, driver, data, torch,
)  # fmt: skip


def examine(
    subject: ExaminedMachine, checks: Sequence[Check] = CHECKS, *, lang: str = "en"
) -> Examination:
    """Make each check in turn; one that fails gives ``unknown``."""
    found: list[Condition] = []
    for check in checks:
        try:
            found += (replace(one, code=one.code or check.__name__) for one in check(subject))
        except (Exception, SystemExit) as error:  # noqa: BLE001 - foreign vendors raise anything
            fix = getattr(error, "fix", None)
            text = error.what if isinstance(error, TrainmarkError) else repr(error)
            found.append(judged("text", fix, text=text, unknown=True, code=check.__name__))
    severities = {one.severity for one in found}
    return Examination(
        device=subject.request.device if subject.vendor is None else subject.vendor.name,
        nproc=subject.nproc,
        exit_code=2 if "stops" in severities else 1 if "spoils" in severities else 0,
        checks=[
            replace(one, what=render_sentence(one.what, lang), fix=render_sentence(one.fix, lang))
            for one in found
        ],
    )
