"""Read the machine itself: use of the processor, memory, energy of packages, node power.

What cannot be read is left out, never 0. Nothing needs root: a counter that the system reserves for
root is not read.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import psutil

from trainmark.devices import tool
from trainmark.protocols import MonitorFault

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

IPMI_COMMAND = ("ipmitool", "dcmi", "power", "reading")
_IPMI_NODES = ("dev/ipmi0", "dev/ipmi/0", "dev/ipmidev/0")  # those that ipmitool's `open` tries
_IPMI_TIMEOUT_S = 8.0
_WATTS = re.compile(r"Instantaneous power reading\s*:\s*(\d+(?:\.\d+)?)\s*Watts", re.IGNORECASE)
# More than any package uses. A counter's range is 262 kJ on common processors; at this power it
# wraps after 131 s, so a counter that is read more often has wrapped once at most.
_MAX_PACKAGE_W = 2_000
_MIN_CPU_S = 0.1  # https://psutil.readthedocs.io/en/latest/#psutil.cpu_percent, 2026-11-22


class _EnergyCounter(NamedTuple):
    """The state of one package's counter.

    Args:
        last_uj: its last value, in microjoules.
        range_uj: the value at which it wraps to 0.
    """

    last_uj: int
    range_uj: int


class PackageEnergy:
    """Energy of the processors' packages by the kernel's RAPL counters, Intel's and AMD's.

    https://docs.kernel.org/power/powercap/powercap.html, 2026-11-22. Zones below a package are
    parts of it and ``psys`` contains it, so only packages are added up.

    Args:
        root: ``/``, below which the kernel's files are looked for.
        clock: returns nanoseconds.
    """

    def __init__(
        self, *, root: Path = Path("/"), clock: Callable[[], int] = time.perf_counter_ns
    ) -> None:
        self._counters: dict[Path, _EnergyCounter] = {}  # by file
        # Only packages count: other zones are parts of a package, or contain packages. The files
        # are reserved for root on most systems. If one of the packages cannot be read, none is: a
        # part of the energy would be taken for the whole.
        with suppress(OSError, ValueError):
            self._counters = {
                file: _EnergyCounter(
                    last_uj=_read_number(file),
                    range_uj=_read_number(file.with_name("max_energy_range_uj")),
                )
                for file in root.glob("sys/class/powercap/intel-rapl:*/energy_uj")
                if file.with_name("name").read_text().startswith("package")
            }
        self._clock = clock
        self._last_ns = clock()
        self._used_uj = 0

    @property
    def is_readable(self) -> bool:
        """Tell whether there are counters that this process may read."""
        return bool(self._counters)

    def read(self) -> dict[str, Any]:
        """Return the joules that all packages have used since this object was made.

        It is called only if ``is_readable``.

        Raises:
            MonitorFault: a counter cannot be read this time; or it may have wrapped more than once,
                so that the sum would be too small: then it is never read again.
        """
        now_ns = self._clock()
        since_s = (now_ns - self._last_ns) / 1e9
        try:
            values_uj = {file: _read_number(file) for file in self._counters}
        except (OSError, ValueError) as error:
            raise MonitorFault("failed", f"RAPL: {error}") from error
        # If a package may have used more than its counter's range, the counter may have wrapped
        # more than once.
        max_used_uj = since_s * _MAX_PACKAGE_W * 1e6
        if max_used_uj > min(counter.range_uj for counter in self._counters.values()):
            self._counters = {}  # so that ``is_readable`` is False from now on
            raise MonitorFault(
                "failed", f"RAPL: not read for {since_s:.0f} s; the counter may have wrapped"
            )
        for file, value_uj in values_uj.items():
            counter = self._counters[file]
            difference_uj = value_uj - counter.last_uj
            if difference_uj < 0:  # the counter has wrapped once
                difference_uj += counter.range_uj
            self._used_uj += difference_uj
            self._counters[file] = counter._replace(last_uj=value_uj)
        self._last_ns = now_ns
        return {"energy_j": self._used_uj / 1e6}


def _read_number(file: Path) -> int:
    return int(file.read_text())


def has_ipmi(root: Path = Path("/")) -> bool:
    """Tell whether this process can ask the machine's management controller."""
    return shutil.which(IPMI_COMMAND[0]) is not None and any(
        os.access(root / node, os.R_OK | os.W_OK) for node in _IPMI_NODES
    )


def read_node_power_w() -> float:
    """Return the power of the whole machine in watts, from its management controller.

    Raises:
        MonitorFault: no answer, or one without a power.
    """
    match = _WATTS.search(tool.run_tool(IPMI_COMMAND, timeout_s=_IPMI_TIMEOUT_S))
    watts = float(match[1]) if match else 0.0
    if watts <= 0:  # a controller that measures no power answers 0
        raise MonitorFault("unreadable", "ipmitool: no power in the output")
    return watts


class HostReader:
    """Reads what can be read of this machine; the node's power is read in another thread.

    Attributes:
        has_ipmi: whether this process can ask the machine's management controller.
        sources: names of the sources that can be read.
    """

    def __init__(
        self, *, root: Path = Path("/"), clock: Callable[[], int] = time.perf_counter_ns
    ) -> None:
        self._energy = PackageEnergy(root=root, clock=clock)
        self.has_ipmi = has_ipmi(root)
        self.sources = ["psutil"]
        if self._energy.is_readable:
            self.sources.append("rapl")
        if self.has_ipmi:
            self.sources.append("ipmi")
        self._clock = clock
        self._cpu_ns = clock()  # time of the last call of ``cpu_percent``
        psutil.cpu_percent()  # the next call returns the use since this one
        # The controller's answer that ``read`` has not returned yet; None: there is none.
        self._node_power_w: float | None = None

    def ask_controller(self) -> None:
        """Read the node's power from its controller, for the next call of ``read``."""
        self._node_power_w = read_node_power_w()

    def read(self, catch_faults: Callable[[str], AbstractContextManager[None]]) -> dict[str, Any]:
        """Return what could be read now.

        The baseboard controller (BMC) is asked for the power of the node by another thread; each of
        its answers is returned once.

        Args:
            catch_faults: returns, for the name of a source, a context in which it is read. The
                context reports what its block raises, and suppresses it.
        """
        readings: dict[str, Any] = {}
        with catch_faults("host"):
            readings["memory_used_bytes"] = psutil.virtual_memory().used
            now_ns = self._clock()
            if now_ns - self._cpu_ns >= _MIN_CPU_S * 1e9:  # over less time it means nothing
                readings["utilization_percent"] = psutil.cpu_percent()
                self._cpu_ns = now_ns
        if self._energy.is_readable:
            with catch_faults("rapl"):
                readings |= self._energy.read()
        # Another thread sets it when the controller answers. It is reset here, so that an old
        # answer is not reported again as a new one.
        watts = self._node_power_w
        self._node_power_w = None
        if watts is not None:
            readings["power_w"] = watts
        return readings
