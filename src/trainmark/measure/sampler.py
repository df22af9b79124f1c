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

from trainmark.measure.events import TELEMETRY_FILE, EventWriter
from trainmark.measure.host import Host
from trainmark.measure.sample_log import SampleLog
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


class Background:
    """Readings of one source, each in a thread, never two at a time.

    Args:
        take: takes and writes one reading.
        every_s: the least time from one to the next.
    """

    def __init__(
        self,
        source: str,
        take: Callable[[], None],
        log: SampleLog,
        *,
        clock: Callable[[], int],
        every_s: float = 0.0,
    ) -> None:
        self._source = source
        self._take = take
        self._log = log
        self._clock = clock
        self._every_s = every_s
        self._thread: threading.Thread | None = None
        self._began_ns = 0

    @property
    def busy(self) -> bool:
        """Tell whether a reading is being taken."""
        return self._thread is not None and self._thread.is_alive()

    def start(self) -> None:
        """Begin a reading unless one is being taken, or was a short time ago."""
        since_s = (self._clock() - self._began_ns) / 1e9
        if self.busy:
            if since_s >= HANGS_AFTER_S:
                self._log.fault(self._source, MonitorFault("hung", f"no answer in {since_s:.0f} s"))
        elif self._thread is None or since_s >= self._every_s:
            self._began_ns = self._clock()
            self._thread = threading.Thread(target=self._run, name=self._source, daemon=True)
            self._thread.start()

    def _run(self) -> None:
        with self._log.reading(self._source):
            self._take()

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
        self,
        vendor: Callable[[], tuple[Vendor, int]],
        log: SampleLog,
        opened: Callable[[Devices], None],
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


def _anonymous(told: dict[str, Any]) -> dict[str, Any]:
    """Return a reading without the number by which the very card could be known."""
    if "uuid" in told:
        told["uuid"] = sha256(str(told["uuid"]).encode()).hexdigest()[:16]
    return told


def _planned(run_dir: Path) -> tuple[str, int, float]:
    """Return the plan's vendor, its ranks on this machine, and the seconds between samples.

    Raises:
        MonitorFault: the plan cannot be read.
    """
    try:
        plan = json.loads((run_dir / PLAN_FILE).read_bytes())
        interval_s = float(plan["sample_every_s"]) or DEFAULT_INTERVAL_S
        return str(plan["device"]["vendor"]), int(plan["nproc"]), interval_s
    except (OSError, ValueError, LookupError, TypeError) as error:
        said = f"{PLAN_FILE}: {type(error).__name__}: {error}"
        raise MonitorFault("unreadable", said) from error


def _vendor(run_dir: Path) -> tuple[Vendor, int]:
    """Return the plan's vendor, imported only here because any package may offer it."""
    name, nproc, _ = _planned(run_dir)
    from trainmark.devices import all_vendors

    return all_vendors()[name], nproc


def sample(run_dir: Path, log: SampleLog, stopped: Callable[[float], bool]) -> None:
    """Write samples until ``stopped``: the first at once, the last after it.

    Args:
        stopped: see ``ticks``.
    """
    clock = time.perf_counter_ns
    interval_s = DEFAULT_INTERVAL_S
    with suppress(MonitorFault):  # said when the vendor is looked up
        _, _, interval_s = _planned(run_dir)
    machine = Host(interval_s=interval_s)

    def opened(devices: Devices) -> None:
        log.say("start", pid=os.getpid(), interval_s=interval_s, monitor=devices.monitor_name,
                devices=devices.monitored, host_sources=machine.sources)  # fmt: skip

    devices = Devices(lambda: _vendor(run_dir), log, opened)
    monitor = Background("monitor", devices.take, log, clock=clock)
    controller = Background(
        "ipmi", machine.ask_controller, log, clock=clock, every_s=IPMI_INTERVAL_S
    )

    def take() -> None:
        if not devices.unmonitored:
            monitor.start()
        began_ns = clock()
        told = machine.read(log.reading)
        if told:
            log.say("host", took_ns=clock() - began_ns, **told)

    for number in ticks(interval_s, clock=clock, stopped=stopped):
        if machine.has_ipmi:
            controller.start()
        take()
        if number == 0:
            _give_way()
    take()
    monitor.wait(_LAST_READING_S)
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
    log = SampleLog(EventWriter(run_dir / TELEMETRY_FILE, time.perf_counter_ns))

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
