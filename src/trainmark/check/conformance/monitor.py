"""Check what a vendor's monitor tells: types, bounds, and whose devices they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import ConfigDict, TypeAdapter, ValidationError

from trainmark.protocols import DeviceSample, MonitorFault

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainmark.protocols import Monitor

_SAMPLES = TypeAdapter(
    list[DeviceSample],
    config=ConfigDict(strict=True, allow_inf_nan=False, revalidate_instances="always"),
)


def sample_faults(sample: Any) -> list[str]:
    """Return what is wrong with a reading of one device: values of another type or impossible."""
    if not isinstance(sample, DeviceSample):
        return [f"{sample!r} is no DeviceSample"]
    try:
        _SAMPLES.validate_python([sample])
    except ValidationError as error:
        names = dict.fromkeys(str(fault["loc"][1]) for fault in error.errors())
        return [f"{name} of a DeviceSample is {getattr(sample, name)!r}" for name in names]
    used, total = sample.memory_used_bytes, sample.memory_total_bytes
    if used is not None and total is not None and used > total:
        return ["memory_used_bytes of a DeviceSample is more than memory_total_bytes"]
    return []


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
