"""Measure how fast a device copies within its memory: the ceiling of what moves bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trainmark.protocols import Device

_REPEATS = 5


def best_copy_rate(device: Device, *, copied_bytes: int) -> float:
    """Return bytes read plus written in a second, of the best of a few copies.

    Args:
        copied_bytes: of one copy; choose it far beyond every cache.
    """
    import torch

    source = device.place(torch.ones(copied_bytes // 4))
    target = torch.empty_like(source)
    target.copy_(source)  # faults the pages in
    fastest_ns: list[int] = []
    for _ in range(_REPEATS):
        device.synchronize()
        start = device.mark()
        target.copy_(source)
        end = device.mark()
        device.synchronize()
        fastest_ns.append(device.elapsed_ns(start, end))
    return 2 * copied_bytes * 1e9 / min(fastest_ns)
