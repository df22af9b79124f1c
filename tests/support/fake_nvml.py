"""NVIDIA's management library and driver with given answers, in the form of the real ones.

The forms are those of nvidia-ml-py 13.615: handles are opaque, memory and processes are structures,
and what is not supported raises.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

GIB = 2**30
H100 = "NVIDIA H100 80GB HBM3"


class NVMLError(Exception):
    """Base class of the library's errors."""


class NVMLLibraryMismatchError(Exception):
    """The driver lacks the newest version of a function; no ``NVMLError`` in the real one too."""


@dataclass
class FakeCard:
    """A card or slice, which is also the handle of itself; None: a value that is not supported."""

    name: str = H100
    uuid: str = "GPU-11aa22bb-0000-0000-0000-000000000000"
    # Bytes of memory.
    total: int = 80 * GIB
    used: int = 0
    reserved: int = 0  # for the driver
    # Processes: bytes of memory by process id, None if the driver does not report them.
    computing: dict[int, int | None] = field(default_factory=dict)
    drawing: dict[int, int | None] = field(default_factory=dict)
    slices: list[FakeCard] | None = None  # of a card that is partitioned by MIG
    bus: str = ""  # address on the PCI bus; empty: ``put_cards`` chooses one
    events: int = 0  # the mask of nvmlClocksEventReasons
    energy_mj: int | None = 1_234_567
    busy_percent: int = 97
    lost: bool = False  # the card does not answer any more
    ecc: tuple[int, int] | None = (0, 0)  # corrected and uncorrected
    remapped: tuple[int, int] | None = (0, 0)
    pcie_replays: int | None = 0
    nvlink: tuple[int, int, int, int] | None = None  # replays, recoveries, two kinds of CRC errors
    power_limit_mw: int | None = 700_000
    persistence: int | None = 1
    ecc_mode: int | None = 1
    mig_mode: int | None = None  # not supported before Ampere
    xids: list[int] = field(default_factory=list)  # that the driver reports next


def make_nvml_library(
    *cards: FakeCard, names: dict[int, str] | None = None, old: bool = False
) -> ModuleType:
    """Return the library as a module.

    Args:
        names: of processes, by process id; all others have ended.
        old: a driver without the newer functions.

    A card is the handle of itself: functions that read a card get it as their argument. The three
    functions below that begin with ``_put_`` add further functions of the library to the module.
    """
    library: Any = ModuleType("pynvml")
    library.NVMLError = NVMLError
    library.NVMLLibraryMismatchError = NVMLLibraryMismatchError
    library.nvmlMemory_v2 = 0x02000028  # as the real library: version 2 of a structure of 40 bytes
    library.nvmlInit = library.nvmlShutdown = lambda: None
    library.nvmlSystemGetNVMLVersion = lambda: "11.515.65" if old else "13.580.65.06"
    library.nvmlDeviceGetName = lambda card: card.name
    library.nvmlDeviceGetUUID = lambda card: card.uuid
    _put_lookups(library, cards)
    _put_memory_and_processes(library, names or {}, old=old)
    _put_state(library, old=old)
    return library


def _put_lookups(library: Any, cards: tuple[FakeCard, ...]) -> None:
    """Add the functions that count and find the cards.

    A card is returned as the handle of itself. One that is ``lost`` does not answer any more, and
    ``slices`` are the parts of a card that is partitioned.
    """

    def find_by_index(index: int) -> FakeCard:
        if cards[index].lost:
            raise NVMLError("GPU is lost")
        return cards[index]

    def find_by_uuid(uuid: str) -> FakeCard:
        """Return the card or slice."""
        for card in cards:
            for candidate in (card, *(card.slices or ())):
                if candidate.uuid == uuid and not candidate.lost:
                    return candidate
        raise NVMLError("Not Found")

    def find_by_bus(bus: str) -> FakeCard:
        for card in cards:
            # Callers may leave out zeros at the beginning of the address, and write it lower case.
            if card.bus.lower().endswith(bus):
                return card
        raise NVMLError("Not Found")

    library.nvmlDeviceGetCount = lambda: len(cards)
    library.nvmlDeviceGetHandleByIndex = find_by_index
    library.nvmlDeviceGetHandleByUUID = find_by_uuid
    library.nvmlDeviceGetHandleByPciBusId = find_by_bus
    library.nvmlDeviceGetIndex = cards.index


