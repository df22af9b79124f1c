"""Interfaces of a job, a device and a vendor, as the measured loop and planning use them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trainmark.protocols.device import (
    DESCRIBE_KEYS,
    PRECISION_KEYS,
    ContainerNeeds,
    Device,
    DeviceSettings,
    Diagnoses,
    MatmulRate,
    MemoryUse,
    Occupant,
    Refusal,
    ReportsSettings,
    Vendor,
)
from trainmark.protocols.monitor import (
    ERROR_COUNTERS,
    SET_LIMITS,
    DeviceSample,
    Monitor,
    MonitorFault,
)

if TYPE_CHECKING:
    from trainmark.protocols.job import (
        Batch,
        Counts,
        Evaluation,
        Job,
        JobContext,
        Progress,
        RankScores,
        RankWork,
        StepStages,
    )
    from trainmark.protocols.step_digest import StepDigest

__all__ = [
    "DESCRIBE_KEYS", "ERROR_COUNTERS", "PRECISION_KEYS", "SET_LIMITS", "Batch",
    "ContainerNeeds", "Counts", "Device", "DeviceSample", "DeviceSettings", "Diagnoses",
    "Evaluation",
    "Job", "JobContext", "MatmulRate", "MemoryUse", "Monitor",
    "MonitorFault", "Occupant", "Progress", "RankScores", "RankWork", "Refusal",
    "ReportsSettings",
    "StepDigest", "StepStages", "Vendor",
    "list_members", "list_missing_members",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Import the types of a job when they are first used."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # The classes of ``job`` take 5 ms to import and msgspec 3 ms, and planning needs neither.
    # ``StepDigest`` has a module of its own: it needs msgspec, which users of ``job`` do not.
    if name == "StepDigest":
        from trainmark.protocols.step_digest import StepDigest

        return StepDigest
    from trainmark.protocols import job

    return getattr(job, name)


def list_members(protocol: type) -> list[str]:
    """Return the names of the attributes and methods that ``protocol`` requires."""
    # Names with an underscore are those of ``typing.Protocol`` itself, such as ``__init__``.
    methods = [name for name, value in vars(protocol).items() if callable(value)]
    return [*protocol.__annotations__, *(name for name in methods if not name.startswith("_"))]


def list_missing_members(value: object, protocol: type) -> list[str]:
    """Return the names of the members of ``protocol`` that ``value`` lacks."""
    return [name for name in list_members(protocol) if not hasattr(value, name)]
