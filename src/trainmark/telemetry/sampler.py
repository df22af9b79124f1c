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
from trainmark.protocols.monitor import is_valid_value
from trainmark.telemetry.host import HostReader
from trainmark.telemetry.kernel import KernelReader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trainmark.protocols import Monitor, Vendor

IPMI_INTERVAL_S = 10.0  # a controller may take a second to answer
KERNEL_INTERVAL_S = 5.0
HANGS_AFTER_S = 10.0
PLAN_FILE = "plan.json"  # as in ``plan.plan``, whose import would take longer than all others
_LAST_READING_S = 1.5  # less than the launcher's patience
_LOWEST_PRIORITY = 19
_MAX_NAME_LENGTH = 200
_MAX_TEXT_LENGTH = 500


def iterate_ticks(
    interval_s: float, *, clock: Callable[[], int], wait_for_stop: Callable[[float], bool]
) -> Iterator[int]:
    """Yield the number of each tick of a regular grid that begins now; missed ticks are skipped.

    Args:
        wait_for_stop: waits for the given number of seconds, or until the sampler must stop;
            returns whether it must.
    """
    start_ns = clock()
    interval_ns = round(interval_s * 1e9)
    number = 0
    while True:
        yield number
        now_ns = clock() - start_ns
        number = now_ns // interval_ns + 1  # the next tick that is still to come
        if wait_for_stop((number * interval_ns - now_ns) / 1e9):
            return


@dataclass
class SampleLog:
    """The file of samples, which several threads write, and the current fault of each source."""

    writer: EventWriter
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)
    _fault_kinds: dict[str, str] = field(default_factory=dict, init=False)  # by source
    _has_ended: bool = field(default=False, init=False)

    def write(self, event: str, **fields: Any) -> None:
        """Write one event; after ``end`` it is dropped."""
        with self._lock:
            if not self._has_ended:
                self.writer.emit(event, **fields)

    def end(self) -> None:
        """Write the last event.

        Tools that still run are killed after it. The threads that read them would report this as a
        fault of the tools.
        """
        with self._lock:
            self.writer.emit("end")
            self._has_ended = True

    def report_fault(self, source: str, fault: MonitorFault) -> None:
        """Write a fault of a source if it is new or of another kind than the last one."""
        with self._lock:
            known_kind = self._fault_kinds.get(source)  # None: the source worked
            self._fault_kinds[source] = fault.kind
        if known_kind != fault.kind:
            self.write("fault", source=source, kind=fault.kind, text=shorten_text(fault.text))

    @contextmanager
    def catch_faults(self, source: str) -> Iterator[None]:
        """Report whatever the block raises as a fault: it may run the code of any vendor."""
        try:
            yield
        except MonitorFault as fault:
            self.report_fault(source, fault)
        except BaseException as error:  # noqa: BLE001 - see the docstring
            self.report_fault(source, MonitorFault("failed", f"{type(error).__name__}: {error}"))
        else:  # the source works again: its next fault is new
            with self._lock:
                self._fault_kinds.pop(source, None)


