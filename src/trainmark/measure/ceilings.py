"""Measure a machine's upper bounds on one rank: matmul, memory, transfers, collectives.

Started by the launcher as ``python -m trainmark.measure.ceilings FOLDER``. Owns what is measured,
and in which order. Knows no case and no vendor.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from trainmark.devices import numa, rates
from trainmark.errors import EnvironmentFault
from trainmark.measure.collectives import COLLECTIVES, Ranks
from trainmark.measure.sweep import Candidate, Point, sweep
from trainmark.spec import Recipe

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trainmark.devices.peaks import MemoryPeak, Peak
    from trainmark.protocols import Device, Vendor
    from trainmark.spec import Precision

ASKED_FILE = "asked.json"
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
        launcher: process id of the launcher.
        layers: rows, inner and columns of matmuls besides squares, by name.
        budget_s: time of one kind, for example the matmuls of one precision.
        full: larger sizes too.
    """

    run_id: str
    launcher: int
    device: str
    world_size: int
    precisions: tuple[Precision, ...]
    layers: dict[str, tuple[int, int, int]]
    budget_s: float
    full: bool


class Kind(NamedTuple):
    """Work on bytes that is measured over sizes.

    Args:
        arrays: a run moves this many times the size.
        reason: why it does not apply; None if it does.
    """

    name: str
    work: Callable[[int], Any]
    sizes: tuple[int, ...]
    arrays: int = 1
    bus_factor: float | None = None
    reason: str | None = None


def described(
    name: str,
    unit: Literal["FLOP/s", "bytes/s"],
    points: Sequence[Point] = (),
    *,
    reason: str | None = None,
    peak: Peak | MemoryPeak | None = None,
    largest_counts: bool = False,
    bus_factor: float | None = None,
) -> dict[str, Any]:
    """Return one kind as docs/ceilings.md describes it.

    Args:
        reason: why there are no points.
        largest_counts: the largest size measured counts, not the fastest: small ones may lie in
            a cache.
    """
    measured = {place: point.rate["max"] for place, point in enumerate(points) if point.rate}
    best = max(
        measured, key=(lambda n: n) if largest_counts else measured.__getitem__, default=None
    )
    told, share = None, None
    if peak is not None:
        told = asdict(peak)
        told["value"] = told["flops_per_second" if unit == "FLOP/s" else "bytes_per_second"]
        told = {key: told[key] for key in ("value", "accelerator", "source", "date", "evidence")}
        share = None if best is None else measured[best] / told["value"]
    return {
        "name": name, "unit": unit, "reason": reason, "points": [asdict(one) for one in points],
        "best": best, "bus_factor": bus_factor, "peak": told, "share_of_peak": share,
    }  # fmt: skip


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
    return [
        Candidate(
            shape, name, rates.flops(shape),
            8.0 * (shape[0] * shape[1] + shape[1] * shape[2] + shape[0] * shape[2]),
            partial(rates.matmul, device, precision, shape),
        )
        for shape, name in sorted(shapes.items(), key=lambda item: rates.flops(item[0]))
    ]  # fmt: skip


def kinds(device: Device, ranks: Ranks, *, full: bool) -> list[Kind]:
    """Return what is measured on bytes, in order."""
    arrays = _ARRAYS + full * _FULL_ARRAYS
    transfers, messages = _TRANSFERS + full * _FULL_TRANSFERS, _MESSAGES + full * _FULL_MESSAGES
    found = [
        Kind("memory_copy", partial(rates.copy, device), arrays, arrays=2),
        Kind("memory_triad", partial(rates.triad, device), arrays, arrays=3),
    ]
    for name, up in (("host_to_device", True), ("device_to_host", False)):
        for memory, pinned in (("pageable", False), ("pinned", True)):
            work = partial(rates.transfer, device, to_device=up, pinned=pinned)
            same = "the device computes in the host's memory" if work(4) is None else None
            found.append(Kind(f"{name}_{memory}", work, transfers, reason=same))
    alone = "one process exchanges nothing; give --nproc" if ranks.count == 1 else None
    for name, collective in COLLECTIVES.items():
        factor = None if alone else rates.bus_factor(name, ranks.count)
        exchange = partial(collective, device, ranks)
        found.append(Kind(name, exchange, messages, bus_factor=factor, reason=alone))
    return found


