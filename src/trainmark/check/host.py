"""The host of a run: memory, cores, disks, and who else works on it.

Also what is examined, and how a finding is worded. Must not import torch.
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

from trainmark.devices import cores as host_cores
from trainmark.errors import TrainmarkError
from trainmark.launch.network import LOOPBACK, refuse_unusable_network
from trainmark.launch.processes import CpuUse, find_alive_runs
from trainmark.plan.plan import RUNS_DIR
from trainmark.record.findings import BUSY_SHARE
from trainmark.spec import Message, message

if TYPE_CHECKING:
    from trainmark.plan.choosing import Choice
    from trainmark.plan.request import RunRequest
    from trainmark.protocols import Vendor

Severity = Literal["stops", "spoils", "unknown", "fine"]
_GIB = 2**30
_LEAST_BYTES = _GIB  # a rank of the smallest recipes takes 0.4 GiB, and reads files beside it
_LOW_SHARE = 0.1
# A container has 64 MB by default, too little for NCCL's segments between ranks:
# https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html, 2026-11-22
_SHM_BYTES_PER_RANK = 64 << 20
_LEAST_DISK_BYTES = 8 << 20  # for the events and the record of a short run
_LOW_DISK_BYTES = 1 << 30  # events and logs of a long run, and what a case saves, fit easily


@dataclass(frozen=True, slots=True)
class Condition:
    """Something about a machine that stops a run or spoils its figures, and its fix.

    Args:
        code: what was examined, ``memory`` for example: the same on every machine.
        severity: ``stops`` a run, ``spoils`` its figures, is ``unknown`` here, or is ``fine``.
        what: what was found, with its numbers; words once a language is chosen.
        fix: what to do, in a few words; empty if ``fine``.
    """

    code: str
    severity: Severity
    what: str | Message
    fix: str | Message = ""


Conditions = Iterator[Condition]


@dataclass(frozen=True, kw_only=True)
class ExaminedMachine:
    """A machine, and the run that is meant on it.

    Args:
        request: what the user named: device, folder for runs, folder with real data.
        vendor: of the devices; None: none can be used.
        choice: of a case; None: no case is examined.
        quick: whether only what takes little time is examined.
        root: of the file system that holds ``proc``, ``sys`` and ``dev``.
    """

    request: RunRequest
    vendor: Vendor | None = None
    nproc: int = 1
    choice: Choice | None = None
    quick: bool = False
    root: Path = Path("/")


def judged(
    key: str,
    fix: str | None = None,
    *,
    stops: bool = False,
    spoils: bool = False,
    unknown: bool = False,
    code: str = "",
    **values: Any,
) -> Condition:
    """Return a condition with the first severity that holds, else ``fine`` without a fix.

    Args:
        key: of its sentence in ``messages.toml``, whose places ``values`` fill.
        fix: that of an error; None: the sentence ``fix.`` with that key.
        code: empty: that of the check, which is its function's name.
    """
    what = Message(key, values)
    if not (stops or spoils or unknown):
        return Condition(code, "fine", what)
    severity: Severity = "stops" if stops else "spoils" if spoils else "unknown"
    advice = message("own_fix", text=fix) if fix else Message(f"fix.{key}", values)
    return Condition(code, severity, what, advice)


def memory(subject: ExaminedMachine) -> Conditions:
    """Compare the memory that is free with what ranks need at the least."""
    here = psutil.virtual_memory()
    free, total = here.available, here.total
    for folder, limit in host_cores.memory_limits(subject.root).items():
        total = min(total, limit)
        free = min(free, limit - host_cores.used_bytes(folder))
    yield judged(
        "memory", free=free / _GIB, total=total / _GIB,
        stops=free < _LEAST_BYTES * subject.nproc, spoils=free < _LOW_SHARE * total,
    )  # fmt: skip


def load(subject: ExaminedMachine) -> Conditions:
    """Measure which share of the cores others use for a moment."""
    seconds = 0.3 if subject.quick else 2.0
    before = CpuUse.now()
    sleep(seconds)
    share = before.others_share(CpuUse.now())
    if share is None:
        raise ValueError("the kernel's counters of processor time did not move")
    yield judged("load", share=share, seconds=seconds, most=BUSY_SHARE, spoils=share > BUSY_SHARE)


def other_runs(_: ExaminedMachine) -> Conditions:
    """Find living processes of other runs; only those that lost their launcher are to be ended."""
    found = find_alive_runs()
    for run_id, processes in sorted(found.items()):
        key = "orphans" if _is_orphaned(processes) else "other_run"
        yield judged(key, run=run_id, numbers=" ".join(map(str, processes)), spoils=True)
    if not found:
        yield judged("no_other_run")


def _is_orphaned(pids: list[int]) -> bool:
    """Tell whether all parents outside of the run are the first process, which adopted them."""
    try:
        parents = {psutil.Process(pid).ppid() for pid in pids} - set(pids)
        return parents == {1} and "trainmark" not in " ".join(psutil.Process(1).cmdline())
    except psutil.Error:  # ended meanwhile, or hidden
        return False


def cores(subject: ExaminedMachine) -> Conditions:
    """Compare the cores that ranks may use with their number."""
    allowed, quota = len(os.sched_getaffinity(0)), host_cores.core_quota(subject.root)
    usable = allowed if quota is None else min(allowed, quota)
    yield judged(
        "cores", nproc=subject.nproc, allowed=allowed, quota=quota or "–",
        most=max(1, int(usable)), spoils=usable < subject.nproc,
    )  # fmt: skip


def shared_memory(subject: ExaminedMachine) -> Conditions:
    """Compare the shared memory with what ranks of accelerators exchange through it."""
    free = shutil.disk_usage(subject.root / "dev/shm").free
    through_sockets = subject.vendor is None or subject.vendor.counts_cores
    needed = 0 if subject.nproc == 1 or through_sockets else _SHM_BYTES_PER_RANK * subject.nproc
    yield judged("shared_memory", free=free >> 20, needed=needed >> 20, stops=free < needed)


def network(subject: ExaminedMachine) -> Conditions:
    """Look whether the ranks could reach one another on this machine."""
    if subject.vendor is None or subject.nproc == 1:
        return
    try:
        refuse_unusable_network(
            os.environ, subject.vendor, world_size=subject.nproc, master=LOOPBACK
        )
    except TrainmarkError as fault:
        yield judged("text", fault.fix, text=f"{fault.where}: {fault.what}", stops=True)
    else:
        yield judged("network")


def out_folder(subject: ExaminedMachine) -> Conditions:
    """Write a file where runs go, and read how much space there is."""
    wanted = (subject.request.out or RUNS_DIR).absolute()
    place = next(path for path in (wanted, *wanted.parents) if path.exists())
    try:
        tempfile.TemporaryFile(dir=place).close()
    except OSError as error:
        yield judged("out_folder_closed", folder=str(place), text=error.strerror, stops=True)
        return
    free = shutil.disk_usage(place).free
    yield judged(
        "out_folder", folder=str(place), free=free / _GIB, stops=free < _LEAST_DISK_BYTES,
        spoils=free < _LOW_DISK_BYTES,
    )  # fmt: skip
