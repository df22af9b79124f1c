"""Time work of several sizes within a budget.

Owns which sizes are skipped, how often one is repeated, and what is kept of the repetitions.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from time import perf_counter_ns
from typing import TYPE_CHECKING, Literal, NamedTuple

from trainmark.devices import rates

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trainmark.protocols import Device

LEAST_REPEATS = 3
_TIME_OF_RATE = {"cold": "cold", "min": "max", "median": "median", "max": "min"}


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


@dataclass(slots=True)
class Point:
    """What was measured of one size.

    Args:
        reason: why it was skipped, or what is wrong with its result; None if measured.
        seconds: ``cold``, the first run; ``min``, ``median`` and ``max`` of the repetitions.
        rate: the same as rates, FLOP/s or bytes/s; bus bandwidth for a collective.
        algorithm_rate: of a collective: algorithm bandwidth.
        swing: share by which one half of the repetitions was slower than the other.
    """

    size: tuple[int, ...]
    name: str
    amount: float
    status: Literal["measured", "skipped", "wrong"] = "skipped"
    reason: str | None = None
    repetitions: int = 0
    seconds: dict[str, float] | None = None
    rate: dict[str, float] | None = None
    algorithm_rate: dict[str, float] | None = None
    swing: float | None = None

    def take(self, cold_ns: int, warm_ns: Sequence[int], bus_factor: float | None) -> None:
        """Take the time of the first run and those of its repetitions."""
        self.status, self.repetitions = "measured", len(warm_ns)
        warm = {"min": min(warm_ns), "median": median(warm_ns), "max": max(warm_ns)}
        self.seconds = {name: ns / 1e9 for name, ns in {"cold": cold_ns, **warm}.items()}
        plain = {name: self.amount / self.seconds[time] for name, time in _TIME_OF_RATE.items()}
        self.rate, self.swing = plain, rates.swing(warm_ns)
        if bus_factor is not None:
            self.algorithm_rate = plain
            self.rate = {name: bus_factor * value for name, value in plain.items()}


def sweep(
    device: Device,
    candidates: Sequence[Candidate],
    *,
    budget_ns: float,
    memory_bytes: float,
    bus_factor: float | None = None,
    clock: Callable[[], int] = perf_counter_ns,
    elapsed: Callable[[Device, Callable[[], object]], int] = rates.elapsed_ns,
) -> list[Point]:
    """Measure candidates, given from small to large, within the budget.

    Each takes an even share of the time left. One is skipped if, at the best rate so far, its first
    run and the least repetitions would not end within the budget.

    Args:
        bus_factor: of a collective: bus bandwidth over algorithm bandwidth.
    """
    ends_ns = clock() + budget_ns
    best = 0.0  # amount per nanosecond
    points = []
    for place, one in enumerate(candidates):
        point = Point(one.size, one.name, one.amount)
        points.append(point)
        needed_ns = (1 + LEAST_REPEATS) * one.amount / best if best else 0.0
        left_ns = max(0.0, ends_ns - clock())
        if one.held_bytes > memory_bytes:
            point.reason = f"needs {one.held_bytes / 2**30:.1f} GiB"
            continue
        if needed_ns >= left_ns:
            point.reason = f"{needed_ns / 1e9:.2g} s needed, {left_ns / 1e9:.2g} left"
            continue
        work = one.work()
        cold_ns = elapsed(device, work.run)
        point.reason = work.fault()
        if point.reason is not None:
            point.status = "wrong"
            continue
        share_ns = (ends_ns - clock()) / (len(candidates) - place)
        warm_ns = rates.repeated_ns(
            device, work.run, budget_ns=share_ns, least=LEAST_REPEATS, elapsed=elapsed
        )
        best = max(best, one.amount / min(warm_ns))
        point.take(cold_ns, warm_ns, bus_factor)
    return points
