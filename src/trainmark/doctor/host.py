"""The host: its memory, cores, clocks and limits, and who else works on it."""

from __future__ import annotations

import resource
from collections import Counter
from typing import TYPE_CHECKING

from trainmark.devices.numa import parse_cores
from trainmark.devices.vendors.cpu import core_quota
from trainmark.doctor.subject import judged
from trainmark.protocols import Located
from trainmark.results.environment import container as container_facts
from trainmark.results.findings import BUSY_SHARE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainmark.doctor.subject import Subject
    from trainmark.protocols import Condition

_GIB = 2**30
_LEAST_BYTES = _GIB  # a rank of the smallest recipes takes 0.4 GiB, and reads files beside it
_LOW_SHARE = 0.1
_GROUP = "sys/fs/cgroup/memory"  # files of the cgroup, as a container or a job's step has them
_SWAPPED_BYTES = 64 << 20  # less is what idle services leave there
# Read through the kernel, not by the processor itself: a reading takes a microsecond and more.
_SLOW_CLOCKS = ("acpi_pm", "hpet", "jiffies", "pit", "refined-jiffies")
# A container has 64 MB by default, too little for NCCL's segments between ranks:
# https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html, 2026-11-22
_SHM_BYTES_PER_RANK = 64 << 20
_FILES_OF_A_PROCESS, _FILES_PER_RANK = 256, 16  # the libraries' own; connections to each rank


def meminfo_bytes(text: str) -> dict[str, int]:
    """Return what ``/proc/meminfo`` says, in bytes; lines of another form are left out."""
    found = {}
    for line in text.splitlines():
        name, _, value = line.partition(":")
        words = value.split()
        if words[1:] == ["kB"] and words[0].isascii() and words[0].isdecimal():
            found[name] = int(words[0]) << 10
    return found


def _said(subject: Subject, file: str) -> str:
    return (subject.root / file).read_text().strip()


def memory(subject: Subject) -> Iterator[Condition]:
    """Compare the memory that is free with what ranks need at the least."""
    known = meminfo_bytes(_said(subject, "proc/meminfo"))
    free, total = known["MemAvailable"], known["MemTotal"]
    if (subject.root / f"{_GROUP}.max").exists() and (
        limit := _said(subject, f"{_GROUP}.max")
    ) != "max":
        stat = dict(line.split() for line in _said(subject, f"{_GROUP}.stat").splitlines())
        # Files that were read count as used until somebody needs the memory.
        used = int(_said(subject, f"{_GROUP}.current")) - int(stat["inactive_file"])
        total = min(total, int(limit))
        free = min(free, total - used)
    yield judged(
        f"{free / _GIB:.1f} of {total / _GIB:.1f} GiB are available",
        "end other programs, or ask the scheduler for more memory: 1 GiB a rank at least",
        stops=free < _LEAST_BYTES * subject.nproc,
        spoils=free < _LOW_SHARE * total,
    )


def swap(subject: Subject) -> Iterator[Condition]:
    """Find memory that the kernel has swapped out."""
    known = meminfo_bytes(_said(subject, "proc/meminfo"))
    total = known["SwapTotal"]
    used, tendency = total - known["SwapFree"], _said(subject, "proc/sys/vm/swappiness")
    yield judged(
        f"{used / _GIB:.1f} of {total / _GIB:.1f} GiB in use, swappiness {tendency}",
        "end what took the memory, then `swapoff -a && swapon -a`",
        spoils=used > _SWAPPED_BYTES,
    )


def load(subject: Subject) -> Iterator[Condition]:
    """Measure which share of the cores others use for a moment."""
    seconds = 0.3 if subject.quick else 2.0
    before = subject.cpu_use()
    subject.sleep(seconds)
    share = before.others_share(subject.cpu_use())
    if share is None:
        raise ValueError("the kernel's counters of processor time did not move")
    averages = " ".join(_said(subject, "proc/loadavg").split()[:3])
    yield judged(
        f"others use {share:.0%} of the cores in {seconds:g} s; load averages {averages}",
        f"end other programs (`top` names them) until they use {BUSY_SHARE:.0%} at most",
        spoils=share > BUSY_SHARE,
    )


def strays(subject: Subject) -> Iterator[Condition]:
    """Find living processes of other runs."""
    found = subject.runs()
    for run_id, processes in sorted(found.items()):
        numbers = " ".join(map(str, processes))
        remedy = f"wait for that run; if it should have ended: `kill {numbers}`"
        yield judged(f"run {run_id} has the processes {numbers}", remedy, spoils=True)
    if not found:
        yield judged("no process of another run of this user")


def cores(subject: Subject) -> Iterator[Condition]:
    """Compare the cores that ranks may use with their number."""
    allowed, quota = len(subject.affinity), core_quota(subject.root)
    usable = allowed if quota is None else min(allowed, quota)
    yield judged(
        f"{subject.nproc} rank(s), {allowed} cores by affinity, quota of the cgroup {quota}",
        f"ask the scheduler for more cores, or use --nproc {max(1, int(usable))}",
        spoils=usable < subject.nproc,
    )


