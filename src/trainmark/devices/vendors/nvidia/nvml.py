"""Ask NVIDIA's management library (NVML), which the extra ``nvidia`` installs. No torch.

Any answer may be missing on some card or driver, and is None then. Cards are found by UUID or bus
address, because the library's order is not that of the visible devices. In all functions, ``nvml``
is the module ``pynvml``, and ``handle`` is the library's object for a card or slice.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from trainmark.protocols import DeviceSample, DeviceSettings, MonitorFault, Occupant

if TYPE_CHECKING:
    from collections.abc import Callable

    from trainmark.devices.vendors.nvidia.driver import Card

_MAX_NAME_LENGTH = 60  # of a process; longer names are cut
# NVML's codes for "not available" are larger than this, as unsigned numbers.
_MAX_SIZE_BYTES = 2**63 - 1
# Quantities of a card: the library's function, names of its further arguments, unit of its answer.
# https://docs.nvidia.com/deploy/nvml-api/group__nvmlDeviceQueries.html
_NUMBERS: dict[str, tuple[str, tuple[str, ...], float]] = {
    "clock_mhz": ("nvmlDeviceGetClockInfo", ("NVML_CLOCK_SM",), 1),
    "power_w": ("nvmlDeviceGetPowerUsage", (), 1e-3),
    "temperature_c": ("nvmlDeviceGetTemperature", ("NVML_TEMPERATURE_GPU",), 1),
    "energy_j": ("nvmlDeviceGetTotalEnergyConsumption", (), 1e-3),
}
# Fields of a card that count errors on its links to other cards, and the counter of a
# `DeviceSample` to which each is added:
# https://docs.nvidia.com/deploy/nvml-api/group__nvmlFieldValueEnums.html, 2026-11-28
_LINK_FIELDS = {
    "NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL": "link_replays",
    "NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL": "link_errors",
    "NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL": "link_errors",
    "NVML_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL": "link_errors",
}
# The member of a field's value that holds it, by the number of its type; those of counts:
# https://docs.nvidia.com/deploy/nvml-api/group__nvmlDeviceStructs.html, 2026-11-28
_MEMBER_BY_TYPE = {1: "uiVal", 2: "ulVal", 3: "ullVal"}
_MAX_FAULTS_AT_ONCE = 100  # read in one call
# Bits of the reasons for lowered clocks:
# https://docs.nvidia.com/deploy/nvml-api/group__nvmlClocksEventReasons.html, 2026-11-22
_IDLE = 0x1  # not reported: an idle card needs no high clocks
_REASON_BY_BIT = {
    0x2: "set_clocks", 0x4: "power_cap", 0x8: "hardware_slowdown", 0x10: "sync_boost",
    0x20: "thermal", 0x40: "hardware_thermal", 0x80: "power_brake", 0x100: "display_clocks",
}  # fmt: skip


def load_library() -> Any:
    """Return the module of the management library, initialized.

    It is initialized only once in a process, because that can take seconds.

    Raises:
        MonitorFault: it or its driver is missing.
    """
    try:
        import pynvml
    except ImportError:
        raise MonitorFault("absent", "nvidia-ml-py is not installed") from None
    try:
        _initialize(pynvml)
    except list_error_classes(pynvml) as error:
        raise MonitorFault("absent", f"nvml: {error}") from error
    return pynvml


@cache
def _initialize(nvml: Any) -> None:
    nvml.nvmlInit()


def ask_or_none(nvml: Any, ask: Callable[..., Any], *args: Any) -> Any:
    """Call a function of the library; None if this card, driver or container gives no answer.

    Args:
        nvml: the module ``pynvml``.
        ask: the function.
        args: its arguments.
    """
    try:
        return ask(*args)
    except list_error_classes(nvml):
        return None


def list_error_classes(nvml: Any) -> tuple[type[Exception], ...]:
    """Return the exceptions that a call of the library may raise.

    ``NVMLLibraryMismatchError`` is no subclass of ``NVMLError``. It means that the driver is older
    than ``pynvml`` and lacks the version of a function that ``pynvml`` calls.
    """
    return (nvml.NVMLError, nvml.NVMLLibraryMismatchError, OSError, UnicodeDecodeError)


def read_numbers(nvml: Any, handle: Any) -> dict[str, float | None]:
    """Return the quantities of ``_NUMBERS`` by name; None for one that the card does not report."""
    values = {}
    # unit: of the library's answer, as a multiple of the unit in `name`: 1e-3 for mW, for example.
    for name, (function_name, argument_names, unit) in _NUMBERS.items():
        arguments = [getattr(nvml, argument_name) for argument_name in argument_names]
        value = ask_or_none(nvml, getattr(nvml, function_name), handle, *arguments)
        values[name] = None if value is None else value * unit
    return values


def drop_invalid_size(value: Any, max_bytes: int = _MAX_SIZE_BYTES) -> int | None:
    """Return a size in bytes; None if it is impossible, or NVML's code for "not available"."""
    return value if isinstance(value, int) and 0 <= value <= max_bytes else None


