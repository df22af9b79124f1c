"""Measure a machine's upper bounds on one rank: matmul, memory, transfers, collectives.

Started by the launcher as ``python -m trainmark.measure.ceilings FOLDER``. Owns what is measured,
in which order and in which time. Knows no case and no vendor.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from trainmark.devices import numa, rates
from trainmark.measure.collectives import COLLECTIVES, Ranks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from trainmark.protocols import Device, Vendor
    from trainmark.spec import Precision

ASKED_FILE = "asked.json"
LEAST_REPEATS = 3
_MIB, _GIB = 1 << 20, 1 << 30
_SQUARES, _FULL_SQUARES = (256, 512, 1024, 2048, 4096, 8192), (16384,)
# Far beyond most caches; only the largest that was measured counts.
_ARRAY_BYTES, _FULL_ARRAY_BYTES = (256 * _MIB, _GIB), (4 * _GIB,)
_TRANSFER_BYTES, _FULL_TRANSFER_BYTES = (_MIB, 16 * _MIB, 256 * _MIB), (_GIB,)
_MESSAGE_BYTES = (64 << 10, _MIB, 16 * _MIB, 64 * _MIB)
_FULL_MESSAGE_BYTES = (256 * _MIB, _GIB)
_UNKNOWN_MEMORY_BYTES = 4 * _GIB
_LOAD_SIZE, _LOAD_MATMULS = 4096, 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What the ranks are to measure.

    Args:
        layers: rows, inner and columns of matmuls besides squares, by name.
        budget_s: time of one measurement, for example the matmuls of one precision.
        full: larger sizes too.
    """

    run_id: str
    device: str
    nproc: int
    precisions: tuple[Precision, ...]
    layers: dict[str, tuple[int, int, int]]
    budget_s: float
    full: bool

    @property
    def world_size(self) -> int:
        """Return the number of ranks: all are on this machine."""
        return self.nproc


class Candidate(NamedTuple):
    """One size to measure.

    Args:
        size: rows, inner and columns of a matmul; or bytes.
        name: layers that have it; empty for one chosen by this program.
        amount: FLOPs or bytes of one run.
        held_bytes: memory that it needs.
        work: called when its turn has come.
    """

    size: tuple[int, ...]
    name: str
    amount: float
    held_bytes: float
    work: Callable[[], rates.Work]


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """The measurement of one size.

    Args:
        reason: why it was skipped, or what is wrong with its result; None if measured.
        seconds: ``cold``, the first run; ``min``, ``median`` and ``max`` of the repetitions.
        rate: the same as rates in the measurement's unit; bus bandwidth for a collective.
        algorithm_rate: of a collective: algorithm bandwidth.
        swing: share by which one half of the repetitions was slower than the other.
    """

    size: tuple[int, ...]
    name: str
    amount: float
    status: Literal["measured", "skipped", "wrong"]
    reason: str | None = None
    repetitions: int = 0
    seconds: dict[str, float] | None = None
    rate: dict[str, float] | None = None
    algorithm_rate: dict[str, float] | None = None
    swing: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """Points of one kind.

    Args:
        reason: why there are none.
        best: index of the point that counts; None if none was measured.
        bus_factor: of a collective: bus bandwidth over algorithm bandwidth.
        peak: the published one with its provenance; None if unknown.
    """

    name: str
    unit: Literal["FLOP/s", "bytes/s"]
    reason: str | None = None
    points: tuple[Point, ...] = ()
    best: int | None = None
    bus_factor: float | None = None
    peak: dict[str, Any] | None = None
    share_of_peak: float | None = None