def numa(subject: Subject) -> Iterator[Condition]:
    """Compare the NUMA nodes of the ranks' devices with the cores that ranks may use."""
    folder = "sys/devices/system/node"
    count = len(list((subject.root / folder).glob("node[0-9]*")))
    vendor, told = subject.vendor, list[int | None]()
    if isinstance(vendor, Located):
        told = [vendor.numa_node(rank) for rank in range(subject.nproc)]
    near = {
        node: _said(subject, f"{folder}/node{node}/cpulist") for node in told if node is not None
    }
    far = [
        f"rank {rank} on node {node} with cores {near[node]}"
        for rank, node in enumerate(told)
        if node is not None and subject.affinity.isdisjoint(parse_cores(near[node]))
    ]
    yield judged(
        f"affinity leaves out the node of {'; '.join(far)}"
        if far
        else f"{count} node(s), of the devices {told or 'none told'}",
        "ask the scheduler for the cores of the devices' nodes",
        spoils=bool(far),
        unknown=count > 1 and None in told,
    )


def governor(subject: Subject) -> Iterator[Condition]:
    """Read which rule sets the clocks of the cores."""
    folder = subject.root / "sys/devices/system/cpu"
    files = [folder / f"cpu{core}/cpufreq/scaling_governor" for core in subject.affinity]
    found = Counter(file.read_text().strip() for file in files if file.exists())
    yield judged(
        ", ".join(f"{name} on {number} cores" for name, number in sorted(found.items()))
        or "the kernel sets no clocks here, as in a virtual machine",
        "`cpupower frequency-set -g performance`, on the host of a virtual machine",
        spoils=not set(found) <= {"performance"},
        unknown=not found,
    )


def turbo(subject: Subject) -> Iterator[Condition]:
    """Tell turbo clocks and hardware threads, which compared runs should have alike."""
    folder = "sys/devices/system/cpu"
    files = ("intel_pstate/no_turbo", "cpufreq/boost", "smt/active")
    known = [file for file in files if (subject.root / folder / file).exists()]
    told = (f"{file} {_said(subject, f'{folder}/{file}')}" for file in known)
    yield judged(", ".join(told) or "not told by the kernel")


def shared_memory(subject: Subject) -> Iterator[Condition]:
    """Compare the shared memory with what ranks of accelerators exchange through it."""
    free = subject.free_bytes(subject.root / "dev/shm")
    through_sockets = subject.vendor is None or subject.vendor.counts_cores
    needed = 0 if subject.nproc == 1 or through_sockets else _SHM_BYTES_PER_RANK * subject.nproc
    yield judged(
        f"{free >> 20} MiB free in /dev/shm, {needed >> 20} MiB needed",
        "start the container with `--shm-size=1g` or more, or remove files from /dev/shm",
        stops=free < needed,
    )


def open_files(subject: Subject) -> Iterator[Condition]:
    """Compare the limit of open files with what a rank opens."""
    soft, hard = subject.limit(resource.RLIMIT_NOFILE)
    needed = _FILES_OF_A_PROCESS + _FILES_PER_RANK * subject.nproc
    yield judged(
        f"{_limit(soft)} for each process, {needed} needed",
        f"`ulimit -n {needed}`; without root at most {_limit(hard)}",
        stops=soft != resource.RLIM_INFINITY and soft < needed,
    )


def locked_memory(subject: Subject) -> Iterator[Condition]:
    """Find a limit that keeps ranks from InfiniBand, which needs memory locked."""
    soft, _ = subject.limit(resource.RLIMIT_MEMLOCK)
    cards = sorted(path.name for path in (subject.root / "sys/class/infiniband").glob("*"))
    yield judged(
        f"{_limit(soft)} bytes, InfiniBand: {', '.join(cards) or 'none'}",
        "`ulimit -l unlimited`; in a container `--ulimit memlock=-1`",
        spoils=bool(cards) and subject.nproc > 1 and soft != resource.RLIM_INFINITY,
    )


def _limit(value: int) -> str:
    return "unlimited" if value == resource.RLIM_INFINITY else f"{value:,}"


def clock_source(subject: Subject) -> Iterator[Condition]:
    """Read what the host's clock is read from."""
    folder = "sys/devices/system/clocksource/clocksource0"
    source = _said(subject, f"{folder}/current_clocksource")
    others = _said(subject, f"{folder}/available_clocksource")
    remedy = "start the kernel with a faster one, `clocksource=tsc` for example"
    yield judged(f"{source}, of {others}", remedy, spoils=source in _SLOW_CLOCKS)


def container(subject: Subject) -> Iterator[Condition]:
    """Tell the container, whose limits are not the machine's."""
    found = container_facts(subject.variables, subject.root)
    yield judged(" ".join(filter(None, found.values())) or "none")
