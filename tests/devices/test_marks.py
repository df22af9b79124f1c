"""Marks that do not show the device time are refused before anything is measured."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from support.fakes import AsyncDevice, FakeClock
from trainmark.devices.rates import refuse_wrong_marks
from trainmark.errors import EnvironmentFault

if TYPE_CHECKING:
    from collections.abc import Callable

LAUNCH_NS, WORK_NS = 5_000, 1_400_000  # of a product: host time and device time


class HostMarks(AsyncDevice):
    """A mark is the host's time, not a point in the device's queue."""

    def mark(self) -> int:
        return self.clock()


class Ticks(AsyncDevice):
    """Time between marks is in units of 10 ns."""

    def elapsed_ns(self, start: int, end: int) -> int:
        return super().elapsed_ns(start, end) // 10


class Microseconds(AsyncDevice):
    """Time between marks is a thousand times too long."""

    def elapsed_ns(self, start: int, end: int) -> int:
        return 1000 * super().elapsed_ns(start, end)


def make_product(device: AsyncDevice) -> Callable[[], object]:
    """Return work that the host launches and the device does.

    The launch takes the host 5 us (``LAUNCH_NS``), the work the device 1.4 ms (``WORK_NS``), both
    of the simulated clock.
    """

    def run() -> None:
        device.clock.advance(LAUNCH_NS)
        device.work(WORK_NS)

    return run


@pytest.mark.parametrize("kind", [HostMarks, Ticks, Microseconds])
def test_wrong_marks_are_refused(kind: Any, clock: FakeClock) -> None:
    """A mark is an event in the device's queue, and the time between two marks is in ns.

    ``HostMarks`` takes the host's time as a mark; the other kinds return the time in another unit.
    So they disagree with the host's clock about products of 1.4 ms each (``make_product``).
    """
    device = kind(clock)
    with pytest.raises(EnvironmentFault) as refused:
        refuse_wrong_marks(device, make_product(device), clock=clock)
    assert refused.value.where == "device fake"


def test_marks_in_the_device_queue_pass(async_device: AsyncDevice, clock: FakeClock) -> None:
    refuse_wrong_marks(async_device, make_product(async_device), clock=clock)
    # 1, 2, 4, 8 and 16 products of 1.4 ms are timed: sixteen take 22.4 ms, the first count of 20 ms
    # or more, from which on the two clocks are compared. Each count is timed once.
    assert async_device.calls.count("elapsed") == 5


def test_a_busy_host_does_not_make_marks_wrong(clock: FakeClock) -> None:
    """The host loses a second between the start of its clock and the first mark, once.

    ``refuse_wrong_marks`` raises an error if the device's times of products (``make_product``)
    differ from the host's. Here they differ in the first timing alone, and it raises nothing.
    """

    class Interrupted(AsyncDevice):
        was_interrupted = False

        def mark(self) -> int:
            if not self.was_interrupted:  # at the first mark alone
                self.was_interrupted = True
                self.clock.advance(1_000_000_000)  # a second, in ns
            return super().mark()

    device = Interrupted(clock)
    refuse_wrong_marks(device, make_product(device), clock=clock)


def test_work_too_short_to_compare_passes(clock: FakeClock) -> None:
    device = HostMarks(clock)  # whose marks are wrong, but not enough to be noticed
    refuse_wrong_marks(device, lambda: device.work(10), clock=clock)
