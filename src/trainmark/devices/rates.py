"""Measure a device's matmul and copy rates and its launches: upper bounds for a training step."""

from __future__ import annotations

from time import perf_counter_ns
from typing import TYPE_CHECKING, NamedTuple

from trainmark.protocols import MatmulRate

if TYPE_CHECKING:
    from collections.abc import Callable

    from trainmark.protocols import Device
    from trainmark.spec import Precision

_BUDGET_NS = 250_000_000
_MAX_REPEATS = 20
_COPIES = 5


def _elapsed_ns(device: Device, work: Callable[[], object]) -> int:
    """Return the device time of ``work``, with nothing else running on the device."""
    device.synchronize()
    start = device.mark()
    work()
    end = device.mark()
    device.synchronize()
    return device.elapsed_ns(start, end)


def best_matmul_rate(device: Device, precision: Precision, *, sizes: tuple[int, ...]) -> MatmulRate:
    """Return the best rate over square matmuls of ``sizes``.

    A precision without matrix units can be a hundred times slower, so a larger matmul is
    tried only if it should take about a second at most, judged by the rate so far: give
    ``sizes`` from small to large. Each size runs once to warm up, then for a quarter of a
    second. The fastest single matmul counts: it was disturbed least, and an upper bound must
    not be too low. The swing is that of the size with the best rate.
    """
    best = MatmulRate(0.0, None)
    for size in sizes:
        rate = best.flops_per_second
        if rate and takes_too_long((size, size, size), rate):
            break
        found = shape_rate(device, precision, (size, size, size))
        best = max(best, found, key=lambda item: item.flops_per_second)
    return best


def flops(shape: tuple[int, int, int]) -> float:
    """Return the FLOPs of a matmul of ``shape``, rows, inner and columns."""
    rows, inner, columns = shape
    return 2.0 * rows * inner * columns


def takes_too_long(shape: tuple[int, int, int], flops_per_second: float) -> bool:
    """Tell whether one matmul of ``shape`` should take more than about a second."""
    return flops(shape) * 1e9 / flops_per_second > 4 * _BUDGET_NS


def shape_rate(device: Device, precision: Precision, shape: tuple[int, int, int]) -> MatmulRate:
    """Return the rate of one matmul, repeated for a quarter of a second.

    Args:
        precision: in effect already, see ``Device.set_precision``.
        shape: rows, inner and columns: ``(rows, inner) @ (inner, columns)``.
    """
    import torch

    rows, inner, columns = shape
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision, torch.float32)
    generator = torch.Generator().manual_seed(rows)
    left, right = (
        device.place(torch.randn(size, generator=generator)).to(dtype)
        for size in ((rows, inner), (inner, columns))
    )
    out = left.new_empty(rows, columns)
    torch.mm(left, right, out=out)
    times_ns: list[int] = []
    while len(times_ns) < _MAX_REPEATS and sum(times_ns) < _BUDGET_NS:
        times_ns.append(_elapsed_ns(device, lambda: torch.mm(left, right, out=out)))
    return MatmulRate(flops(shape) * 1e9 / min(times_ns), _swing(times_ns))


def _swing(times_ns: list[int]) -> float | None:
    """Return how much the two halves of the repetitions differ in speed; None for a single one."""
    half = len(times_ns) // 2
    if half == 0:
        return None
    slower, faster = sorted((sum(times_ns[:half]), sum(times_ns[-half:])), reverse=True)
    return 1 - faster / slower


def best_copy_rate(device: Device, *, copied_bytes: int) -> float:
    """Return bytes read plus written per second, of the fastest of a few copies.

    Args:
        copied_bytes: size of one copy; choose it far larger than every cache.
    """
    import torch

    source = device.place(torch.ones(copied_bytes // 4))
    target = torch.empty_like(source)
    target.copy_(source)  # faults the pages in
    fastest_ns = min(_elapsed_ns(device, lambda: target.copy_(source)) for _ in range(_COPIES))
    return 2 * copied_bytes * 1e9 / fastest_ns


def upload_rate(device: Device, *, copied_bytes: int, pinned: bool) -> float | None:
    """Return bytes per second from the host's memory to the device's, of the fastest of a few.

    None where the device computes in the host's memory.

    Args:
        pinned: whether the source is pinned before; otherwise ``Device.place`` pins it each time.
    """
    import torch

    source = torch.ones(copied_bytes // 4)
    if device.place(source) is source:
        return None
    if pinned:
        source = device.pin(source)
    times_ns = []
    for _ in range(_COPIES):
        device.synchronize()
        start_ns = perf_counter_ns()
        device.place(source)
        device.synchronize()
        times_ns.append(perf_counter_ns() - start_ns)
    return copied_bytes * 1e9 / min(times_ns)


class LaunchTimes(NamedTuple):
    """Host time of a kernel of one element, in nanoseconds, one number a round.

    Args:
        queued_ns: one of many that are queued before the host waits for all.
        round_trip_ns: one that the host waits for.
    """

    queued_ns: list[float]
    round_trip_ns: list[float]


def launch_times(
    device: Device, *, launches: int, rounds: int, clock: Callable[[], int] = perf_counter_ns
) -> LaunchTimes:
    """Measure what a launch costs when the device has nothing else to do.

    Args:
        launches: of each kind in a round; far fewer than a driver queues before it blocks.
    """
    import torch

    value = device.place(torch.zeros(1))
    found = LaunchTimes([], [])
    for number in range(rounds + 1):
        device.synchronize()
        start_ns = clock()
        for _ in range(launches):
            value.add_(1.0)
        device.synchronize()
        queued_ns = clock()
        for _ in range(launches):
            value.add_(1.0)
            device.synchronize()
        end_ns = clock()
        if number > 0:  # the first round warms up
            found.queued_ns.append((queued_ns - start_ns) / launches)
            found.round_trip_ns.append((end_ns - queued_ns) / launches)
    return found