def shorten_text(text: object, max_length: int = _MAX_TEXT_LENGTH) -> str:
    """Return a text of a foreign tool as valid UTF-8, cut to ``max_length`` characters."""
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
        has_ended = self.wait(0)
        if not has_ended:
            self.report_hang(after_s=HANGS_AFTER_S)
        elif self._thread is None or self._compute_elapsed_s() >= self.interval_s:
            self._began_ns = self.clock()
            self._thread = threading.Thread(target=self._run, name=self.source, daemon=True)
            self._thread.start()

    def report_hang(self, after_s: float) -> None:
        """Report that a reading hangs if it has been under way for ``after_s`` or longer.

        The log writes the fault only once, although this is called again while the reading hangs.
        """
        has_ended = self.wait(0)
        if has_ended:
            return
        elapsed_s = self._compute_elapsed_s()
        if elapsed_s >= after_s:
            fault = MonitorFault("hung", f"no answer in {elapsed_s:.1f} s")
            self.log.report_fault(self.source, fault)

    def _compute_elapsed_s(self) -> float:
        """Return the seconds since the last reading began; there must have been one."""
        return (self.clock() - self._began_ns) / 1e9

    def _run(self) -> None:
        """Take one reading, in the thread."""
        with self.log.catch_faults(self.source):
            self.take()

    def wait(self, seconds: float) -> bool:
        """Wait at most ``seconds`` for the end of a reading; return whether none is under way."""
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
    _indexes_of_ranks: list[int] = field(default_factory=list, init=False)
    _has_no_monitor: bool = field(default=False, init=False)

    def take(self) -> None:
        """Read the devices once and write those of the ranks."""
        if self._has_no_monitor:
            return
        if self._monitor is None:
            self._monitor = self._open_monitor()
            if self._monitor is None:
                self._has_no_monitor = True  # so that the vendor is not asked at each reading
                return
        start_ns = time.perf_counter_ns()
        samples = {sample.index: sample.known_fields() for sample in self._monitor.read()}
        took_ns = time.perf_counter_ns() - start_ns
        # Each device once: ranks may have tiles of the same card, which the monitor reads whole.
        distinct_indexes = dict.fromkeys(self._indexes_of_ranks)
        devices = [samples[index] for index in distinct_indexes if index in samples]
        if not devices:
            raise MonitorFault(
                "unreadable",
                f"devices {list(samples)} were reported, but the ranks use "
                f"{self._indexes_of_ranks}",
            )
        invalid_values = []  # left out of the event, and reported as a fault after it
        for device in devices:
            device.pop("uuid", None)  # it would identify the very card
            index = device["index"]
            invalid_names = [
                name for name, value in device.items() if not is_valid_value(name, value)
            ]
            for name in invalid_names:
                value = device.pop(name)
                invalid_values.append(f"{name} of device {index}: {value!r}")
        self.log.write("devices", took_ns=took_ns, devices=devices)
        if invalid_values:
            raise MonitorFault("unreadable", ", ".join(invalid_values))

    def _open_monitor(self) -> Monitor | None:
        """Return the vendor's monitor after calling ``on_open``; None: the vendor has none."""
        vendor = self.load_vendor()
        # The monitor's index of the device of each rank.
        self._indexes_of_ranks = list(vendor.monitored(self.nproc))
        monitor = vendor.monitor()
        if monitor is not None:
            name = shorten_text(monitor.name or "unnamed", _MAX_NAME_LENGTH)
            self.on_open(name, self._indexes_of_ranks)
        return monitor


def _load_vendor(name: str) -> Vendor:
    """Return the vendor of the devices.

    The import is in this function because it runs the code of any package that offers a vendor.
    """
    from trainmark.devices import list_vendors

    return list_vendors()[name]


