"""Read how many cores and how much memory this process may use, by the kernel's limits.

https://docs.kernel.org/admin-guide/cgroup-v2.html,
https://docs.kernel.org/admin-guide/cgroup-v1/memory.html and
https://docs.kernel.org/scheduler/sched-bwc.html, 2026-11-22.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_ROOT = Path("/")
_NO_LIMIT_BYTES = 1 << 62  # version 1 of cgroups writes "no limit" as 2^63 minus a page


def count_usable_cores(root: Path = _ROOT) -> int:
    """Return the number of cores this process may use by affinity and cgroup quota, at least 1.

    Args:
        root: of the file system that holds ``proc`` and ``sys``.
    """
    if hasattr(os, "sched_getaffinity"):
        num_cores = len(os.sched_getaffinity(0))
    else:
        num_cores = os.cpu_count() or 1
    quota = read_core_quota(root)
    if quota is not None:
        num_cores = min(num_cores, int(quota))
    return max(1, num_cores)


def read_core_quota(root: Path = _ROOT) -> float | None:
    """Return how many cores' time the cgroups allow together, ``1.5`` for instance; None: any."""
    quotas = []
    for folder in _list_cgroups("cpu", root):
        words = _read_words(folder / "cpu.max")
        words = words or _read_words(folder / "cpu.cfs_quota_us") + _read_words(
            folder / "cpu.cfs_period_us"
        )
        if len(words) == 2 and words[0] not in ("max", "-1"):
            quotas.append(int(words[0]) / max(1, int(words[1])))
    return min(quotas, default=None)


def read_memory_limits(root: Path = _ROOT) -> dict[Path, int]:
    """Return the memory limit in bytes of each of this process's cgroups, by its folder."""
    limits = {}
    for folder in _list_cgroups("memory", root):
        words = _read_words(folder / "memory.max") or _read_words(folder / "memory.limit_in_bytes")
        if words and words != ["max"] and int(words[0]) < _NO_LIMIT_BYTES:
            limits[folder] = int(words[0])
    return limits


def read_used_bytes(folder: Path) -> int:
    """Return the bytes that a cgroup uses, without the cache of files, which can be dropped.

    Raises:
        OSError, ValueError: it cannot be read.
    """
    current, files = "memory.current", "inactive_file"
    if not (folder / current).exists():
        current, files = "memory.usage_in_bytes", "total_inactive_file"
    stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
    return int((folder / current).read_text()) - int(stat[files])


def _list_cgroups(controller: str, root: Path) -> Iterator[Path]:
    """Yield the folders of this process's cgroups of version 1 or 2, and of their parents.

    The process of a job's step often has limits only in a parent. A container that does not see the
    host's groups has its own at the top.

    Args:
        controller: ``cpu`` or ``memory``.
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
        cgroup = top.joinpath(path.lstrip("/"))
        if not cgroup.is_dir() or ".." in cgroup.parts:
            cgroup = top
        yield from (cgroup, *(folder for folder in cgroup.parents if folder.is_relative_to(top)))


def _read_words(file: Path) -> list[str]:
    """Return the words of a file; empty: it cannot be read."""
    try:
        return file.read_text().split()
    except OSError:  # another version of cgroups, the root without limits, or no permission
        return []
