"""The monitor of a vendor reports true values of the devices that ranks use."""

from __future__ import annotations

import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from trainmark.conformance.vendor_check import sample_faults
from trainmark.protocols import MonitorFault

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import IO

    from trainmark.protocols import Device, DeviceSample, Monitor, Vendor

HELD_BYTES = 512 << 20
# In another process, as a rank; each line of its input makes it take a step.
RANK = """
import sys
import torch
from trainmark import devices

name, rank, ranks, held_bytes = sys.argv[1], *map(int, sys.argv[2:])
device = devices.choose_vendor(name).open(rank, ranks)
first = device.place(torch.zeros(1))
device.synchronize()
print("opened", flush=True)
sys.stdin.readline()
held = first.new_ones(held_bytes >> 2)
device.synchronize()
print("held", flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def monitor(accelerator: Vendor) -> Iterator[Monitor]:
    """Open the vendor's monitor for a test; skip the test if none works here."""
    try:
        opened = accelerator.monitor()
    except MonitorFault as fault:
        pytest.skip(f"{fault.kind}: {fault.text}")
    if opened is None:
        pytest.skip("nothing reads these devices")
    yield opened
    opened.close()


@pytest.fixture
def monitor_numbers(accelerator: Vendor) -> list[int]:
    """Return the number of each rank's device in the monitor."""
    monitored = accelerator.monitored(accelerator.count())
    if not monitored:
        pytest.skip("it is not known which of the monitor's devices ranks use")
    return monitored


def read_monitor(monitor: Monitor) -> dict[int, DeviceSample]:
    """Return a reading of each device by the monitor's number of it."""
    return {sample.index: sample for sample in monitor.read()}


def test_a_reading_has_every_device_of_the_ranks(
    monitor: Monitor, monitor_numbers: list[int]
) -> None:
    # By the monitor's number of each device. ``sample_faults`` lists values that cannot be right.
    samples = read_monitor(monitor)
    assert [fault for sample in samples.values() for fault in sample_faults(sample)] == []
    assert set(monitor_numbers) <= set(samples)


def test_monitor_reports_the_memory_of_the_device(
    monitor: Monitor, monitor_numbers: list[int], device: Device
) -> None:
    """The device is that of rank 0; a driver may keep some of the memory for itself.

    ``monitor_numbers`` has the monitor's number of each rank's device.
    """
    reported = read_monitor(monitor)[monitor_numbers[0]].memory_total_bytes
    total = device.memory().total_bytes
    if reported is None or total is None:
        pytest.skip(f"monitor {reported}, device {total}")
    assert reported == pytest.approx(total, rel=0.05)


@contextmanager
def start_rank(vendor: Vendor, rank: int) -> Iterator[subprocess.Popen[str]]:
    """Start a process that opens the device of a rank, and takes memory after a line of input.

    ``RANK`` is its script: it prints "opened", reads a line, allocates ``HELD_BYTES``, 512 MiB,
    prints "held" and keeps the memory until it reads another line or is killed. The number of ranks
    that it is told is that of all devices, so that each rank has its own.
    """
    words = [vendor.name, str(rank), str(vendor.count()), str(HELD_BYTES)]
    process = subprocess.Popen(
        [sys.executable, "-c", RANK, *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def read_line(stream: IO[str] | None) -> str:
    """Wait for a line of a process's output and return it."""
    assert stream is not None
    return stream.readline().strip()


def test_rank_takes_memory_on_its_device_only(
    monitor: Monitor, monitor_numbers: list[int], accelerator: Vendor
) -> None:
    # ``monitor_numbers[rank]`` is the monitor's number of the rank's device. ``start_rank`` starts
    # a process that opens it and takes 512 MiB (``HELD_BYTES``) there; the monitor is read before
    # and after, which gives a sample by number.
    for rank in {0, len(monitor_numbers) - 1}:  # the first and the last device, or the only one
        with start_rank(accelerator, rank) as process:
            assert read_line(process.stdout) == "opened"
            before = read_monitor(monitor)
            print(file=process.stdin, flush=True)  # an empty line: take the memory
            assert read_line(process.stdout) == "held"
            after = read_monitor(monitor)
        if before[monitor_numbers[rank]].memory_used_bytes is None:
            pytest.skip("it does not tell the memory in use")
        grown = {
            index: (after[index].memory_used_bytes or 0) - (before[index].memory_used_bytes or 0)
            for index in before
        }
        assert max(grown, key=lambda index: grown[index]) == monitor_numbers[rank]
        assert grown[monitor_numbers[rank]] >= 0.9 * HELD_BYTES, grown
        # Other programs may take some memory meanwhile.
        others = [bytes_ for index, bytes_ in grown.items() if index != monitor_numbers[rank]]
        assert all(bytes_ < 0.5 * HELD_BYTES for bytes_ in others), grown
