"""Sample devices and host while the ranks of a run work, in a process of its own.

Started as ``python -m trainmark.measure.sampler RUN_DIR`` by the launcher, before the first rank;
ends when its standard input is closed. Writes ``telemetry.jsonl``. A vendor's monitor and slow
tools are read in threads, so that one that hangs delays nothing else. Nothing that fails here
fails the run: it leaves a ``fault`` event. Imports neither torch nor pydantic.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import threading
import time
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from trainmark.measure import host
from trainmark.measure.events import TELEMETRY_FILE, EventWriter
from trainmark.protocols import MonitorFault

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trainmark.protocols import Monitor, Vendor

DEFAULT_INTERVAL_S = 1.0
IPMI_INTERVAL_S = 10.0  # a controller may take a second to answer
HANGS_AFTER_S = 10.0
PLAN_FILE = "plan.json"  # as in planning.plan, whose import takes longer than all else here
_LAST_READING_S = 1.5  # less than the launcher's patience
_LOWEST_PRIORITY = 19


def ticks(
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


class Log:
    """The file of samples, written by several threads; knows each source's current fault.

    A line that cannot be written, on a full disk for instance, is a fault of ``host``.
    """

    def __init__(self, writer: EventWriter) -> None:
        self._writer = writer
        self._lock = threading.Lock()
        self._now: dict[str, str] = {}  # kind of the fault that each source has now
        self.faults: dict[str, int] = {}  # readings that failed, by source
        self.started = False
        self._ended = False
        self._unwritten: MonitorFault | None = None

    def say(self, event: str, **fields: Any) -> None:
        """Write one event; nothing follows the last one, ``end``."""
        with self._lock:
            if self._ended:
                return
            self._ended = event == "end"
            try:
                if self._unwritten is not None:
                    self._emit_fault("host", self._unwritten)
                    self._unwritten = None
                self._writer.emit(event, **fields)
            except OSError as error:
                if self._unwritten is None:
                    self._unwritten = MonitorFault("failed", f"{TELEMETRY_FILE}: {error.strerror}")
                self.faults["host"] = self.faults.get("host", 0) + 1

    def _emit_fault(self, source: str, fault: MonitorFault) -> None:
        self._writer.emit("fault", source=source, kind=fault.kind, said=fault.said[:500])

    def fault(self, source: str, fault: MonitorFault) -> None:
        """Count a reading that failed; write it when the fault begins or becomes another one."""
        self.faults[source] = self.faults.get(source, 0) + 1
        if self._now.get(source) != fault.kind:
            self._now[source] = fault.kind
            self.say("fault", source=source, kind=fault.kind, said=fault.said[:500])

    def works(self, source: str) -> None:
        """Note that a source gave a reading."""
        self._now.pop(source, None)


class Background:
    """Readings of one source, each in a thread, never two at a time.

    Args:
        take: takes and writes one reading; may raise anything.
    """

    def __init__(
        self, source: str, take: Callable[[], None], log: Log, clock: Callable[[], int]
    ) -> None:
        self._source = source
        self._take = take
        self._log = log
        self._clock = clock
        self._thread: threading.Thread | None = None
        self._began_ns = 0

    @property
    def busy(self) -> bool:
        """Tell whether a reading is being taken."""
        return self._thread is not None and self._thread.is_alive()

    def start(self) -> None:
        """Begin a reading unless one is being taken."""
        if self.busy:
            waited_s = (self._clock() - self._began_ns) / 1e9
            if waited_s >= HANGS_AFTER_S:
                self._log.fault(
                    self._source, MonitorFault("hung", f"no answer in {waited_s:.0f} s")
                )
            return
        self._began_ns = self._clock()
        self._thread = threading.Thread(target=self._run, name=self._source, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._take()
        except MonitorFault as fault:
            self._log.fault(self._source, fault)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a foreign vendor may raise anything
            self._log.fault(
                self._source, MonitorFault("failed", f"{type(error).__name__}: {error}")
            )
        else:
            self._log.works(self._source)

    def wait(self, seconds: float) -> None:
        """Wait until the reading is done, at most so long."""
        if self._thread is not None:
            self._thread.join(max(0.0, seconds))


class Devices:
    """The ranks' devices by their vendor's monitor, which is opened with the first reading.

    Args:
        vendor: returns the vendor and how many of its devices ranks use.
        opened: called after each try to open the monitor.
    """

    def __init__(
        self, vendor: Callable[[], tuple[Vendor, int]], log: Log, opened: Callable[[Devices], None]
    ) -> None:
        self._vendor = vendor
        self._log = log
        self._opened = opened
        self._found: tuple[Vendor, int] | None = None
        self._monitor: Monitor | None = None
        self.monitored: list[int] = []
        self.unmonitored = False  # the vendor has no monitor

    @property
    def monitor_name(self) -> str | None:
        """The monitor's name once it is open."""
        return self._monitor.name if self._monitor is not None else None

    def take(self) -> None:
        """Read the devices once and write those of the ranks."""
        if self._monitor is None:
            try:
                if self._found is None:  # looked for once, however often the monitor fails
                    self._found = self._vendor()
                vendor, nproc = self._found
                self.monitored = self.monitored or list(vendor.monitored(nproc))
                self._monitor = vendor.monitor()
                self.unmonitored = self._monitor is None
            finally:
                self._opened(self)
        if self._monitor is None:
            return
        began_ns = time.perf_counter_ns()
        told = {sample.index: _anonymous(sample.told()) for sample in self._monitor.read()}
        took_ns = time.perf_counter_ns() - began_ns
        # Once each: ranks may have tiles of one card, which the monitor tells as a whole.
        found = [told[number] for number in dict.fromkeys(self.monitored) if number in told]
        if not found:
            said = f"told of devices {sorted(told)}, the ranks use {self.monitored}"
            raise MonitorFault("unreadable", said)
        self._log.say("devices", took_ns=took_ns, devices=found)


