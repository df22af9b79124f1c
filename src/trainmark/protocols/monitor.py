"""What a vendor's management library or tool reports of its devices while they work."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cache
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    Protocol,
    get_type_hints,
)

from annotated_types import Interval, Len, Predicate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydantic import TypeAdapter

# Reasons for lowered clocks that a healthy device under full load may have because of its settings;
# every vendor reports them by these words. All other reasons mean that the device is too hot, has
# too little power or is disturbed.
SET_LIMITS = frozenset({"power_cap", "set_clocks"})
# Counters of a sample that only rise while the driver is loaded.
ERROR_COUNTERS = (
    "ecc_corrected",
    "ecc_uncorrected",
    "remapped_rows",
    "link_replays",
    "link_errors",
)
FaultKind = Literal["absent", "hung", "failed", "unreadable"]
Measured = Annotated[float, Interval(ge=0, le=1e15)]  # tools print larger numbers for "unknown"
Bytes = Annotated[int, Interval(ge=0, le=10**15)]
Counter = Annotated[int, Interval(ge=0, le=10**15)]
Percent = Annotated[float, Interval(ge=0, le=100)]
Word = Annotated[str, Len(1, 200), Predicate(str.isprintable)]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSample:
    """One reading of one device; what is not reported is None, never 0.

    The bounds are checked when samples are read from their file, and by the conformance tests.

    Args:
        index: the device's number among those of this machine, as the monitor counts them, from 0;
            without gaps if the monitor numbers several chips of a card.
        name: full product name, as printed.
        utilization_percent: share of the last interval in which the device computed, 0 to 100.
        clock_mhz: clock of the units that compute.
        throttle_reasons: why its clocks are lowered, in the words of ``SET_LIMITS`` or else those
            of the monitor; empty: they are not lowered.
        energy_j: a counter that only rises while the driver is loaded. Never computed from power.
        ecc_corrected: corrected errors of the memory so far; one of ``ERROR_COUNTERS``, as the
            next four.
        ecc_uncorrected: errors of the memory that could not be corrected.
        remapped_rows: rows or pages of the memory that are no longer used.
        link_replays: messages on links that were sent again.
        link_errors: messages on links that arrived wrong, and links that had to recover.
        last_fault: the last fault that the vendor's driver reported since the monitor was opened.
    """

    index: Annotated[int, Interval(ge=0, le=10**6)]
    name: Word | None = None
    uuid: Word | None = None
    temperature_c: Annotated[float, Interval(ge=-60, le=250)] | None = None
    power_w: Measured | None = None
    memory_used_bytes: Bytes | None = None
    memory_total_bytes: Bytes | None = None
    utilization_percent: Percent | None = None
    clock_mhz: Measured | None = None
    throttle_reasons: tuple[Word, ...] | None = None
    energy_j: Measured | None = None
    ecc_corrected: Counter | None = None
    ecc_uncorrected: Counter | None = None
    remapped_rows: Counter | None = None
    link_replays: Counter | None = None
    link_errors: Counter | None = None
    last_fault: Word | None = None

    def known_fields(self) -> dict[str, Any]:
        """Return what is known, by name."""
        return {name: value for name, value in asdict(self).items() if value is not None}


@cache
def _build_adapter(name: str) -> TypeAdapter[Any]:
    """Return a validator for values of a field of ``DeviceSample``, built once for each field."""
    # Imported here, because vendors import this module and do not validate values themselves.
    from pydantic import TypeAdapter

    # The extras are the annotations of a type, such as the interval that its values are in.
    return TypeAdapter(get_type_hints(DeviceSample, include_extras=True)[name])


def is_valid_value(name: str, value: object) -> bool:
    """Tell whether the field ``name`` of ``DeviceSample`` may have this value.

    Values are not converted: a text is no number.
    """
    try:
        _build_adapter(name).validate_python(value, strict=True)
    except ValueError:
        return False
    return True


class MonitorFault(Exception):
    """A monitor that gave no reading this time.

    Args:
        kind: ``absent``: not installed, or no longer there; ``hung``: no answer in time;
            ``failed``: it ended with an error; ``unreadable``: its output is empty or has an
            unknown form.
        text: what it printed or raised, in one line.
    """

    def __init__(self, kind: FaultKind, text: str) -> None:
        # ``kind``: how the monitor failed, such as ``hung``. ``text``: the message that its tool or
        # library printed or raised.
        super().__init__(f"{kind}: {text}")
        self.kind: FaultKind = kind
        self.text = text


class Monitor(Protocol):
    """Reads all devices of one vendor; used by the sampler's process, without torch."""

    name: str  # of the library or tool, with its version if that is known: ``nvml 13.580``

    def read(self) -> Sequence[DeviceSample]:
        """Return one reading of each device.

        Raises:
            MonitorFault: no reading this time; the next one may succeed.
        """

    def close(self) -> None:
        """Release what the monitor holds."""
