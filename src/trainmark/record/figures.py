"""Compute every figure from the events and counts of a run; ``figures.toml`` defines them.

A figure that cannot be known is None with a reason, never 0. Each throughput is all samples over
the slowest rank's time of that kind, so that ``p_core >= p_train >= p_whole`` and none is
overstated by a rank that waited for others. An energy is the difference of counters; what power
readings add up to is an estimate, in figures of another name.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np

from trainmark.devices import peaks
from trainmark.protocols import Counts
from trainmark.record.series import MOST_UNSEEN
from trainmark.record.stats import spread
from trainmark.spec import Figure, Message, message, read_page

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from trainmark.recipe import Precision
    from trainmark.record.record import Record
    from trainmark.record.run.telemetry import IntervalName, Use
    from trainmark.record.shapes import DeviceFacts
    from trainmark.spec import FigureSpec, PageSpec

NS_PER_S = 1e9
_FINAL_SHARE = 0.1  # of the steps: the loss that training ended with
_STEADY = (
    "final_result", "step_time_p50", "step_time_p90", "step_time_p99", "step_time_mad",
    "step_time_cv", "model_flops_per_device",
)  # fmt: skip
FIGURES = {spec.name: spec for spec in read_page(Path(__file__).with_suffix(".toml")).figures}


def specs(page: PageSpec) -> dict[str, FigureSpec]:
    """Return every figure of a case by name: those of every case, then its own."""
    own = {spec.name: spec for spec in page.figures if spec.name not in FIGURES}
    return FIGURES | own


def compute(record: Record) -> dict[str, Figure]:
    """Return the figures that every case has, by name, from the measured parts of a record."""
    plan, ranks, devices = record.plan, record.ranks, record.environment["devices"]
    counts = sum((rank.counts for rank in ranks), Counts())
    walls = [rank.wall_ns for rank in ranks if rank.wall_ns is not None]
    finished = all(rank.finished for rank in ranks)
    ended = all(rank.train_ns is not None for rank in ranks)
    whole = [rank.train_ns or 0 for rank in ranks] if ended else []
    trained = [x - rank.spans_ns["evaluate"] for x, rank in zip(whole, ranks, strict=False)]
    busy = [x - rank.sum_of("wait_ns") for x, rank in zip(trained, ranks, strict=False)]
    tokens = _rate(counts.tokens, trained)
    if tokens.value is not None:
        tokens = Figure(tokens.value / len(ranks))
    elif counts.samples and not counts.tokens:
        tokens = Figure(None, message("no_tokens"))
    figures = {
        "e2e_time": _figure(
            max(walls) / NS_PER_S if walls else None, "no_rank_started",
            None if finished else message("until_launcher_saw_end"),
        ),
        "train_time": _figure(max(whole) / NS_PER_S if whole else None, "no_train_time"),
        "p_whole": _rate(counts.samples, whole),
        "p_train": _rate(counts.samples, trained),
        "p_core": _rate(counts.samples, busy),
        "token/p/s": tokens,
    }  # fmt: skip
    if counts.sequences not in (0, counts.samples):
        # Samples then differ in size, so their rate alone is not informative.
        per_sample = message("sequences_per_sample", sequences=counts.sequences / counts.samples)
        figures["p_train_sequences"] = replace(_rate(counts.sequences, trained), note=per_sample)
        figures["p_train_tokens"] = _rate(counts.tokens, trained)
    figures |= _steady(record)
    rates = [x for rank in ranks if (x := rank.matmul_flops_per_second)]
    mean = sum(rates) / len(rates) if len(rates) == len(ranks) else None
    matmul = _figure(mean, "matmul_rate_unmeasured", message("measured_in_preflight"))
    model = figures["model_flops_per_device"]
    peak = _peak(devices, plan.recipe["precision"], plan.peak_tflops)
    figures |= {
        "matmul_flops_per_device": matmul,
        "MFU": _share(model, peak, peak.note),
        "MAMFU": _share(model, matmul),
    }
    loss, samples = np.array(record.steps.loss, np.float64), np.array(record.steps.samples)
    tail = max(1, round(len(loss) * _FINAL_SHARE))
    figures["loss"] = _mean_loss(loss, samples)
    figures["final_loss"] = _mean_loss(loss[-tail:], samples[-tail:])
    figures["mem"] = _memory(record)
    totals = [one.get("memory_total_bytes") for one in devices if one]
    figures["mem_total"] = _greatest(totals, "device_unreported")
    peaks = [rank.allocator_peak_bytes for rank in ranks]
    figures["allocator_peak"] = _greatest(peaks, "no_counting_allocator")
    uses = _uses(record, "train")
    figures |= {
        "utilization": _reading(uses, "utilization_percent"),
        "power": _reading(uses, "power_w"),
        "temperature": _reading(uses, "temperature_c", peak=True),
    }
    a_sample = _energies(record, "train", counts.samples)
    figures |= {f"{name}_per_sample": energy for name, energy in a_sample.items()}
    of_target = _energies(record, "to_target")
    return figures | {f"{name}_to_target": energy for name, energy in of_target.items()}


def _figure(value: float | None, reason: str, note: Message | None = None) -> Figure:
    """Return a figure with its note; without a value, with the reason."""
    return Figure(None, message(reason)) if value is None else Figure(value, note=note)


def _rate(amount: float, times_ns: list[int]) -> Figure:
    """Return an amount over the longest of the ranks' times; none: one of them is unknown."""
    if not times_ns:
        return Figure(None, message("no_train_time"))
    trained = amount > 0 and max(times_ns) > 0
    return _figure(amount * NS_PER_S / max(times_ns) if trained else None, "nothing_trained")


