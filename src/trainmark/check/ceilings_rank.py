"""Measure a machine's upper bounds on one rank: matmul, memory, transfers, collectives.

Started by the launcher as ``python -m trainmark.check.ceilings_rank ASKED``, ``Asked`` as JSON.
Owns what is measured, and in which order. Knows no case and no vendor.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, get_args

from trainmark import cases, devices
from trainmark.check.ceilings_work import COLLECTIVES, Candidate, Point, Ranks, sweep
from trainmark.devices import cores, rates
from trainmark.devices.peaks import Peak, dense_peak, memory_peak
from trainmark.errors import EnvironmentFault
from trainmark.recipe import Precision, Recipe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from trainmark.devices.peaks import MemoryPeak
    from trainmark.protocols import Device, Vendor

_MIB, _GIB = 1 << 20, 1 << 30
_SQUARES, _FULL_SQUARES = (256, 512, 1024, 2048, 4096, 8192), (16384,)
_ARRAYS, _FULL_ARRAYS = (256 * _MIB, _GIB), (4 * _GIB,)  # far beyond most caches
_TRANSFERS, _FULL_TRANSFERS = (_MIB, 16 * _MIB, 256 * _MIB), (_GIB,)
_MESSAGES, _FULL_MESSAGES = (64 << 10, _MIB, 16 * _MIB, 64 * _MIB), (256 * _MIB, _GIB)
_UNKNOWN_MEMORY_BYTES = 4 * _GIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What the ranks are to measure.

    Args:
        budget_s: time of one kind, for example the matmuls of one precision.
        full: larger sizes too.
    """

    device: str
    world_size: int
    budget_s: float
    full: bool


@dataclass(slots=True, kw_only=True)
class Kind:
    """One kind of work over sizes and what was measured of it, as docs/machine.md describes it.

    Args:
        reason: why it does not apply, and has no points; None if it does.
        counts: which point is the kind's rate. Of memory the largest, because smaller ones may
            lie in a cache.
    """

    name: str
    unit: Literal["FLOP/s", "bytes/s"] = "bytes/s"
    reason: str | None = None
    counts: Literal["fastest", "largest"] = "fastest"
    bus_factor: float | None = None
    peak: Peak | MemoryPeak | None = None
    points: list[Point] = field(default_factory=list)
    best: int | None = None
    share_of_peak: float | None = None

    def take(self, points: list[Point]) -> None:
        """Take what was measured, and find the point that counts."""
        self.points = points
        found = {place: point.rate["max"] for place, point in enumerate(points) if point.rate}
        if not found:
            return
        self.best = max(found) if self.counts == "largest" else max(found, key=found.__getitem__)
        peak = self.peak
        if peak is not None:
            most = peak.flops_per_second if isinstance(peak, Peak) else peak.bytes_per_second
            self.share_of_peak = found[self.best] / most


def refusal(vendor: Vendor, device: Device, precision: Precision) -> str | None:
    """Switch the device to ``precision``; return why it cannot be, if it cannot."""
    refused = vendor.refuse(Recipe(precision=precision), 1)
    if refused is not None:
        return refused.why
    try:
        device.set_precision(precision)
    except EnvironmentFault as fault:
        return fault.what
    return None


def matmul_candidates(
    device: Device, precision: Precision, shapes: dict[tuple[int, int, int], str]
) -> list[Candidate]:
    """Return matmuls of ``shapes``, which have names, from small to large."""
    found = []
    for shape, name in sorted(shapes.items(), key=lambda item: rates.flops(item[0])):
        rows, inner, columns = shape
        held_bytes = 8.0 * (rows * inner + inner * columns + rows * columns)
        work = partial(rates.matmul, device, precision, shape)
        found.append(Candidate(Point(shape, name, rates.flops(shape)), held_bytes, work))
    return found


def _of_bytes(
    work: Callable[[int], Any], sizes: Sequence[int], factor: float = 1.0
) -> list[Candidate]:
    """Return work of ``sizes`` in bytes, ``factor`` times as many of which a run moves."""
    return [Candidate(Point((n,), "", factor * n), 4.0 * n, partial(work, n)) for n in sizes]


