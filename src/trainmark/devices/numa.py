"""The processor's cores by NUMA node, and the share of them that each rank is pinned to.

Owns the kernel's files of the topology, the division of cores among ranks, and how a rank takes
its share. The launcher divides, so that all ranks agree; a rank must take its share before it
imports torch, whose threads then inherit it.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainmark.devices.vendors.cpu import usable_cores
from trainmark.errors import UsageError
from trainmark.protocols import Located

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from trainmark.protocols import Vendor

    # Logical cores by NUMA node; those of one physical core together.
    Topology = Mapping[int, Sequence[tuple[int, ...]]]

SWITCH = "TRAINMARK_PIN"  # 0: ranks are not pinned
PLACEMENT_VARIABLE = "TRAINMARK_PLACEMENT"  # what the launcher tells the ranks of a machine
# https://docs.kernel.org/admin-guide/cputopology.html, 2026-11-22: lists as ``0-3,8``.
_RANGE = re.compile(r"(\d{1,5})(?:-(\d{1,5}))?", re.ASCII)


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
        ValueError: not such a list, or not in ascending order.
    """
    found: list[int] = []
    for item in text.strip().split(",") if text.strip() else []:
        ends = _RANGE.fullmatch(item)
        if ends is None or (found and int(ends[1]) <= found[-1]):
            raise ValueError(f"not a list of cores: {text[:80]!r}")
        found += range(int(ends[1]), int(ends[2] or ends[1]) + 1)
    return found


def compact(cores: Iterable[int]) -> str:
    """Return cores as the kernel lists them, ``0-3,8-11``."""
    runs: list[list[int]] = []
    for core in sorted(cores):
        if runs and core == runs[-1][1] + 1:
            runs[-1][1] = core
        else:
            runs.append([core, core])
    return ",".join(f"{a}" if a == b else f"{a}-{b}" for a, b in runs)


def topology(root: Path = Path("/")) -> Topology:
    """Return the cores of each NUMA node that are online; empty if the kernel does not tell."""
    system = root / "sys" / "devices" / "system"
    found: dict[int, list[tuple[int, ...]]] = {}
    try:
        folders = {int(path.name[4:]): path for path in system.glob("node/node[0-9]*")}
        for node, folder in sorted(folders.items()):
            left = dict.fromkeys(parse_cores((folder / "cpulist").read_text()))
            found[node] = []
            while left:
                core = next(iter(left))
                siblings = parse_cores(
                    (system / f"cpu/cpu{core}/topology/thread_siblings_list").read_text()
                )
                group = tuple(sorted({core, *siblings} & left.keys()))
                found[node].append(group)
                for one in group:
                    del left[one]
    except (OSError, ValueError):
        return {}
    cores = [core for groups in found.values() for group in groups for core in group]
    return found if len(cores) == len(set(cores)) else {}  # else files of no real machine


def placement(
    nodes: Topology,
    allowed: Collection[int],
    device_nodes: Sequence[int | None] | None,
    *,
    ranks: int,
    usable: int,
    why_none: str | None = None,
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
        why_none: why no rank is to be pinned, whatever the rest is.
    """
    even = max(1, usable // ranks)
    wanted: Sequence[int | None] = [None] * ranks if device_nodes is None else device_nodes
    free = {node: kept for node, groups in nodes.items() if (kept := _among(allowed, groups))}
    if why_none is None and len(free) < 2:
        why_none = "one_node" if free else "no_topology"
    if why_none is None and device_nodes is None and ranks == 1:
        why_none = "one_rank"
    pools: dict[int | None, list[tuple[int, ...]]] = dict(free.items())
    if device_nodes is None:
        pools = {None: [group for groups in free.values() for group in groups]}
    if why_none is None and None in wanted and None not in pools:
        why_none = "unknown_node"
    if why_none is None and any(len(pools.get(one, ())) < wanted.count(one) for one in wanted):
        why_none = "few_cores"
    if why_none is not None:
        return [
            Placement(
                numa_nodes=() if node is None else (node,), cores=tuple(sorted(allowed)),
                threads=even, why_not=why_none,
            )
            for node in wanted
        ]  # fmt: skip
    placed = []
    for rank, node in enumerate(wanted):
        groups, place, sharing = pools[node], wanted[:rank].count(node), wanted.count(node)
        share = groups[place * len(groups) // sharing : (place + 1) * len(groups) // sharing]
        cores = tuple(sorted(core for group in share for core in group))
        at = tuple(node for node in free if not set(share).isdisjoint(free[node]))
        placed.append(Placement(numa_nodes=at, cores=cores, threads=min(even, len(cores))))
    return placed


def _among(allowed: Collection[int], groups: Iterable[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Return what is allowed of each physical core, without those of which nothing is."""
    kept = (tuple(core for core in group if core in allowed) for group in groups)
    return [group for group in kept if group]


def cores_of_rank(own: int, *, total: int, ranks: int, shared: bool) -> int:
    """Return how many threads a rank can run at a time.

    Args:
        own: cores that it may use, perhaps with other ranks.
        total: cores that all ranks of this machine may keep busy.
        shared: whether ranks compute on cores, and not on devices.
    """
    return min(own, max(1, total // ranks)) if shared else own


def placements(
    vendor: Vendor, ranks: int, variables: Mapping[str, str], *, root: Path = Path("/")
) -> list[Placement]:
    """Return where the ranks of this machine run, by local rank.

    Raises:
        UsageError: ``TRAINMARK_PIN`` is neither 0 nor 1.
    """
    switch = variables.get(SWITCH, "1")
    if switch not in ("0", "1"):
        raise UsageError(
            f"{SWITCH}={switch}",
            where="environment",
            rule="1 pins ranks to the cores near their devices, 0 does not",
            remedy=f"unset {SWITCH}, or set it to 0",
        )
    device_nodes = None
    if not vendor.counts_cores:
        located = vendor.numa_node if isinstance(vendor, Located) else lambda _: None
        device_nodes = [located(rank) for rank in range(ranks)]
    can = hasattr(os, "sched_setaffinity")
    allowed = os.sched_getaffinity(0) if can else range(os.cpu_count() or 1)
    return placement(
        topology(root) if can else {},
        allowed,
        device_nodes,
        ranks=ranks,
        usable=usable_cores(root),
        why_none="off" if switch == "0" else None if can else "unsupported",
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
