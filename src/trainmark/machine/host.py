"""Check the host of a run: memory, cores, disks, and other programs on it.

Also defines the machine that is examined, and the condition that a check yields. Must not import
torch.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from time import sleep
from typing import TYPE_CHECKING, Any, Literal

import psutil

from trainmark.affinity import count_allowed_cores
from trainmark.devices import cores as host_cores
from trainmark.errors import TrainmarkError
from trainmark.launch.network import LOOPBACK, refuse_unusable_network
from trainmark.launch.processes import CpuUse, find_alive_runs
from trainmark.plan.plan import RUNS_DIR
from trainmark.record.findings import BUSY_SHARE
from trainmark.spec import Message, Text, message

if TYPE_CHECKING:
    from trainmark.plan.choosing import Choice
    from trainmark.plan.request import RunRequest
    from trainmark.protocols import Vendor

Severity = Literal["stops", "spoils", "unknown", "fine"]
ENGLISH_TEXT = "text"  # message code of a sentence that is given as it is, in English
_GIB = 2**30
_MIB = 2**20
# Seconds over which the load is measured.
_LOAD_S = 2.0
_QUICK_LOAD_S = 0.3
_MIN_RANK_BYTES = _GIB  # a rank of the smallest recipes takes 0.4 GiB, and also reads files
_LOW_MEMORY_SHARE = 0.1  # of the total; less free memory may slow a run
# A container has 64 MB by default, too little for NCCL's segments between ranks:
# https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html, 2026-11-22
_SHM_BYTES_PER_RANK = 64 * _MIB
_DRIVERS_THAT_FOLLOW_LOAD = ("intel_pstate", "amd-pstate-epp")
_MIN_DISK_BYTES = 8 * _MIB  # for the events and the record of a short run
_LOW_DISK_BYTES = _GIB  # events and logs of a long run, and what a case saves, fit easily


@dataclass(frozen=True, slots=True)
class Condition:
    """Something about a machine that stops a run or spoils its figures, and its fix.

    Args:
        code: of the check, ``memory`` for example: the same on every machine.
        severity: ``stops`` a run, ``spoils`` its figures, is ``unknown`` here, or is ``fine``.
        what: the finding with its numbers; a text once a language is chosen.
        fix: what to do, in a few words; empty if ``fine``.
    """

    code: str
    severity: Severity
    what: str | Message | Text
    fix: str | Message = ""


Conditions = Iterator[Condition]


@dataclass(frozen=True, kw_only=True)
class ExaminedMachine:
    """A machine, and the run that is planned on it.

    Args:
        request: what the user named: device, folder for runs, folder with real data.
        vendor: of the devices; None: no device can be used.
        choice: case and recipe; None: no case is examined.
        quick: skip the checks that take long.
        root: folder that has ``proc``, ``sys`` and ``dev``; tests use another one.
    """

    request: RunRequest
    vendor: Vendor | None = None
    nproc: int = 1
    choice: Choice | None = None
    quick: bool = False
    root: Path = Path("/")


def make_condition(
    message_code: str,
    severity: Severity = "fine",
    *,
    fix: str | None = None,
    check_code: str = "",
    **values: Any,
) -> Condition:
    """Return a condition; one that is ``fine`` has no fix.

    Args:
        message_code: of its sentence in ``messages.toml``; ``ENGLISH_TEXT`` is for a sentence that
            is given as ``text``.
        severity: ``stops`` a run, ``spoils`` its figures, is ``unknown`` here, or is ``fine``.
        fix: as an error gives it, in English; None: the sentence ``fix.<message_code>``.
        check_code: of the check to which the condition belongs; empty: the check that yields it.
        values: arguments of the sentence.
    """
    what = message(message_code, **values)
    if severity == "fine":
        return Condition(check_code, severity, what)
    if fix:
        # The sentence ``own_fix`` shows a text as it is; in Chinese it says that it is English.
        return Condition(check_code, severity, what, message("own_fix", text=fix))
    return Condition(check_code, severity, what, message(f"fix.{message_code}", **values))


def choose_severity(*, stops: bool = False, spoils: bool = False) -> Severity:
    """Return the worse of the severities that hold, ``fine`` if neither does."""
    if stops:
        return "stops"
    return "spoils" if spoils else "fine"


def check_memory(machine: ExaminedMachine) -> Conditions:
    """Compare the free memory with what the ranks need at least."""
    memory = psutil.virtual_memory()
    free_bytes = memory.available
    total_bytes = memory.total
    # The limit of a container or a job holds, even if the machine has more memory.
    for folder, limit_bytes in host_cores.read_memory_limits(machine.root).items():
        total_bytes = min(total_bytes, limit_bytes)
        free_bytes = min(free_bytes, limit_bytes - host_cores.read_used_bytes(folder))
    severity = choose_severity(
        stops=free_bytes < _MIN_RANK_BYTES * machine.nproc,
        spoils=free_bytes < _LOW_MEMORY_SHARE * total_bytes,
    )
    yield make_condition("memory", severity, free=free_bytes / _GIB, total=total_bytes / _GIB)


def check_load(machine: ExaminedMachine) -> Conditions:
    """Measure for a moment which share of the cores other programs use.

    Raises:
        ValueError: the kernel's counters did not advance.
    """
    seconds = _QUICK_LOAD_S if machine.quick else _LOAD_S
    before = CpuUse.read()
    sleep(seconds)
    share = before.compute_others_share(CpuUse.read())
    if share is None:
        raise ValueError("the kernel's CPU time counters did not advance")
    severity = choose_severity(spoils=share > BUSY_SHARE)
    yield make_condition("load", severity, share=share, seconds=seconds, most=BUSY_SHARE)


def check_other_runs(_: ExaminedMachine) -> Conditions:
    """Find living processes of other runs.

    The fix that the user is told is to wait for the end of a run, or, if its launcher has ended, to
    kill its processes.
    """
    runs = find_alive_runs()
    for run_id, pids in sorted(runs.items()):
        message_code = "orphans" if _is_orphaned(pids) else "other_run"
        yield make_condition(message_code, "spoils", run=run_id, numbers=" ".join(map(str, pids)))
    if not runs:
        yield make_condition("no_other_run")


def _is_orphaned(pids: list[int]) -> bool:
    """Tell whether the launcher of a run has ended: then process 1 has adopted its ranks.

    In a container this program may itself be process 1; then the parent 1 shows nothing.

    Args:
        pids: numbers of the run's processes.
    """
    try:
        # Parents outside the run: a rank may have started processes itself.
        parents = {psutil.Process(pid).ppid() for pid in pids} - set(pids)
        is_first_process_ours = "trainmark" in " ".join(psutil.Process(1).cmdline())
        return parents == {1} and not is_first_process_ours
    except psutil.Error:  # ended meanwhile, or hidden
        return False


def check_cores(machine: ExaminedMachine) -> Conditions:
    """Compare the cores that ranks may use with the number of ranks."""
    allowed = count_allowed_cores()
    quota = host_cores.read_core_quota(machine.root)
    usable = allowed if quota is None else min(allowed, quota)
    yield make_condition(
        "cores",
        choose_severity(spoils=usable < machine.nproc),
        nproc=machine.nproc,
        allowed=allowed,
        quota=quota or "–",
        most=max(1, int(usable)),  # ranks, which the fix names; a quota may be less than a core
    )


def check_governor(machine: ExaminedMachine) -> Conditions:
    """Name the governors of the processors' clocks; a virtual machine has none.

    With the drivers intel_pstate and amd-pstate-epp, ``powersave`` follows the load; with others it
    keeps the lowest clock: docs.kernel.org/admin-guide/pm, 2026-11-28.
    """
    folders = (machine.root / "sys/devices/system/cpu").glob("cpu[0-9]*/cpufreq")
    pairs = {
        (
            (folder / "scaling_governor").read_text().strip(),
            (folder / "scaling_driver").read_text().strip(),
        )
        for folder in folders
    }
    if not pairs:
        return
    is_lowest = any(
        governor == "powersave" and driver not in _DRIVERS_THAT_FOLLOW_LOAD
        for governor, driver in pairs
    )
    text = ", ".join(f"{governor} ({driver})" for governor, driver in sorted(pairs))
    yield make_condition("governor", choose_severity(spoils=is_lowest), text=text)


def check_numa(machine: ExaminedMachine) -> Conditions:
    """Count the NUMA nodes that have cores; find out whether the kernel moves pages between them.

    Such moves while a run is measured spoil its figures.
    """
    nodes = [
        folder
        for folder in (machine.root / "sys/devices/system/node").glob("node[0-9]*")
        if (folder / "cpulist").read_text().strip()  # empty: the node has only memory
    ]
    if not nodes:
        return
    setting = machine.root / "proc/sys/kernel/numa_balancing"
    is_on = setting.exists() and setting.read_text().strip() != "0"
    if is_on and len(nodes) > 1:
        yield make_condition("numa_balancing", "spoils", count=len(nodes))
    else:
        yield make_condition("numa", count=len(nodes))


def check_shared_memory(machine: ExaminedMachine) -> Conditions:
    """Compare the free shared memory with what ranks of accelerators exchange through it."""
    free_bytes = shutil.disk_usage(machine.root / "dev/shm").free
    # Ranks on a processor, whose cores are counted instead of devices, exchange through sockets,
    # which need no shared memory. Without a vendor there are no ranks of accelerators either.
    uses_sockets = machine.vendor is None or machine.vendor.counts_cores
    needed_bytes = 0
    if machine.nproc > 1 and not uses_sockets:
        needed_bytes = _SHM_BYTES_PER_RANK * machine.nproc
    severity = choose_severity(stops=free_bytes < needed_bytes)
    yield make_condition(
        "shared_memory", severity, free=free_bytes // _MIB, needed=needed_bytes // _MIB
    )


def check_network(machine: ExaminedMachine) -> Conditions:
    """Check that the ranks could reach one another on this machine."""
    if machine.vendor is None or machine.nproc == 1:
        return
    try:
        refuse_unusable_network(
            os.environ, machine.vendor, world_size=machine.nproc, master=LOOPBACK
        )
    except TrainmarkError as fault:
        yield make_condition(
            ENGLISH_TEXT, "stops", fix=fault.fix, text=f"{fault.where}: {fault.what}"
        )
    else:
        yield make_condition("network")


def check_out_folder(machine: ExaminedMachine) -> Conditions:
    """Write a file to the folder of runs, and read how much space is free there."""
    folder = (machine.request.out or RUNS_DIR).absolute()
    while not folder.exists():  # a folder that a run would create
        folder = folder.parent
    try:
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        yield make_condition("out_folder_closed", "stops", folder=str(folder), text=error.strerror)
        return
    free_bytes = shutil.disk_usage(folder).free
    severity = choose_severity(
        stops=free_bytes < _MIN_DISK_BYTES, spoils=free_bytes < _LOW_DISK_BYTES
    )
    yield make_condition("out_folder", severity, folder=str(folder), free=free_bytes / _GIB)
