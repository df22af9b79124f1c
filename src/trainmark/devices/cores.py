"""The cores and the memory that this process may use, and the cores that each rank is pinned to.

Owns the kernel's files of limits and topology, the division of cores among ranks, and how a rank
takes its share. The launcher divides, so that all ranks agree; a rank must take its share before
it imports torch, whose threads then inherit it.

https://docs.kernel.org/admin-guide/cgroup-v2.html,
https://docs.kernel.org/admin-guide/cgroup-v1/memory.html and
https://docs.kernel.org/scheduler/sched-bwc.html, 2026-11-22.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainmark.errors import UsageError
from trainmark.protocols import Located

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from trainmark.protocols import Vendor

    # Logical cores by NUMA node; those of one physical core together.
    Topology = Mapping[int, Sequence[tuple[int, ...]]]

SWITCH = "TRAINMARK_PIN"  # 0: ranks are not pinned
PLACEMENT_VARIABLE = "TRAINMARK_PLACEMENT"  # what the launcher tells the ranks of a machine
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


def cores_of_rank(own: int, *, total: int, ranks: int, shared: bool) -> int:
    """Return how many threads a rank can run at a time.

    Args:
        own: cores that it may use, perhaps with other ranks.
        total: cores that all ranks of this machine may keep busy.
        shared: whether ranks compute on cores, and not on devices.
    """
    return min(own, max(1, total // ranks)) if shared else own


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """The logical cores of one rank.

    Args:
        numa_nodes: those of its cores if it is pinned, else that of its device; empty: unknown.
        threads: how many to compute with: an equal share for all ranks, but not more than cores.
        why_not: why the rank is not pinned; None if it is.
    """

    numa_nodes: tuple[int, ...]
    cores: tuple[int, ...]
    threads: int
    why_not: str | None = None


def to_variable(placed: Iterable[Placement]) -> str:
    """Return the placements of a machine's ranks, by local rank, as ``take`` reads them."""
    return json.dumps([asdict(one) | {"cores": compact(one.cores)} for one in placed])


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


def topology(root: Path = _ROOT) -> Topology:
    """Return the cores of each NUMA node that are online; empty if the kernel does not tell.

    https://docs.kernel.org/admin-guide/cputopology.html, 2026-11-22.
    """
    system = root / "sys/devices/system"

    def physical(core: int) -> tuple[int, ...]:
        siblings = system / f"cpu/cpu{core}/topology/thread_siblings_list"
        return tuple(parse_cores(siblings.read_text()))

    try:
        return {
            int(folder.name[4:]): sorted(
                {physical(core) for core in parse_cores((folder / "cpulist").read_text())}
            )
            for folder in sorted(
                system.glob("node/node[0-9]*"), key=lambda folder: int(folder.name[4:])
            )
        }
    except (OSError, ValueError):
        return {}


def placement(
    nodes: Topology,
    allowed: Collection[int],
    device_nodes: Sequence[int | None] | None,
    *,
    ranks: int,
    usable: int,
    pinned: bool = True,
) -> list[Placement]:
    """Divide cores among the ranks of this machine, by local rank; no core goes to two.

    Ranks whose devices are on one node share its physical cores evenly; ranks without devices
    share all of them, in the order of the nodes. Shares differ by one where they do not divide.
    All ranks are pinned or none: one that is not would run on cores of the others. None is where
    nothing is gained, the node of a device is unknown, or a node has fewer cores than ranks.

    Args:
        allowed: cores that this process may run on.
        device_nodes: the node of each rank's device, None if unknown; None: ranks compute on cores.
        usable: cores that all ranks may keep busy: of ``allowed``, or a lower quota.
        pinned: false: no rank is to be pinned.
    """
    even = max(1, usable // ranks)
    wanted: Sequence[int | None] = [None] * ranks if device_nodes is None else device_nodes
    # Physical cores of which this process may use something, with the node of each.
    node_of = {
        kept: node
        for node, groups in nodes.items()
        for group in groups
        if (kept := tuple(core for core in group if core in allowed))
    }
    pools: dict[int | None, list[tuple[int, ...]]] = {None: list(node_of)}
    for kept, node in node_of.items():
        pools.setdefault(node, []).append(kept)
    why_not = None
    if not pinned:
        why_not = "off"
    elif len(pools) < 3:
        why_not = "one_node" if node_of else "no_topology"
    elif device_nodes is None and ranks == 1:
        why_not = "one_rank"
    elif device_nodes is not None and None in device_nodes:
        why_not = "unknown_node"
    elif any(len(pools.get(one, ())) < wanted.count(one) for one in wanted):
        why_not = "few_cores"
    placed = []
    for rank, near in enumerate(wanted):
        at: tuple[int, ...] = () if near is None else (near,)
        cores, threads = tuple(sorted(allowed)), even
        if why_not is None:
            groups, place, sharing = pools[near], wanted[:rank].count(near), wanted.count(near)
            share = groups[place * len(groups) // sharing : (place + 1) * len(groups) // sharing]
            at = tuple(dict.fromkeys(node_of[kept] for kept in share))
            cores = tuple(sorted(chain(*share)))
            threads = min(even, len(cores))
        placed.append(Placement(numa_nodes=at, cores=cores, threads=threads, why_not=why_not))
    return placed


def is_pinned(variables: Mapping[str, str]) -> bool:
    """Tell whether the user lets ranks be pinned.

    Raises:
        UsageError: ``TRAINMARK_PIN`` is neither 0 nor 1.
    """
    switch = variables.get(SWITCH, "1")
    if switch not in ("0", "1"):
        raise UsageError(
            f"{SWITCH}={switch}", where="environment", remedy=f"unset {SWITCH}, or set it to 0",
            rule="1 pins ranks to the cores near their devices, 0 does not",
        )  # fmt: skip
    return switch == "1"


def placements(
    vendor: Vendor, ranks: int, variables: Mapping[str, str], *, root: Path = _ROOT
) -> list[Placement]:
    """Return where the ranks of this machine run, by local rank.

    Raises:
        UsageError: see ``is_pinned``.
    """
    device_nodes = None
    if not vendor.counts_cores:
        located = vendor.numa_node if isinstance(vendor, Located) else lambda _: None
        device_nodes = [located(rank) for rank in range(ranks)]
    can = hasattr(os, "sched_setaffinity")
    return placement(
        topology(root) if can else {},
        os.sched_getaffinity(0) if can else range(os.cpu_count() or 1),
        device_nodes,
        ranks=ranks,
        usable=usable_cores(root),
        pinned=is_pinned(variables),
    )


def take(variable: str | None, local_rank: int) -> dict[str, Any] | None:
    """Pin this process as the launcher told it; return the placement that is then in effect.

    Args:
        variable: the value of ``TRAINMARK_PLACEMENT``; None: started by hand, nothing is changed.
    """
    if variable is None:
        return None
    wanted: dict[str, Any] = json.loads(variable)[local_rank]
    if wanted["why_not"] is None:
        try:
            os.sched_setaffinity(0, parse_cores(wanted["cores"]))
        except OSError:  # the cores went offline or were taken from us since
            wanted["why_not"] = "refused"
    if hasattr(os, "sched_getaffinity"):
        wanted["cores"] = compact(os.sched_getaffinity(0))
    wanted["usable_cores"] = usable_cores()
    return wanted
