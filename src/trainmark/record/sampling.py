"""Findings and notes on what was sampled: lowered clocks, sources that failed, missing readings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trainmark.protocols import SET_LIMITS
from trainmark.spec import message

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainmark.record.telemetry.summary import Telemetry
    from trainmark.spec import Message

_THROTTLED = 0.01  # of the measured time; less is one reading of many
_FEW_READINGS = 5
_LOST_READINGS = 3  # that the sampler owes at the end of the run


def throttled(telemetry: Telemetry | None) -> Iterator[Message]:
    """Yield a finding if devices were held below their limits while steps were measured."""
    lowered = telemetry and _lowered(telemetry, at_limit=False)
    if lowered:
        yield message("throttled_while_measured", **lowered)


def _lowered(telemetry: Telemetry, *, at_limit: bool) -> dict[str, Any]:
    """Return the device that had lowered clocks for the largest share of the time, if any had.

    Args:
        at_limit: whether reasons in ``SET_LIMITS`` count, or all others.
    """
    found = []
    for device in telemetry.devices:
        shares = device.over["measured"].throttled if "measured" in device.over else None
        counted = {
            name: share
            for name, share in (shares or {}).items()
            if (name in SET_LIMITS) is at_limit
        }
        if max(counted.values(), default=0.0) > _THROTTLED:
            found.append((max(counted.values()), device.ranks[0], counted))
    if not found:
        return {}
    share, rank, reasons = max(found, key=lambda item: item[0])
    listed = ", ".join(f"{name} {part:.0%}" for name, part in reasons.items())
    of = len(telemetry.devices)
    return {"devices": len(found), "of": of, "rank": rank, "share": share, "reasons": listed}


def notes(telemetry: Telemetry | None) -> Iterator[Message]:
    """Yield what is missing of the readings, and why."""
    if telemetry is None:
        return
    at_limit = _lowered(telemetry, at_limit=True)
    if at_limit:
        yield message("clocks_at_set_limit", **at_limit)
    for fault in telemetry.faults:
        source = (telemetry.monitor or fault.source) if fault.source == "monitor" else fault.source
        if fault.source in {"monitor", "host", *telemetry.host_sources}:  # what was there
            yield message(f"source_{fault.kind}", source=source, said=fault.said, times=fault.times)
    _, run_s = telemetry.intervals_s.get("run", (0.0, 0.0))
    patience_s = _LOST_READINGS * (telemetry.interval_s or 0.0)
    if telemetry.last_s is None:
        yield message("no_samples")
    elif telemetry.failed_readings is None and telemetry.last_s < run_s - patience_s:
        yield message("sampler_ended_early", last_s=telemetry.last_s, run_s=run_s)
    if telemetry.malformed_lines:
        yield message("malformed_telemetry_lines", lines=telemetry.malformed_lines)
    uses = [device.over["train"] for device in telemetry.devices if "train" in device.over]
    readings = min((use.readings for use in uses), default=_FEW_READINGS)
    if readings < _FEW_READINGS:
        start_s, end_s = telemetry.intervals_s["train"]
        yield message("few_readings", readings=readings, train_s=end_s - start_s)
