"""Ask NVIDIA's management library, which is there with the extra ``nvidia``. No torch.

Owns how it is opened and what its answers mean: readings and processes. Each answer may be missing
on some card or driver. Cards are found by UUID or bus, because the library's order is not that of
the visible devices.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from trainmark.protocols import DeviceSample, DeviceSettings, MonitorFault, Occupant

if TYPE_CHECKING:
    from collections.abc import Callable

    from trainmark.devices.vendors.nvidia.driver import Card

_NAME_LENGTH = 60  # of a process; the rest of a longer name says nothing
_NO_SIZE = 2**63 - 1  # above it are NVML's words for "not available", as unsigned numbers
# Numbers of a card: the library's function, further arguments, unit of its answer.
# https://docs.nvidia.com/deploy/nvml-api/group__nvmlDeviceQueries.html
_NUMBERS: dict[str, tuple[str, tuple[str, ...], float]] = {
    "clock_mhz": ("nvmlDeviceGetClockInfo", ("NVML_CLOCK_SM",), 1),
    "power_w": ("nvmlDeviceGetPowerUsage", (), 1e-3),
    "temperature_c": ("nvmlDeviceGetTemperature", ("NVML_TEMPERATURE_GPU",), 1),
    "energy_j": ("nvmlDeviceGetTotalEnergyConsumption", (), 1e-3),
}
# Fields of a card that count errors on its links to other cards:
# https://docs.nvidia.com/deploy/nvml-api/group__nvmlFieldValueEnums.html, 2026-11-28
_LINK_FIELDS = {
    "NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL": "link_replays",
    "NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL": "link_errors",
    "NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL": "link_errors",
    "NVML_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL": "link_errors",
}
# Of a field's value, the member of each type that counts have:
# https://docs.nvidia.com/deploy/nvml-api/group__nvmlDeviceStructs.html, 2026-11-28
_MEMBERS = {1: "uiVal", 2: "ulVal", 3: "ullVal"}
_MAX_FAULTS_AT_ONCE = 100
# 1 says idle, which lowers clocks too and costs nothing:
# https://docs.nvidia.com/deploy/nvml-api/group__nvmlClocksEventReasons.html, 2026-11-22
_IDLE = 0x1
_REASONS = {
    0x2: "set_clocks", 0x4: "power_cap", 0x8: "hardware_slowdown", 0x10: "sync_boost",
    0x20: "thermal", 0x40: "hardware_thermal", 0x80: "power_brake", 0x100: "display_clocks",
}  # fmt: skip


def load_library() -> Any:
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
    except list_error_classes(pynvml) as error:
        raise MonitorFault("absent", f"nvml: {error}") from error
    return pynvml


@cache
def _open(nvml: Any) -> None:
    nvml.nvmlInit()


def answer(nvml: Any, ask: Callable[..., Any], *args: Any) -> Any:
    """Return an answer; None where this card, driver or container gives none."""
    try:
        return ask(*args)
    except list_error_classes(nvml):
        return None


def list_error_classes(nvml: Any) -> tuple[type[Exception], ...]:
    """Return what a call may raise; a class apart says that the driver is older than the library.

    Its call of an unversioned function then lacks the version that the driver has.
    """
    return (nvml.NVMLError, nvml.NVMLLibraryMismatchError, OSError, UnicodeDecodeError)


def read_numbers(nvml: Any, handle: Any) -> dict[str, float | None]:
    """Return numbers of a card by name; None for one that this library or card does not tell."""
    values = {}
    for name, (question, words, unit) in _NUMBERS.items():
        args = (getattr(nvml, word) for word in words)
        value = answer(nvml, getattr(nvml, question), handle, *args)
        values[name] = None if value is None else value * unit
    return values


def check_size(value: Any, most: int = _NO_SIZE) -> int | None:
    """Return a size in bytes; None for one that cannot be, NVML's "not available" among them."""
    return value if isinstance(value, int) and 0 <= value <= most else None


def read_memory(nvml: Any, handle: Any) -> tuple[int | None, int | None, int | None]:
    """Return a card's memory, the free and the used part."""
    # The second version tells apart what the driver reserves; it came with driver 510.
    info = answer(nvml, nvml.nvmlDeviceGetMemoryInfo, handle, nvml.nvmlMemory_v2)
    info = info or answer(nvml, nvml.nvmlDeviceGetMemoryInfo, handle)
    total = info and check_size(info.total)
    if not total:
        return None, None, None
    return total, check_size(info.free, total), check_size(info.used, total)