class _Sampler:
    """The sources of one machine: its host, and readings in threads of all that may be slow.

    Args:
        plan: the run's plan as JSON values.
        log: the file of samples.
    """

    def __init__(self, plan: dict[str, Any], log: SampleLog) -> None:
        self._log = log
        self._clock = time.perf_counter_ns
        self._interval_s = float(plan["sample_every_s"])
        self._host = HostReader()
        # Called in the thread of the first reading, because the import may hang.
        load_vendor = partial(_load_vendor, plan["device"]["vendor"])
        devices = DeviceReader(load_vendor, plan["nproc"], log, on_open=self._write_start)
        self._monitor = BackgroundReading("monitor", devices.take, log, clock=self._clock)
        self._controller = BackgroundReading(
            "ipmi",
            self._host.ask_controller,
            log,
            clock=self._clock,
            interval_s=IPMI_INTERVAL_S,
        )
        self._kernel = BackgroundReading(
            "kernel",
            KernelReader(log.write).take,
            log,
            clock=self._clock,
            interval_s=KERNEL_INTERVAL_S,
        )

    def run(self, wait_for_stop: Callable[[float], bool]) -> None:
        """Write samples at regular times until the sampler must stop; then write the last ones.

        Args:
            wait_for_stop: waits for the given number of seconds, or until the sampler must stop;
                returns whether it must.
        """
        self._write_start(monitor=None, device_indexes=[])  # again if a monitor is opened
        ticks = iterate_ticks(self._interval_s, clock=self._clock, wait_for_stop=wait_for_stop)
        for number in ticks:
            # Each begins a reading in a thread of its own, unless the last one still runs: the
            # power of the node by its baseboard controller, and messages of the kernel.
            if self._host.has_ipmi:
                self._controller.start()
            self._kernel.start()
            self._take_sample()
            # The first sample, which also opens the sources, is taken with the normal priority.
            if number == 0:
                lower_priority()
        self._take_last_readings()
        self._log.end()

    def _write_start(self, monitor: str | None, device_indexes: list[int]) -> None:
        """Write the ``sampling`` event: which sources are read, and how often.

        It is written at the start, and again with the monitor's name when the monitor is opened.

        Args:
            monitor: name of the devices' monitor; None: none was opened yet.
            device_indexes: its numbers of the ranks' devices.
        """
        self._log.write(
            "sampling",
            pid=os.getpid(),
            interval_s=self._interval_s,
            monitor=monitor,
            devices=device_indexes,
            host_sources=self._host.sources,
        )

    def _take_sample(self) -> None:
        """Begin a reading of the devices, and read the host."""
        self._monitor.start()
        start_ns = self._clock()
        readings = self._host.read(self._log.catch_faults)
        if readings:
            self._log.write("host", took_ns=self._clock() - start_ns, **readings)

    def _take_last_readings(self) -> None:
        """Take readings after the end of the ranks, and report those that have hung for some time.

        The management controller is not read again: it may take longer than there is time for.
        """
        # The last reading of the devices must begin after the end of the ranks. So one that is
        # under way now is waited for, and another begins. A reading of the kernel's log that is
        # under way is not waited for here: it counts as the last.
        self._monitor.wait(_LAST_READING_S / 2)
        self._take_sample()
        self._kernel.interval_s = 0.0  # due at once, so that no message since the last one is lost
        self._kernel.start()
        # Both share the other half: the launcher kills a sampler that waits longer.
        deadline_ns = self._clock() + round(_LAST_READING_S / 2 * 1e9)
        for reading in (self._monitor, self._kernel):
            reading.wait(max(0.0, (deadline_ns - self._clock()) / 1e9))
        for reading in (self._monitor, self._controller, self._kernel):
            reading.report_hang(after_s=_LAST_READING_S)


def sample(run_dir: Path, log: SampleLog, wait_for_stop: Callable[[float], bool]) -> None:
    """Write samples of a run until the sampler must stop: the first at once, the last after that.

    Args:
        wait_for_stop: waits for the given number of seconds, or until the sampler must stop;
            returns whether it must.
    """
    plan = json.loads((run_dir / PLAN_FILE).read_bytes())
    _Sampler(plan, log).run(wait_for_stop)


def lower_priority(niceness: int = _LOWEST_PRIORITY) -> None:
    """Take a low priority, by default the lowest, so that a rank never waits for this process."""
    os.nice(niceness)
    # Niceness counts only among the processes of a session where the kernel groups them:
    # sched(7), "The autogroup feature".
    with suppress(OSError):
        Path("/proc/self/autogroup").write_text(str(niceness))


def main(run_dir: Path, file: str) -> int:
    """Sample until standard input is closed, then kill the tools and threads that still run.

    Args:
        run_dir: the run directory.
        file: name of the file in it to which samples are written.
    """
    # These signals are meant for the launcher, which then closes standard input.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    log = SampleLog(EventWriter(run_dir / file, time.perf_counter_ns))

    def wait_for_stop(seconds: float) -> bool:
        """Wait at most this long; return True as soon as standard input has data or is closed."""
        readable, _, _ = select.select([sys.stdin], [], [], max(0.0, seconds))
        return bool(readable)

    sample(run_dir, log, wait_for_stop)
    for child in psutil.Process().children(recursive=True):  # tools that still run
        with suppress(psutil.NoSuchProcess):
            child.kill()
    sys.stderr.flush()  # which ``os._exit`` does not do
    os._exit(0)  # do not wait for a thread that hangs in a library


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2]))
