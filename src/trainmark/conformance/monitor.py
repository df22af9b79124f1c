"""Check what a vendor's monitor tells: types, bounds, and whose devices they are."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from trainmark.protocols import DeviceSample, MonitorFault

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainmark.protocols import Monitor

_WORDS = ("name", "uuid")
_BYTES = ("memory_used_bytes", "memory_total_bytes")
# Lowest and highest of what is not only positive; beyond 1e15 is a tool's word for "unknown".
_BOUNDS = {"temperature_c": (-60.0, 250.0), "utilization_percent": (0.0, 100.0)}
_POSITIVE = (0.0, 1e15)


def sample_faults(sample: Any) -> list[str]:
    """Return what is wrong with a reading of one device: values of another type or impossible."""
    if not isinstance(sample, DeviceSample):
        return [f"{sample!r} is no DeviceSample"]
    found = []
    for name, value in sample.told().items():
        if name in _WORDS:
            right = isinstance(value, str) and value != ""
        elif name == "throttle_reasons":
            right = isinstance(value, tuple) and all(isinstance(one, str) for one in value)
        else:
            whole = name == "index" or name in _BYTES
            least, most = _BOUNDS.get(name, _POSITIVE)
            right = isinstance(value, int if whole else int | float) and least <= value <= most
            right = right and not isinstance(value, bool) and math.isfinite(value)
        if not right:
            found.append(f"{name} of a DeviceSample is {value!r}")
    if (sample.memory_used_bytes or 0) > (sample.memory_total_bytes or math.inf):
        found.append("memory_used_bytes of a DeviceSample is more than memory_total_bytes")
    return found


def reading_faults(monitor: Monitor, numbers: Sequence[int]) -> list[str]:
    """Return what is wrong with one reading; a ``MonitorFault`` is no fault.

    Args:
        numbers: result of ``Vendor.monitored``.
    """
    try:
        samples = monitor.read()
    except MonitorFault:
        return []
    found = [fault for sample in samples for fault in sample_faults(sample)]
    if found:
        return found
    told = [sample.index for sample in samples]
    if len(set(told)) != len(told):
        found.append(f"read() tells devices twice: {told}")
    if unread := sorted(set(numbers).difference(told)):
        found.append(f"monitored({len(numbers)}) names {unread}, and read() tells {told}")
    return found