def sweep(
    device: Device,
    candidates: Sequence[Candidate],
    *,
    budget_ns: float,
    memory_bytes: float,
    bus_factor: float | None = None,
    clock: Callable[[], int] = perf_counter_ns,
    elapsed: Callable[[Device, Callable[[], object]], int] = rates.elapsed_ns,
) -> tuple[Point, ...]:
    """Measure candidates, given from small to large, within the budget.

    Each takes an even share of the time left. One is skipped if, at the best rate so far, its first
    run and the least repetitions would not end within the budget.

    Args:
        bus_factor: of a collective, see ``Measurement``.
    """
    ends_ns = clock() + budget_ns
    best = 0.0  # amount per nanosecond
    points = []
    for place, one in enumerate(candidates):
        about: dict[str, Any] = {"size": one.size, "name": one.name, "amount": one.amount}
        left_ns = ends_ns - clock()
        needed_ns = (1 + LEAST_REPEATS) * one.amount / best if best else 0.0
        if one.held_bytes > memory_bytes:
            reason = f"needs {one.held_bytes / _GIB:.1f} GiB"
            points.append(Point(**about, status="skipped", reason=reason))
            continue
        if needed_ns >= left_ns:
            reason = f"would take {needed_ns / 1e9:.2g} s" if best else "no time left"
            points.append(Point(**about, status="skipped", reason=reason))
            continue
        work = one.work()
        cold_ns = elapsed(device, work.run)
        fault = work.fault()
        if fault is not None:
            points.append(Point(**about, status="wrong", reason=fault))
            continue
        share_ns = (ends_ns - clock()) / (len(candidates) - place)
        warm_ns = rates.repeated_ns(
            device, work.run, budget_ns=share_ns, least=LEAST_REPEATS, elapsed=elapsed
        )
        best = max(best, one.amount / min(warm_ns))
        times = {"cold": cold_ns, "min": min(warm_ns), "median": median(warm_ns)}
        times["max"] = max(warm_ns)
        fast = {"cold": "cold", "min": "max", "median": "median", "max": "min"}
        plain = {name: one.amount * 1e9 / times[slow] for name, slow in fast.items()}
        factor = 1.0 if bus_factor is None else bus_factor
        points.append(
            Point(
                **about, status="measured", repetitions=len(warm_ns),
                seconds={name: value / 1e9 for name, value in times.items()},
                rate={name: factor * value for name, value in plain.items()},
                algorithm_rate=None if bus_factor is None else plain,
                swing=rates.swing(warm_ns),
            )
        )  # fmt: skip
    return tuple(points)


def measurement(
    name: str,
    unit: Literal["FLOP/s", "bytes/s"],
    points: tuple[Point, ...],
    *,
    peak: Any = None,
    largest_counts: bool = False,
    bus_factor: float | None = None,
) -> Measurement:
    """Return points with the one that counts and its share of the peak.

    Args:
        peak: of ``devices.peaks``, or None.
        largest_counts: the largest size measured counts, not the fastest: small ones may lie in
            a cache.
    """
    measured = [(place, point.rate) for place, point in enumerate(points) if point.rate]
    if not measured:
        return Measurement(name=name, unit=unit, points=points, bus_factor=bus_factor)
    best, rate = measured[-1] if largest_counts else max(measured, key=lambda pair: pair[1]["max"])
    value = None
    if peak is not None:
        value = peak.flops_per_second if unit == "FLOP/s" else peak.bytes_per_second
    return Measurement(
        name=name, unit=unit, points=points, best=best, bus_factor=bus_factor,
        peak=None if peak is None else {"value": value, **{
            key: getattr(peak, key) for key in ("accelerator", "source", "date", "evidence")
        }},
        share_of_peak=None if value is None else rate["max"] / value,
    )  # fmt: skip


def refusal(vendor: Vendor, device: Device, precision: Precision) -> str | None:
    """Switch the device to ``precision``; return why it cannot be, if it cannot."""
    from trainmark.errors import EnvironmentFault
    from trainmark.spec import Recipe

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


