"""The sampler: its grid, its faults, and that nothing it reads can stop it."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from itertools import islice
from typing import TYPE_CHECKING, Any

import pytest

from trainmark.events.schema import EventFile, EventWriter
from trainmark.plan.plan import PLAN_FILE
from trainmark.protocols import DeviceSample, MonitorFault
from trainmark.telemetry import sampler
from trainmark.telemetry.kernel import KernelReader
from trainmark.telemetry.sampler import (
    HANGS_AFTER_S,
    BackgroundReading,
    DeviceReader,
    SampleLog,
    iterate_ticks,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from support.fakes import FakeClock

SECOND_NS = 1_000_000_000


@pytest.fixture
def event_log(tmp_path: Path, clock: FakeClock) -> SampleLog:
    """Return a log of the sampler, whose events ``read_events`` reads, with times of ``clock``."""
    return SampleLog(EventWriter(tmp_path / "telemetry.jsonl", clock))


def read_events(tmp_path: Path) -> list[dict[str, Any]]:
    """Return the events that the sampler has written to the folder so far."""
    return list(EventFile(tmp_path / "telemetry.jsonl"))


def run_ticks(clock: FakeClock, work_ns: Sequence[int], interval_s: float) -> list[tuple[int, int]]:
    """Return number and time of each tick; the work of each tick takes the given time.

    Ticks lie on a grid of ``interval_s``; those that pass while work takes longer are skipped.
    """
    began = clock()

    def wait(seconds: float) -> bool:
        clock.advance(round(seconds * 1e9))
        return False  # nobody has told the sampler to stop

    ticks = []  # number, and nanoseconds since the begin
    limited_ticks = islice(iterate_ticks(interval_s, clock=clock, wait_for_stop=wait), len(work_ns))
    for number, duration_ns in zip(limited_ticks, work_ns, strict=True):
        ticks.append((number, clock() - began))
        clock.advance(duration_ns)
    return ticks


def test_ticks_stay_on_the_time_grid(clock: FakeClock) -> None:
    ticks = run_ticks(clock, work_ns=[0, 300_000_000, 999_999_999, 1], interval_s=1.0)
    assert ticks == [(number, number * SECOND_NS) for number in range(4)]


def test_fault_is_written_when_it_starts_or_changes(event_log: SampleLog, tmp_path: Path) -> None:
    hung, failed = MonitorFault("hung", "no answer"), MonitorFault("failed", "exit code 1")
    for fault in (hung, hung, failed, failed):
        event_log.report_fault("monitor", fault)
    with event_log.catch_faults("monitor"):  # a reading without a fault: the next one is new
        pass
    event_log.report_fault("monitor", failed)
    # Of another source, for which the fault is new.
    event_log.report_fault("ipmi", hung)
    assert [(event["source"], event["kind"]) for event in read_events(tmp_path)] == [
        ("monitor", "hung"),
        ("monitor", "failed"),
        ("monitor", "failed"),
        ("ipmi", "hung"),
    ]


def test_faults_of_tools_that_are_killed_after_the_end_are_not_written(
    event_log: SampleLog, tmp_path: Path
) -> None:
    event_log.end()  # writes the event ``end``
    event_log.report_fault("monitor", MonitorFault("failed", "the tool was killed"))
    assert [event["event"] for event in read_events(tmp_path)] == ["end"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("power_w", float("nan")),
        ("utilization_percent", 100.4),  # more than 100
        ("energy_j", -5.0),
        ("name", "\ud800"),  # half of a surrogate pair, which UTF-8 cannot hold
        ("throttle_reasons", "heat"),  # text in place of a tuple
    ],
)
def test_only_the_value_out_of_bounds_is_dropped(
    name: str, value: Any, event_log: SampleLog, tmp_path: Path, clock: FakeClock
) -> None:
    sound = {"power_w": 100, "throttle_reasons": ("heat",), "name": "Card", "energy_j": 0.0}
    samples = [DeviceSample(index=0, **sound | {name: value}), DeviceSample(index=1, **sound)]
    # A vendor with devices 0 and 1, whose monitor always returns ``samples``, is read twice.
    take_readings(OneVendor(lambda: samples, (0, 1)), event_log, clock, times=2)
    first, fault, second = read_events(tmp_path)
    reading = {"index": 1} | sound | {"throttle_reasons": ["heat"]}
    faulty_device, sound_device = first["devices"]
    assert sound_device == reading
    assert faulty_device == {
        key: value_kept for key, value_kept in (reading | {"index": 0}).items() if key != name
    }
    assert fault["kind"] == "unreadable"
    assert f"{name} of device 0" in fault["text"]
    assert second["devices"] == first["devices"]  # but the fault is not written again


def test_devices_that_no_rank_uses_are_a_fault_even_if_one_has_no_number(
    event_log: SampleLog, tmp_path: Path, clock: FakeClock
) -> None:
    # A vendor whose monitor always returns ``samples``; two ranks use its devices 0 and 1. The
    # index None: the monitor does not know the number.
    samples = [DeviceSample(index=None), DeviceSample(index=7)]
    take_readings(OneVendor(lambda: samples, (0, 1)), event_log, clock)
    (fault,) = read_events(tmp_path)
    assert fault["kind"] == "unreadable"
    assert fault["text"] == "devices [None, 7] were reported, but the ranks use [0, 1]"


class OneMonitor:
    """A vendor's monitor that calls a function to read its devices; it must not be closed."""

    name = "one 1.0"

    def __init__(self, read: Callable[[], Any]) -> None:
        self.read = read

    def close(self) -> None:
        raise AssertionError("the process ends instead")


