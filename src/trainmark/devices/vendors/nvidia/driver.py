"""What NVIDIA's driver tells of the cards here: names, memory, MIG slices, processes. No torch.

Asks the management library, which is there with the extra ``nvidia``; without it the driver's
files, which tell less.
"""

from __future__ import annotations

import ctypes
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainmark.devices.vendors.nvidia.nvml import errors, library, memory, size, text, told
from trainmark.protocols import MonitorFault, Occupant

if TYPE_CHECKING:
    from collections.abc import Iterator

PROC = Path("/proc/driver/nvidia")
DEVICE_NODES = Path("/dev")
PCI = Path("/sys/bus/pci/devices")
LIBRARY = "libcuda.so.1"
_NAME_LENGTH = 60  # of a process; the rest of a longer name says nothing


@dataclass(frozen=True, slots=True)
class Card:
    """A card, or a slice of one; what cannot be found out is None.

    Args:
        free_bytes: memory that no process holds.
        used_bytes: memory that processes hold, without what the driver reserves.
        processes: without the name of the card.
        slices: of a card in MIG mode; None: it is in no such mode, or is a slice itself.
        bus: address on the PCI bus, as the kernel writes it: ``0000:41:00.0``.
    """

    name: str = "unknown"
    uuid: str | None = None
    total_bytes: int | None = None
    free_bytes: int | None = None
    used_bytes: int | None = None
    processes: tuple[Occupant, ...] = ()
    slices: tuple[Card, ...] | None = None
    is_slice: bool = False
    bus: str | None = None


def cards() -> list[Card]:
    """Return the cards of this machine, whatever ``CUDA_VISIBLE_DEVICES`` says."""
    return (_managed() or _listed()) if loaded() else []


def loaded() -> bool:
    """Tell whether NVIDIA's own driver is here: others' cards come with libraries of its names.

    ``dxg`` is the driver's device in Windows' subsystem for Linux, ``nvgpu`` on Jetson boards.
    """
    nodes = ("nvidia[0-9]*", "dxg", "nvgpu")
    return PROC.is_dir() or any(True for name in nodes for _ in DEVICE_NODES.glob(name))


def _listed() -> list[Card]:
    gpus = PROC / "gpus"
    if gpus.is_dir():
        return [_described(gpu / "information") for gpu in sorted(gpus.iterdir())]
    return [Card() for _ in DEVICE_NODES.glob("nvidia[0-9]*")]


def _described(information: Path) -> Card:
    bus = information.parent.name
    try:
        lines = information.read_text().splitlines()
    except OSError:
        return Card(bus=bus)  # not for this user, or the card is being removed
    found = {}
    for line in lines:
        name, _, value = line.partition(":")
        found[name.strip()] = value.strip()
    uuid = found.get("GPU UUID", "")
    # An unknown one is printed as GPU-????????-…
    known = uuid if uuid and "?" not in uuid else None
    return Card(found.get("Model", "unknown"), known, bus=bus)


def _managed() -> list[Card]:
    """Return what the management library tells; nothing without the library or its driver."""
    try:
        nvml = library()
    except MonitorFault:
        return []
    try:
        return [
            _card(nvml, nvml.nvmlDeviceGetHandleByIndex(index))
            for index in range(nvml.nvmlDeviceGetCount())
        ]
    except errors(nvml):
        return []  # a card is lost, for instance: the driver's files still name it


def _card(nvml: Any, handle: Any) -> Card:
    card = _read(nvml, handle)
    mode = told(nvml, nvml.nvmlDeviceGetMigMode, handle)  # current and pending
    if mode is None or mode[0] == 0:
        return card
    most = told(nvml, nvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0
    handles = (told(nvml, nvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, i) for i in range(most))
    slices = (_read(nvml, item) for item in handles if item is not None)
    return replace(
        card,
        slices=tuple(
            # A slice must never be taken for the whole card, which has another peak.
            replace(one, is_slice=True, name=one.name if "MIG" in one.name else f"{one.name} MIG")
            for one in slices
        ),
    )


def _read(nvml: Any, handle: Any) -> Card:
    name = text(told(nvml, nvml.nvmlDeviceGetName, handle))
    uuid = text(told(nvml, nvml.nvmlDeviceGetUUID, handle))
    total, free, used, without_reserve = memory(nvml, handle)
    place = told(nvml, nvml.nvmlDeviceGetPciInfo, handle)
    bus = text(place.busId) if place is not None else None  # 00000000:41:00.0
    return Card(
        name=name or "unknown",
        uuid=uuid,
        total_bytes=total,
        free_bytes=free,
        used_bytes=used if without_reserve else None,
        processes=tuple(_processes(nvml, handle)),
        bus=bus[-12:].lower() if bus else None,
    )


def _processes(nvml: Any, handle: Any) -> Iterator[Occupant]:
    seen = set()
    for ask, computes in (
        (nvml.nvmlDeviceGetComputeRunningProcesses, True),
        (nvml.nvmlDeviceGetGraphicsRunningProcesses, False),
    ):
        for found in told(nvml, ask, handle) or ():
            if found.pid not in seen:  # one that computes and draws is in both lists
                seen.add(found.pid)
                name = text(told(nvml, nvml.nvmlSystemGetProcessName, found.pid))
                short = name.rsplit("/", 1)[-1][:_NAME_LENGTH] if name else "a process"
                said = f"{short} (process {found.pid})"
                yield Occupant("", said, size(found.usedGpuMemory), computes)


def supported_cuda() -> tuple[int, int] | None:
    """Return the newest CUDA that the driver runs, as (major, minor); None if it does not tell.

    Asks the driver's own library, the one torch loads: a package for forward compatibility
    replaces it and supports more than the kernel module's version says.
    """
    version = ctypes.c_int(0)
    try:
        failed = ctypes.CDLL(LIBRARY).cuDriverGetVersion(ctypes.byref(version))
    except (OSError, AttributeError):
        return None
    return None if failed else (version.value // 1000, version.value % 1000 // 10)


def driver_version() -> str | None:
    """Return the version of the kernel module."""
    file = PROC / "version"
    if not file.exists():
        return None
    found = re.search(r"(\d+\.\d+(?:\.\d+)?)", file.read_text())
    return found.group(1) if found else None
