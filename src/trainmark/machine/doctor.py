"""Examine a machine before a run: what stops it or spoils its figures, with a fix for each.

Owns the table of checks, and the checks of devices and case, which ask vendors and planning. Their
sentences are in ``messages.toml`` in this folder. Must not import torch.
"""

from __future__ import annotations

import json
import os
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from trainmark import cases, devices
from trainmark.devices.tool import run_tool
from trainmark.errors import DataError, EnvironmentFault, TrainmarkError, UsageError
from trainmark.launch.python_commands import build_code_command
from trainmark.machine import host
from trainmark.machine.host import (
    ENGLISH_TEXT,
    Condition,
    Conditions,
    ExaminedMachine,
    choose_severity,
    make_condition,
)
from trainmark.plan.choosing import choose_work, refuse_unsuitable_device
from trainmark.plan.resolving import resolve
from trainmark.protocols import DeviceSample, DeviceSettings, MonitorFault, ReportsSettings
from trainmark.protocols.tested import REAL_RUNS
from trainmark.ranges import format_ranges
from trainmark.recipe import Precision, Recipe
from trainmark.record.findings import BUSY_SHARE
from trainmark.record.messages import render
from trainmark.spec import MESSAGES_FILE, Message, Text, message, read_messages

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from trainmark.plan.choosing import Choice
    from trainmark.plan.request import RunRequest

    Check = Callable[[ExaminedMachine], Conditions]

# Code of a separate process that opens the devices: drivers may crash or hang.
_OPEN_DEVICES_CODE = """
import json, sys
from trainmark.rank.parent import die_with_parent
die_with_parent(int(sys.argv[3]))
from trainmark.machine.doctor import find_refusals
print(json.dumps(find_refusals(sys.argv[1], int(sys.argv[2]))))
"""
WITHOUT_CASE = "-"  # name of the case in a request without a case
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


def render_sentence(sentence: Message | Text | str, lang: str) -> str:
    """Return what a condition says, or its fix, as a text in the language ``lang``."""
    if isinstance(sentence, str):
        return sentence
    if isinstance(sentence, Text):
        return sentence.in_language(lang)
    return render(sentence, lang, _SENTENCES)


def describe_machine(request: RunRequest, *, quick: bool) -> ExaminedMachine:
    """Return the machine to examine, with the run that would be planned on it.

    Args:
        quick: skip the checks that take long.

    Raises:
        UsageError: an unknown case, recipe or device, or a recipe without a case.
    """
    choice = None  # stays None if the user names no case: the request then has ``WITHOUT_CASE``
    vendor = None
    device = request.device
    nproc = request.nproc
    if request.case != WITHOUT_CASE:
        choice = choose_work(request)
        # A case may be named by a key that also names its device: ``gpt:pytorch:nvidia:1:8:1``.
        device = device or choice.hardware
        nproc = choice.nproc
    elif request.recipe is not None:
        raise UsageError("--recipe needs a case", where="--recipe", fix="add the name of a case")
    with suppress(EnvironmentFault):  # ``check_device`` reports it
        vendor = devices.choose_vendor(device)
    # Without a number of ranks: one on each accelerator, but only one on a processor, whatever its
    # cores.
    if nproc is None:
        nproc = 1 if vendor is None or vendor.counts_cores else vendor.count()
    request = request.model_copy(update={"device": device})
    return ExaminedMachine(request=request, vendor=vendor, nproc=nproc, choice=choice, quick=quick)


def check_device(machine: ExaminedMachine) -> Conditions:
    """Check that the ranks can have their devices."""
    try:
        # Without a vendor, it could not be chosen before: choosing it again raises the reason.
        vendor = machine.vendor or devices.choose_vendor(machine.request.device)
        # ``check_plan`` checks the recipe of the case, and ``check_cores`` the number of cores.
        refuse_unsuitable_device(vendor, Recipe(), machine.nproc, ranks_share_cores=True)
    except EnvironmentFault as fault:
        yield make_condition(ENGLISH_TEXT, "stops", fix=fault.fix, text=fault.what)
        return
    names = ", ".join(sorted(set(vendor.product_names())))
    yield make_condition("device", count=vendor.count(), vendor=vendor.name, names=names)


