"""Turns of a peer: what it times, and what it reports when it ends."""

from __future__ import annotations

import io
from types import SimpleNamespace

import pytest
from benchmarks.peers import Peer, PeerFailedError, iterate_turns

from benchmarks import peers
from trainmark.protocols import MemoryUse


class CountingDevice:
    """An accelerator with a fake clock on which a step takes a second and all else no time."""

    torch_type = "fake"

    def __init__(self, allocator_peak_bytes: int | None) -> None:
        self.allocator_peak_bytes = allocator_peak_bytes  # None: it has no allocator of its own
        self.now_s = 0.0
        self.queued_s = 0.0  # time of steps that nobody has waited for

    def step(self) -> None:
        """Begin a step of 1 s; as on an accelerator, the call does not wait for it."""
        self.queued_s += 1.0

    def synchronize(self) -> None:
        """Wait for all steps that were begun."""
        self.now_s += self.queued_s
        self.queued_s = 0.0

    def memory(self) -> MemoryUse:
        """Return the allocator's peak; all else is not known."""
        return MemoryUse(
            allocator_peak_bytes=self.allocator_peak_bytes,
            used_bytes=None,
            total_bytes=None,
            scope="device",
        )


def take_turns(device: CountingDevice, monkeypatch: pytest.MonkeyPatch, requests: str) -> int:
    """Time the turns that a benchmark asks this peer process for; return the number of steps.

    ``iterate_turns`` reads a request, yields once for each step that it wants to be taken, and
    prints the time of the turn. Its clock is that of the fake device.

    Args:
        requests: standard input: lines, each with the number of steps of a turn.
    """
    monkeypatch.setattr(peers.time, "perf_counter", lambda: device.now_s)
    monkeypatch.setattr("sys.stdin", io.StringIO(requests))
    num_steps = 0
    for _ in iterate_turns(device):  # type: ignore[arg-type]
        device.step()
        num_steps += 1
    return num_steps


def test_turn_reports_seconds_per_step_including_the_synchronization(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Turns of 1 and of 4 steps; each prints the seconds of a step and the peak memory.

    A step of the fake device takes 1 s, but only ``synchronize`` waits for it: without this call in
    the timed part of a turn the time would be 0.
    """
    device = CountingDevice(allocator_peak_bytes=None)
    # Without an allocator, whose memory would be freed after each turn, all steps are timed.
    assert take_turns(device, monkeypatch, "1\n4\n") == 1 + 4

    ready, first, second = capsys.readouterr().out.splitlines()
    assert ready == "ready"
    for line in (first, second):
        seconds, peak = line.split()
        assert float(seconds) == 1.0
        assert int(peak) > 2**20  # the largest memory of this process, instead of an allocator's


def test_memory_is_the_allocator_peak_and_one_step_runs_before_timing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A turn of 3 steps on a fake device whose allocator reports a peak of 12345 bytes.

    The fake module of the device notes each call of ``empty_cache``, which frees unused memory.
    """
    freed: list[bool] = []
    module = SimpleNamespace(empty_cache=lambda: freed.append(True))
    monkeypatch.setattr("torch.get_device_module", {"fake": module}.__getitem__)

    device = CountingDevice(allocator_peak_bytes=12345)
    # The untimed step gets back the memory that was freed after the turn before.
    assert take_turns(device, monkeypatch, "3\n") == 1 + 3

    # Seconds per step, and the peak.
    assert capsys.readouterr().out.splitlines() == ["ready", "1.0 12345"]
    assert freed == [True]  # once, after the only turn


def test_peer_that_exits_reports_its_error() -> None:
    """A peer is a process that times a module's steps; this one cannot open a device of the vendor.

    Its arguments are the module and the words of its command line: a vendor and a precision.
    """
    with pytest.raises(PeerFailedError, match="no_such_vendor"):
        Peer("benchmarks.matmul", "no_such_vendor", "fp32")