def shapes(*, full: bool) -> dict[tuple[int, int, int], str]:
    """Return the matmuls to measure: squares, and cases' layers with their names."""
    found = {(n, n, n): "" for n in _SQUARES + full * _FULL_SQUARES}
    for case in cases.load_all()[0]:
        for layer, shape in case.layers.items():
            found[shape] = ", ".join(filter(None, (found.get(shape), f"{case.name} {layer}")))
    return found


def kinds(
    vendor: Vendor, device: Device, ranks: Ranks, *, full: bool
) -> Iterator[tuple[Kind, list[Candidate]]]:
    """Yield what is measured, in order; the device is in a kind's precision until the next."""
    product = device.describe()["name"]
    for precision in get_args(Precision):
        why, peak = refusal(vendor, device, precision), dense_peak(product, precision)
        matmuls = [] if why else matmul_candidates(device, precision, shapes(full=full))
        yield Kind(name=f"matmul_{precision}", unit="FLOP/s", reason=why, peak=peak), matmuls
    copied = _of_bytes(partial(rates.copy, device), _ARRAYS + full * _FULL_ARRAYS, 2)
    yield Kind(name="memory_copy", counts="largest", peak=memory_peak(product)), copied
    for name, up in (("host_to_device", True), ("device_to_host", False)):
        for memory, pinned in (("pageable", False), ("pinned", True)):
            copy = partial(rates.transfer, device, to_device=up, pinned=pinned)
            why = "the device computes in the host's memory" if copy(4) is None else None
            sizes = () if why else _TRANSFERS + full * _FULL_TRANSFERS
            yield Kind(name=f"{name}_{memory}", reason=why), _of_bytes(copy, sizes)
    for name, collective in COLLECTIVES.items():
        if ranks.count == 1:
            yield Kind(name=name, reason="one process exchanges nothing; give --nproc"), []
            continue
        factor, sizes = rates.bus_factor(name, ranks.count), _MESSAGES + full * _FULL_MESSAGES
        exchange = partial(collective, device, ranks)
        yield Kind(name=name, bus_factor=factor), _of_bytes(exchange, sizes, factor)


def run_rank(asked: Asked, rank: int) -> dict[str, Any]:
    """Return everything that one rank measures; all ranks begin each size together."""
    vendor = devices.choose(asked.device)
    device = vendor.open(rank, asked.world_size)
    here = vendor.rank_memory(asked.world_size)
    total = (here.rank_bytes if here else device.memory().total_bytes) or _UNKNOWN_MEMORY_BYTES
    measured = []
    with Ranks.joined(vendor.collective_backend, rank, asked.world_size) as ranks:
        # What ranks do together goes by what all agree on. Half of the memory, because what was
        # measured before may not be free again yet.
        memory_bytes = -ranks.most(-total) / 2
        for kind, candidates in kinds(vendor, device, ranks, full=asked.full):
            if ranks.most(kind.reason is not None):
                kind.reason = kind.reason or "does not apply on another rank"
            if rank == 0:
                print(f"trainmark: {kind.name}", flush=True)
            points = sweep(
                device, [] if kind.reason else candidates, memory_bytes=memory_bytes,
                budget_ns=asked.budget_s * 1e9, clock=ranks.clock, most=ranks.most,
                elapsed=ranks.elapsed_ns if kind.bus_factor else rates.elapsed_ns,
            )  # fmt: skip
            kind.take(points)
            measured.append(asdict(kind))
    return {
        "rank": rank, "device": device.describe(),
        "collectives": vendor.collective_library() if asked.world_size > 1 else None,
        "measurements": measured,
    }  # fmt: skip


def main(asked: Asked) -> None:
    """Measure as the rank that the environment names; standard output gets a line of JSON."""
    from trainmark.rank.worker import die_with_parent

    results = os.dup(1)
    os.dup2(2, 1)  # for what others print
    die_with_parent()
    placement = cores.take(
        os.environ.get(cores.PLACEMENT_VARIABLE), int(os.environ["LOCAL_RANK"])
    )  # before torch starts threads
    rank = int(os.environ["RANK"])
    found = json.dumps({"placement": placement, **run_rank(asked, rank)}, allow_nan=False)
    with os.fdopen(results, "wb", buffering=0) as file:
        file.write(f"{found}\n".encode())  # at once: ranks share the file


if __name__ == "__main__":
    main(Asked(**json.loads(sys.argv[1])))