class Host:
    """The machine itself; its node power comes from a thread, with the next reading."""

    def __init__(self, interval_s: float, log: Log) -> None:
        self._log = log
        self._usage = host.Usage()
        self._energy = host.PackageEnergy(interval_s=interval_s)
        self._node_power_w: float | None = None
        self.has_ipmi = host.has_ipmi()
        self.sources = ["psutil"] + ["rapl"] * bool(self._energy) + ["ipmi"] * self.has_ipmi

    def ask_controller(self) -> None:
        """Keep the node's power for the next reading."""
        self._node_power_w = host.node_power_w()

    def take(self) -> None:
        """Write one reading, as much of it as can be had."""
        began_ns = time.perf_counter_ns()
        told: dict[str, Any] = {}
        readings = {"host": self._usage.read} | (
            {"rapl": self._energy.read} if self._energy else {}
        )
        for source, read in readings.items():
            try:
                told |= read()
            except MonitorFault as fault:
                self._log.fault(source, fault)
            except (OSError, ValueError, psutil.Error) as error:
                self._log.fault(source, MonitorFault("failed", f"{type(error).__name__}: {error}"))
            else:
                self._log.works(source)
        watts, self._node_power_w = self._node_power_w, None
        if watts is not None:
            told["node_power_w"] = watts
        if told:
            self._log.say("host", took_ns=time.perf_counter_ns() - began_ns, **told)


def _anonymous(told: dict[str, Any]) -> dict[str, Any]:
    """Return a reading without the number by which the very card could be known."""
    if "uuid" in told:
        told["uuid"] = sha256(str(told["uuid"]).encode()).hexdigest()[:16]
    return told


def _plan(run_dir: Path) -> dict[str, Any]:
    """Return the run's plan as it is written.

    Raises:
        MonitorFault: it cannot be read.
    """
    try:
        plan: dict[str, Any] = json.loads((run_dir / PLAN_FILE).read_bytes())
        plan["device"]["vendor"], plan["nproc"], plan["sample_every_s"]
    except (OSError, ValueError, LookupError, TypeError) as error:
        said = f"{PLAN_FILE}: {type(error).__name__}: {error}"
        raise MonitorFault("unreadable", said) from error
    return plan


def _vendor(run_dir: Path) -> tuple[Vendor, int]:
    """Return the plan's vendor, imported only here because any package may offer it."""
    plan = _plan(run_dir)
    from trainmark.devices import vendors

    return vendors()[plan["device"]["vendor"]], plan["nproc"]


def sample(run_dir: Path, log: Log, stopped: Callable[[float], bool]) -> None:
    """Write samples until ``stopped``: the first at once, the last after it.

    Args:
        stopped: see ``ticks``.
    """
    clock = time.perf_counter_ns
    interval_s = DEFAULT_INTERVAL_S
    with suppress(MonitorFault):  # said when the vendor is looked up
        interval_s = float(_plan(run_dir)["sample_every_s"])
    machine = Host(interval_s, log)

    def opened(devices: Devices) -> None:
        if not log.started:
            log.started = True
            log.say("start", pid=os.getpid(), interval_s=interval_s, monitor=devices.monitor_name,
                    devices=devices.monitored, host_sources=machine.sources)  # fmt: skip

    devices = Devices(lambda: _vendor(run_dir), log, opened)
    monitor = Background("monitor", devices.take, log, clock)
    controller = Background("ipmi", machine.ask_controller, log, clock)
    asked_ns = None
    for number in ticks(interval_s, clock=clock, stopped=stopped):
        if not devices.unmonitored:
            monitor.start()
        if machine.has_ipmi and (asked_ns is None or clock() - asked_ns >= IPMI_INTERVAL_S * 1e9):
            asked_ns = clock()
            controller.start()
        machine.take()
        if number == 0:
            _give_way()
    deadline_ns = clock() + round(_LAST_READING_S * 1e9)
    if not devices.unmonitored:
        monitor.start()
    machine.take()
    monitor.wait((deadline_ns - clock()) / 1e9)
    opened(devices)  # where the monitor could not be opened in all that time
    log.say("end", faults=log.faults)


def _give_way() -> None:
    """Take the lowest priority, so that a rank never waits for this process."""
    os.nice(_LOWEST_PRIORITY)
    # Niceness counts only among the processes of a session where the kernel groups them:
    # sched(7), "The autogroup feature".
    with suppress(OSError):
        Path("/proc/self/autogroup").write_text(str(_LOWEST_PRIORITY))


def main(run_dir: Path) -> int:
    """Sample until standard input is closed, then end everything that was started."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # meant for the launcher
        signal.signal(number, signal.SIG_IGN)
    log = Log(EventWriter(run_dir / TELEMETRY_FILE, time.perf_counter_ns))

    def stopped(seconds: float) -> bool:
        return bool(select.select([sys.stdin], [], [], max(0.0, seconds))[0])

    sample(run_dir, log, stopped)
    for child in psutil.Process().children(recursive=True):  # a tool that still runs
        with suppress(psutil.NoSuchProcess):
            child.kill()
    sys.stderr.flush()
    os._exit(0)  # without waiting for a thread that hangs in a library


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
