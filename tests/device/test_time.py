"""Device time between marks is the time that passes."""

from __future__ import annotations

import time
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
import torch

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from trainmark.protocols import Device

WORK_NS = 100_000_000  # the least duration of the timed work
BEHIND = 4  # the work takes this many times as long as its launch
MOST_REPEATS = 4096
ATTEMPTS = 7  # the best counts: another program may have the host for a moment


def prepare_long_work(device: Device) -> tuple[Callable[[], Any], int]:
    """Return a function that queues a matrix product, and how many calls of it to time.

    So many products take the device at least ``WORK_NS``, most of it after the host has queued
    them: if queueing took as long as the work, marks of the host's time would be right by chance.
    The host's clock measures this, until a number is read back, as the device's clock is tested.

    ``WORK_NS`` is 100 ms, ``BEHIND`` 4: the work takes four times as long as queueing it, or more.
    ``MOST_REPEATS`` is 4096. The first size with which that is possible is taken.
    """
    for size in (16, 64, 256, 1024, 4096, 8192):
        square = device.place(torch.rand(size, size) / size)
        out = torch.empty_like(square)

        def multiply_square(square: Any = square, out: Any = out) -> Any:
            return torch.mm(square, square, out=out)

        multiply_square()  # the first one may compile or allocate
        repeats = 1
        launched_ns = 0  # how long the host took to queue the products
        done_ns = 0  # how long until the device had computed them
        while done_ns < WORK_NS and repeats < MOST_REPEATS:
            repeats *= 2
            out[0, 0].item()  # waits for all earlier work
            started_ns = time.perf_counter_ns()
            for _ in range(repeats):
                multiply_square()
            launched_ns = time.perf_counter_ns() - started_ns
            out[0, 0].item()
            done_ns = time.perf_counter_ns() - started_ns
        # Long enough, and ``BEHIND`` times as long as its launch.
        if done_ns >= max(WORK_NS, BEHIND * launched_ns):
            return multiply_square, repeats
        # To queue a product takes microseconds. If it takes a tenth of ``WORK_NS``, 10 ms, or more,
        # the host computes the product itself or waits for it: a larger one only takes it longer.
        if launched_ns / repeats > WORK_NS / 10:
            break
    pytest.skip("work never takes longer than its launch: its marks cannot be told from the host's")


def time_repeats(device: Device, work: Callable[[], Any], repeats: int) -> tuple[int, int]:
    """Return how long some calls of ``work`` took together, in ns.

    First by the device's marks, one before and one after all calls; then by the host's clock.

    Args:
        device: that does the work.
        work: queues a piece of work for the device.
        repeats: number of calls.
    """
    device.synchronize()
    started_ns = time.perf_counter_ns()
    start = device.mark()
    for _ in range(repeats):
        work()
    end = device.mark()
    device.synchronize()
    wall_ns = time.perf_counter_ns() - started_ns
    return device.elapsed_ns(start, end), wall_ns


def test_time_between_marks_equals_synchronized_wall_time(accelerator, device):
    # ``prepare_long_work`` returns matrix products that take the device 100 ms or more; they are
    # timed seven times (``ATTEMPTS``), by marks in the device's queue and by the host's clock. The
    # two may differ by 1%.
    work, repeats = prepare_long_work(device)
    timings = [time_repeats(device, work, repeats) for _ in range(ATTEMPTS)]
    ratios = [device_ns / wall_ns for device_ns, wall_ns in timings]
    # The best attempt counts: another program may have delayed the host in the others.
    assert min(abs(ratio - 1) for ratio in ratios) <= 0.01, ratios


def test_times_of_the_pieces_add_up_to_the_whole(device):
    square = device.place(torch.rand(64, 64))
    device.synchronize()
    marks = [device.mark()]
    for _ in range(50):  # 50 short pieces, so that an error of each one adds up
        square = square @ square / 64  # divided by the size, so that numbers do not overflow
        marks.append(device.mark())
    device.synchronize()
    pieces = [device.elapsed_ns(start, end) for start, end in pairwise(marks)]
    assert min(pieces) >= 0
    # A timer may resolve a microsecond only; each piece is rounded once.
    assert abs(sum(pieces) - device.elapsed_ns(marks[0], marks[-1])) <= 1_000 * len(pieces)
