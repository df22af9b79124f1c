"""The state of NVIDIA's cards before a run: what stops it or spoils its figures."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from trainmark.devices.vendors.nvidia import nvml
from trainmark.devices.vendors.nvidia.monitor import reasons
from trainmark.protocols import SET_LIMITS, Condition, MonitorFault

if TYPE_CHECKING:
    from collections.abc import Sequence


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
