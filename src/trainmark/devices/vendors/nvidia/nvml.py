"""Ask NVIDIA's management library, which is there with the extra ``nvidia``. No torch.

Owns how it is opened and what its answers mean; each may be missing on some card or driver. Cards
are found by UUID or bus, because the library's order is not that of the visible devices.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from trainmark.protocols import MonitorFault, Occupant

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from trainmark.devices.vendors.nvidia.driver import Card

_NAME_LENGTH = 60  # of a process; the rest of a longer name says nothing
# Less is what the driver itself leaves in use; a process that computes takes more for its context.
_UNSEEN_BYTES = 256 << 20
_NO_SIZE = 2**63 - 1  # above it are NVML's words for "not available", as unsigned numbers
# Numbers of a card: the library's function, further arguments, unit of its answer.
# https://docs.nvidia.com/deploy/nvml-api/group__nvmlDeviceQueries.html
_NUMBERS: dict[str, tuple[str, tuple[str, ...], float]] = {
    "sm_clock_mhz": ("nvmlDeviceGetClockInfo", ("NVML_CLOCK_SM",), 1),
    "sm_clock_max_mhz": ("nvmlDeviceGetMaxClockInfo", ("NVML_CLOCK_SM",), 1),
    "memory_clock_mhz": ("nvmlDeviceGetClockInfo", ("NVML_CLOCK_MEM",), 1),
    "memory_clock_max_mhz": ("nvmlDeviceGetMaxClockInfo", ("NVML_CLOCK_MEM",), 1),
    "power_w": ("nvmlDeviceGetPowerUsage", (), 1e-3),
    "power_limit_w": ("nvmlDeviceGetEnforcedPowerLimit", (), 1e-3),
    "temperature_c": ("nvmlDeviceGetTemperature", ("NVML_TEMPERATURE_GPU",), 1),
    "energy_j": ("nvmlDeviceGetTotalEnergyConsumption", (), 1e-3),
    "power_limit_default_w": ("nvmlDeviceGetPowerManagementDefaultLimit", (), 1e-3),
    "sm_clock_set_mhz": ("nvmlDeviceGetApplicationsClock", ("NVML_CLOCK_SM",), 1),
    "sm_clock_set_default_mhz": ("nvmlDeviceGetDefaultApplicationsClock", ("NVML_CLOCK_SM",), 1),
    "uncorrected_errors": (
        "nvmlDeviceGetTotalEccErrors",
        ("NVML_MEMORY_ERROR_TYPE_UNCORRECTED", "NVML_VOLATILE_ECC"),
        1,
    ),
}
CLOCKS = tuple(_NUMBERS)[:7]


def library() -> Any:
    """Return the management library, opened once for the process: that can take seconds.

    Raises:
        MonitorFault: it or its driver is missing.
    """
    try:
        import pynvml
    except ImportError:
        raise MonitorFault("absent", "nvidia-ml-py is not installed") from None
    try:
        _open(pynvml)
    except errors(pynvml) as error:
        raise MonitorFault("absent", f"nvml: {error}") from error
    return pynvml


@cache
def _open(nvml: Any) -> None:
    nvml.nvmlInit()


def answer(nvml: Any, ask: Callable[..., Any], *args: Any) -> Any:
    """Return an answer; None where this card, driver or container gives none."""
    try:
        return ask(*args)
    except errors(nvml):
        return None


def errors(nvml: Any) -> tuple[type[Exception], ...]:
    """Return what a call may raise; a class apart says that the driver is older than the library.

    Its call of an unversioned function then lacks the version that the driver has.
    """
    older = getattr(nvml, "NVMLLibraryMismatchError", nvml.NVMLError)
    return (nvml.NVMLError, older, OSError, UnicodeDecodeError)


def numbers(nvml: Any, handle: Any, names: Iterable[str]) -> dict[str, float | None]:
    """Return numbers of a card by name; None for one that this library or card does not tell."""
    found = {}
    for name in names:
        question, words, unit = _NUMBERS[name]
        ask = getattr(nvml, question, None)  # an older library lacks newer ones
        value = ask and answer(nvml, ask, handle, *(getattr(nvml, word) for word in words))
        found[name] = None if value is None else value * unit
    return found


def text(value: str | bytes | None) -> str | None:
    """Return a text; a library before version 11.5 answers in bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def size(value: Any, most: int = _NO_SIZE) -> int | None:
    """Return a size in bytes; None for one that cannot be, NVML's "not available" among them."""
    return value if isinstance(value, int) and 0 <= value <= most else None


def memory(nvml: Any, handle: Any) -> tuple[int | None, int | None, int | None, bool]:
    """Return a card's memory, the free and the used part, and if that is without the reserve."""
    # The second version tells apart what the driver reserves; it came with driver 510.
    newer = getattr(nvml, "nvmlMemory_v2", None)
    found = newer and answer(nvml, nvml.nvmlDeviceGetMemoryInfo, handle, newer)
    without_reserve = found is not None
    found = found or answer(nvml, nvml.nvmlDeviceGetMemoryInfo, handle)
    if found is None:
        return None, None, None, False
    total = size(found.total)
    if total is None:
        return None, None, None, False
    return total, size(found.free, total), size(found.used, total), without_reserve


def _opened(uuid: str) -> tuple[Any, Any]:
    """Return the library and its handle of a card or slice; None where there is none."""
    try:
        nvml = library()
    except MonitorFault:
        return None, None
    return nvml, answer(nvml, nvml.nvmlDeviceGetHandleByUUID, uuid)


def free_bytes(card: Card) -> int | None:
    """Return the memory of a card or slice that no process holds; None: unknown."""
    nvml, handle = _opened(card.uuid)
    return None if handle is None else memory(nvml, handle)[1]


def occupants(card: Card) -> list[Occupant]:
    """Return the processes on a card, among them one that only its memory shows."""
    nvml, handle = _opened(card.uuid)
    if handle is None:
        return []
    found: dict[int, Occupant] = {}
    for ask, computes in (
        (nvml.nvmlDeviceGetComputeRunningProcesses, True),
        (nvml.nvmlDeviceGetGraphicsRunningProcesses, False),
    ):
        for one in answer(nvml, ask, handle) or ():
            name = text(answer(nvml, nvml.nvmlSystemGetProcessName, one.pid)) or "a process"
            short = f"{name.rsplit('/', 1)[-1][:_NAME_LENGTH]} (process {one.pid})"
            # One that computes and draws is in both lists.
            found.setdefault(one.pid, Occupant(card.name, short, size(one.usedGpuMemory), computes))
    _, _, used, without_reserve = memory(nvml, handle)
    if not found and without_reserve and (used or 0) >= _UNSEEN_BYTES:
        # A container shows no processes of others, but their memory.
        return [Occupant(card.name, "a process that cannot be seen", used, True)]
    return list(found.values())


def place(card: Card) -> int | None:
    """Return the number that monitors give a card; of a slice its card's. None: unknown."""
    try:
        nvml = library()
    except MonitorFault:
        return None
    handle = answer(nvml, nvml.nvmlDeviceGetHandleByPciBusId, card.bus.encode())
    index: int | None = handle and answer(nvml, nvml.nvmlDeviceGetIndex, handle)
    return index


def clocks(uuid: str) -> dict[str, float | None]:
    """Return clocks, power and temperature of a card by name; None for what is not told.

    Args:
        uuid: of a whole card, ``GPU-...``: a slice has no clocks of its own.
    """
    nvml, handle = _opened(uuid)
    return dict.fromkeys(CLOCKS) if handle is None else numbers(nvml, handle, CLOCKS)