def _open_card(uuid: str) -> tuple[Any, Any]:
    """Return the library and its handle of a card or slice; None where there is none."""
    try:
        nvml = load_library()
    except MonitorFault:
        return None, None
    return nvml, answer(nvml, nvml.nvmlDeviceGetHandleByUUID, uuid)


def read_free_bytes(card: Card) -> int | None:
    """Return the memory of a card or slice that no process holds; None: unknown."""
    nvml, handle = _open_card(card.uuid)
    return None if handle is None else read_memory(nvml, handle)[1]


def list_occupants(card: Card) -> list[Occupant]:
    """Return the processes on a card; a container shows none of others."""
    nvml, handle = _open_card(card.uuid)
    if handle is None:
        return []
    occupants: dict[int, Occupant] = {}
    for ask, computes in (
        (nvml.nvmlDeviceGetComputeRunningProcesses, True),
        (nvml.nvmlDeviceGetGraphicsRunningProcesses, False),
    ):
        for process in answer(nvml, ask, handle) or ():
            name = answer(nvml, nvml.nvmlSystemGetProcessName, process.pid) or "a process"
            short = f"{name.rsplit('/', 1)[-1][:_NAME_LENGTH]} (process {process.pid})"
            # One that computes and draws is in both lists.
            occupants.setdefault(
                process.pid, Occupant(card.name, short, check_size(process.usedGpuMemory), computes)
            )
    return list(occupants.values())


def read_settings(card: Card) -> DeviceSettings | None:
    """Return how a card is set up, of a slice its card; None: the library does not know it."""
    try:
        nvml = load_library()
    except MonitorFault:
        return None
    handle = answer(nvml, nvml.nvmlDeviceGetHandleByPciBusId, card.bus.encode())
    index = None if handle is None else answer(nvml, nvml.nvmlDeviceGetIndex, handle)
    if index is None:
        return None
    limit_mw = answer(nvml, nvml.nvmlDeviceGetPowerManagementLimit, handle)
    default_mw = answer(nvml, nvml.nvmlDeviceGetPowerManagementDefaultLimit, handle)
    persistence = answer(nvml, nvml.nvmlDeviceGetPersistenceMode, handle)
    # Each of these two answers is a pair: the current mode, and that after the next reset.
    ecc = answer(nvml, nvml.nvmlDeviceGetEccMode, handle)
    partitioned = answer(nvml, nvml.nvmlDeviceGetMigMode, handle)
    return DeviceSettings(
        index=index,
        power_limit_w=None if limit_mw is None else limit_mw / 1000,
        default_power_limit_w=None if default_mw is None else default_mw / 1000,
        persistence=None if persistence is None else bool(persistence),
        ecc=None if ecc is None else bool(ecc[0]),
        partitioned=None if partitioned is None else bool(partitioned[0]),
    )


def find_index(card: Card) -> int | None:
    """Return the number that monitors give a card; of a slice its card's. None: unknown."""
    try:
        nvml = load_library()
    except MonitorFault:
        return None
    handle = answer(nvml, nvml.nvmlDeviceGetHandleByPciBusId, card.bus.encode())
    index: int | None = handle and answer(nvml, nvml.nvmlDeviceGetIndex, handle)
    return index


def read_throttle_reasons(nvml: Any, handle: Any) -> tuple[str, ...] | None:
    """Return why a card's clocks are lowered now, ``other`` for a newer one; None: not told."""
    for name in ("EventReasons", "ThrottleReasons"):  # renamed with driver 535
        ask = getattr(nvml, f"nvmlDeviceGetCurrentClocks{name}")
        if (mask := answer(nvml, ask, handle)) is not None:
            other = ["other"] if mask & ~(sum(_REASONS) | _IDLE) else []
            return (*(word for bit, word in _REASONS.items() if mask & bit), *other)
    return None


