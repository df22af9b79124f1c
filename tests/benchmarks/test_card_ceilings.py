"""What the card's ceilings compute from a device that a test controls."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks.card.ceilings import launch_times, upload_rate

from fakes import SyncDevice

if TYPE_CHECKING:
    from fakes import FakeClock


class Launching(SyncDevice):
    """The host takes 5 ns to launch, the device 20 ns to compute, and 2 ns pass to notice."""

    busy_until_ns = 0

    def place(self, value: Any) -> Launching:
        return self

    def add_(self, value: float) -> None:
        self.clock.advance(5)
        self.busy_until_ns = max(self.busy_until_ns, self.clock()) + 20

    def synchronize(self) -> None:
        self.clock.advance(max(0, self.busy_until_ns - self.clock()) + 2)


def test_queued_launches_overlap_and_awaited_ones_do_not(clock: FakeClock) -> None:
    found = launch_times(Launching(clock), launches=4, rounds=3, clock=clock)

    assert found.queued_ns == [(5 + 4 * 20 + 2) / 4] * 3
    assert found.round_trip_ns == [5 + 20 + 2] * 3


def test_nothing_is_uploaded_to_a_device_that_computes_in_the_hosts_memory(
    sync_device: SyncDevice,
) -> None:
    assert upload_rate(sync_device, copied_bytes=64, pinned=True) is None
