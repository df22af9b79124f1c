"""What NVIDIA's cards tell while they work: by the management library, or by ``nvidia-smi``.

Owns the words for why clocks are lowered, and the reading of ``nvidia-smi``'s tables.
"""

from __future__ import annotations

import csv
import re
from typing import TYPE_CHECKING, Any

from trainmark.devices import tool
from trainmark.devices.vendors.nvidia import nvml
from trainmark.protocols import DeviceSample, MonitorFault

if TYPE_CHECKING:
    from trainmark.protocols import Monitor

TOOL = "nvidia-smi"
# Bits of both sources; 1 says idle, which lowers clocks too and costs nothing:
# https://docs.nvidia.com/deploy/nvml-api/group__nvmlClocksEventReasons.html, 2026-11-22
_IDLE = 0x1
_REASONS = {
    0x2: "set_clocks",
    0x4: "power_cap",
    0x8: "hardware_slowdown",
    0x10: "sync_boost",
    0x20: "thermal",
    0x40: "hardware_thermal",
    0x80: "power_brake",
    0x100: "display_clocks",
}
# What is asked of nvidia-smi, by its names, the newer of a renamed one first.
_ASKED = (
    ("index",), ("name",), ("uuid",), ("temperature.gpu",), ("power.draw",), ("memory.used",),
    ("memory.total",), ("utilization.gpu",), ("clocks.current.sm",), ("clocks.current.memory",),
    ("clocks_event_reasons.active", "clocks_throttle_reasons.active"),
)  # fmt: skip
_MOST_CARDS = 1024


def open_monitor() -> Monitor:
    """Return the library's monitor or, where it is not installed, the tool's.

    Raises:
        MonitorFault: neither is there, or the driver does not answer.
    """
    try:
        return NvmlMonitor()
    except MonitorFault as library:
        try:
            return smi_monitor()
        except MonitorFault as fault:
            raise MonitorFault(fault.kind, f"{library.said}; {fault.said}") from None


def throttling(mask: int) -> tuple[str, ...]:
    """Return why clocks are lowered; a bit that has no name yet is ``other``."""
    known = sum(_REASONS) | _IDLE
    words = [word for bit, word in _REASONS.items() if mask & bit]
    return (*words, *(["other"] if mask & ~known else []))


class NvmlMonitor:
    """Read all cards with the management library; see ``Monitor``.

    Raises:
        MonitorFault: it or its driver is missing.
    """

    def __init__(self) -> None:
        self._nvml = pynvml = nvml.library()
        version = nvml.text(nvml.answer(pynvml, pynvml.nvmlSystemGetNVMLVersion))
        self.name = f"nvml {version}" if version else "nvml"

    def read(self) -> list[DeviceSample]:
        """Return each card; one that does not answer tells nothing; see ``Monitor.read``."""
        library = self._nvml
        try:
            count = library.nvmlDeviceGetCount()
        except nvml.errors(library) as error:
            raise MonitorFault("failed", f"nvml: {error}") from error
        handles = [
            nvml.answer(library, library.nvmlDeviceGetHandleByIndex, index)
            for index in range(count)
        ]
        if not any(handle is not None for handle in handles):
            raise MonitorFault("failed", f"nvml: none of {count} cards answers")
        return [
            DeviceSample(index=index) if handle is None else _sample(library, handle, index)
            for index, handle in enumerate(handles)
        ]

    def close(self) -> None:
        """Do nothing: the library stays open as long as the process."""


def reasons(library: Any, handle: Any) -> tuple[str, ...] | None:
    """Return why a card's clocks are lowered now; None if it does not tell."""
    # Renamed with driver 535; a library has both names or the older one.
    ask = getattr(library, "nvmlDeviceGetCurrentClocksEventReasons", None)
    mask = ask and nvml.answer(library, ask, handle)
    if mask is None:
        mask = nvml.answer(library, library.nvmlDeviceGetCurrentClocksThrottleReasons, handle)
    return None if mask is None else throttling(mask)


