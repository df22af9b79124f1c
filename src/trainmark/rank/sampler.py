"""Sample devices and host while the ranks of a run work, in a process of its own.

Started as ``python -m trainmark.rank.sampler RUN_DIR FILE`` by the launcher, before
the first rank; ends when its standard input is closed. Writes FILE there. A vendor's monitor and
slow tools are read in threads, so that one that hangs delays nothing else. Nothing that fails here
fails the run: it leaves a ``fault`` event, and a full disk ends the samples. Imports neither torch
nor pydantic.
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

from trainmark.protocols import MonitorFault
from trainmark.protocols.monitor import fits
from trainmark.rank.events import EventWriter
from trainmark.rank.host import HostReader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trainmark.protocols import Monitor, Vendor

IPMI_INTERVAL_S = 10.0  # a controller may take a second to answer
HANGS_AFTER_S = 10.0
PLAN_FILE = "plan.json"  # as in plan.plan, whose import takes longer than all else here
_LAST_READING_S = 1.5  # less than the launcher's patience
_LOWEST_PRIORITY = 19
_MAX_NAME_LENGTH = 200
_MAX_TEXT_LENGTH = 500


def iterate_ticks(
    interval_s: float, *, clock: Callable[[], int], stopped: Callable[[float], bool]
) -> Iterator[int]:
    """Yield the number of each tick on the grid from now on; a missed one is left out.

    Args:
        stopped: waits the given seconds; true ends the ticks, at once if it comes meanwhile.
    """
    start_ns, interval_ns, number = clock(), round(interval_s * 1e9), 0
    while True:
        yield number
        now_ns = clock() - start_ns
        number = now_ns // interval_ns + 1
        if stopped((number * interval_ns - now_ns) / 1e9):
            return


@dataclass
class SampleLog:
    """The file of samples, written by several threads; knows each source's current fault."""

    writer: EventWriter
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)
    _now: dict[str, str] = field(default_factory=dict, init=False)  # kind of each source's fault

    def write(self, event: str, **fields: Any) -> None:
        """Write one event."""
        with self._lock:
            self.writer.emit(event, **fields)

    def fault(self, source: str, fault: MonitorFault) -> None:
        """Write a fault when it begins or becomes another one."""
        with self._lock:
            known, self._now[source] = self._now.get(source), fault.kind
        if known != fault.kind:
            self.write("fault", source=source, kind=fault.kind, said=shorten_text(fault.said))

    @contextmanager
    def reading(self, source: str) -> Iterator[None]:
        """Make a fault of whatever is raised: what is read is a foreign vendor's."""
        try:
            yield
        except MonitorFault as fault:
            self.fault(source, fault)
        except BaseException as error:  # noqa: BLE001 - see above
            self.fault(source, MonitorFault("failed", f"{type(error).__name__}: {error}"))
        else:
            self._now.pop(source, None)


def shorten_text(text: object, longest: int = _MAX_TEXT_LENGTH) -> str:
    """Return a foreign text as one that a line of the file can hold."""
    return str(text).encode("utf-8", "replace").decode()[:longest]


@dataclass
class BackgroundReading:
    """Readings of one source, each in a thread, never two at a time.

    Args:
        take: takes and writes one reading.
        every_s: the least time from one to the next.
    """

    source: str
    take: Callable[[], None]
    log: SampleLog
    clock: Callable[[], int]
    every_s: float = 0.0
    _thread: threading.Thread | None = field(default=None, init=False)
    _began_ns: int = field(default=0, init=False)

    def start(self) -> None:
        """Begin a reading unless one is being taken, or was a short time ago."""
        if not self.wait(0):
            self.tell_hung(HANGS_AFTER_S)
        elif self._thread is None or self._since_s() >= self.every_s:
            self._began_ns = self.clock()
            self._thread = threading.Thread(target=self._run, name=self.source, daemon=True)
            self._thread.start()

    def tell_hung(self, after_s: float) -> None:
        """Tell of a reading that has been under way for so long."""
        since_s = self._since_s()
        if not self.wait(0) and since_s >= after_s:
            self.log.fault(self.source, MonitorFault("hung", f"no answer in {since_s:.1f} s"))

    def _since_s(self) -> float:
        return (self.clock() - self._began_ns) / 1e9

    def _run(self) -> None:
        with self.log.reading(self.source):
            self.take()

    def wait(self, seconds: float) -> bool:
        """Wait until the reading is done, at most so long; tell whether it is."""
        if self._thread is None:
            return True
        self._thread.join(seconds)
        return not self._thread.is_alive()