class Machine:
    """What one rank measures, each kind by its name."""

    def __init__(self, asked: Asked, vendor: Vendor, device: Device, ranks: Ranks) -> None:
        self.asked, self.vendor, self.device, self.ranks = asked, vendor, device, ranks
        self.product = device.describe()["name"]
        here = vendor.rank_memory(asked.nproc)
        total = here.rank_bytes if here else device.memory().total_bytes
        # Half, because what was measured before may not be free again yet.
        self._memory_bytes = (total or _UNKNOWN_MEMORY_BYTES) / 2

    def kinds(self) -> Iterator[tuple[str, Callable[[str], Measurement]]]:
        """Yield what is measured, in order."""
        for precision in self.asked.precisions:
            yield f"matmul_{precision}", partial(self._matmul, precision)
        yield "memory_copy", partial(self._memory, rates.copy, 2)
        yield "memory_triad", partial(self._memory, rates.triad, 3)
        for direction in ("host_to_device", "device_to_host"):
            for kind in ("pageable", "pinned"):
                found = partial(
                    self._transfer,
                    to_device=direction == "host_to_device",
                    pinned=kind == "pinned",
                )
                yield f"{direction}_{kind}", found
        for name in COLLECTIVES:
            yield name, self._collective

    def _sizes(self, quick: Sequence[int], full: Sequence[int]) -> tuple[int, ...]:
        return (*quick, *(full if self.asked.full else ()))

    def _sweep(
        self, candidates: Sequence[Candidate], bus_factor: float | None = None
    ) -> tuple[Point, ...]:
        """Measure within the budget; collectives by what all ranks agree on."""
        alone = bus_factor is None
        return sweep(
            self.device,
            candidates,
            budget_ns=self.asked.budget_s * 1e9,
            memory_bytes=self._memory_bytes,
            bus_factor=bus_factor,
            clock=perf_counter_ns if alone else self.ranks.clock,
            elapsed=rates.elapsed_ns if alone else self.ranks.elapsed_ns,
        )

    def _matmul(self, precision: Precision, name: str) -> Measurement:
        from trainmark.devices.peaks import dense_peak

        why = refusal(self.vendor, self.device, precision)
        if why is not None:
            return Measurement(name=name, unit="FLOP/s", reason=why)
        shapes = {(size, size, size): "" for size in self._sizes(_SQUARES, _FULL_SQUARES)}
        for layer, shape in self.asked.layers.items():
            shapes[shape] = ", ".join(filter(None, (shapes.get(shape), layer)))
        candidates = matmul_candidates(self.device, precision, shapes)
        points = self._sweep(candidates)
        return measurement(name, "FLOP/s", points, peak=dense_peak(self.product, precision))

    def _memory(
        self, work: Callable[[Device, int], rates.Work], arrays: int, name: str
    ) -> Measurement:
        from trainmark.devices.peaks import memory_peak

        candidates = [
            Candidate((size,), "", arrays * size, 4.0 * size, partial(work, self.device, size))
            for size in self._sizes(_ARRAY_BYTES, _FULL_ARRAY_BYTES)
        ]
        points = self._sweep(candidates)
        peak = memory_peak(self.product)
        return measurement(name, "bytes/s", points, peak=peak, largest_counts=True)

    def _transfer(self, name: str, *, to_device: bool, pinned: bool) -> Measurement:
        work = partial(rates.transfer, self.device, to_device=to_device, pinned=pinned)
        if work(1024) is None:
            reason = "the device computes in the host's memory"
            return Measurement(name=name, unit="bytes/s", reason=reason)
        candidates = [
            Candidate((size,), "", size, 2.0 * size, partial(work, size))  # type: ignore[arg-type]
            for size in self._sizes(_TRANSFER_BYTES, _FULL_TRANSFER_BYTES)
        ]
        return measurement(name, "bytes/s", self._sweep(candidates))

    def _collective(self, name: str) -> Measurement:
        if self.asked.nproc == 1:
            reason = "one process exchanges nothing; give --nproc"
            return Measurement(name=name, unit="bytes/s", reason=reason)
        factor = rates.bus_factor(name, self.asked.nproc)
        candidates = [
            Candidate(
                (size,), "", size, 4.0 * size,
                partial(COLLECTIVES[name], self.device, size, self.ranks),
            )
            for size in self._sizes(_MESSAGE_BYTES, _FULL_MESSAGE_BYTES)
        ]  # fmt: skip
        points = self._sweep(candidates, factor)
        return measurement(name, "bytes/s", points, bus_factor=factor)


def run_rank(asked: Asked, rank: int, say: Callable[[str], None]) -> dict[str, Any]:
    """Return everything that one rank measures; all ranks begin each measurement together."""
    from trainmark import devices
    from trainmark.protocols import ReportsClocks

    vendor = devices.choose(asked.device)
    device = vendor.open(rank, asked.nproc)
    with Ranks.joined(vendor.collective_backend, rank, asked.nproc) as ranks:
        found: dict[str, Any] = {
            "rank": rank,
            "device": device.describe(),
            "collectives": vendor.collective_library() if asked.nproc > 1 else None,
            "clocks": device.clocks() if isinstance(device, ReportsClocks) else {},
            "measurements": [],
        }
        for name, measured in Machine(asked, vendor, device, ranks).kinds():
            ranks.most(0.0)
            say(name)
            found["measurements"].append(asdict(measured(name)))
        found["loaded_clocks"] = rates.clocks_under_load(
            device, size=_LOAD_SIZE, matmuls=_LOAD_MATMULS
        )
        ranks.most(0.0)
    return found


def result_file(rank: int) -> str:
    """Return the name of the file that holds what a rank measured."""
    return f"rank{rank}.json"


def main(folder: Path) -> None:
    """Measure as the rank that the environment names."""
    from trainmark.measure.worker import die_with_parent

    die_with_parent()
    placement = numa.take(os.environ.get(numa.PLACEMENT_VARIABLE))  # before torch starts threads
    rank = int(os.environ["RANK"])
    written = json.loads((folder / ASKED_FILE).read_text(encoding="utf-8"))
    layers = {name: tuple(shape) for name, shape in written["layers"].items()}
    asked = Asked(**{**written, "layers": layers})

    def say(name: str) -> None:
        if rank == 0:
            print(f"trainmark: {name}", flush=True)

    found = {"placement": placement, **run_rank(asked, rank, say)}
    (folder / result_file(rank)).write_text(json.dumps(found, allow_nan=False), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
