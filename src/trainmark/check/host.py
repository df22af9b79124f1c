"""The host of a run: memory, cores, clocks, disks, and who else works on it.

Also what is examined, and how a finding is worded. Must not import torch.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from time import sleep
from typing import TYPE_CHECKING

import psutil

from trainmark.devices import cores as host_cores
from trainmark.devices.vendors.cpu import chosen_threads
from trainmark.errors import UsageError
from trainmark.launch.processes import CpuUse, alive_runs, orphaned
from trainmark.protocols import Condition
from trainmark.record.run.findings import BUSY_SHARE

if TYPE_CHECKING:
    from trainmark.errors import EnvironmentFault
    from trainmark.plan.choosing import Choice
    from trainmark.protocols import Vendor

Conditions = Iterator[Condition]
_GIB = 2**30
_LEAST_BYTES = _GIB  # a rank of the smallest recipes takes 0.4 GiB, and reads files beside it
_LOW_SHARE = 0.1
# A container has 64 MB by default, too little for NCCL's segments between ranks:
# https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html, 2026-11-22
_SHM_BYTES_PER_RANK = 64 << 20
_LEAST_DISK_BYTES = 8 << 20  # for the events and the record of a short run
_LOW_DISK_BYTES = 1 << 30  # events and logs of a long run, and what a case saves, fit easily


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A machine, and the run that is meant on it.

    Args:
        vendor: of the devices; None: none can be used, because of ``fault``.
        device: as the user named it.
        choice: of a case; None: no case is examined.
        out: folder for runs, which need not exist.
        data: folder with real data.
        quick: whether only what takes little time is examined.
        root: of the file system that holds ``proc``, ``sys`` and ``dev``.
    """

    out: Path
    vendor: Vendor | None = None
    fault: EnvironmentFault | None = None
    device: str | None = None
    nproc: int = 1
    choice: Choice | None = None
    data: Path | None = None
    quick: bool = False
    root: Path = Path("/")


def judged(
    what: str,
    remedy: str = "",
    *,
    stops: bool = False,
    spoils: bool = False,
    unknown: bool = False,
    code: str = "",
) -> Condition:
    """Return a condition with the first severity that holds, else ``fine`` without a remedy.

    Args:
        code: empty: that of the check, which is its function's name.
    """
    if not (stops or spoils or unknown):
        return Condition(code, "fine", what)
    return Condition(code, "stops" if stops else "spoils" if spoils else "unknown", what, remedy)


def memory(subject: Subject) -> Conditions:
    """Compare the memory that is free with what ranks need at the least."""
    here = psutil.virtual_memory()
    free, total = here.available, here.total
    for folder, limit in host_cores.memory_limits(subject.root).items():
        total = min(total, limit)
        free = min(free, limit - host_cores.used_bytes(folder))
    yield judged(
        f"{free / _GIB:.1f} of {total / _GIB:.1f} GiB are available",
        "end other programs, or ask the scheduler for more memory: 1 GiB a rank at least",
        stops=free < _LEAST_BYTES * subject.nproc,
        spoils=free < _LOW_SHARE * total,
    )


def load(subject: Subject) -> Conditions:
    """Measure which share of the cores others use for a moment."""
    seconds = 0.3 if subject.quick else 2.0
    before = CpuUse.now()
    sleep(seconds)
    share = before.others_share(CpuUse.now())
    if share is None:
        raise ValueError("the kernel's counters of processor time did not move")
    yield judged(
        f"others use {share:.0%} of the cores in {seconds:g} s",
        f"end other programs (`top` names them) until they use {BUSY_SHARE:.0%} at most",
        spoils=share > BUSY_SHARE,
    )


def strays(_: Subject) -> Conditions:
    """Find living processes of other runs."""
    found = alive_runs()
    for run_id, processes in sorted(found.items()):
        numbers = " ".join(map(str, processes))
        what, remedy = f"another run, {run_id}, uses the processes {numbers}", "wait for its end"
        if orphaned(processes):
            what = f"run {run_id} lost its launcher and left the processes {numbers}"
            remedy = f"`kill {numbers}`"
        yield judged(what, remedy, spoils=True)
    if not found:
        yield judged("no process of another run of this user")


def cores(subject: Subject) -> Conditions:
    """Compare the cores that ranks may use with their number."""
    allowed, quota = len(os.sched_getaffinity(0)), host_cores.core_quota(subject.root)
    usable = allowed if quota is None else min(allowed, quota)
    yield judged(
        f"{subject.nproc} rank(s), {allowed} cores by affinity, cgroup quota {quota or 'none'}",
        f"ask the scheduler for more cores, or use --nproc {max(1, int(usable))}",
        spoils=usable < subject.nproc,
    )


def threads(subject: Subject) -> Conditions:
    """Compare the threads of a rank with its share of the cores."""
    fitting = max(1, host_cores.usable_cores(subject.root) // subject.nproc)
    try:
        each = chosen_threads(os.environ) or fitting
        host_cores.is_pinned(os.environ)
    except UsageError as error:
        yield judged(f"{error.what}; {error.rule}", error.remedy or "", stops=True)
        return
    yield judged(
        f"{each} thread(s) for each rank, {fitting} core(s) to run them",
        f"unset OMP_NUM_THREADS, or set it to {fitting} at most",
        spoils=each > fitting,
    )


def governor(subject: Subject) -> Conditions:
    """Read which rule sets the clocks of the cores."""
    folder = subject.root / "sys/devices/system/cpu"
    files = [folder / f"cpu{core}/cpufreq/scaling_governor" for core in os.sched_getaffinity(0)]
    found = Counter(file.read_text().strip() for file in files if file.exists())
    yield judged(
        ", ".join(f"{name} on {number} cores" for name, number in sorted(found.items()))
        or "the kernel sets no clocks here, as in a virtual machine",
        "`cpupower frequency-set -g performance`, on the host of a virtual machine",
        spoils=not set(found) <= {"performance"},
        unknown=not found,
    )


def shared_memory(subject: Subject) -> Conditions:
    """Compare the shared memory with what ranks of accelerators exchange through it."""
    free = shutil.disk_usage(subject.root / "dev/shm").free
    through_sockets = subject.vendor is None or subject.vendor.counts_cores
    needed = 0 if subject.nproc == 1 or through_sockets else _SHM_BYTES_PER_RANK * subject.nproc
    yield judged(
        f"{free >> 20} MiB free in /dev/shm, {needed >> 20} MiB needed",
        "start the container with `--shm-size=1g` or more, or remove files from /dev/shm",
        stops=free < needed,
    )


def out_folder(subject: Subject) -> Conditions:
    """Write a file where runs go, and read how much space there is."""
    wanted = subject.out.absolute()
    place = next(path for path in (wanted, *wanted.parents) if path.exists())
    try:
        tempfile.TemporaryFile(dir=place).close()
    except OSError as error:
        remedy = "choose an --out with write permission and space"
        yield judged(f"{place}: {error.strerror}", remedy, stops=True)
        return
    free = shutil.disk_usage(place).free
    yield judged(
        f"{place}: {free / _GIB:.1f} GiB free",
        "free some space, or choose --out on another disk, before it fills up during a run",
        stops=free < _LEAST_DISK_BYTES,
        spoils=free < _LOW_DISK_BYTES,
    )
