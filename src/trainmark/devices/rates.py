"""Measure how fast a device multiplies matrices and copies: the ceilings of a training step."""

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
    """Return the device time of ``work``, which has the device to itself."""
    device.synchronize()
    start = device.mark()
    work()
    end = device.mark()
    device.synchronize()
    return device.elapsed_ns(start, end)


def best_matmul_rate(device: Device, precision: Precision, *, sizes: tuple[int, ...]) -> MatmulRate:
    """Return the best rate over square products of ``sizes``.

    A precision the device has no units for can be a hundred times slower, so a larger
    product is tried only if the rate so far says that it lasts about a second at most:
    give ``sizes`` from small to large. Each size runs once to warm up, then until a quarter
    of a second is spent. The best single product counts: it is the least disturbed, and a
    ceiling must not be too low. Its swing is that of the size it was reached with.
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
    """Return how far the halves of the repetitions differ in speed; None for a single one."""
    half = len(times_ns) // 2
    if half == 0:
        return None
    slower, faster = sorted((sum(times_ns[:half]), sum(times_ns[-half:])), reverse=True)
    return 1 - faster / slower


def best_copy_rate(device: Device, *, copied_bytes: int) -> float:
    """Return bytes read plus written in a second, of the best of a few copies.

    Args:
        copied_bytes: of one copy; choose it far beyond every cache.
    """
    import torch

    source = device.place(torch.ones(copied_bytes // 4))
    target = torch.empty_like(source)
    target.copy_(source)  # faults the pages in
    fastest_ns = min(_elapsed_ns(device, lambda: target.copy_(source)) for _ in range(_COPIES))
    return 2 * copied_bytes * 1e9 / fastest_ns