class CardMemory(NamedTuple):
    """The memory of a card in bytes; None: not reported."""

    total_bytes: int | None
    free_bytes: int | None
    used_bytes: int | None


def read_memory(nvml: Any, handle: Any) -> CardMemory:
    """Return the memory of a card; a size that is not reported or impossible is None."""
    # The second version of the function, from driver 510 on, does not count as used what the driver
    # reserves. An older driver gives no answer to it.
    info = ask_or_none(nvml, nvml.nvmlDeviceGetMemoryInfo, handle, nvml.nvmlMemory_v2)
    if info is None:
        info = ask_or_none(nvml, nvml.nvmlDeviceGetMemoryInfo, handle)
    total_bytes = None if info is None else drop_invalid_size(info.total)
    if not total_bytes:
        return CardMemory(total_bytes=None, free_bytes=None, used_bytes=None)
    return CardMemory(
        total_bytes=total_bytes,
        free_bytes=drop_invalid_size(info.free, total_bytes),
        used_bytes=drop_invalid_size(info.used, total_bytes),
    )


def _open_card(uuid: str) -> tuple[Any, Any]:
    """Return the library and its handle of a card, or of a slice (MIG) of a card.

    Both are None if there is no library; only the handle is None if the library does not know it.
    """
    try:
        nvml = load_library()
    except MonitorFault:
        return None, None
    return nvml, ask_or_none(nvml, nvml.nvmlDeviceGetHandleByUUID, uuid)


def _open_whole_card(bus: str) -> tuple[Any, Any]:
    """Return the library and its handle of the card with a PCI address.

    Both are None if there is no library; only the handle is None if the library does not know it.
    A slice (MIG) has the address of its card, so this opens the card and not the slice.
    """
    try:
        nvml = load_library()
    except MonitorFault:
        return None, None
    return nvml, ask_or_none(nvml, nvml.nvmlDeviceGetHandleByPciBusId, bus)


def read_free_bytes(card: Card) -> int | None:
    """Return the memory of a card or slice that no process holds; None: unknown."""
    nvml, handle = _open_card(card.uuid)
    return None if handle is None else read_memory(nvml, handle).free_bytes


def list_occupants(card: Card) -> list[Occupant]:
    """Return the processes on a card; inside a container only the container's own."""
    nvml, handle = _open_card(card.uuid)
    if handle is None:
        return []
    occupants: dict[int, Occupant] = {}  # by process id
    for list_processes, computes in (
        (nvml.nvmlDeviceGetComputeRunningProcesses, True),
        (nvml.nvmlDeviceGetGraphicsRunningProcesses, False),
    ):
        for process in ask_or_none(nvml, list_processes, handle) or ():
            if process.pid in occupants:
                continue  # one that both computes and draws is in both lists
            path = ask_or_none(nvml, nvml.nvmlSystemGetProcessName, process.pid) or "a process"
            name = path.rsplit("/", 1)[-1][:_MAX_NAME_LENGTH]
            occupants[process.pid] = Occupant(
                device=card.name,
                process=f"{name} (process {process.pid})",
                used_bytes=drop_invalid_size(process.usedGpuMemory),
                computes=computes,  # False: it only draws
            )
    return list(occupants.values())