def _greatest(values: Sequence[int | None], reason: str) -> Figure:
    return _figure(max((float(x) for x in values if x is not None), default=None), reason)


def _mean_loss(losses: NDArray[np.float64], samples: NDArray[np.int64]) -> Figure:
    """Return the mean over samples of the steps whose loss is a finite number."""
    known = np.isfinite(losses)
    total = int(samples[known].sum())
    return _figure(float(losses[known] @ samples[known]) / total if total else None,
                   "no_finite_loss")  # fmt: skip


def _share(model: Figure, of: Figure, note: Message | None = None) -> Figure:
    """Return the rate of model FLOPs in percent of another rate."""
    if model.value is None or of.value is None:
        return Figure(None, model.reason or of.reason)
    return Figure(100 * model.value / of.value, note=note)


def _steady(record: Record) -> dict[str, Figure]:
    """Return the figures over the steps after the warm-up."""
    phases = [rank.phases["train"] for rank in record.ranks]
    slowest_ns = max(phase.windows_ns for phase in phases)
    times = spread(np.array(record.steps.time_ns[record.steps.warmup :], np.int64))
    if not times or not slowest_ns or not any(phase.samples for phase in phases):
        reason = message("no_step_after_warmup", steps=record.plan.recipe["warmup_steps"])
        return dict.fromkeys(_STEADY, Figure(None, reason))
    if any(phase.steps == 0 for phase in phases):
        return dict.fromkeys(_STEADY, Figure(None, message("rank_without_measured_step")))
    work = sum(getattr(phase, record.plan.about.work_unit) for phase in phases)
    flops = [phase.model_flops for phase in phases if phase.model_flops is not None]
    per_device = sum(flops) * NS_PER_S / slowest_ns / len(phases)
    cv = times.pop("cv")
    return {
        "final_result": Figure(work * NS_PER_S / slowest_ns),
        **{f"step_time_{name}": Figure(value) for name, value in times.items()},
        "step_time_cv": _figure(None if cv is None else 100 * cv, "one_step_has_no_deviation"),
        "model_flops_per_device": _figure(
            per_device if len(flops) == len(phases) else None, "no_flop_formula"
        ),
    }


def _peak(
    devices: Sequence[DeviceFacts | None], precision: Precision, given_tflops: float | None
) -> Figure:
    """Return the dense peak of the ranks' devices in FLOP/s."""
    products = {(one or {}).get("name", "an unnamed device") for one in devices}
    if len(products) > 1:
        return Figure(None, message("devices_differ", products=", ".join(sorted(products))))
    (product,) = products
    if given_tflops is not None:
        note = message("given_peak", precision=precision, tflops=given_tflops)
        return Figure(given_tflops * 1e12, note=note)
    peak = peaks.peak(product, precision)
    if peak is None:
        return Figure(None, message("peak_unknown", precision=precision, product=product))
    tflops = peak.per_second / 1e12
    note = message("dense_peak", precision=precision, tflops=tflops, evidence=peak.evidence)
    return Figure(tflops * 1e12, note=note)


