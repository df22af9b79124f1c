"""The schema of every line of ``telemetry.jsonl``, which the sampler writes.

A key that is not named here is dropped; a line of another event is malformed.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired

from annotated_types import Ge, Le, MaxLen, MinLen
from pydantic import ConfigDict, Field, TypeAdapter, with_config

# pydantic refuses the standard library's before Python 3.12.
from typing_extensions import TypedDict

from trainmark.measure.shapes import Bytes, Count, Nanoseconds, Rate, Spent  # noqa: TC001 - read at run time

Percent = Annotated[float, Ge(0), Le(100)]
Measured = Annotated[float, Ge(0), Le(1e18)]
Word = Annotated[str, MinLen(1), MaxLen(200)]
Index = Annotated[int, Ge(0), Le(10**6)]
_SHAPE = ConfigDict(extra="ignore", strict=True, allow_inf_nan=False)


@with_config(_SHAPE)
class _Sample(TypedDict):
    """A device at one moment; see ``protocols.DeviceSample``."""

    index: Index
    name: NotRequired[Word]
    temperature_c: NotRequired[Annotated[float, Ge(-100), Le(1000)]]
    power_w: NotRequired[Measured]
    memory_used_bytes: NotRequired[Bytes]
    memory_total_bytes: NotRequired[Bytes]
    utilization_percent: NotRequired[Percent]
    clock_mhz: NotRequired[Measured]
    memory_clock_mhz: NotRequired[Measured]
    throttle_reasons: NotRequired[Annotated[list[Word], MaxLen(64)]]
    energy_j: NotRequired[Measured]


@with_config(_SHAPE)
class _Event(TypedDict):
    t_ns: Nanoseconds


class _Start(_Event):
    event: Literal["start"]
    interval_s: Rate
    monitor: Word | None
    devices: Annotated[list[Index], MaxLen(1024)]
    host_sources: Annotated[list[Word], MaxLen(16)]


class _Devices(_Event):
    event: Literal["devices"]
    took_ns: Spent
    devices: Annotated[list[_Sample], MaxLen(1024)]


class _Host(_Event):
    event: Literal["host"]
    took_ns: Spent
    cpu_percent: NotRequired[Percent]
    memory_used_bytes: NotRequired[Bytes]
    node_power_w: NotRequired[Measured]
    package_energy_j: NotRequired[Measured]


class _Fault(_Event):
    event: Literal["fault"]
    source: Literal["monitor", "ipmi", "rapl", "host"]
    kind: Literal["absent", "hung", "failed", "unreadable"]
    said: Annotated[str, MaxLen(2000)]


class _End(_Event):
    event: Literal["end"]
    faults: Annotated[dict[Word, Count], MaxLen(16)]


_LINE: TypeAdapter[Any] = TypeAdapter(
    Annotated[_Start | _Devices | _Host | _Fault | _End, Field(discriminator="event")]
)


def read_line(line: bytes) -> dict[str, Any]:
    """Return the event of one line.

    Raises:
        ValueError: not JSON, or not of the schema.
    """
    event: dict[str, Any] = _LINE.validate_json(line)
    return event
