"""Readings of the machine beside its devices: processor, memory, energy of packages, node power.

What cannot be read here is left out, never 0. Nothing needs root: where the system reserves a
counter for root, it is not read.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
# A counter's range is 262 kJ on common processors. No package has used as much as this: so a
# counter that is read in time has wrapped once at most.
_MAX_PACKAGE_W = 2_000
_MIN_CPU_S = 0.1  # https://psutil.readthedocs.io/en/latest/#psutil.cpu_percent, 2026-11-22


class PackageEnergy:
    """Energy of the processors' packages by the kernel's RAPL counters, Intel's and AMD's.

    https://docs.kernel.org/power/powercap/powercap.html, 2026-11-22. Zones below a package are
    parts of it and ``psys`` contains it, so only packages are added up.

    Args:
        root: ``/``, below which the kernel's files are looked for.
    """

    def __init__(
        self, *, root: Path = Path("/"), clock: Callable[[], int] = time.perf_counter_ns
    ) -> None:
        self._counters: dict[Path, tuple[int, int]] = {}  # last value and range, in microjoules
        # Reserved for root on most systems. All packages or none: a part would pass for the whole.
        with suppress(OSError, ValueError):
            self._counters = {
                counter: (
                    _read_number(counter),
                    _read_number(counter.with_name("max_energy_range_uj")),
                )
                for counter in root.glob("sys/class/powercap/intel-rapl:*/energy_uj")
                if counter.with_name("name").read_text().startswith("package")
            }
        self._clock = clock
        self._last_ns = clock()
        self._used_uj = 0

    def __bool__(self) -> bool:
        return bool(self._counters)

    def read(self) -> dict[str, Any]:
        """Return the joules of all packages since the beginning.

        Raises:
            MonitorFault: a counter cannot be read this time, or may have wrapped unseen: the sum
                would then fall short, so nothing is told from then on.
        """
        now_ns = self._clock()
        since_s = (now_ns - self._last_ns) / 1e9
        try:
            now = {counter: _read_number(counter) for counter in self._counters}
        except (OSError, ValueError) as error:
            raise MonitorFault("failed", f"RAPL: {error}") from error
        if since_s * _MAX_PACKAGE_W * 1e6 > min(
            max_value for _, max_value in self._counters.values()
        ):
            self._counters = {}
            raise MonitorFault(
                "failed", f"RAPL: not read for {since_s:.0f} s, the counter may have wrapped"
            )
        for counter, value in now.items():
            last, range_uj = self._counters[counter]
            self._used_uj += value - last if value >= last else value - last + range_uj
            self._counters[counter] = value, range_uj
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
    """All that can be read of this machine; node power is asked for in another thread."""

    def __init__(
        self, *, root: Path = Path("/"), clock: Callable[[], int] = time.perf_counter_ns
    ) -> None:
        self._energy = PackageEnergy(root=root, clock=clock)
        self.has_ipmi = has_ipmi(root)
        self.sources = ["psutil"]
        if self._energy:
            self.sources.append("rapl")
        if self.has_ipmi:
            self.sources.append("ipmi")
        self._clock = clock
        self._cpu_ns = clock()  # since when the next use of the processor counts
        psutil.cpu_percent()
        self._node_power_w: float | None = None

    def ask_controller(self) -> None:
        """Keep the node's power for the next reading."""
        self._node_power_w = read_node_power_w()

    def read(self, catch_faults: Callable[[str], AbstractContextManager[None]]) -> dict[str, Any]:
        """Return what could be read now; each new power of the node once.

        Args:
            catch_faults: called with the source that is read; reports what the block raises.
        """
        readings: dict[str, Any] = {}
        with catch_faults("host"):
            readings["memory_used_bytes"] = psutil.virtual_memory().used
            now_ns = self._clock()
            if now_ns - self._cpu_ns >= _MIN_CPU_S * 1e9:
                readings["utilization_percent"] = psutil.cpu_percent()  # since the last call
                self._cpu_ns = now_ns
        if self._energy:
            with catch_faults("rapl"):
                readings |= self._energy.read()
        watts = self._node_power_w
        self._node_power_w = None
        if watts is not None:
            readings["power_w"] = watts
        return readings
