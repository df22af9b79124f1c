"""Read how many cores and how much memory this process may use, by the kernel's limits.

https://docs.kernel.org/admin-guide/cgroup-v2.html,
https://docs.kernel.org/admin-guide/cgroup-v1/memory.html and
https://docs.kernel.org/scheduler/sched-bwc.html, 2026-11-22.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from trainmark.affinity import count_allowed_cores

if TYPE_CHECKING:
    from collections.abc import Iterator

_ROOT = Path("/")
_NO_LIMIT_BYTES = 1 << 62  # version 1 of cgroups writes "no limit" as 2^63 minus a page


def count_usable_cores(root: Path = _ROOT) -> int:
    """Return the number of cores this process may use by affinity and cgroup quota, at least 1.

    Args:
        root: the folder that holds ``proc`` and ``sys``; ``/`` on a real machine.
    """
    num_cores = count_allowed_cores()
    quota = read_core_quota(root)
    if quota is not None:
        num_cores = min(num_cores, int(quota))
    return max(1, num_cores)


def read_core_quota(root: Path = _ROOT) -> float | None:
    """Return how many cores' time the cgroups allow, ``1.5`` for instance; None: no limit.

    If several cgroups have a limit, the lowest applies.

    Args:
        root: the folder that holds ``proc`` and ``sys``; ``/`` on a real machine.
    """
    quotas = []
    for folder in _iterate_cgroups("cpu", root):
        # Version 2 of cgroups has one file with both words, version 1 a file for each: the allowed
        # time, and the period in which it may be used.
        words = _read_words(folder / "cpu.max")
        if not words:
            quota_words = _read_words(folder / "cpu.cfs_quota_us")
            words = quota_words + _read_words(folder / "cpu.cfs_period_us")
        if len(words) != 2:
            continue
        quota_us, period_us = words
        if quota_us not in ("max", "-1"):  # "no limit" in versions 2 and 1
            # No kernel should report a period of 0; if one does, the program must not end by it.
            quotas.append(int(quota_us) / max(1, int(period_us)))
    return min(quotas, default=None)


def read_memory_limits(root: Path = _ROOT) -> dict[Path, int]:
    """Return the memory limit in bytes of each of this process's cgroups, by its folder.

    Cgroups without a limit are left out.

    Args:
        root: the folder that holds ``proc`` and ``sys``; ``/`` on a real machine.
    """
    limits = {}
    for folder in _iterate_cgroups("memory", root):
        words = _read_words(folder / "memory.max")
        if not words:
            words = _read_words(folder / "memory.limit_in_bytes")  # version 1 of cgroups
        # Version 2 writes "no limit" as ``max``, version 1 as a number of almost 2^63.
        if words and words != ["max"] and int(words[0]) < _NO_LIMIT_BYTES:
            limits[folder] = int(words[0])
    return limits


def read_used_bytes(folder: Path) -> int:
    """Return the bytes that a cgroup uses, without the inactive part of its file cache.

    The kernel can drop that part when a process needs memory.

    Raises:
        OSError, ValueError: it cannot be read.
    """
    if (folder / "memory.current").exists():
        used_bytes = int((folder / "memory.current").read_text())
        cache_field = "inactive_file"
    else:  # version 1 of cgroups, in which only the fields ``total_…`` include the cgroups below
        used_bytes = int((folder / "memory.usage_in_bytes").read_text())
        cache_field = "total_inactive_file"
    lines = (folder / "memory.stat").read_text().splitlines()
    statistics = dict(line.split() for line in lines)
    return used_bytes - int(statistics[cache_field])


def _iterate_cgroups(controller: str, root: Path) -> Iterator[Path]:
    """Yield the folders of this process's cgroups, of version 1 or 2, and of their parents.

    A parent often has the limits, for example that of the steps of a batch job. A container that
    does not see the host's cgroups finds its own at the top of the file system.

    Args:
        controller: ``cpu`` or ``memory``. Version 1 has a tree of cgroups for each controller.
        root: the folder that holds ``proc`` and ``sys``; ``/`` on a real machine.
    """
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:  # not Linux, or /proc is closed
        return
    for line in lines:
        # `0::/job/step` in version 2, `4:cpu,cpuacct:/job/step` in version 1.
        _, controllers, path = line.split(":", 2)
        is_version_1 = bool(controllers)
        if is_version_1 and controller not in controllers.split(","):
            continue
        top = root / "sys/fs/cgroup"
        if is_version_1:
            top = top / controller
        cgroup = top.joinpath(path.lstrip("/"))
        # In a container, the path may be one of the host's, which does not exist here. A path with
        # `..` is of a cgroup above those that the container sees (cgroup_namespaces(7)).
        if not cgroup.is_dir() or ".." in cgroup.parts:
            cgroup = top
        yield cgroup
        for parent in cgroup.parents:
            if parent.is_relative_to(top):
                yield parent


def _read_words(file: Path) -> list[str]:
    """Return the words of a file; empty: it cannot be read."""
    try:
        return file.read_text().split()
    except OSError:  # the other version of cgroups, or the root cgroup, or no permission
        return []