def check_tested(machine: ExaminedMachine) -> Conditions:
    """State what the code for this vendor's devices was tested on."""
    if machine.vendor is None:
        return
    tested = devices.get_tested(machine.vendor)
    name = machine.vendor.name
    # A vendor's text may lack the Chinese; then ``in_language`` returns the English.
    sentence = Text(
        f"{name}, tested on: {tested.en}", f"{name}，测试依据：{tested.in_language('zh')}"
    )
    # ``examine`` replaces an empty code by that of the check.
    if tested == REAL_RUNS:  # else it was tested with less than real runs
        yield Condition(code="", severity="fine", what=sentence)
    else:
        # Nothing is wrong with this machine, but whether all works here is not known.
        fix = message("fix.tested")
        yield Condition(code="", severity="unknown", what=sentence, fix=fix)


def check_driver(machine: ExaminedMachine) -> Conditions:
    """Find devices of this machine that cannot be used, and vendors' packages that do not work.

    If there are none, the version of the driver is shown.
    """
    _, load_faults = devices.load_all()
    faults = [*load_faults, *devices.list_device_faults()]
    # These faults may be of devices that the run does not use, so they do not stop it.
    # ``check_device`` reports a fault of the requested device, which does.
    for fault in faults:
        text = f"{fault.where}: {fault.what}"
        yield make_condition(ENGLISH_TEXT, "spoils", fix=fault.fix, text=text)
    if faults:
        return
    driver_version = None if machine.vendor is None else machine.vendor.driver_version()
    if driver_version:
        yield make_condition(ENGLISH_TEXT, text=driver_version)
    else:
        yield make_condition("no_fault")


def check_torch(machine: ExaminedMachine) -> Conditions:
    """Import torch and open every device of the ranks, in a process that may crash or hang."""
    if machine.vendor is None or machine.quick:
        return
    # With the id of this process, so that the other one ends if this one dies.
    arguments = [machine.vendor.name, str(machine.nproc), str(os.getpid())]
    try:
        output = run_tool(build_code_command(_OPEN_DEVICES_CODE, *arguments), timeout_s=_OPENING_S)
    except MonitorFault as fault:  # the process failed or hung; ``text`` is what it printed
        yield make_condition("no_torch", "stops", text=fault.text)
        return
    # The result of ``find_refusals`` is the last line; libraries may print others before it.
    refusals: dict[str, str] = json.loads(output.splitlines()[-1])
    precisions = [name for name in get_args(Precision) if name not in refusals]
    yield make_condition("torch", version=version("torch"), precisions=", ".join(precisions))
    if machine.choice is None:  # no case is examined, so no recipe needs a precision
        return
    precision = machine.choice.recipe.precision
    if precision in refusals:
        yield make_condition("no_precision", "stops", precision=precision, text=refusals[precision])


def find_refusals(vendor_name: str, num_ranks: int) -> dict[str, str]:
    """Open the device of each rank; return for each refused precision why a device refuses it.

    Raises:
        TrainmarkError: a device does not open.
    """
    from trainmark.machine.ceilings import try_precision

    vendor = devices.choose_vendor(vendor_name)
    num_devices = 1 if vendor.counts_cores else num_ranks  # ranks on a processor share it
    rank_devices = [vendor.open(rank, num_ranks) for rank in range(num_devices)]
    reasons: dict[str, str] = {}
    for device in rank_devices:
        for precision in get_args(Precision):
            reason = try_precision(vendor, device, precision)
            if reason is not None:
                reasons[precision] = reason
    return reasons


def check_occupants(machine: ExaminedMachine) -> Conditions:
    """Name the processes on the devices of the ranks."""
    if machine.vendor is None or machine.vendor.counts_cores:  # all processes share a processor
        return
    occupants = devices.list_occupants(machine.vendor.name, machine.nproc)
    for occupant in occupants:
        # A process that only draws the screen is shown, but disturbs no run.
        severity = choose_severity(spoils=occupant.computes)
        yield make_condition("occupant", severity, text=occupant.describe())
    if not occupants:
        yield make_condition("no_occupant")


