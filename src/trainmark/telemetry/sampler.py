"""Sample devices and host while the ranks of a run work, in a process of its own.

The launcher starts it before the first rank, as
``python -m trainmark.telemetry.sampler RUN_DIR FILE``. It writes FILE in the run directory and ends
when its standard input is closed. A vendor's monitor and slow tools are read in threads, so that a
hanging one delays nothing else. An error here never fails the run: it becomes a ``fault`` event,
and a full disk ends the samples. Imports neither torch nor pydantic.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from trainmark.events.schema import EventWriter
from trainmark.protocols import MonitorFault
from trainmark.protocols.monitor import fits
from trainmark.telemetry.host import HostReader
from trainmark.telemetry.kernel import KernelReader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trainmark.protocols import Monitor, Vendor

IPMI_INTERVAL_S = 10.0  # a controller may take a second to answer
KERNEL_INTERVAL_S = 5.0
HANGS_AFTER_S = 10.0
PLAN_FILE = "plan.json"  # as in plan.plan, whose import takes longer than all else here
_LAST_READING_S = 1.5  # less than the launcher's patience
_LOWEST_PRIORITY = 19
_MAX_NAME_LENGTH = 200
_MAX_TEXT_LENGTH = 500


def iterate_ticks(
    interval_s: float, *, clock: Callable[[], int], stopped: Callable[[float], bool]
) -> Iterator[int]:
    """Yield the number of each tick of a regular grid that begins now; missed ticks are skipped.

    Args:
        stopped: waits for the given number of seconds, or until the sampler must stop; returns
            whether it must.
    """
    start_ns = clock()
    interval_ns = round(interval_s * 1e9)
    number = 0
    while True:
        yield number
        now_ns = clock() - start_ns
        number = now_ns // interval_ns + 1
        if stopped((number * interval_ns - now_ns) / 1e9):
            return


@dataclass
class SampleLog:
    """The file of samples, which several threads write, and the current fault of each source."""

    writer: EventWriter
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)
    _fault_kinds: dict[str, str] = field(default_factory=dict, init=False)  # by source

    def write(self, event: str, **fields: Any) -> None:
        """Write one event."""
        with self._lock:
            self.writer.emit(event, **fields)

    def report_fault(self, source: str, fault: MonitorFault) -> None:
        """Write a fault of a source if it is new or of another kind than the last one."""
        with self._lock:
            known_kind = self._fault_kinds.get(source)
            self._fault_kinds[source] = fault.kind
        if known_kind != fault.kind:
            self.write("fault", source=source, kind=fault.kind, said=shorten_text(fault.said))

    @contextmanager
    def catch_faults(self, source: str) -> Iterator[None]:
        """Report whatever a reading raises as a fault: it may run a foreign vendor's code."""
        try:
            yield
        except MonitorFault as fault:
            self.report_fault(source, fault)
        except BaseException as error:  # noqa: BLE001 - see above
            self.report_fault(source, MonitorFault("failed", f"{type(error).__name__}: {error}"))
        else:
            self._fault_kinds.pop(source, None)


def shorten_text(text: object, max_length: int = _MAX_TEXT_LENGTH) -> str:
    """Return a foreign text cut to ``max_length``, as valid UTF-8."""
    return str(text).encode("utf-8", "replace").decode()[:max_length]


@dataclass
class BackgroundReading:
    """Readings of one source, each in a thread, never two at a time.

    Args:
        take: takes and writes one reading.
        interval_s: the minimum time from the start of a reading to the next.
    """

    source: str
    take: Callable[[], None]
    log: SampleLog
    clock: Callable[[], int]
    interval_s: float = 0.0
    _thread: threading.Thread | None = field(default=None, init=False)
    _began_ns: int = field(default=0, init=False)

    def start(self) -> None:
        """Begin a reading unless one is under way, or the last began less than an interval ago."""
        if not self.wait(0):
            self.report_hang(HANGS_AFTER_S)
        elif self._thread is None or self._elapsed_s() >= self.interval_s:
            self._began_ns = self.clock()
            self._thread = threading.Thread(target=self._run, name=self.source, daemon=True)
            self._thread.start()

    def report_hang(self, after_s: float) -> None:
        """Report a reading that has been under way for ``after_s`` or longer."""
        elapsed_s = self._elapsed_s()
        if not self.wait(0) and elapsed_s >= after_s:
            fault = MonitorFault("hung", f"no answer in {elapsed_s:.1f} s")
            self.log.report_fault(self.source, fault)

    def _elapsed_s(self) -> float:
        return (self.clock() - self._began_ns) / 1e9

    def _run(self) -> None:
        with self.log.catch_faults(self.source):
            self.take()

    def wait(self, seconds: float) -> bool:
        """Wait for the end of the reading, at most ``seconds``; return whether it has ended."""
        if self._thread is None:
            return True
        self._thread.join(seconds)
        return not self._thread.is_alive()