def _put_memory_and_processes(library: Any, names: dict[int, str], *, old: bool) -> None:
    """Add the functions for memory and for the processes that use a card.

    Args:
        names: of processes, by process id; all others have ended.
        old: a driver without the newer functions.
    """

    def read_memory(card: FakeCard, version: int | None = None) -> SimpleNamespace:
        """Return the memory; only the newer version has what is reserved apart from the used."""
        free = card.total - card.used - card.reserved
        if version is None:
            return SimpleNamespace(total=card.total, free=free, used=card.used + card.reserved)
        if old:
            raise NVMLError("Function Not Found")
        assert version == library.nvmlMemory_v2
        return SimpleNamespace(
            total=card.total, free=free, used=card.used, reserved=card.reserved, version=version
        )

    def find_process_name(pid: int) -> str:
        if pid not in names:
            raise NVMLError("Not Found")
        return names[pid]

    def make_process_lister(field_name: str) -> Any:
        """Return the function that lists the processes of a field of the card."""
        return lambda card: [
            SimpleNamespace(pid=pid, usedGpuMemory=used)
            for pid, used in getattr(card, field_name).items()
        ]

    library.nvmlDeviceGetMemoryInfo = read_memory
    library.nvmlDeviceGetComputeRunningProcesses = make_process_lister("computing")
    library.nvmlDeviceGetGraphicsRunningProcesses = make_process_lister("drawing")
    library.nvmlSystemGetProcessName = find_process_name


def _put_state(library: Any, *, old: bool) -> None:
    """Add the functions for what a card reports of its state.

    Values are in the library's units: clocks in MHz (1755), power in mW (123,456). A field of the
    card that is None is not supported.

    Args:
        old: a driver without the newer functions.
    """

    def refuse_power(card: FakeCard) -> int:
        raise NVMLError("Not Supported")

    def require_supported(value: Any) -> Any:
        if value is None:
            raise NVMLError("Not Supported")
        return value

    library.NVML_CLOCK_SM, library.NVML_TEMPERATURE_GPU = 1, 0
    library.nvmlDeviceGetClockInfo = lambda card, kind: 1755
    library.nvmlDeviceGetPowerUsage = refuse_power if old else lambda card: 123_456
    # 41 degrees of the sensor NVML_TEMPERATURE_GPU, others of any other sensor.
    library.nvmlDeviceGetTemperature = lambda card, sensor: 41 + sensor
    library.nvmlDeviceGetTotalEnergyConsumption = lambda card: require_supported(card.energy_mj)
    library.nvmlDeviceGetUtilizationRates = lambda card: SimpleNamespace(
        gpu=card.busy_percent, memory=5
    )
    # An older driver has the older name alone.
    library.nvmlDeviceGetCurrentClocksThrottleReasons = lambda card: card.events
    library.nvmlDeviceGetCurrentClocksEventReasons = lambda card: require_supported(
        None if old else card.events
    )
    _put_error_counters_and_modes(library, require_supported)
    _put_link_counters(library, require_supported, old=old)
    _put_error_events(library)


def _put_error_counters_and_modes(library: Any, require_supported: Callable[[Any], Any]) -> None:
    """Add error counters, the power limits and the modes of a card.

    Args:
        require_supported: returns a value, or raises the library's error for None.
    """
    library.NVML_MEMORY_ERROR_TYPE_CORRECTED, library.NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 0, 1
    library.NVML_VOLATILE_ECC = 0

    def count_ecc_errors(card: FakeCard, kind: int, counter: int) -> int:
        # ``kind``: 0 for corrected errors and 1 for others, as the constants above. ``counter``:
        # those since the driver was loaded.
        counts: tuple[int, int] = require_supported(card.ecc)
        return counts[kind]

    library.nvmlDeviceGetTotalEccErrors = count_ecc_errors
    # Behind the rows: whether a remapping is pending, and whether one failed.
    library.nvmlDeviceGetRemappedRows = lambda card: (*require_supported(card.remapped), 0, 0)
    library.nvmlDeviceGetPcieReplayCounter = lambda card: require_supported(card.pcie_replays)
    library.nvmlDeviceGetPowerManagementLimit = lambda card: require_supported(card.power_limit_mw)
    library.nvmlDeviceGetPowerManagementDefaultLimit = lambda card: 700_000  # in mW
    library.nvmlDeviceGetPersistenceMode = lambda card: require_supported(card.persistence)
    # The current mode, and the one after the next start of the machine.
    library.nvmlDeviceGetEccMode = lambda card: [require_supported(card.ecc_mode), 0]
    library.nvmlDeviceGetMigMode = lambda card: [require_supported(card.mig_mode), 1]


