"""The host: its memory, cores, clocks and limits, and who else works on it."""

from __future__ import annotations

import os
import resource
import shutil
from collections import Counter
from time import sleep

import psutil

from trainmark.check.doctor.subject import Conditions, Subject, judged
from trainmark.devices import cgroup
from trainmark.devices.numa import cores_of_rank, parse_cores, placements
from trainmark.devices.vendors.cpu import chosen_threads, usable_cores
from trainmark.errors import UsageError
from trainmark.launch.processes import CpuUse, alive_runs
from trainmark.protocols import Located
from trainmark.record.findings import BUSY_SHARE

_GIB = 2**30
_LEAST_BYTES = _GIB  # a rank of the smallest recipes takes 0.4 GiB, and reads files beside it
_LOW_SHARE = 0.1
_SWAPPED_BYTES = 64 << 20  # less is what idle services leave there
# A container has 64 MB by default, too little for NCCL's segments between ranks:
# https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html, 2026-11-22
_SHM_BYTES_PER_RANK = 64 << 20
_FILES_OF_A_PROCESS, _FILES_PER_RANK = 256, 16  # the libraries' own; connections to each rank


def _text(subject: Subject, file: str) -> str:
    return (subject.root / file).read_text().strip()


def memory(subject: Subject) -> Conditions:
    """Compare the memory that is free with what ranks need at the least."""
    here = psutil.virtual_memory()
    free, total = here.available, here.total
    for folder, limit in cgroup.memory_limits(subject.root).items():
        total = min(total, limit)
        free = min(free, limit - cgroup.used_bytes(folder))
    yield judged(
        f"{free / _GIB:.1f} of {total / _GIB:.1f} GiB are available",
        "end other programs, or ask the scheduler for more memory: 1 GiB a rank at least",
        stops=free < _LEAST_BYTES * subject.nproc,
        spoils=free < _LOW_SHARE * total,
    )


def swap(_: Subject) -> Conditions:
    """Find memory that the kernel has swapped out."""
    here = psutil.swap_memory()
    yield judged(
        f"{here.used / _GIB:.1f} of {here.total / _GIB:.1f} GiB in use",
        "end what took the memory, then `swapoff -a && swapon -a`",
        spoils=here.used > _SWAPPED_BYTES,
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
        remedy = f"wait for that run; if it should have ended: `kill {numbers}`"
        yield judged(f"run {run_id} has the processes {numbers}", remedy, spoils=True)
    if not found:
        yield judged("no process of another run of this user")


def cores(subject: Subject) -> Conditions:
    """Compare the cores that ranks may use with their number."""
    allowed, quota = len(os.sched_getaffinity(0)), cgroup.core_quota(subject.root)
    usable = allowed if quota is None else min(allowed, quota)
    yield judged(
        f"{subject.nproc} rank(s), {allowed} cores by affinity, cgroup quota {quota or 'none'}",
        f"ask the scheduler for more cores, or use --nproc {max(1, int(usable))}",
        spoils=usable < subject.nproc,
    )


def numa(subject: Subject) -> Conditions:
    """Compare the NUMA nodes of the ranks' devices with the cores that ranks may use."""
    folder = "sys/devices/system/node"
    count = len(list((subject.root / folder).glob("node[0-9]*")))
    vendor, near_ranks, far = subject.vendor, list[int | None](), []
    if isinstance(vendor, Located):
        near_ranks = [vendor.numa_node(rank) for rank in range(subject.nproc)]
    for rank, node in enumerate(near_ranks):
        if node is not None:
            near = _text(subject, f"{folder}/node{node}/cpulist")
            if os.sched_getaffinity(0).isdisjoint(parse_cores(near)):
                far.append(f"rank {rank} on node {node} with cores {near}")
    names = ("unknown" if node is None else str(node) for node in near_ranks)
    nodes = ", ".join(names) or "none told"
    what = f"{count} node(s), of the devices: {nodes}"
    yield judged(
        f"affinity leaves out the node of {'; '.join(far)}" if far else what,
        "ask the scheduler for the cores of the devices' nodes",
        spoils=bool(far),
        unknown=count > 1 and None in near_ranks,
    )


def threads(subject: Subject) -> Conditions:
    """Compare the threads of a rank with the cores that can run them."""
    if subject.vendor is None:
        return
    ranks, usable = subject.nproc, usable_cores(subject.root)
    try:
        chosen = chosen_threads(os.environ)
        placed = placements(subject.vendor, ranks, os.environ, root=subject.root)
    except UsageError as error:
        yield judged(f"{error.what}; {error.rule}", error.remedy or "", stops=True)
        return
    shared = subject.vendor.torch_type == "cpu"
    own = min(usable, *(len(one.cores) for one in placed))
    fitting = cores_of_rank(own, total=usable, ranks=ranks, shared=shared)
    each = chosen or min(one.threads for one in placed)
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


def open_files(subject: Subject) -> Conditions:
    """Compare the limit of open files with what a rank opens."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = _FILES_OF_A_PROCESS + _FILES_PER_RANK * subject.nproc
    unlimited = soft == resource.RLIM_INFINITY
    yield judged(
        f"{'unlimited' if unlimited else soft} for each process, {needed} needed",
        f"`ulimit -n {needed}`; beyond `ulimit -Hn` root sets it",
        stops=not unlimited and soft < needed,
    )
