"""What NVIDIA's cards tell by the management library: readings, and their state before a run.

Owns the words for why clocks are lowered.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from trainmark.devices.vendors.nvidia import nvml
from trainmark.protocols import SET_LIMITS, Condition, DeviceSample, MonitorFault

if TYPE_CHECKING:
    from collections.abc import Sequence

# 1 says idle, which lowers clocks too and costs nothing:
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


def conditions(places: Sequence[int]) -> list[Condition]:
    """Return the state of cards by their places among all; the same of several is one.

    Of all cards, where none is given: it is not known which are the ranks'.
    """
    try:
        library = nvml.library()
    except MonitorFault as fault:
        way_out = "install the package nvidia-ml-py beside Trainmark, and the driver"
        return [Condition("device_state", "unknown", fault.said, way_out)]
    by_condition: dict[Condition, list[int]] = {}
    for place in places or range(nvml.answer(library, library.nvmlDeviceGetCount) or 0):
        for condition in _of_card(library, place):
            by_condition.setdefault(condition, []).append(place)
    return [
        replace(one, what=f"card {', '.join(map(str, cards))}: {one.what}")
        for one, cards in by_condition.items()
    ]


def _of_card(library: Any, place: int) -> list[Condition]:
    handle = nvml.answer(library, library.nvmlDeviceGetHandleByIndex, place)
    if handle is None:
        way_out = "look for Xid in `dmesg`; reset the card"
        return [Condition("device_state", "stops", "does not answer", way_out)]
    found = nvml.numbers(library, handle, (
        "sm_clock_set_mhz", "sm_clock_set_default_mhz", "power_limit_w", "power_limit_default_w",
        "uncorrected_errors",
    ))  # fmt: skip
    words = reasons(library, handle)
    lowered = _below(found["sm_clock_set_mhz"], found["sm_clock_set_default_mhz"])
    if words is not None:
        lowered = bool(lowered) or "set_clocks" in words
    limit, default = found["power_limit_w"], found["power_limit_default_w"]
    throttled = None if words is None else sorted(set(words) - SET_LIMITS)
    ecc = nvml.answer(library, library.nvmlDeviceGetEccMode, handle)  # current and pending
    errors = found["uncorrected_errors"]
    kept = nvml.answer(library, library.nvmlDeviceGetPersistenceMode, handle)
    mig = nvml.answer(library, library.nvmlDeviceGetMigMode, handle)  # current and pending
    return [_judged(*judged) for judged in (
        ("clocks", lowered, f"clocks set by hand, to {_text(found['sm_clock_set_mhz'])} MHz",
         "`nvidia-smi --reset-gpu-clocks` and `nvidia-smi --reset-applications-clocks`"),
        ("power_limit", _below(limit, default),
         f"power limit {_text(limit)} W below the default {_text(default)} W",
         f"`nvidia-smi --power-limit={_text(default)}`"),
        ("throttling", None if throttled is None else bool(throttled),
         f"clocks lowered at rest: {', '.join(throttled or ())}", "check cooling and power supply"),
        ("ecc", None if ecc is None else not ecc[0], "memory without error correction",
         "`nvidia-smi --ecc-config=1`, then restart the machine"),
        ("uncorrected_errors", None if errors is None else errors > 0,
         f"{_text(errors)} uncorrected memory errors since the driver was loaded",
         "reset the card; replace it if they come again"),
        ("persistence", None if kept is None else not kept,
         "the driver is loaded anew for each run, which lengthens its start",
         "`nvidia-smi --persistence-mode=1`"),
        ("mig", bool(mig and mig[0]), "in MIG mode: its slices share power and clocks",
         "`nvidia-smi --multi-instance-gpu=0`, or leave the other slices idle"),
    )]  # fmt: skip


def _below(value: float | None, default: float | None) -> bool | None:
    return None if value is None or default is None else value < default


def _text(value: float | None) -> str:
    return "unknown" if value is None else f"{value:g}"


def _judged(code: str, wrong: bool | None, what: str, remedy: str) -> Condition:
    """Return a condition; None: the card does not tell, as one without the feature does not."""
    if wrong is None:
        return Condition(code, "unknown", "not told by this card", "see `nvidia-smi --query`")
    return Condition(code, "spoils", what, remedy) if wrong else Condition(code, "fine", "as usual")