@dataclass
class DeviceReader:
    """The ranks' devices by their vendor's monitor, which is opened by the first reading that can.

    Args:
        vendor: returns the vendor, whose import may fail or hang.
        opened: called with the monitor's name and its numbers of the ranks' devices.
    """

    vendor: Callable[[], Vendor]
    nproc: int
    log: SampleLog
    opened: Callable[[str, list[int]], None]
    _monitor: Monitor | None = field(default=None, init=False)
    _monitored: list[int] = field(default_factory=list, init=False)
    _unmonitored: bool = field(default=False, init=False)  # the vendor has no monitor

    def take(self) -> None:
        """Read the devices once and write those of the ranks."""
        if self._unmonitored:
            return
        if self._monitor is None:
            vendor = self.vendor()
            self._monitored, self._monitor = list(vendor.monitored(self.nproc)), vendor.monitor()
            if self._monitor is None:
                self._unmonitored = True
                return
            self.opened(
                shorten_text(self._monitor.name or "unnamed", _MAX_NAME_LENGTH), self._monitored
            )
        began_ns = time.perf_counter_ns()
        read = {sample.index: sample.known() for sample in self._monitor.read()}
        took_ns = time.perf_counter_ns() - began_ns
        # Once each: ranks may have tiles of one card, which the monitor tells as a whole.
        found = [read[number] for number in dict.fromkeys(self._monitored) if number in read]
        if not found:
            text = f"told of devices {sorted(read)}, the ranks use {self._monitored}"
            raise MonitorFault("unreadable", text)
        for device in found:
            device.pop("uuid", None)  # by which the very card could be known
        odd = [
            (device, name) for device in found for name in device if not fits(name, device[name])
        ]
        left_out = [f"{name} of device {one['index']}: {one.pop(name)!r}" for one, name in odd]
        self.log.write("devices", took_ns=took_ns, devices=found)
        if left_out:
            raise MonitorFault("unreadable", ", ".join(left_out))


def _load_vendor(name: str) -> Vendor:
    """Return a vendor, imported only here because any package may offer it."""
    from trainmark.devices import all_vendors

    return all_vendors()[name]


def sample(run_dir: Path, log: SampleLog, stopped: Callable[[float], bool]) -> None:
    """Write samples until ``stopped``: the first at once, the last after it.

    Args:
        stopped: see ``iterate_ticks``.
    """
    clock = time.perf_counter_ns
    plan = json.loads((run_dir / PLAN_FILE).read_bytes())
    interval_s = float(plan["sample_every_s"])
    machine = HostReader()

    def start(monitor: str | None, numbers: list[int]) -> None:
        log.write("sampling", pid=os.getpid(), interval_s=interval_s, monitor=monitor,
                  devices=numbers, host_sources=machine.sources)  # fmt: skip

    start(None, [])
    devices = DeviceReader(
        partial(_load_vendor, plan["device"]["vendor"]), plan["nproc"], log, start
    )
    monitor = BackgroundReading("monitor", devices.take, log, clock=clock)
    controller = BackgroundReading(
        "ipmi", machine.ask_controller, log, clock=clock, every_s=IPMI_INTERVAL_S
    )

    def take() -> None:
        monitor.start()
        began_ns = clock()
        readings = machine.read(log.reading)
        if readings:
            log.write("host", took_ns=clock() - began_ns, **readings)

    for number in iterate_ticks(interval_s, clock=clock, stopped=stopped):
        if machine.has_ipmi:
            controller.start()
        take()
        if number == 0:
            _lower_priority()
    monitor.wait(_LAST_READING_S / 2)  # one that began before the ranks ended is not the last
    take()
    monitor.wait(_LAST_READING_S / 2)
    for source in (monitor, controller):
        source.tell_hung(_LAST_READING_S)
    log.write("end")


def _lower_priority() -> None:
    """Take the lowest priority, so that a rank never waits for this process."""
    os.nice(_LOWEST_PRIORITY)
    # Niceness counts only among the processes of a session where the kernel groups them:
    # sched(7), "The autogroup feature".
    with suppress(OSError):
        Path("/proc/self/autogroup").write_text(str(_LOWEST_PRIORITY))


def main(run_dir: Path, file: str) -> int:
    """Sample until standard input is closed, then end everything that was started."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # meant for the launcher
        signal.signal(number, signal.SIG_IGN)
    log = SampleLog(EventWriter(run_dir / file, time.perf_counter_ns))

    def stopped(seconds: float) -> bool:
        return bool(select.select([sys.stdin], [], [], max(0.0, seconds))[0])

    sample(run_dir, log, stopped)
    for child in psutil.Process().children(recursive=True):  # a tool that still runs
        with suppress(psutil.NoSuchProcess):
            child.kill()
    sys.stderr.flush()
    os._exit(0)  # without waiting for a thread that hangs in a library


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2]))
