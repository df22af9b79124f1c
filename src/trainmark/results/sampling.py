"""Findings and notes on what was sampled: lowered clocks, sources that failed, missing readings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainmark.spec import message

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainmark.measure.telemetry import Telemetry
    from trainmark.spec import Message

_THROTTLED = 0.01  # of the measured time; less is one reading of many
_FEW_READINGS = 5
_LOST_READINGS = 3  # that the sampler owes at the end of the run
_SOURCE_OF_HOST = "psutil"  # whose faults are those of ``host``


def throttled(telemetry: Telemetry | None) -> Iterator[Message]:
    """Yield a finding if devices ran with lowered clocks while steps were measured."""
    devices = [] if telemetry is None else telemetry.devices
    uses = [(item.ranks[0], item.over["measured"]) for item in devices if "measured" in item.over]
    found = [(use.throttled, -rank, use) for rank, use in uses if (use.throttled or 0) > _THROTTLED]
    if found:
        share, rank, worst = max(found, key=lambda item: item[:2])
        yield message(
            "throttled_while_measured",
            devices=len(found),
            of=len(devices),
            rank=-rank,
            share=share,
            reasons=", ".join(
                f"{name} {part:.0%}" for name, part in worst.throttle_reasons.items()
            ),
        )


def notes(telemetry: Telemetry | None) -> Iterator[Message]:
    """Yield what is missing of the readings, and why."""
    if telemetry is None:
        return
    present = {name.replace(_SOURCE_OF_HOST, "host") for name in telemetry.host_sources}
    for fault in telemetry.faults:
        source = (telemetry.monitor or fault.source) if fault.source == "monitor" else fault.source
        if fault.source in {"monitor", *present}:  # what was never there is not missed
            yield message(f"source_{fault.kind}", source=source, said=fault.said, times=fault.times)
    _, run_s = telemetry.intervals_s.get("run", (0.0, 0.0))
    patience_s = _LOST_READINGS * (telemetry.interval_s or 0.0)
    if telemetry.failed_readings is None and (telemetry.last_s or 0.0) < run_s - patience_s:
        yield message("sampler_ended_early", last_s=telemetry.last_s, run_s=run_s)
    if telemetry.malformed_lines:
        yield message("malformed_telemetry_lines", lines=telemetry.malformed_lines)
    uses = [device.over["train"] for device in telemetry.devices if "train" in device.over]
    readings = min((use.readings for use in uses), default=_FEW_READINGS)
    if readings < _FEW_READINGS:
        start_s, end_s = telemetry.intervals_s["train"]
        yield message("few_readings", readings=readings, train_s=end_s - start_s)
