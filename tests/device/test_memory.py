"""Memory figures hold what was allocated."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

# In another process, because the peak counts from its start.
# 64 << 18 numbers of four bytes are 64 MiB.
SCRIPT = """
import json, sys
from dataclasses import asdict
import torch
from trainmark import devices

device = devices.choose_vendor(sys.argv[1]).open(0, 1)
first = device.place(torch.zeros(1))
def used():
    device.synchronize()
    return asdict(device.memory())
readings = [used()]
held = first.new_ones(64 << 18)
readings.append(used())
del held
held = first.new_ones(32 << 18)
readings.append(used())
more = first.new_ones(64 << 18)
readings.append(used())
print(json.dumps(readings))
"""
MIB = 1 << 20
ROUNDED = 2 * MIB  # an allocator hands out whole pages of this size at most


@pytest.fixture(scope="module")
def memory_readings(vendor):
    """Return four readings of memory: before, and while holding 64, then 32, then 96 MiB.

    A reading is a dictionary with ``used_bytes``, ``total_bytes`` and ``allocator_peak_bytes``;
    None: not known. ``SCRIPT`` takes them in a process of its own, as the peak counts from its
    start, and prints them as JSON.
    """
    process = subprocess.run(
        [sys.executable, "-c", SCRIPT, vendor.name], capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout.splitlines()[-1])


def test_allocator_peak_is_the_most_memory_held(memory_readings):
    """The readings are taken with 0, 64, 32 and 96 MiB allocated.

    The allocator rounds each allocation up, by at most ``ROUNDED`` bytes.
    """
    peaks = [item["allocator_peak_bytes"] for item in memory_readings]
    if peaks[0] is None:
        assert peaks == [None] * 4
        pytest.skip("it has no allocator of its own")
    grown = [peak - peaks[0] for peak in peaks]
    # The most MiB held until each reading: at the third, with 32 held, it is still 64.
    assert all(
        exact * MIB <= growth < exact * MIB + ROUNDED
        for growth, exact in zip(grown, (0, 64, 64, 96), strict=True)
    ), grown


def test_used_memory_grows_by_allocations_and_stays_below_the_total(memory_readings):
    """The readings are taken with 0, 64, 32 and 96 MiB allocated.

    Allocators keep what is freed, so the memory in use never falls.
    """
    used = [item["used_bytes"] for item in memory_readings]
    if used[0] is None:
        pytest.skip("it cannot tell what is in use")
    # Readings 1 and 3 hold 64 and 96 MiB. Part of them may lie in a page of the allocator that was
    # in use before, of at most ``ROUNDED`` bytes.
    assert used[1] - used[0] >= 64 * MIB - ROUNDED
    assert used[3] - used[0] >= 96 * MIB - ROUNDED
    assert used == sorted(used)
    totals = {item["total_bytes"] for item in memory_readings}
    assert all(total is None or used[3] <= total for total in totals)
    assert len(totals) == 1