def read_settings(card: Card) -> DeviceSettings | None:
    """Return the settings of a card; None: NVML does not know it.

    If ``card`` is a slice (MIG), they are the settings of the whole card.
    """
    nvml, handle = _open_whole_card(card.bus)
    index = None if handle is None else ask_or_none(nvml, nvml.nvmlDeviceGetIndex, handle)
    if index is None:
        return None
    limit_mw = ask_or_none(nvml, nvml.nvmlDeviceGetPowerManagementLimit, handle)
    default_mw = ask_or_none(nvml, nvml.nvmlDeviceGetPowerManagementDefaultLimit, handle)
    persistence = ask_or_none(nvml, nvml.nvmlDeviceGetPersistenceMode, handle)
    # Each of the next two answers is a pair: the current mode, and that after the next reset.
    ecc = ask_or_none(nvml, nvml.nvmlDeviceGetEccMode, handle)
    partitioned = ask_or_none(nvml, nvml.nvmlDeviceGetMigMode, handle)
    return DeviceSettings(
        index=index,
        power_limit_w=None if limit_mw is None else limit_mw / 1000,
        default_power_limit_w=None if default_mw is None else default_mw / 1000,
        persistence=None if persistence is None else bool(persistence),
        ecc=None if ecc is None else bool(ecc[0]),
        partitioned=None if partitioned is None else bool(partitioned[0]),
    )


def find_index(card: Card) -> int | None:
    """Return NVML's number of a card; None: unknown.

    If ``card`` is a slice (MIG), it is the number of the whole card.
    """
    nvml, handle = _open_whole_card(card.bus)
    if handle is None:
        return None
    index: int | None = ask_or_none(nvml, nvml.nvmlDeviceGetIndex, handle)
    return index


def read_throttle_reasons(nvml: Any, handle: Any) -> tuple[str, ...] | None:
    """Return why a card's clocks are lowered now; empty: they are not; None: not reported.

    A reason that this program does not know is ``other``.
    """
    for name in ("EventReasons", "ThrottleReasons"):  # renamed with driver 535
        get_reasons = getattr(nvml, f"nvmlDeviceGetCurrentClocks{name}")
        mask = ask_or_none(nvml, get_reasons, handle)
        if mask is not None:
            reasons = [reason for bit, reason in _REASON_BY_BIT.items() if mask & bit]
            # The keys are single bits, so that their sum has all of them. The bit of an idle card
            # is known too, but it is not a reason to report.
            known_bits = sum(_REASON_BY_BIT) | _IDLE
            if mask & ~known_bits:
                reasons.append("other")
            return tuple(reasons)
    return None


def count_errors(nvml: Any, handle: Any) -> dict[str, int | None]:
    """Return the error counters of a card by name; None for one that it does not report.

    ``ecc_corrected`` and ``ecc_uncorrected`` count since the driver was loaded.
    """
    corrected = ask_or_none(
        nvml,
        nvml.nvmlDeviceGetTotalEccErrors,
        handle,
        nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED,
        nvml.NVML_VOLATILE_ECC,
    )
    uncorrected = ask_or_none(
        nvml,
        nvml.nvmlDeviceGetTotalEccErrors,
        handle,
        nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
        nvml.NVML_VOLATILE_ECC,
    )
    # The first two numbers: rows remapped after corrected and after uncorrected errors.
    rows = ask_or_none(nvml, nvml.nvmlDeviceGetRemappedRows, handle)
    counters: dict[str, int | None] = {
        "ecc_corrected": corrected,
        "ecc_uncorrected": uncorrected,
        "remapped_rows": None if rows is None else rows[0] + rows[1],
        "link_replays": ask_or_none(nvml, nvml.nvmlDeviceGetPcieReplayCounter, handle),
        "link_errors": None,
    }
    # Add NVLink's counters: its replays to those of PCIe, its errors to ``link_errors``. The table
    # has the name of each of NVLink's fields and, as its value, the key of `counters`.
    fields = [getattr(nvml, name) for name in _LINK_FIELDS]
    values = ask_or_none(nvml, nvml.nvmlDeviceGetFieldValues, handle, fields) or ()
    # Not strict, because `values` is empty if the card does not answer.
    for name, value in zip(_LINK_FIELDS.values(), values, strict=False):
        # `value.value` is a union: read the member of the value's type. None: it is not a count.
        member = _MEMBER_BY_TYPE.get(value.valueType)
        if value.nvmlReturn == 0 and member is not None:  # 0: the field was read
            counters[name] = (counters[name] or 0) + getattr(value.value, member)
    return counters