def run_rank(asked: Asked, rank: int, say: Callable[[str], None]) -> dict[str, Any]:
    """Return everything that one rank measures; all ranks begin each kind together."""
    from trainmark import devices
    from trainmark.devices.peaks import dense_peak, memory_peak

    vendor = devices.choose(asked.device)
    device = vendor.open(rank, asked.world_size)
    facts, here = device.describe(), vendor.rank_memory(asked.world_size)
    total = here.rank_bytes if here else device.memory().total_bytes
    # Half, because what was measured before may not be free again yet.
    memory_bytes = (total or _UNKNOWN_MEMORY_BYTES) / 2
    timed = partial(sweep, device, budget_ns=asked.budget_s * 1e9, memory_bytes=memory_bytes)
    shapes = {(n, n, n): "" for n in _SQUARES + asked.full * _FULL_SQUARES}
    for layer, shape in asked.layers.items():
        shapes[shape] = ", ".join(filter(None, (shapes.get(shape), layer)))
    measured = []
    with Ranks.joined(vendor.collective_backend, rank, asked.world_size) as ranks:

        def begin(name: str) -> None:
            ranks.most(0.0)
            say(name)

        for precision in asked.precisions:
            begin(name := f"matmul_{precision}")
            why, points = refusal(vendor, device, precision), []
            if why is None:
                points = timed(matmul_candidates(device, precision, shapes))
            peak = dense_peak(facts["name"], precision)
            measured.append(described(name, "FLOP/s", points, reason=why, peak=peak))
        for kind in kinds(device, ranks, full=asked.full):
            begin(kind.name)
            measured.append(_measured(kind, timed, ranks, memory_peak(facts["name"])))
    return {
        "rank": rank, "device": facts,
        "collectives": vendor.collective_library() if asked.world_size > 1 else None,
        "measurements": measured,
    }  # fmt: skip


def _measured(
    kind: Kind, timed: Callable[..., list[Point]], ranks: Ranks, peak: MemoryPeak | None
) -> dict[str, Any]:
    """Measure work on bytes; what is collective by what all ranks agree on."""
    candidates = [
        Candidate((size,), "", kind.arrays * size, 4.0 * size, partial(kind.work, size))
        for size in (() if kind.reason else kind.sizes)
    ]
    alone, in_memory = kind.bus_factor is None, kind.arrays > 1
    points = timed(
        candidates, bus_factor=kind.bus_factor,
        clock=perf_counter_ns if alone else ranks.clock,
        elapsed=rates.elapsed_ns if alone else ranks.elapsed_ns,
    )  # fmt: skip
    return described(
        kind.name, "bytes/s", points, reason=kind.reason, largest_counts=in_memory,
        peak=peak if in_memory else None, bus_factor=kind.bus_factor,
    )  # fmt: skip


def result_file(rank: int) -> str:
    """Return the name of the file that holds what a rank measured."""
    return f"rank{rank}.json"


def main(folder: Path) -> None:
    """Measure as the rank that the environment names."""
    from trainmark.measure.worker import die_with_parent

    written = json.loads((folder / ASKED_FILE).read_text(encoding="utf-8"))
    layers = {name: tuple(shape) for name, shape in written["layers"].items()}
    asked = Asked(**{**written, "layers": layers})
    die_with_parent()
    if os.getppid() != asked.launcher:
        sys.exit("the launcher died")
    placement = numa.take(os.environ.get(numa.PLACEMENT_VARIABLE))  # before torch starts threads
    rank = int(os.environ["RANK"])

    def say(name: str) -> None:
        if rank == 0:
            print(f"trainmark: {name}", flush=True)

    found = {"placement": placement, **run_rank(asked, rank, say)}
    (folder / result_file(rank)).write_text(json.dumps(found, allow_nan=False), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
