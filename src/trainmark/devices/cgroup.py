"""The limits of the cgroups that this process is in, of version 1, version 2, or both at once.

The limits of all cgroups above count too: a process of a job's step often has none of its own.

https://docs.kernel.org/admin-guide/cgroup-v2.html,
https://docs.kernel.org/admin-guide/cgroup-v1/memory.html,
https://docs.kernel.org/scheduler/sched-bwc.html and proc_pid_mountinfo(5), 2026-11-22.
"""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

Limit = TypeVar("Limit")
_MOUNT = re.compile(r"\S+ \S+ \S+ (/\S*) (/\S*) .* - (cgroup2?) \S+ (\S+)")
_MOST_BYTES = 1 << 62  # version 1 writes "no limit" as 2^63 less a page
_INTEGER = re.compile(r"\d{1,19}", re.ASCII)
# By the files of one limit; version 2 has both numbers of a quota in one.
_MEMORY = (("memory.max",), ("memory.limit_in_bytes",))
_QUOTA = (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us"))
_USED = (("memory.current", "inactive_file"), ("memory.usage_in_bytes", "total_inactive_file"))


def core_quota(root: Path = Path("/")) -> float | None:
    """Return the cores whose time all cgroups allow; None: no limit."""
    return min(_limits("cpu", _QUOTA, parse_quota, root).values(), default=None)


def memory_limits(root: Path = Path("/")) -> dict[Path, int]:
    """Return the limits in bytes, by the folder of the cgroup."""
    return _limits("memory", _MEMORY, parse_bytes, root)


def used_bytes(folder: Path) -> int:
    """Return the memory that a cgroup uses, without files that were read and can be dropped.

    Raises:
        OSError, ValueError: it cannot be read.
    """
    current, files = _USED[0] if (folder / _USED[0][0]).exists() else _USED[1]
    stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
    if files not in stat:
        raise ValueError(f"{folder / 'memory.stat'}: no {files}")
    return _number((folder / current).read_text().strip()) - _number(stat[files])


def parse_bytes(text: str) -> int | None:
    """Return a limit of memory in bytes; None: no limit.

    Raises:
        ValueError: not such a limit.
    """
    found = _MOST_BYTES if text == "max" else _number(text)
    return found if found < _MOST_BYTES else None


def parse_quota(text: str) -> float | None:
    """Return the cores of a quota and its period; None: no limit.

    Raises:
        ValueError: not such a pair.
    """
    quota, period = text.split()
    return None if quota in ("max", "-1") else _number(quota) / max(1, _number(period))


def _number(text: str) -> int:
    if not _INTEGER.fullmatch(text):
        raise ValueError(f"not a number: {text[:80]!r}")
    return int(text)


def _limits(
    controller: str,
    files: tuple[tuple[str, ...], ...],
    parse: Callable[[str], Limit | None],
    root: Path,
) -> dict[Path, Limit]:
    found = {}
    for folder in folders(controller, root):
        for names in files:
            try:
                limit = parse(" ".join((folder / name).read_text().strip() for name in names))
            except (OSError, ValueError):
                continue  # the other version, the root, which has no limits, or not for this user
            if limit is not None:
                found[folder] = limit
    return found


def folders(controller: str, root: Path = Path("/")) -> list[Path]:
    """Return the folders of this process's cgroups with ``controller``, each before its parent.

    Of a cgroup that is not shown here, those at which the hierarchies are mounted.
    """
    own: dict[str, str] = {}
    for line in _lines(root / "proc/self/cgroup"):
        names, _, path = line.partition(":")[2].partition(":")
        own |= dict.fromkeys(names.split(","), path)
    mounts = map(_MOUNT.match, _lines(root / "proc/self/mountinfo"))
    found = []
    for mounted, point, version, options in (mount.groups() for mount in mounts if mount):
        if version == "cgroup" and controller not in options.split(","):
            continue
        parts: tuple[str, ...] = ()
        inside = PurePosixPath(own.get("" if version == "cgroup2" else controller) or "/")
        if inside.is_relative_to(mounted) and ".." not in inside.parts:
            parts = inside.relative_to(mounted).parts
        top = root / point.lstrip("/")
        found += [top.joinpath(*parts[:depth]) for depth in range(len(parts), -1, -1)]
    return found


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text(errors="replace").splitlines()
    except OSError:  # not Linux, or /proc is closed
        return []