class OneVendor:
    """As much of a vendor as the sampler needs.

    Args:
        read: returns or raises what a reading of its monitor does; None: it has no monitor.
        numbers: for each rank, the monitor's number of its device.
    """

    def __init__(self, read: Callable[[], Any] | None, numbers: Sequence[int] = (1, 0)) -> None:
        self._read = read
        self._numbers = numbers

    def monitored(self, nproc: int) -> list[int]:
        return list(self._numbers)[:nproc]

    def monitor(self) -> OneMonitor | None:
        return OneMonitor(self._read) if self._read else None


def take_readings(
    vendor: OneVendor, event_log: SampleLog, clock: FakeClock, times: int = 1
) -> list[tuple[str, list[int]]]:
    """Take readings in their thread; return the name and the devices of each monitor opened.

    Args:
        vendor: has the monitor, and the number of each rank's device as the monitor counts them.
        event_log: gets an event for each reading and for each fault of it.
        clock: from which a reading has its time.
        times: number of readings, one after the other.
    """
    opened: list[tuple[str, list[int]]] = []
    # Of two devices; the last argument is called with the monitor's name and its devices.
    devices = DeviceReader(lambda: vendor, 2, event_log, lambda *opening: opened.append(opening))
    background = BackgroundReading("monitor", devices.take, event_log, clock=clock)
    for _ in range(times):
        background.start()
        assert background.wait(600)  # seconds at most
    return opened


def test_hung_reading_is_not_started_again(
    event_log: SampleLog, tmp_path: Path, clock: FakeClock
) -> None:
    go, calls = threading.Event(), []

    def wait_for_go() -> None:
        """Note the call, and read the device for as long as the test wants, 600 s at most."""
        calls.append(1)
        assert go.wait(600)

    # ``event_log`` gets an event when the reading hangs, by the time of the fake clock.
    background = BackgroundReading("monitor", wait_for_go, event_log, clock=clock)
    background.start()
    background.start()  # the first reading is still under way
    background.report_hang(after_s=1.5)  # as at the end of a run, which waits less for a reading
    assert read_events(tmp_path) == []  # it does not hang yet: no time has passed on the fake clock
    # From ``HANGS_AFTER_S``, 10 s, on, a reading that was asked for again counts as hung.
    clock.advance(round(HANGS_AFTER_S * 1e9))
    # Each call finds that it hangs, but only the first one reports it.
    background.start()
    background.start()
    (event,) = read_events(tmp_path)
    assert event["kind"] == "hung"
    assert not background.wait(0)  # the reading is still under way
    go.set()
    assert background.wait(600)
    assert calls == [1]  # of four starts, one called it


def test_sampler_starts_without_torch_and_pydantic() -> None:
    # Each of them takes long to import; a new process shows what a start imports.
    code = (
        "import sys, trainmark.telemetry.sampler, trainmark.devices\n"
        "print([name for name in ('torch', 'pydantic', 'numpy') if name in sys.modules])"
    )
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert process.stdout == "[]\n"


def sample_run(run_dir: Path, stopped: Sequence[bool]) -> list[dict[str, Any]]:
    """Sample the folder of a run without waiting; return the events.

    Args:
        stopped: for each tick, whether the sampler was told to stop before the next one.
    """
    log_of_run = SampleLog(EventWriter(run_dir / "telemetry.jsonl", time.perf_counter_ns))
    answers = iter(stopped)
    sampler.sample(run_dir, log_of_run, lambda _: next(answers))
    return read_events(run_dir)


class SilentKernel:
    """A kernel that writes nothing."""

    name = "kmsg"

    def read(self) -> list[str]:
        return []


def test_sampler_writes_a_complete_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler, "lower_priority", lambda: None)  # of this process
    # ``SilentKernel`` is a log of the kernel without messages.
    monkeypatch.setattr(sampler, "KernelReader", lambda write: KernelReader(write, SilentKernel))
    plan = {"device": {"vendor": "cpu"}, "nproc": 2, "sample_every_s": 0.5}
    (tmp_path / PLAN_FILE).write_text(json.dumps(plan))
    # Two ticks, then it is told to stop and reads once more.
    events = sample_run(tmp_path, [False, True])
    assert sorted(event["event"] for event in events) == [
        "end",
        "host",
        "host",
        "host",
        "kernel_log",
        "sampling",
    ]
    # The interval is that of the plan. A CPU has no monitor, so no devices are read.
    (start,) = (event for event in events if event["event"] == "sampling")
    assert (start["interval_s"], start["monitor"], start["devices"]) == (0.5, None, [])
    assert start["host_sources"][0] == "psutil"  # of the use of the CPU and of memory
    hosts = [event for event in events if event["event"] == "host"]
    assert all(0 <= event.get("utilization_percent", 0) <= 100 for event in hosts)
    assert all(event["memory_used_bytes"] > 0 for event in hosts)
    assert events[-1]["event"] == "end"
