"""Figures of telemetry: what the ranks' devices did in the training, and the energy it took.

An energy is the difference of counters. What power readings add up to is an estimate, in figures
of another name.
"""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING

from trainmark.measure.over_time import MOST_UNSEEN
from trainmark.spec import Figure, message

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trainmark.measure.telemetry import IntervalName, Quantity, Telemetry, Use
    from trainmark.measure.timeline import RunTimeline
    from trainmark.spec import Message


def compute(
    timeline: RunTimeline, telemetry: Telemetry | None, *, on_host: bool
) -> dict[str, Figure]:
    """Return the figures by name, estimates among them only where a counter is missing.

    Args:
        on_host: ranks share the host's processors, whose packages then count as the devices.
    """
    ranks, samples = len(timeline.ranks), timeline.counts.samples
    uses, untold = _uses(telemetry, "train", ranks, on_host=False)
    figures = {
        "utilization": _figure(uses, untold, "utilization_percent", lambda x: x.mean, fmean),
        "power": _figure(uses, untold, "power_w", lambda x: x.mean, fmean),
        "temperature": _figure(uses, untold, "temperature_c", lambda x: x.highest, max),
    }
    asked: tuple[tuple[str, IntervalName, int], ...] = (
        ("energy_per_sample", "train", samples), ("energy_to_target", "to_target", 1),
    )  # fmt: skip
    for name, interval, amount in asked:
        uses, untold = _uses(telemetry, interval, ranks, on_host=on_host)
        if telemetry is None or not uses or not amount:
            figures[name] = Figure(None, untold or message("nothing_trained"))
            continue
        figures[name] = energy = _energy(uses, amount, telemetry.monitor, on_host=on_host)
        start_s, end_s = telemetry.intervals_s[interval]
        estimate = _estimate(uses, end_s - start_s, telemetry.monitor, on_host=on_host)
        if energy.value is None and estimate is not None:
            joules, note = estimate
            figures[f"estimated_{name}"] = Figure(joules / amount, note=note)
    return figures


def peak_memory_bytes(telemetry: Telemetry | None) -> float | None:
    """Return the most memory that was read as used on any rank's device; None if none was read."""
    devices = [] if telemetry is None else telemetry.devices
    found = [device.over["run"].quantities for device in devices if "run" in device.over]
    peaks = [told["memory_used_bytes"].highest for told in found if "memory_used_bytes" in told]
    return max(peaks, default=None)


def _uses(
    telemetry: Telemetry | None, interval: IntervalName, ranks: int, *, on_host: bool
) -> tuple[list[Use], Message | None]:
    """Return the readings of every rank's device, or of the host; none and why."""
    if telemetry is None:
        return [], message("not_sampled")
    if interval not in telemetry.intervals_s:
        return [], message("nothing_trained" if interval == "train" else "target_not_reached")
    if on_host:  # it is always read, only perhaps not in this time
        return [telemetry.host[interval]], None
    found = [device.over[interval] for device in telemetry.devices]
    if telemetry.monitor is None and not any(use.readings for use in found):
        return [], message("devices_unmonitored")
    known = sum(len(device.ranks) for device in telemetry.devices)
    if known < ranks:
        return [], message("devices_unknown", known=known, ranks=ranks)
    reasons = [use.reason for use in found if use.reason is not None]
    return ([], reasons[0]) if reasons else (found, None)


def _figure(
    uses: Sequence[Use],
    untold: Message | None,
    name: str,
    value: Callable[[Quantity], float],
    over: Callable[[list[float]], float],
) -> Figure:
    """Return one figure over the values of all devices."""
    found = [use.quantities[name] for use in uses if name in use.quantities]
    if not uses or len(found) < len(uses):
        return Figure(None, untold or message("quantity_untold", quantity=name))
    note = message("over_devices", devices=len(found), readings=min(x.readings for x in found))
    return Figure(over([value(item) for item in found]), note=note)


def _energy(uses: Sequence[Use], amount: int, monitor: str | None, *, on_host: bool) -> Figure:
    """Return the joules that the counters rose by over ``amount``, with their source."""
    reasons = [use.energy.reason for use in uses if use.energy.reason is not None]
    if reasons:
        return Figure(None, reasons[0])
    between_s = max(use.energy.between_s for use in uses)
    note = message("energy_of_packages", between_s=between_s)
    if not on_host:
        devices = len(uses)
        note = message("energy_of_devices", devices=devices, monitor=monitor, between_s=between_s)
    return Figure(sum(use.energy.joules or 0.0 for use in uses) / amount, note=note)


def _estimate(
    uses: Sequence[Use], length_s: float, monitor: str | None, *, on_host: bool
) -> tuple[float, Message] | None:
    """Return power readings times time; None where they are missing or too far apart.

    Of the host, the power of the whole node.
    """
    name = "node_power_w" if on_host else "power_w"
    found = [use.quantities[name] for use in uses if name in use.quantities]
    gap_s = max((item.longest_gap_s for item in found), default=0.0)
    if len(found) < len(uses) or gap_s > MOST_UNSEEN * length_s:
        return None
    note = message("estimated_of_node", gap_s=gap_s)
    if not on_host:
        note = message("estimated_of_devices", devices=len(uses), monitor=monitor, gap_s=gap_s)
    return sum(item.mean for item in found) * length_s, note
