"""Device time between marks is the time that passes."""

from __future__ import annotations

import time
from itertools import pairwise
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from trainmark.protocols import Device

WORK_NS = 100_000_000
ATTEMPTS = 7  # the best counts: another program may have the host for a moment


def calibrated(device: Device) -> tuple[Callable[[], Any], int]:
    """Return a product that takes about a millisecond or more, and how many take ``WORK_NS``."""
    size = 128
    while True:
        square = device.place(torch.rand(size, size))
        out = torch.empty_like(square)

        def work(square: Any = square, out: Any = out) -> Any:
            return torch.mm(square, square, out=out)

        one_ns = min(timed_ns(device, work, 1)[0] for _ in range(3))
        if one_ns >= 1_000_000 or size == 8192:
            return work, max(1, round(WORK_NS / one_ns))
        size *= 2


def timed_ns(device: Device, work: Callable[[], Any], repeats: int) -> tuple[int, int]:
    """Return device time and wall time of some repeats."""
    device.synchronize()
    started_ns = time.perf_counter_ns()
    start = device.mark()
    for _ in range(repeats):
        work()
    end = device.mark()
    device.synchronize()
    wall_ns = time.perf_counter_ns() - started_ns
    return device.elapsed_ns(start, end), wall_ns


def test_time_between_marks_is_synchronised_wall_time(accelerator, device):
    work, repeats = calibrated(device)
    found = [timed_ns(device, work, repeats) for _ in range(ATTEMPTS)]
    ratios = [device_ns / wall_ns for device_ns, wall_ns in found]
    assert min(abs(ratio - 1) for ratio in ratios) <= 0.01, ratios


def test_times_of_the_pieces_add_up_to_the_whole(device):
    square = device.place(torch.rand(64, 64))
    device.synchronize()
    marks = [device.mark()]
    for _ in range(50):
        square = square @ square / 64
        marks.append(device.mark())
    device.synchronize()
    pieces = [device.elapsed_ns(start, end) for start, end in pairwise(marks)]
    assert min(pieces) >= 0
    # A timer may resolve a microsecond only; each piece is rounded once.
    assert abs(sum(pieces) - device.elapsed_ns(marks[0], marks[-1])) <= 1_000 * len(pieces)
