"""What NVIDIA's driver tells of the cards here: names, memory, MIG slices, processes. No torch.

Asks the management library, which is there with the extra ``nvidia``; without it the driver's
files, which tell less.
"""

from __future__ import annotations

import ctypes
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PROC = Path("/proc/driver/nvidia")
DEVICE_NODES = Path("/dev")
LIBRARY = "libcuda.so.1"
_NO_SIZE = 2**63 - 1  # above it are NVML's words for "not available", as unsigned numbers
_NAME_LENGTH = 60  # of a process; the rest of a longer name says nothing
# Clocks and limits of a card: the library's function, further arguments, unit of its answer.
# https://docs.nvidia.com/deploy/nvml-api/group__nvmlDeviceQueries.html
_CLOCKS: dict[str, tuple[str, tuple[str, ...], float]] = {
    "sm_clock_mhz": ("nvmlDeviceGetClockInfo", ("NVML_CLOCK_SM",), 1),
    "sm_clock_max_mhz": ("nvmlDeviceGetMaxClockInfo", ("NVML_CLOCK_SM",), 1),
    "memory_clock_mhz": ("nvmlDeviceGetClockInfo", ("NVML_CLOCK_MEM",), 1),
    "memory_clock_max_mhz": ("nvmlDeviceGetMaxClockInfo", ("NVML_CLOCK_MEM",), 1),
    "power_w": ("nvmlDeviceGetPowerUsage", (), 1e-3),
    "power_limit_w": ("nvmlDeviceGetEnforcedPowerLimit", (), 1e-3),
    "temperature_c": ("nvmlDeviceGetTemperature", ("NVML_TEMPERATURE_GPU",), 1),
}


class Process(NamedTuple):
    """A process on a card.

    Args:
        name: without its folder; None if it cannot be found out, in a container for instance.
        used_bytes: of the card's memory; None if the driver does not tell.
        computes: it may run kernels; otherwise it draws only, as a desktop does.
    """

    pid: int
    name: str | None
    used_bytes: int | None
    computes: bool


@dataclass(frozen=True, slots=True)
class Card:
    """A card, or a slice of one; what cannot be found out is None.

    Args:
        free_bytes: memory that no process holds.
        used_bytes: memory that processes hold, without what the driver reserves.
        slices: of a card in MIG mode; None: it is in no such mode, or is a slice itself.
    """

    name: str = "unknown"
    uuid: str | None = None
    total_bytes: int | None = None
    free_bytes: int | None = None
    used_bytes: int | None = None
    processes: tuple[Process, ...] = ()
    slices: tuple[Card, ...] | None = None
    is_slice: bool = False


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
    told = {}
    try:
        lines = information.read_text().splitlines()
    except OSError:
        return Card()  # not for this user, or the card is being removed
    for line in lines:
        name, _, value = line.partition(":")
        told[name.strip()] = value.strip()
    uuid = told.get("GPU UUID", "")
    # An unknown one is printed as GPU-????????-…
    return Card(told.get("Model", "unknown"), uuid if uuid and "?" not in uuid else None)


def _managed() -> list[Card]:
    """Return what the management library tells; nothing without the library or its driver."""
    try:
        import pynvml
    except ImportError:
        return []
    try:
        pynvml.nvmlInit()
    except (pynvml.NVMLError, OSError):
        return []
    try:
        return [
            _card(pynvml, pynvml.nvmlDeviceGetHandleByIndex(index))
            for index in range(pynvml.nvmlDeviceGetCount())
        ]
    except (pynvml.NVMLError, OSError):
        return []  # a card is lost, for instance: the driver's files still name it
    finally:
        _told(pynvml, pynvml.nvmlShutdown)


def _told(nvml: Any, ask: Callable[..., Any], *args: Any) -> Any:
    """Return an answer; None where this card, driver or container gives none."""
    try:
        return ask(*args)
    except (nvml.NVMLError, OSError, UnicodeDecodeError):
        return None


def _text(answer: str | bytes | None) -> str | None:
    """Return a text; a library before version 11.5 answers in bytes."""
    return answer.decode(errors="replace") if isinstance(answer, bytes) else answer


def _size(answer: Any, most: int | None = None) -> int | None:
    """Return a size in bytes; None for one that cannot be, NVML's "not available" among them."""
    highest = _NO_SIZE if most is None else most
    return answer if isinstance(answer, int) and 0 <= answer <= highest else None


def _card(nvml: Any, handle: Any) -> Card:
    card = _read(nvml, handle)
    mode = _told(nvml, nvml.nvmlDeviceGetMigMode, handle)  # current and pending
    if mode is None or mode[0] == 0:
        return card
    most = _told(nvml, nvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0
    handles = (
        _told(nvml, nvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, i) for i in range(most)
    )
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
    name = _text(_told(nvml, nvml.nvmlDeviceGetName, handle))
    uuid = _text(_told(nvml, nvml.nvmlDeviceGetUUID, handle))
    # The second version tells apart what the driver reserves; it came with driver 510.
    newer = getattr(nvml, "nvmlMemory_v2", None)
    memory = newer and _told(nvml, nvml.nvmlDeviceGetMemoryInfo, handle, newer)
    without_reserve = memory is not None
    memory = memory or _told(nvml, nvml.nvmlDeviceGetMemoryInfo, handle)
    total = None if memory is None else _size(memory.total)
    return Card(
        name=name or "unknown",
        uuid=uuid,
        total_bytes=total,
        free_bytes=None if memory is None else _size(memory.free, total),
        used_bytes=_size(memory.used, total) if without_reserve else None,
        processes=tuple(_processes(nvml, handle)),
    )


def _processes(nvml: Any, handle: Any) -> Iterator[Process]:
    seen = set()
    for ask, computes in (
        (nvml.nvmlDeviceGetComputeRunningProcesses, True),
        (nvml.nvmlDeviceGetGraphicsRunningProcesses, False),
    ):
        for found in _told(nvml, ask, handle) or ():
            if found.pid not in seen:  # one that computes and draws is in both lists
                seen.add(found.pid)
                name = _text(_told(nvml, nvml.nvmlSystemGetProcessName, found.pid))
                short = name.rsplit("/", 1)[-1][:_NAME_LENGTH] if name else None
                yield Process(found.pid, short, _size(found.usedGpuMemory), computes)


def clocks(uuid: str) -> dict[str, float | None]:
    """Return clocks, power and temperature of a card by name; None for what is not told.

    Args:
        uuid: of a whole card, ``GPU-...``: a slice has no clocks of its own.
    """
    found: dict[str, float | None] = dict.fromkeys(_CLOCKS)
    try:
        import pynvml
    except ImportError:
        return found
    try:
        pynvml.nvmlInit()
    except (pynvml.NVMLError, OSError):
        return found
    try:
        handle = _told(pynvml, pynvml.nvmlDeviceGetHandleByUUID, uuid)
        for name, (question, words, unit) in _CLOCKS.items():
            if handle is not None:
                arguments = [getattr(pynvml, word) for word in words]
                value = _told(pynvml, getattr(pynvml, question), handle, *arguments)
                found[name] = None if value is None else value * unit
    finally:
        _told(pynvml, pynvml.nvmlShutdown)
    return found


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
