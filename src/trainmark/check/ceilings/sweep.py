"""Time work of several sizes within a budget.

Owns which sizes are skipped, how often one is repeated, and what is kept of the repetitions.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from time import perf_counter_ns
from typing import TYPE_CHECKING, Literal, NamedTuple

from trainmark.devices import rates
from trainmark.rank.failure import error_kind

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trainmark.protocols import Device

LEAST_REPEATS = 3


@dataclass(slots=True)
class Point:
    """A size, and what was measured of it.

    Args:
        size: rows, inner and columns of a matmul; or bytes.
        name: layers that have it; empty for one chosen by this program.
        amount: FLOPs or bytes of one run; of a collective those that each rank's link carries.
        reason: why it was skipped, or what is wrong with its result; None if measured.
        rate: in FLOP/s or bytes/s: ``cold``, the first run; ``min``, ``median`` and ``max`` of the
            repetitions.
        swing: share by which one half of the repetitions was slower than the other.
    """

    size: tuple[int, ...]
    name: str
    amount: float
    status: Literal["measured", "skipped", "wrong"] = "skipped"
    reason: str | None = None
    repetitions: int = 0
    rate: dict[str, float] | None = None
    swing: float | None = None


class Candidate(NamedTuple):
    """One size to measure.

    Args:
        held_bytes: memory that it needs.
        work: called when its turn has come.
    """

    point: Point
    held_bytes: float
    work: Callable[[], rates.Work]


def sweep(
    device: Device,
    candidates: Sequence[Candidate],
    *,
    budget_ns: float,
    memory_bytes: float,
    clock: Callable[[], int] = perf_counter_ns,
    most: Callable[[float], float] = float,
    elapsed: Callable[[Device, Callable[[], object]], int] = rates.elapsed_ns,
) -> list[Point]:
    """Measure candidates, given from small to large, within the budget.

    Each takes an even share of the time left. One is skipped if, at the best rate so far, its first
    run and the least repetitions would not end within the budget, or if it finds no memory. Of
    several ranks all begin a size together and skip the same ones.

    Args:
        memory_bytes: the same on all ranks.
        clock: the same on all ranks; waits for them.
        most: returns the largest value of all ranks; waits for them.
    """
    ends_ns = clock() + budget_ns
    best = 0.0  # amount per nanosecond
    points = []
    for place, (point, held_bytes, begin) in enumerate(candidates):
        points.append(point)
        needed_ns = most((1 + LEAST_REPEATS) * point.amount / best if best else 0.0)
        left_ns = max(0.0, ends_ns - clock())
        if held_bytes > memory_bytes:
            point.reason = f"needs {held_bytes / 2**30:.1f} GiB"
            continue
        if needed_ns >= left_ns:
            point.reason = f"{needed_ns / 1e9:.2g} s needed, {left_ns / 1e9:.2g} left"
            continue
        try:
            work = begin()
        except Exception as error:
            if error_kind(error) != "oom":
                raise
            point.reason = "out of memory"
        if most(point.reason is not None):
            point.reason = point.reason or "out of memory on another rank"
            continue
        cold_ns = elapsed(device, work.run)
        point.reason = work.fault()
        share_ns = (ends_ns - clock()) / (len(candidates) - place)
        if point.reason is not None:
            point.status = "wrong"
            continue
        warm_ns = rates.repeated_ns(
            device, work.run, budget_ns=share_ns, least=LEAST_REPEATS, elapsed=elapsed
        )
        best = max(best, point.amount / min(warm_ns))
        point.status, point.repetitions = "measured", len(warm_ns)
        times_ns = {
            "cold": cold_ns, "min": max(warm_ns), "median": median(warm_ns), "max": min(warm_ns),
        }  # fmt: skip
        point.rate = {name: point.amount * 1e9 / ns for name, ns in times_ns.items()}
        point.swing = rates.swing(warm_ns)
    return points
