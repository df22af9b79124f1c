"""The cores and the memory that this process may use, and the cores that each rank is pinned to.

Owns the kernel's files of limits and topology, the division of cores among ranks, and how a rank
takes its share. The launcher divides, so that all ranks agree; a rank must take its share before
it imports torch, whose threads then inherit it.

https://docs.kernel.org/admin-guide/cgroup-v2.html,
https://docs.kernel.org/admin-guide/cgroup-v1/memory.html and
https://docs.kernel.org/scheduler/sched-bwc.html, 2026-11-22.
"""

from __future__ import annotations

import os
from contextlib import suppress
from itertools import chain, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from trainmark.protocols import Vendor

CORES_VARIABLE = "TRAINMARK_CORES"  # by which the launcher tells a rank its cores
_ROOT = Path("/")
_MOST_BYTES = 1 << 62  # version 1 of cgroups writes "no limit" as 2^63 less a page


def usable_cores(root: Path = _ROOT) -> int:
    """Return the cores this process may run on: affinity and cgroup quota, at least 1."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    quota = core_quota(root)
    return max(1, cores or 1) if quota is None else max(1, min(cores or 1, int(quota)))


def core_quota(root: Path = _ROOT) -> float | None:
    """Return the cores whose time all cgroups allow; None: no limit."""
    found = []
    for folder in _cgroups("cpu", root):
        words = _words(folder / "cpu.max")
        words = words or _words(folder / "cpu.cfs_quota_us") + _words(folder / "cpu.cfs_period_us")
        if len(words) == 2 and words[0] not in ("max", "-1"):
            found.append(int(words[0]) / max(1, int(words[1])))
    return min(found, default=None)


def memory_limits(root: Path = _ROOT) -> dict[Path, int]:
    """Return the limits in bytes of this process's cgroups, by their folders."""
    found = {}
    for folder in _cgroups("memory", root):
        words = _words(folder / "memory.max") or _words(folder / "memory.limit_in_bytes")
        if words and words != ["max"] and int(words[0]) < _MOST_BYTES:
            found[folder] = int(words[0])
    return found


def used_bytes(folder: Path) -> int:
    """Return the memory that a cgroup uses, without files that were read and can be dropped.

    Raises:
        OSError, ValueError: it cannot be read.
    """
    current, files = "memory.current", "inactive_file"
    if not (folder / current).exists():
        current, files = "memory.usage_in_bytes", "total_inactive_file"
    stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
    return int((folder / current).read_text()) - int(stat[files])


def _cgroups(controller: str, root: Path) -> Iterator[Path]:
    """Yield the folders of this process's cgroups of version 1 or 2, and of all above them.

    A process of a job's step often has no limits of its own. A container without a view of the
    host's groups has its own one at the top.
    """
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:  # not Linux, or /proc is closed
        return
    for line in lines:
        _, names, path = line.split(":", 2)
        if names and controller not in names.split(","):
            continue
        top = root / "sys/fs/cgroup" / (controller if names else "")
        own = top.joinpath(path.lstrip("/"))
        if not own.is_dir() or ".." in own.parts:
            own = top
        yield from (own, *(folder for folder in own.parents if folder.is_relative_to(top)))


def _words(file: Path) -> list[str]:
    try:
        return file.read_text().split()
    except OSError:  # of the other version, the root, which has no limits, or not for this user
        return []


def parse_cores(text: str) -> list[int]:
    """Return the cores in a list of the kernel, ``0-3,8-11``.

    Raises:
        ValueError: not such a list.
    """
    found: list[int] = []
    for item in filter(None, text.strip().split(",")):
        first, _, last = item.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


def compact(cores: Iterable[int]) -> str:
    """Return cores as the kernel lists them, ``0-3,8-11``."""
    found = set(cores)
    firsts = sorted(core for core in found if core - 1 not in found)
    lasts = sorted(core for core in found if core + 1 not in found)
    return ",".join(f"{a}" if a == b else f"{a}-{b}" for a, b in zip(firsts, lasts, strict=True))


def topology(root: Path = _ROOT) -> list[list[tuple[int, ...]]]:
    """Return the physical cores of each NUMA node, as their logical ones; empty if not known.

    https://docs.kernel.org/admin-guide/cputopology.html, 2026-11-22.
    """
    system = root / "sys/devices/system"

    def physical(core: int) -> tuple[int, ...]:
        siblings = system / f"cpu/cpu{core}/topology/thread_siblings_list"
        return tuple(parse_cores(siblings.read_text()))

    folders = sorted(system.glob("node/node[0-9]*"), key=lambda folder: int(folder.name[4:]))
    try:
        return [
            sorted({physical(core) for core in parse_cores((folder / "cpulist").read_text())})
            for folder in folders
        ]
    except (OSError, ValueError):
        return []


def divided(
    nodes: Sequence[Sequence[tuple[int, ...]]], allowed: Collection[int], ranks: int
) -> list[list[int]]:
    """Divide the physical cores among ranks, in the order of the nodes; shares differ by one.

    Every rank has all cores that are allowed where one node has them all, or where physical cores
    are fewer than ranks: the kernel then does better.
    """
    here = [[[core for core in group if core in allowed] for group in groups] for groups in nodes]
    groups = [group for groups in here for group in groups if group]
    if sum(any(groups) for groups in here) < 2 or len(groups) < ranks:
        return [sorted(allowed)] * ranks
    ends = [rank * len(groups) // ranks for rank in range(ranks + 1)]
    return [sorted(chain(*groups[start:end])) for start, end in pairwise(ends)]


def placed(vendor: Vendor, ranks: int) -> list[list[int]]:
    """Return the cores of each rank of this machine: those on devices run where the kernel says."""
    if not hasattr(os, "sched_getaffinity"):
        return [list(range(os.cpu_count() or 1))] * ranks
    nodes = topology() if vendor.counts_cores else []
    return divided(nodes, os.sched_getaffinity(0), ranks)


def take(variable: str | None) -> dict[str, Any] | None:
    """Move this process to the cores that the launcher tells; return those that it then has.

    Args:
        variable: the value of ``CORES_VARIABLE``; None: started by hand, nothing is changed.
    """
    if variable is None:
        return None
    if hasattr(os, "sched_setaffinity"):
        with suppress(OSError):  # the cores went offline or were taken from us since
            os.sched_setaffinity(0, parse_cores(variable))
        variable = compact(os.sched_getaffinity(0))
    return {"cores": variable, "usable_cores": usable_cores()}
