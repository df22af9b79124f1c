"""Machines for ``trainmark doctor``: files of a sound one below a folder, and readings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fakes import FakeVendor
from trainmark.doctor.subject import Subject
from trainmark.launch.processes import CpuUse
from trainmark.protocols import Condition, DeviceSample, MonitorFault, Occupant, Refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

GIB = 2**30
CPU = "sys/devices/system/cpu"
CLOCK = "sys/devices/system/clocksource/clocksource0"
FILES = {
    "proc/meminfo": "MemTotal: 67108864 kB\nMemAvailable: 33554432 kB\n"
    "SwapTotal: 8388608 kB\nSwapFree: 8388608 kB\nHugePages_Total: 0\n",
    "proc/loadavg": "0.10 0.20 0.30 1/100 4242\n",
    "proc/sys/vm/swappiness": "60\n",
    "proc/sys/net/ipv4/ip_local_port_range": "32768\t60999\n",
    **{f"{CPU}/cpu{core}/cpufreq/scaling_governor": "performance\n" for core in range(4)},
    f"{CLOCK}/current_clocksource": "tsc\n",
    f"{CLOCK}/available_clocksource": "tsc hpet acpi_pm\n",
    "sys/devices/system/node/node0/cpulist": "0-3\n",
    "sys/devices/system/node/node1/cpulist": "4-7\n",
}


def write_files(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def cpu_use(busy_s: float) -> Callable[[], CpuUse]:
    """Return readings ten seconds of all cores apart, ``busy_s`` of them busy."""
    readings = iter([CpuUse(0.0, 0.0, 0.0), CpuUse(busy_s, 10.0, 0.0)])
    return lambda: next(readings)


def machine(root: Path, files: dict[str, str] | None = None, **readings: Any) -> Subject:
    """Return a sound machine of four cores, with what a test replaces."""
    write_files(root, FILES | (files or {}))
    sound: dict[str, Any] = {
        "out": root / "runs",
        "vendor": Card(),
        "nproc": 2,
        "root": root,
        "variables": {},
        "affinity": frozenset(range(4)),
        "cpu_use": cpu_use(0.5),
        "sleep": lambda _: None,
        "free_bytes": lambda _: 100 * GIB,
        "limit": lambda _: (65_536, 1_048_576),
        "runs": dict,
        "addresses": lambda: frozenset({"127.0.0.1"}),
        "tool": lambda *_, **__: '{"what": "torch 2.13 opened it", "refused": {}}\n',
    }
    return Subject(**(sound | readings))


def only(found: Iterator[Condition]) -> Condition:
    (one,) = found
    return one


@dataclass
class Card(FakeVendor):
    """Two accelerators whose state, users and monitor a test chooses."""

    states: tuple[Condition, ...] = ()
    users: tuple[Occupant, ...] = ()
    refusal: Refusal | None = None
    refused: tuple[str, ...] = ()
    node: int | None = 0
    reads: int | str | None = 2  # devices; a fault's kind; None: no monitor
    pci_vendor: int = 0x1FFF

    def conditions(self, nproc: int) -> tuple[Condition, ...]:
        return self.states

    def unusable(self) -> Refusal | None:
        return self.refusal

    def occupants(self, nproc: int) -> list[Occupant]:
        return list(self.users)

    def numa_node(self, local_rank: int) -> int | None:
        return self.node

    def refuse(self, recipe: Any, nproc: int) -> Refusal | None:
        refused = recipe.precision in self.refused
        return Refusal(f"no units for {recipe.precision}", "another one") if refused else None

    def monitor(self) -> Any:
        return None if self.reads is None else Reader(self.reads)


@dataclass
class Reader:
    """A monitor of so many devices, or one that fails."""

    answers: int | str
    name: str = "card-smi 1.0"
    closed: bool = False

    def read(self) -> list[DeviceSample]:
        if isinstance(self.answers, str):
            raise MonitorFault(self.answers, "no answer")  # type: ignore[arg-type]
        return [DeviceSample(index=index) for index in range(self.answers)]

    def close(self) -> None:
        self.closed = True
