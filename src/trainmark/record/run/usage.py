"""Figures of telemetry: what the ranks' devices did in the training, and the energy it took.

An energy is the difference of counters. What power readings add up to is an estimate, in figures
of another name.
"""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean
from typing import TYPE_CHECKING, Any

from trainmark.record.series import MOST_UNSEEN
from trainmark.spec import Figure, Message, message

if TYPE_CHECKING:
    from trainmark.record.run.telemetry import IntervalName, Telemetry, Use


def compute(
    telemetry: Telemetry | None, *, ranks: int, samples: int, on_host: bool
) -> dict[str, Figure]:
    """Return the figures by name, estimates among them only where a counter is missing.

    Args:
        on_host: ranks share the host's processors, whose packages then count as the devices.
    """
    names = ("utilization", "power", "temperature", "energy_per_sample", "energy_to_target")
    if telemetry is None:
        return dict.fromkeys(names, Figure(None, message("not_sampled")))
    uses = _uses(telemetry, "train", ranks)
    of_samples = _energies(telemetry, "train", ranks, on_host=on_host)
    figures = {
        "utilization": _figure(uses, "utilization_percent"),
        "power": _figure(uses, "power_w"),
        "temperature": _figure(uses, "temperature_c", peak=True),
        **{f"{x}_per_sample": _per(one, samples) for x, one in of_samples.items()},
    }
    to_target = _energies(telemetry, "to_target", ranks, on_host=on_host)
    return figures | {f"{x}_to_target": one for x, one in to_target.items()}


def peak_memory_bytes(telemetry: Telemetry | None, ranks: int) -> float | None:
    """Return the most memory that was used on a device; None unless every rank's told it."""
    if telemetry is None:
        return None
    return _figure(_uses(telemetry, "run", ranks), "memory_used_bytes", peak=True).value


def _uses(telemetry: Telemetry, interval: IntervalName, ranks: int) -> list[Use] | Message:
    """Return the readings of every rank's device, or why there are none."""
    if interval not in telemetry.intervals_s:
        return message("nothing_trained" if interval == "train" else "target_not_reached")
    failed = any(fault.args["source"] == "monitor" for fault in telemetry.faults)
    if telemetry.interval_s is not None and telemetry.monitor is None and not failed:
        return message("devices_unmonitored")  # the sampler began and found nothing
    uses = [device.over[interval] for device in telemetry.devices]
    known = sum(len(device.ranks) for device in telemetry.devices)
    if known < ranks or not all(use.readings for use in uses):
        return message("no_reading_in_interval")
    return uses


def _figure(uses: list[Use] | Message, name: str, *, peak: bool = False) -> Figure:
    """Return the mean over the devices and the time, or the highest reading of any device."""
    if isinstance(uses, Message):
        return Figure(None, uses)
    found = [use.quantities[name] for use in uses if name in use.quantities]
    if len(found) < len(uses):
        return Figure(None, message("quantity_untold", quantity=name))
    note = message("over_devices", devices=len(found), readings=min(x.readings for x in found))
    value = max(x.highest for x in found) if peak else fmean(x.mean for x in found)
    return Figure(value, note=note)


def _energies(
    telemetry: Telemetry, interval: IntervalName, ranks: int, *, on_host: bool
) -> dict[str, Figure]:
    """Return the joules that were counted or, if they are unknown, also estimated from power.

    There is no estimate where power was not told or is known too seldom. Of the host, it is that of
    the whole node.
    """
    uses = _uses(telemetry, interval, ranks)
    if on_host and interval in telemetry.intervals_s:  # always read, only perhaps not in this time
        uses = [host[interval] for host in telemetry.hosts]
    if isinstance(uses, Message):
        return {"energy": Figure(None, uses)}
    whose: dict[str, Any] = {} if on_host else {"devices": len(uses), "monitor": telemetry.monitor}
    found = [use.energy for use in uses]
    unknown = next((energy.reason for energy in found if energy.reason is not None), None)
    if unknown is None:
        between_s = max(energy.between_s or 0.0 for energy in found)
        note = message("energy_of_packages" if on_host else "energy_of_devices",
                       between_s=between_s, **whose)  # fmt: skip
        return {"energy": Figure(sum(energy.joules or 0.0 for energy in found), note=note)}
    figures = {"energy": Figure(None, unknown)}
    powers = [use.quantities["power_w"] for use in uses if "power_w" in use.quantities]
    gap_s = max((power.longest_gap_s for power in powers), default=0.0)
    start_s, end_s = telemetry.intervals_s[interval]
    if len(powers) == len(uses) and gap_s <= MOST_UNSEEN * (end_s - start_s):
        code = "estimated_of_node" if on_host else "estimated_of_devices"
        joules = sum(power.mean for power in powers) * (end_s - start_s)
        figures["estimated_energy"] = Figure(joules, note=message(code, gap_s=gap_s, **whose))
    return figures


def _per(total: Figure, samples: int) -> Figure:
    if not samples:
        return Figure(None, message("nothing_trained"))
    return total if total.value is None else replace(total, value=total.value / samples)
