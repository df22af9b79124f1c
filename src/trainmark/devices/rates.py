"""Measure the matmul and copy rates of a device: upper bounds for the speed of a training step."""

from __future__ import annotations

from typing import TYPE_CHECKING

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
        if rate and 2.0 * size**3 * 1e9 / rate > 4 * _BUDGET_NS:
            break
        best = max(best, _rate(device, precision, size), key=lambda item: item.flops_per_second)
    return best


def _rate(device: Device, precision: Precision, size: int) -> MatmulRate:
    import torch

    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision, torch.float32)
    generator = torch.Generator().manual_seed(size)
    left, right = (
        device.place(torch.randn(size, size, generator=generator)).to(dtype) for _ in range(2)
    )
    out = torch.empty_like(left)
    torch.mm(left, right, out=out)
    times_ns: list[int] = []
    while len(times_ns) < _MAX_REPEATS and sum(times_ns) < _BUDGET_NS:
        times_ns.append(_elapsed_ns(device, lambda: torch.mm(left, right, out=out)))
    return MatmulRate(2.0 * size**3 * 1e9 / min(times_ns), _swing(times_ns))


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
