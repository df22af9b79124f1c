"""Interfaces of a job, a device and a vendor, as the measured loop and planning use them."""

from trainmark.protocols.device import (
    DESCRIBE_KEYS,
    PRECISION_KEYS,
    ContainerNeeds,
    Device,
    Diagnoses,
    MatmulRate,
    MemoryUse,
    Occupant,
    Refusal,
    ReplaysGraphs,
    Vendor,
)
from trainmark.protocols.job import (
    Batch,
    Counts,
    Evaluation,
    Job,
    JobContext,
    RankWork,
    StepStages,
)
from trainmark.protocols.monitor import (
    SET_LIMITS,
    Condition,
    DeviceSample,
    Located,
    Monitor,
    MonitorFault,
)

__all__ = [
    "DESCRIBE_KEYS", "PRECISION_KEYS", "SET_LIMITS", "Batch", "Condition",
    "ContainerNeeds", "Counts", "Device", "DeviceSample", "Diagnoses", "Evaluation",
    "Job", "JobContext", "Located", "MatmulRate", "MemoryUse", "Monitor",
    "MonitorFault", "Occupant", "RankWork", "Refusal",
    "ReplaysGraphs", "StepStages", "Vendor",
    "members", "missing_members",
]  # fmt: skip


def members(protocol: type) -> list[str]:
    """Return the attributes and methods that ``protocol`` requires."""
    methods = [name for name, value in vars(protocol).items() if callable(value)]
    return [*protocol.__annotations__, *(name for name in methods if not name.startswith("_"))]


def missing_members(value: object, protocol: type) -> list[str]:
    """Return the members of ``protocol`` that ``value`` lacks."""
    return [name for name in members(protocol) if not hasattr(value, name)]