def _sample(library: Any, handle: Any, index: int) -> DeviceSample:
    found = nvml.numbers(library, handle, (
        "temperature_c", "power_w", "sm_clock_mhz", "memory_clock_mhz", "energy_j",
    ))  # fmt: skip
    total, _, used, _ = nvml.memory(library, handle)
    rates = nvml.answer(library, library.nvmlDeviceGetUtilizationRates, handle)
    return DeviceSample(
        index=index,
        name=nvml.text(nvml.answer(library, library.nvmlDeviceGetName, handle)),
        uuid=nvml.text(nvml.answer(library, library.nvmlDeviceGetUUID, handle)),
        temperature_c=found["temperature_c"],
        power_w=found["power_w"],
        memory_used_bytes=used,
        memory_total_bytes=total,
        utilization_percent=None if rates is None else float(rates.gpu),
        clock_mhz=found["sm_clock_mhz"],
        memory_clock_mhz=found["memory_clock_mhz"],
        throttle_reasons=reasons(library, handle),
        energy_j=found["energy_j"],
    )


def smi_monitor() -> Monitor:
    """Return a monitor that starts ``nvidia-smi`` for each reading; it tells no energy.

    Raises:
        MonitorFault: the tool is missing or does not answer.
    """
    fields = query_fields(tool.run((TOOL, "--help-query-gpu")))
    argv = (TOOL, f"--query-gpu={','.join(fields)}", "--format=csv")
    return tool.ToolMonitor(tool.Command(argv, parse))


def query_fields(help_text: str) -> list[str]:
    """Return what to ask a version of the tool, which ends with an error if it lacks one.

    Args:
        help_text: what it prints for ``--help-query-gpu``: each name in quotation marks.
    """
    known = set(re.findall(r'"([\w.]+)"', help_text))
    found = [next((name for name in names if name in known), None) for names in _ASKED]
    return [name for name in found if name is not None]


def parse(text: str) -> list[DeviceSample]:
    """Return the cards of a table with a header, whose names and units differ by version.

    Raises:
        MonitorFault: it is no such table.
    """
    try:
        rows = [row for row in csv.reader(text.splitlines(), skipinitialspace=True) if row]
    except csv.Error as error:
        raise MonitorFault("unreadable", f"{TOOL}: {error}") from error
    header = [title.partition(" [")[0].strip() for title in rows[0]] if rows else []
    for row in rows:
        if len(row) != len(header):
            raise MonitorFault("unreadable", f"{TOOL}: {', '.join(row)[:200]}")
    return [_card(dict(zip(header, row, strict=True))) for row in rows[1:]]


def _card(row: dict[str, str]) -> DeviceSample:
    index = tool.number(row.get("index"), most=_MOST_CARDS)
    if index is None:
        raise MonitorFault("unreadable", f"{TOOL}: no card's index in {', '.join(row)[:200]}")
    mask = next((row[name] for name in _ASKED[-1] if name in row), "")
    return DeviceSample(
        index=int(index),
        name=_text(row.get("name")),
        uuid=_text(row.get("uuid")),
        temperature_c=tool.temperature_c(row.get("temperature.gpu")),
        power_w=tool.number(row.get("power.draw")),
        memory_used_bytes=tool.size_bytes(row.get("memory.used"), unit="m"),
        memory_total_bytes=tool.size_bytes(row.get("memory.total"), unit="m"),
        utilization_percent=tool.percent(row.get("utilization.gpu")),
        clock_mhz=tool.number(row.get("clocks.current.sm")),
        memory_clock_mhz=tool.number(row.get("clocks.current.memory")),
        throttle_reasons=throttling(int(mask, 16)) if re.fullmatch("0x[0-9a-f]+", mask) else None,
    )


def _text(cell: str | None) -> str | None:
    """Return a name; None for words like ``[N/A]``."""
    return cell if cell and not cell.startswith("[") else None