def count_errors(nvml: Any, handle: Any) -> dict[str, int | None]:
    """Return the error counters of a card by name; None for one that it does not report.

    Those of its memory count since the driver was loaded.
    """
    ask_ecc = nvml.nvmlDeviceGetTotalEccErrors
    kinds = (nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED)
    corrected, uncorrected = (
        answer(nvml, ask_ecc, handle, kind, nvml.NVML_VOLATILE_ECC) for kind in kinds
    )
    rows = answer(nvml, nvml.nvmlDeviceGetRemappedRows, handle)
    counters: dict[str, int | None] = {
        "ecc_corrected": corrected,
        "ecc_uncorrected": uncorrected,
        "remapped_rows": None if rows is None else rows[0] + rows[1],
        "link_replays": answer(nvml, nvml.nvmlDeviceGetPcieReplayCounter, handle),
        "link_errors": None,
    }
    fields = [getattr(nvml, name) for name in _LINK_FIELDS]
    values = answer(nvml, nvml.nvmlDeviceGetFieldValues, handle, fields) or ()
    for name, value in zip(_LINK_FIELDS.values(), values, strict=False):
        member = _MEMBERS.get(value.valueType)
        if value.nvmlReturn == 0 and member is not None:
            counters[name] = (counters[name] or 0) + getattr(value.value, member)
    return counters


class FaultWatch:
    """Collect the faults (Xid) that the driver reports of one card.

    The codes: https://docs.nvidia.com/deploy/xid-errors/, 2026-11-28.
    """

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml = nvml
        self._last: str | None = None
        self._events = answer(nvml, nvml.nvmlEventSetCreate)
        if self._events is None:
            return
        kind = nvml.nvmlEventTypeXidCriticalError
        try:
            nvml.nvmlDeviceRegisterEvents(handle, kind, self._events)
        except list_error_classes(nvml):
            self._events = None

    def last(self) -> str | None:
        """Return the last fault so far; None: there was none, or the driver reports none."""
        if self._events is None:
            return None
        for _ in range(_MAX_FAULTS_AT_ONCE):
            event = answer(self._nvml, self._nvml.nvmlEventSetWait_v2, self._events, 0)
            if event is None:  # none is waiting
                break
            self._last = f"Xid {event.eventData}"
        return self._last


class NvmlMonitor:
    """Read all cards with the management library; see ``Monitor``.

    Raises:
        MonitorFault: it or its driver is missing.
    """

    def __init__(self) -> None:
        self._nvml = nvml = load_library()
        version = answer(nvml, nvml.nvmlSystemGetNVMLVersion)
        self.name = f"nvml {version}" if version else "nvml"
        self._faults: dict[int, FaultWatch] = {}  # by number of the card

    def read(self) -> list[DeviceSample]:
        """Return each card; one that does not answer tells nothing; see ``Monitor.read``."""
        nvml = self._nvml
        count = answer(nvml, nvml.nvmlDeviceGetCount) or 0
        ask = nvml.nvmlDeviceGetHandleByIndex
        handles = [answer(nvml, ask, index) for index in range(count)]
        if handles.count(None) == count:
            raise MonitorFault("failed", f"nvml: none of {count} cards responds")
        return [
            DeviceSample(index=index) if handle is None else self._sample(handle, index)
            for index, handle in enumerate(handles)
        ]

    def _sample(self, handle: Any, index: int) -> DeviceSample:
        nvml = self._nvml
        if index not in self._faults:
            self._faults[index] = FaultWatch(nvml, handle)
        values = read_numbers(nvml, handle)
        counts = count_errors(nvml, handle)
        total, _, used = read_memory(nvml, handle)
        rates = answer(nvml, nvml.nvmlDeviceGetUtilizationRates, handle)
        return DeviceSample(
            index=index,
            name=answer(nvml, nvml.nvmlDeviceGetName, handle),
            memory_used_bytes=used,
            memory_total_bytes=total,
            utilization_percent=None if rates is None else float(rates.gpu),
            throttle_reasons=read_throttle_reasons(nvml, handle),
            clock_mhz=values["clock_mhz"],
            power_w=values["power_w"],
            temperature_c=values["temperature_c"],
            energy_j=values["energy_j"],
            ecc_corrected=counts["ecc_corrected"],
            ecc_uncorrected=counts["ecc_uncorrected"],
            remapped_rows=counts["remapped_rows"],
            link_replays=counts["link_replays"],
            link_errors=counts["link_errors"],
            last_fault=self._faults[index].last(),
        )

    def close(self) -> None:
        """Do nothing: the library stays open as long as the process."""