def _memory(record: Record) -> Figure:
    used = [float(rank.used_bytes) for rank in record.ranks if rank.used_bytes is not None]
    if used and all(rank.memory_scope == "process" for rank in record.ranks):
        return Figure(sum(used), note=message("resident_memory_sum"))
    by_ranks = max(used, default=None)
    by_monitor = _reading(_uses(record, "run"), "memory_used_bytes", peak=True).value
    if by_monitor is not None and by_monitor > (by_ranks or 0.0):
        return Figure(by_monitor, note=message("device_memory_by_monitor"))
    return _figure(by_ranks, "memory_unreported", message("device_memory_at_edges"))


def _uses(record: Record, interval: IntervalName) -> list[Use] | Message:
    """Return the readings of every rank's device, or why there are none."""
    telemetry = record.telemetry
    if telemetry is None:
        return message("not_sampled")
    if interval not in telemetry.intervals_s:
        return message("nothing_trained" if interval == "train" else "target_not_reached")
    failed = any(fault.args["source"] == "monitor" for fault in telemetry.faults)
    if telemetry.interval_s is not None and telemetry.monitor is None and not failed:
        return message("devices_unmonitored")  # the sampler began and found nothing
    uses = [device.over[interval] for device in telemetry.devices]
    known = sum(len(device.ranks) for device in telemetry.devices)
    if known < len(record.ranks) or not all(use.readings for use in uses):
        return message("no_reading_in_interval")
    return uses


def _reading(uses: list[Use] | Message, name: str, *, peak: bool = False) -> Figure:
    """Return the mean over the devices and the time, or the highest reading of any device."""
    if isinstance(uses, Message):
        return Figure(None, uses)
    found = [use.quantities[name] for use in uses if name in use.quantities]
    if len(found) < len(uses):
        return Figure(None, message("quantity_untold", quantity=name))
    note = message("over_devices", devices=len(found), readings=min(x.readings for x in found))
    value = max(x.highest for x in found) if peak else fmean(x.mean for x in found)
    return Figure(value, note=note)


def _energies(record: Record, interval: IntervalName, parts: int = 1) -> dict[str, Figure]:
    """Return the joules a part that were counted or, if unknown, also estimated from power.

    There is no estimate where power was not told or is known too seldom. Of ranks on processors,
    counters are those of the packages, and the estimate is that of whole nodes.
    """
    telemetry, uses = record.telemetry, _uses(record, interval)
    on_host = record.plan.device.vendor == "cpu"
    if on_host and telemetry and interval in telemetry.intervals_s:
        uses = [host[interval] for host in telemetry.hosts]
    if not parts:
        uses = message("nothing_trained")
    if isinstance(uses, Message):
        return {"energy": Figure(None, uses)}
    assert telemetry is not None
    whose: dict[str, Any] = {} if on_host else {"devices": len(uses), "monitor": telemetry.monitor}
    found = [use.energy for use in uses]
    unknown = next((energy.reason for energy in found if energy.reason is not None), None)
    if unknown is None:
        between_s = max(energy.between_s or 0.0 for energy in found)
        note = message("energy_of_packages" if on_host else "energy_of_devices",
                       between_s=between_s, **whose)  # fmt: skip
        return {"energy": Figure(sum(energy.joules or 0.0 for energy in found) / parts, note=note)}
    figures = {"energy": Figure(None, unknown)}
    powers = [use.quantities["power_w"] for use in uses if "power_w" in use.quantities]
    gap_s = max((power.longest_gap_s for power in powers), default=0.0)
    start_s, end_s = telemetry.intervals_s[interval]
    if len(powers) == len(uses) and gap_s <= MOST_UNSEEN * (end_s - start_s):
        code = "estimated_of_node" if on_host else "estimated_of_devices"
        joules = sum(power.mean for power in powers) * (end_s - start_s) / parts
        figures["estimated_energy"] = Figure(joules, note=message(code, gap_s=gap_s, **whose))
    return figures
