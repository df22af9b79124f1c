"""Measure how fast a device multiplies matrices: the honest ceiling of a training step."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trainmark.protocols import Device
    from trainmark.spec import Precision

_BUDGET_NS = 250_000_000
_MAX_REPEATS = 20


def best_matmul_rate(device: Device, precision: Precision, *, sizes: tuple[int, ...]) -> float:
    """Return the best rate over square products of ``sizes``, in FLOP/s.

    A precision the device has no units for can be a hundred times slower, so a larger
    product is tried only if the rate so far says that it lasts about a second at most:
    give ``sizes`` from small to large. Each size runs once to warm up, then until a quarter
    of a second is spent. The best single product counts: it is the least disturbed, and a
    ceiling must not be too low.
    """
    best = 0.0
    for size in sizes:
        if best and 2.0 * size**3 * 1e9 / best > 4 * _BUDGET_NS:
            break
        best = max(best, _rate(device, precision, size))
    return best


def _rate(device: Device, precision: Precision, size: int) -> float:
    import torch

    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision, torch.float32)
    generator = torch.Generator().manual_seed(size)
    left, right = (
        device.place(torch.randn(size, size, generator=generator)).to(dtype) for _ in range(2)
    )
    out = torch.empty_like(left)
    torch.mm(left, right, out=out)
    best, spent_ns = 0.0, 0
    for _ in range(_MAX_REPEATS):
        device.synchronize()
        start = device.mark()
        torch.mm(left, right, out=out)
        end = device.mark()
        device.synchronize()
        elapsed_ns = device.elapsed_ns(start, end)
        best = max(best, 2.0 * size**3 * 1e9 / elapsed_ns)
        spent_ns += elapsed_ns
        if spent_ns >= _BUDGET_NS:
            break
    return best