def check_monitor(machine: ExaminedMachine) -> Conditions:
    """Read the devices once, as the sampler does; find busy ones and those with lowered clocks.

    If the clocks of an idle device are lowered, the cause is a limit that somebody set, heat, or
    the power supply.
    """
    vendor = machine.vendor
    if vendor is None or vendor.counts_cores:  # ``check_load`` looks at the processor
        return
    monitor_name = vendor.name  # the vendor's, if it has no monitor
    fault_text = ""
    samples: list[DeviceSample] = []
    try:
        reader = vendor.monitor()
        if reader is not None:
            with closing(reader):
                monitor_name = reader.name
                samples = list(reader.read())
    except MonitorFault as fault:
        fault_text = str(fault)
    if not samples:
        yield make_condition("monitor_silent", "unknown", text=fault_text or monitor_name)
        return
    yield make_condition("monitor", name=monitor_name, count=len(samples))
    by_index = {sample.index: sample for sample in samples}
    for index in vendor.monitored(machine.nproc):
        # A device that was not read has an empty sample, which meets no condition.
        yield from _check_sample(by_index.get(index, DeviceSample(index=index)))


def _check_sample(sample: DeviceSample) -> Conditions:
    """Yield a condition if a device is busy, and one if its clocks are lowered."""
    busy_share = (sample.utilization_percent or 0) / 100
    if busy_share > BUSY_SHARE:
        # A busy device has an occupant, even if no process could be listed. So the condition is
        # shown as one of the check ``occupants``.
        yield make_condition(
            "busy", "spoils", index=sample.index, share=busy_share, check_code="occupants"
        )
    # A power limit is no fault: even an idle device may report it.
    reasons = set(sample.throttle_reasons or ()) - {"power_cap"}
    if reasons:
        text = ", ".join(sorted(reasons))
        yield make_condition("clocks", "spoils", index=sample.index, text=text, check_code="clocks")


def check_settings(machine: ExaminedMachine) -> Conditions:
    """Show the settings of the devices; find those with a lower power limit than the default."""
    vendor = machine.vendor
    if not isinstance(vendor, ReportsSettings):
        return
    # Devices with the same settings are reported together.
    indices_by_text: dict[str, list[int]] = {}
    limited_texts: set[str] = set()
    for settings in vendor.read_settings(machine.nproc):
        text = _describe_settings(settings)
        indices_by_text.setdefault(text, []).append(settings.index)
        if _is_power_limited(settings):
            limited_texts.add(text)
    for text, indices in indices_by_text.items():
        severity = choose_severity(spoils=text in limited_texts)
        yield make_condition("settings", severity, indices=format_ranges(indices), text=text)


def _is_power_limited(settings: DeviceSettings) -> bool:
    """Tell whether the power limit is lower than that with which the device was delivered."""
    limit_w = settings.power_limit_w
    default_w = settings.default_power_limit_w
    return limit_w is not None and default_w is not None and limit_w < default_w


def _describe_settings(settings: DeviceSettings) -> str:
    """Return the known settings as names with values, for example ``ECC on``."""
    parts = []
    if settings.power_limit_w is not None:
        limit = f"power limit {settings.power_limit_w:g} W"
        if settings.default_power_limit_w is not None:
            limit += f" (default {settings.default_power_limit_w:g} W)"
        parts.append(limit)
    switches = {
        "persistence": settings.persistence,
        "ECC": settings.ecc,
        "MIG": settings.partitioned,
    }
    for name, is_on in switches.items():
        if is_on is not None:
            parts.append(f"{name} {'on' if is_on else 'off'}")
    return ", ".join(parts) or "–"


