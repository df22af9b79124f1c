"""Compute every figure from the events and counts of a run.

Owns the definitions. A figure that cannot be known is None with a reason, never 0. Each
throughput is all samples over the slowest rank's time of that kind, so that
``p_core >= p_train >= p_whole`` and none is overstated by a rank that waited for others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainmark.devices.peaks import dense_peak
from trainmark.measure.stats import spread

if TYPE_CHECKING:
    from collections.abc import Callable

    from trainmark.measure.timeline import RankTimeline, RunTimeline
    from trainmark.spec import Precision

NS_PER_S = 1e9


@dataclass(frozen=True, slots=True)
class Figure:
    """A value in a unit, or the reason why there is none."""

    value: float | None
    unit: str
    reason: str | None = None
    note: str | None = None


def _rate(
    amount: float,
    ranks: list[RankTimeline],
    time_ns: Callable[[RankTimeline], int | None],
    unit: str,
) -> Figure:
    times = [time_ns(rank) for rank in ranks]
    known = [value for value in times if value is not None]
    if not known or len(known) < len(ranks):
        return Figure(None, unit, "a rank did not report its training time")
    if amount == 0 or max(known) <= 0:
        return Figure(None, unit, "nothing was trained")
    return Figure(amount * NS_PER_S / max(known), unit)


def compute(
    timeline: RunTimeline, *, precision: Precision, recipe_warmup_steps: int
) -> dict[str, Figure]:
    """Return all figures by name."""
    ranks, counts = timeline.ranks, timeline.counts
    world_size = len(ranks)

    def train(rank: RankTimeline) -> int | None:
        return rank.train_ns

    def without_evaluation(rank: RankTimeline) -> int | None:
        return None if rank.train_ns is None else rank.train_ns - rank.evaluate_ns

    def without_waiting(rank: RankTimeline) -> int | None:
        spent = without_evaluation(rank)
        return None if spent is None else spent - rank.wait_ns

    end_ns = timeline.end_ns
    train_times = [rank.train_ns for rank in ranks if rank.train_ns is not None]
    tokens = _rate(counts.tokens, ranks, without_evaluation, "tokens/s")
    figures = {
        "e2e_time": Figure((end_ns - timeline.launch_ns) / NS_PER_S, "s")
        if end_ns is not None
        else Figure(None, "s", "no rank started"),
        "train_time": Figure(max(train_times) / NS_PER_S, "s")
        if train_times
        else Figure(None, "s", "training did not start"),
        "p_whole": _rate(counts.samples, ranks, train, "samples/s"),
        "p_train": _rate(counts.samples, ranks, without_evaluation, "samples/s"),
        "p_core": _rate(counts.samples, ranks, without_waiting, "samples/s"),
        "token/p/s": Figure(
            None if tokens.value is None else tokens.value / world_size,
            "tokens/s",
            tokens.reason,
            "tokens without padding, per device, evaluation left out",
        ),
    }
    figures |= _steady(timeline, precision, recipe_warmup_steps)
    figures["mem"] = _memory(ranks)
    figures["mem_total"] = _memory_total(ranks)
    figures["allocator_peak"] = _allocator_peak(ranks)
    return figures


def _steady(timeline: RunTimeline, precision: Precision, warmup_steps: int) -> dict[str, Figure]:
    """Return the figures over the steps after the warm-up."""
    ranks = timeline.ranks
    phases = [rank.phases["train"] for rank in ranks]
    slowest_ns = max(phase.windows_ns for phase in phases)
    samples = sum(phase.counts.samples for phase in phases)
    too_short = f"no step after the {warmup_steps} warm-up steps"
    figures: dict[str, Figure] = {}
    if samples == 0 or slowest_ns == 0:
        names = ("final_result", "step_time_p50", "step_time_p90", "step_time_p99",
                 "step_time_mad", "step_time_cv", "model_flops_per_device",
                 "matmul_flops_per_device", "MFU", "MAMFU")  # fmt: skip
        units = ("samples/s", "s", "s", "s", "s", "%", "FLOP/s", "FLOP/s", "%", "%")
        return {
            name: Figure(None, unit, too_short) for name, unit in zip(names, units, strict=True)
        }
    figures["final_result"] = Figure(samples * NS_PER_S / slowest_ns, "samples/s")
    warm = ranks[0].steps - ranks[0].phases["train"].steps
    times = spread(timeline.series.step_ns[warm:])
    assert times is not None
    for name in ("p50", "p90", "p99", "mad"):
        figures[f"step_time_{name}"] = Figure(getattr(times, name), "s")
    figures["step_time_cv"] = Figure(100 * times.cv, "%")
    figures |= _utilisation(timeline, precision, slowest_ns)
    return figures


def _utilisation(timeline: RunTimeline, precision: Precision, slowest_ns: int) -> dict[str, Figure]:
    """Return model FLOP rates against the published peak and the measured matmul rate."""
    ranks = timeline.ranks
    parts = [rank.phases["train"].model_flops for rank in ranks]
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        reason = "no FLOP formula for this case"
        none = {name: Figure(None, "%", reason) for name in ("MFU", "MAMFU")}
        return {"model_flops_per_device": Figure(None, "FLOP/s", reason), **none}
    rate = sum(known) * NS_PER_S / slowest_ns / len(ranks)
    figures = {"model_flops_per_device": Figure(rate, "FLOP/s")}
    product = ranks[0].facts.get("device", {}).get("name", "")
    peak = dense_peak(product, precision)
    if peak is None:
        figures["MFU"] = Figure(None, "%", f"no dense {precision} peak is known for {product}")
    else:
        note = f"dense {precision} peak {peak.flops_per_second / 1e12:g} TFLOP/s ({peak.evidence})"
        figures["MFU"] = Figure(100 * rate / peak.flops_per_second, "%", note=note)
    measured = [rank.facts.get("matmul_flops_per_second") for rank in ranks]
    rates = [value for value in measured if value]
    if rates:
        mean = sum(rates) / len(rates)
        figures["matmul_flops_per_device"] = Figure(mean, "FLOP/s", note="measured in preflight")
        figures["MAMFU"] = Figure(100 * rate / mean, "%")
    else:
        figures["matmul_flops_per_device"] = Figure(None, "FLOP/s", "not measured")
        figures["MAMFU"] = Figure(None, "%", "the matmul rate was not measured")
    return figures


def _memory(ranks: list[RankTimeline]) -> Figure:
    used = [rank.used_bytes for rank in ranks if rank.used_bytes is not None]
    if not used:
        return Figure(None, "bytes", "no rank reported its memory")
    if _process_scope(ranks):
        return Figure(float(sum(used)), "bytes", note="sum of the ranks' peak resident memory")
    return Figure(float(max(used)), "bytes", note="fullest device, device-wide, at window edges")


def _process_scope(ranks: list[RankTimeline]) -> bool:
    """Tell whether memory is counted a process (ranks share the host) or a device."""
    return all(rank.facts.get("memory_scope") == "process" for rank in ranks)


def _memory_total(ranks: list[RankTimeline]) -> Figure:
    totals = [rank.facts.get("device", {}).get("memory_total_bytes") for rank in ranks]
    known = [float(total) for total in totals if total]
    if not known:
        return Figure(None, "bytes", "no rank reported its device")
    return Figure(max(known), "bytes")


def _allocator_peak(ranks: list[RankTimeline]) -> Figure:
    peaks = [rank.result.get("allocator_peak_bytes") for rank in ranks]
    known = [float(peak) for peak in peaks if peak is not None]
    if not known:
        return Figure(None, "bytes", "this device has no counting allocator")
    return Figure(max(known), "bytes")