class FaultWatch:
    """Collect the faults (Xid) that the driver reports about one card from now on.

    The codes: https://docs.nvidia.com/deploy/xid-errors/, 2026-11-28.
    """

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml = nvml
        self._last_fault: str | None = None
        # The set of events that the driver fills; None: the driver reports no faults.
        self._events = ask_or_none(nvml, nvml.nvmlEventSetCreate)
        if self._events is None:
            return
        faults = nvml.nvmlEventTypeXidCriticalError
        try:
            nvml.nvmlDeviceRegisterEvents(handle, faults, self._events)
        except list_error_classes(nvml):
            self._events = None

    def read_last(self) -> str | None:
        """Return the last fault so far; None: there was none, or the driver reports no faults.

        A call reads at most ``_MAX_FAULTS_AT_ONCE`` waiting faults; the next call reads further.
        """
        if self._events is None:
            return None
        for _ in range(_MAX_FAULTS_AT_ONCE):
            # With a timeout of 0 ms it returns at once, even if there is no fault.
            event = ask_or_none(self._nvml, self._nvml.nvmlEventSetWait_v2, self._events, 0)
            if event is None:  # no further fault is waiting
                break
            # The event's data are the number of the kind of fault, which NVIDIA calls Xid.
            self._last_fault = f"Xid {event.eventData}"
        return self._last_fault


class NvmlMonitor:
    """Read all cards with the management library; see ``Monitor``.

    Raises:
        MonitorFault: it or its driver is missing.
    """

    def __init__(self) -> None:
        nvml = load_library()
        self._nvml = nvml
        version = ask_or_none(nvml, nvml.nvmlSystemGetNVMLVersion)
        self.name = f"nvml {version}" if version else "nvml"
        self._fault_watches: dict[int, FaultWatch] = {}  # by number of the card

    def read(self) -> list[DeviceSample]:
        """Return a reading of each card, without values if the card does not respond.

        Raises:
            MonitorFault: no card responds.
        """
        nvml = self._nvml
        count = ask_or_none(nvml, nvml.nvmlDeviceGetCount) or 0
        get_handle = nvml.nvmlDeviceGetHandleByIndex
        handles = [ask_or_none(nvml, get_handle, index) for index in range(count)]
        if all(handle is None for handle in handles):
            raise MonitorFault("failed", f"nvml: none of {count} cards responds")
        return [
            DeviceSample(index=index) if handle is None else self._read_card(handle, index)
            for index, handle in enumerate(handles)
        ]

    def _read_card(self, handle: Any, index: int) -> DeviceSample:
        """Return what a card reports now, and its last fault since the monitor was created.

        Args:
            index: the card's number in the library.
        """
        nvml = self._nvml
        if index not in self._fault_watches:
            self._fault_watches[index] = FaultWatch(nvml, handle)
        values = read_numbers(nvml, handle)
        counts = count_errors(nvml, handle)
        memory = read_memory(nvml, handle)
        rates = ask_or_none(nvml, nvml.nvmlDeviceGetUtilizationRates, handle)
        return DeviceSample(
            index=index,
            name=ask_or_none(nvml, nvml.nvmlDeviceGetName, handle),
            memory_used_bytes=memory.used_bytes,
            memory_total_bytes=memory.total_bytes,
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
            last_fault=self._fault_watches[index].read_last(),
        )

    def close(self) -> None:
        """Do nothing: the library stays open as long as the process."""