def _put_link_counters(library: Any, require_supported: Callable[[Any], Any], *, old: bool) -> None:
    """Add the error counters of a card's links, which an older driver does not have.

    Args:
        require_supported: returns a value, or raises the library's error for None.
    """
    kinds = ("REPLAY", "RECOVERY", "CRC_FLIT", "CRC_DATA")
    for place, kind in enumerate(kinds):
        setattr(library, f"NVML_FI_DEV_NVLINK_{kind}_ERROR_COUNT_TOTAL", place)

    def read_fields(card: FakeCard, places: list[int]) -> list[SimpleNamespace]:
        """Return the counters of links at these places of ``kinds``."""
        counts = require_supported(None if old else card.nvlink or (None,) * 4)
        return [
            SimpleNamespace(
                nvmlReturn=3 if counts[place] is None else 0,  # 3: not supported
                valueType=3,  # an unsigned long long, in ``ullVal``
                value=SimpleNamespace(ullVal=counts[place] or 0),
            )
            for place in places
        ]

    library.nvmlDeviceGetFieldValues = read_fields


def _put_error_events(library: Any) -> None:
    """Add the functions that report the errors of cards one by one."""
    library.nvmlEventTypeXidCriticalError = 8

    def register(card: FakeCard, kind: int, events: list[FakeCard]) -> None:
        assert kind == library.nvmlEventTypeXidCriticalError
        events.append(card)

    def wait(events: list[FakeCard], timeout_ms: int) -> SimpleNamespace:
        """Return the next error; ``events``: the cards whose errors were asked for."""
        assert timeout_ms == 0  # the program polls
        for card in events:
            if card.xids:
                return SimpleNamespace(
                    eventType=library.nvmlEventTypeXidCriticalError, eventData=card.xids.pop(0)
                )
        raise NVMLError("Timeout")

    library.nvmlEventSetCreate = list[FakeCard]  # a new set of events is an empty list of cards
    library.nvmlDeviceRegisterEvents = register
    library.nvmlEventSetWait_v2 = wait


def put_cards(
    monkeypatch: pytest.MonkeyPatch,
    *cards: FakeCard,
    seen: list[FakeCard] | None = None,
    **more: Any,
) -> None:
    """Let the driver be loaded and the management library report these cards.

    A card without an address on the PCI bus gets one by its number, and its slices get the same.

    Args:
        seen: devices that CUDA leaves to the process; None: all cards, of one with slices the
            first slice.
        more: ``names`` and ``old``, as ``make_nvml_library`` takes them.
    """
    from trainmark.devices.vendors.nvidia import driver

    # The address is domain:bus:device.function; the first card is on bus 41 (hexadecimal), any bus.
    for number, card in enumerate(cards):
        card.bus = card.bus or f"00000000:{0x41 + number:02X}:00.0"
        for part in card.slices or ():
            part.bus = card.bus
    if seen is None:
        seen = [
            device
            for card in cards
            for device in ([card] if card.slices is None else card.slices[:1])
        ]
    # CUDA writes addresses with a domain of four digits, the library with one of eight.
    visible = [driver.Card(device.name, device.uuid, device.bus[-12:].lower()) for device in seen]
    monkeypatch.setattr(driver, "is_installed", lambda: True)
    monkeypatch.setattr(driver, "list_visible_cards", lambda: visible)
    monkeypatch.setitem(sys.modules, "pynvml", make_nvml_library(*cards, **more))


def make_cuda_library(*devices: tuple[str, bytes, bytes], version: int = 13000) -> Any:
    """Return the driver's library.

    Args:
        devices: name, PCI bus address and UUID of each.
        version: of CUDA that the driver supports: 1000 * major + 10 * minor.
    """

    def make_number_reader(value: int) -> Any:
        """Return a function that writes a number to its argument ``byref(number)``."""

        def write_number(pointer: Any) -> int:
            pointer._obj.value = value
            return 0  # CUDA_SUCCESS

        return write_number

    def write_device_handle(pointer: Any, ordinal: int) -> int:
        """Write the handle of a device: its number."""
        pointer._obj.value = ordinal
        return 0

    def make_text_reader(index: int) -> Any:
        """Return a function that fills a buffer with the value at ``index`` of a device."""

        def write_text(buffer: Any, *arguments: Any) -> int:
            handle = arguments[-1]  # some functions get the length of the buffer before it
            value = devices[handle.value][index]
            raw_value = value.encode() if isinstance(value, str) else value
            buffer.raw = raw_value.ljust(len(buffer), b"\0")
            return 0

        return write_text

    return SimpleNamespace(
        cuInit=lambda flags: 0 if devices else 100,  # CUDA_ERROR_NO_DEVICE
        cuDeviceGetCount=make_number_reader(len(devices)),
        cuDeviceGet=write_device_handle,
        cuDeviceGetName=make_text_reader(0),
        cuDeviceGetPCIBusId=make_text_reader(1),
        cuDeviceGetUuid=None,  # must not be called: of a slice it returns the UUID of its card
        cuDeviceGetUuid_v2=make_text_reader(2),
        cuDriverGetVersion=make_number_reader(version),
    )
