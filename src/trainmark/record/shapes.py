"""The numbers of a record with their bounds, and the facts of machines, devices and jobs in it."""

from __future__ import annotations

from typing import Annotated, Literal, NotRequired

from annotated_types import Ge, Gt, Le
from pydantic import ConfigDict, with_config

# pydantic refuses the standard library's before Python 3.12.
from typing_extensions import TypedDict

# Bounds within which all real values lie and no later computation overflows.
Count = Annotated[int, Ge(0), Le(2**63 - 1)]
Int64 = Annotated[int, Ge(-(2**63)), Le(2**63 - 1)]
Number = Annotated[float, Ge(-1e150), Le(1e150)]
Amount = Annotated[float, Ge(0), Le(1e150)]
Rate = Annotated[float, Gt(0), Le(1e150)]
_FACTS = ConfigDict(extra="allow", strict=True, allow_inf_nan=False)


@with_config(_FACTS)
class DeviceFacts(TypedDict, total=False):
    """Facts of a rank's device."""

    name: str
    vendor: str
    memory_total_bytes: Count | None


@with_config(_FACTS)
class JobFacts(TypedDict, total=False):
    """Facts of a rank's job at its end, as far as several cases have them."""

    parameters: Count | None
    trainable_parameters: Count | None
    predicted_peak_bytes: Count | None
    kernels: dict[str, str] | None
    skipped_steps: Count | None
    flops_formula: str
    artifacts: list[str]


@with_config(_FACTS)
class RankPlacement(TypedDict):
    """Where a rank ran; see ``devices.cores.Placement``."""

    numa_nodes: list[Count]
    cores: str
    threads: Count
    why_not: str | None
    usable_cores: NotRequired[Count]


@with_config(_FACTS)
class DeviceUser(TypedDict):
    """A process of others on a device of this run; see ``protocols.Occupant``."""

    device: str
    process: str
    used_bytes: Count | None
    computes: bool


@with_config(_FACTS)
class Machine(TypedDict, total=False):
    """Facts about the machine, found by the launcher; unknown ones are null or absent."""

    commit: str | None
    packages: dict[str, str | None]
    python: str
    os: str
    kernel: str
    architecture: str
    machine: str | None
    cpu: str
    cpu_cores: Count | None
    numa_nodes: Count | None
    memory_total_bytes: Count | None
    driver: str | None
    container: str | None
    container_version: str | None
    container_image: str | None
    container_digest: str | None
    network: str | None
    pip_index: str | None
    variables: dict[str, str]
    device_users: list[DeviceUser]


@with_config(_FACTS)
class HangGroup(TypedDict):
    """Ranks that were at one place when their stacks were saved; see ``rank.hang``.

    ``count``: how many they are; ``steps``: least and greatest that they last reported.
    """

    ranks: str
    state: Literal["collective", "waits", "elsewhere", "silent", "unknown"]
    call: str | None
    where: str
    count: Count
    steps: list[Count]