def check_plan(machine: ExaminedMachine) -> Conditions:
    """Plan the case's run: data, checkpoint, and whether its recipe fits; nothing is started.

    If the recipe trains on generated data that is missing, the data is generated now.
    """
    choice = machine.choice
    if choice is None or machine.vendor is None:
        return
    if machine.quick and machine.request.data is None:
        return  # generating data takes too long
    # What ``describe_machine`` has chosen takes the place of what the user left open.
    fields = {
        "case": choice.case.name,
        "recipe": choice.recipe_name,
        "nnodes": choice.nnodes,
        "device": machine.vendor.name,
        "nproc": machine.nproc,
    }
    try:
        plan = resolve(machine.request.model_copy(update=fields))
    except TrainmarkError as fault:
        text = "; ".join(part for part in (fault.where, fault.what, fault.rule) if part)
        check_code = "data" if isinstance(fault, DataError) else "recipe"
        yield make_condition(ENGLISH_TEXT, "stops", fix=fault.fix, text=text, check_code=check_code)
        if check_code == "recipe":  # planning may have ended before the check of the data
            yield from _check_data_alone(choice, machine.request.data)
        return
    yield make_condition("recipe", recipe=plan.recipe_name, nproc=plan.nproc, check_code="recipe")
    data = plan.data
    spoils = False
    if data.origin == "generated":
        # A run on generated data says so by its label, so nothing is spoilt.
        message_code = "data_generated"
    elif data.quality_comparable:
        message_code = "data"
    else:  # the quality cannot be compared with published ones
        message_code = "data_apart"
        spoils = True
    # ``check_code`` is not given: the condition belongs to the check that this function is in
    # ``CHECKS``, which is ``data``.
    yield make_condition(
        message_code,
        choose_severity(spoils=spoils),
        train=data.train_samples,
        eval=data.eval_samples,
        origin=data.origin,
    )


def _check_data_alone(choice: Choice, folder: Path | None) -> Conditions:
    """Check a folder of data although its run cannot be planned, so that both faults are known.

    Args:
        folder: None: the user named none.
    """
    if folder is None:
        return
    # A folder that the user names has real data, even if the recipe is one for generated data.
    try:
        cases.check_data(choice.case.name, folder, replace(choice.recipe, data="real"))
    except DataError as fault:
        text = "; ".join(part for part in (fault.where, fault.what, fault.rule) if part)
        # The error's text is shown as it is, because the catalogs have no translation of it.
        yield make_condition(ENGLISH_TEXT, "stops", fix=fault.fix, text=text, check_code="data")


CHECKS: dict[str, Check] = {
    "memory": host.check_memory,
    "cores": host.check_cores,
    "governor": host.check_governor,
    "numa": host.check_numa,
    "shared_memory": host.check_shared_memory,
    "network": host.check_network,
    "device": check_device,
    "tested": check_tested,
    "other_runs": host.check_other_runs,
    "load": host.check_load,
    "out_folder": host.check_out_folder,
    "occupants": check_occupants,
    "monitor": check_monitor,
    "settings": check_settings,
    "driver": check_driver,
    "data": check_plan,
    "torch": check_torch,
}


def examine(
    machine: ExaminedMachine, checks: Mapping[str, Check] = CHECKS, *, lang: str = "en"
) -> Examination:
    """Make each check in turn; a check that raises an error gives a condition ``unknown``.

    Args:
        checks: functions by the code of their conditions.
        lang: of the sentences, ``en`` or ``zh``.
    """
    conditions: list[Condition] = []
    for code, check in checks.items():
        try:
            for condition in check(machine):
                # A condition without a code belongs to the check that yields it.
                conditions.append(replace(condition, code=condition.code or code))
        except (Exception, SystemExit) as error:  # noqa: BLE001 - foreign vendors raise anything
            text = error.what if isinstance(error, TrainmarkError) else repr(error)
            fix = getattr(error, "fix", None)
            conditions.append(
                make_condition(ENGLISH_TEXT, "unknown", fix=fix, text=text, check_code=code)
            )
    return Examination(
        device=machine.request.device if machine.vendor is None else machine.vendor.name,
        nproc=machine.nproc,
        exit_code=_choose_exit_code(conditions),
        checks=[
            replace(
                condition,
                what=render_sentence(condition.what, lang),
                fix=render_sentence(condition.fix, lang),
            )
            for condition in conditions
        ],
    )


def _choose_exit_code(conditions: Sequence[Condition]) -> int:
    """Return 0 if nothing was found, 1 if something spoils figures, 2 if something stops a run.

    What is unknown here does not count.
    """
    severities = {condition.severity for condition in conditions}
    if "stops" in severities:
        return 2
    return 1 if "spoils" in severities else 0