@dataclass
class DeviceReader:
    """Reads the ranks' devices with their vendor's monitor, which the first reading opens.

    Args:
        load_vendor: returns the vendor; its import may fail or hang.
        on_open: called with the monitor's name and its numbers of the ranks' devices.
    """

    load_vendor: Callable[[], Vendor]
    nproc: int
    log: SampleLog
    on_open: Callable[[str, list[int]], None]
    _monitor: Monitor | None = field(default=None, init=False)
    _monitored: list[int] = field(default_factory=list, init=False)
    _has_no_monitor: bool = field(default=False, init=False)

    def take(self) -> None:
        """Read the devices once and write those of the ranks."""
        if self._has_no_monitor:
            return
        if self._monitor is None:
            vendor = self.load_vendor()
            self._monitored = list(vendor.monitored(self.nproc))
            self._monitor = vendor.monitor()
            if self._monitor is None:
                self._has_no_monitor = True
                return
            name = shorten_text(self._monitor.name or "unnamed", _MAX_NAME_LENGTH)
            self.on_open(name, self._monitored)
        start_ns = time.perf_counter_ns()
        samples = {sample.index: sample.known_fields() for sample in self._monitor.read()}
        took_ns = time.perf_counter_ns() - start_ns
        # Each device once: ranks may have tiles of the same card, which the monitor reads whole.
        numbers = dict.fromkeys(self._monitored)
        devices = [samples[number] for number in numbers if number in samples]
        if not devices:
            text = f"devices {sorted(samples)} were reported, but the ranks use {self._monitored}"
            raise MonitorFault("unreadable", text)
        invalid_values = []
        for device in devices:
            device.pop("uuid", None)  # it would identify the very card
            index = device["index"]
            for name in [name for name in device if not fits(name, device[name])]:
                invalid_values.append(f"{name} of device {index}: {device.pop(name)!r}")
        self.log.write("devices", took_ns=took_ns, devices=devices)
        if invalid_values:
            raise MonitorFault("unreadable", ", ".join(invalid_values))


def _load_vendor(name: str) -> Vendor:
    """Return a vendor, imported only here because any package may offer it."""
    from trainmark.devices import list_vendors

    return list_vendors()[name]


def sample(run_dir: Path, log: SampleLog, stopped: Callable[[float], bool]) -> None:
    """Write samples until ``stopped``: the first at once, the last after it.

    Args:
        stopped: see ``iterate_ticks``.
    """
    clock = time.perf_counter_ns
    plan = json.loads((run_dir / PLAN_FILE).read_bytes())
    interval_s = float(plan["sample_every_s"])
    host = HostReader()

    def start(monitor: str | None, numbers: list[int]) -> None:
        log.write(
            "sampling",
            pid=os.getpid(),
            interval_s=interval_s,
            monitor=monitor,
            devices=numbers,
            host_sources=host.sources,
        )

    start(None, [])
    load_vendor = partial(_load_vendor, plan["device"]["vendor"])
    devices = DeviceReader(load_vendor, plan["nproc"], log, start)
    monitor = BackgroundReading("monitor", devices.take, log, clock=clock)
    controller = BackgroundReading(
        "ipmi", host.ask_controller, log, clock=clock, interval_s=IPMI_INTERVAL_S
    )

    kernel = BackgroundReading(
        "kernel", KernelReader(log.write).take, log, clock=clock, interval_s=KERNEL_INTERVAL_S
    )

    def take() -> None:
        monitor.start()
        start_ns = clock()
        readings = host.read(log.catch_faults)
        if readings:
            log.write("host", took_ns=clock() - start_ns, **readings)

    for number in iterate_ticks(interval_s, clock=clock, stopped=stopped):
        if host.has_ipmi:
            controller.start()
        kernel.start()
        take()
        if number == 0:
            lower_priority()
    monitor.wait(_LAST_READING_S / 2)  # a reading that began before the ranks ended is not the last
    take()
    kernel.wait(0)
    kernel.interval_s = 0.0  # the last reading has what came since the one before
    kernel.start()
    monitor.wait(_LAST_READING_S / 2)
    kernel.wait(_LAST_READING_S / 2)
    for source in (monitor, controller, kernel):
        source.report_hang(_LAST_READING_S)
    log.write("end")


def lower_priority(niceness: int = _LOWEST_PRIORITY) -> None:
    """Take a low priority, by default the lowest, so that a rank never waits for this process."""
    os.nice(niceness)
    # Niceness counts only among the processes of a session where the kernel groups them:
    # sched(7), "The autogroup feature".
    with suppress(OSError):
        Path("/proc/self/autogroup").write_text(str(niceness))


def main(run_dir: Path, file: str) -> int:
    """Sample until standard input is closed, then end everything that was started."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # meant for the launcher
        signal.signal(number, signal.SIG_IGN)
    log = SampleLog(EventWriter(run_dir / file, time.perf_counter_ns))

    def wait_for_stop(seconds: float) -> bool:
        """Wait at most this long; return True as soon as standard input has data or is closed."""
        return bool(select.select([sys.stdin], [], [], max(0.0, seconds))[0])

    sample(run_dir, log, wait_for_stop)
    for child in psutil.Process().children(recursive=True):  # tools that still run
        with suppress(psutil.NoSuchProcess):
            child.kill()
    sys.stderr.flush()
    os._exit(0)  # do not wait for a thread that hangs in a library


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2]))
