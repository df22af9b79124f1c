"""Compute every figure from the events and counts of a run; ``figures.toml`` defines them.

A figure that cannot be known is None with a reason, never 0. Each
throughput is all samples over the slowest rank's time of that kind, so that
``p_core >= p_train >= p_whole`` and none is overstated by a rank that waited for others.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from trainmark.devices.peaks import dense_peak
from trainmark.record.run import usage
from trainmark.record.stats import spread
from trainmark.spec import Figure, message, read_page

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from trainmark.recipe import Precision
    from trainmark.record.run.telemetry import Telemetry
    from trainmark.record.run.timeline import Phase, RankTimeline, RunTimeline
    from trainmark.spec import FigureSpec, PageSpec

NS_PER_S = 1e9
_FINAL_SHARE = 0.1  # of the steps: the loss that training ended with
_NO_TRAIN_TIME = message("no_train_time")
_STEP_TIMES = ("step_time_p50", "step_time_p90", "step_time_p99", "step_time_mad", "step_time_cv")
FIGURES = {spec.name: spec for spec in read_page(Path(__file__).with_suffix(".toml")).figures}


def specs(page: PageSpec) -> dict[str, FigureSpec]:
    """Return every figure of a case by name: those of every case, then its own."""
    own = {spec.name: spec for spec in page.figures if spec.name not in FIGURES}
    return FIGURES | own


def _rate(
    amount: float,
    ranks: list[RankTimeline],
    time_ns: Callable[[RankTimeline], int | None],
) -> Figure:
    times = [time_ns(rank) for rank in ranks]
    known = [value for value in times if value is not None]
    if not known or len(known) < len(ranks):
        return Figure(None, _NO_TRAIN_TIME)
    if amount == 0 or max(known) <= 0:
        return Figure(None, message("nothing_trained"))
    return Figure(amount * NS_PER_S / max(known))


def compute(
    timeline: RunTimeline,
    *,
    precision: Precision,
    recipe_warmup_steps: int,
    work_unit: Literal["samples", "tokens"] = "samples",
    given_tflops: float | None = None,
    telemetry: Telemetry | None = None,
    on_processor: bool = False,
) -> dict[str, Figure]:
    """Return the figures that every case has, by name; ``final_result`` counts ``work_unit``.

    Args:
        given_tflops: a device's dense peak as the user gave it; None: the published one.
        on_processor: the ranks' device is the host's processor, whose packages count as it.
    """
    ranks, counts = timeline.ranks, timeline.counts

    def train(rank: RankTimeline) -> int | None:
        return rank.train_ns

    def without_evaluation(rank: RankTimeline) -> int | None:
        return None if rank.train_ns is None else rank.train_ns - rank.evaluate_ns

    def without_waiting(rank: RankTimeline) -> int | None:
        spent = without_evaluation(rank)
        return None if spent is None else spent - rank.wait_ns

    tokens = _rate(counts.tokens, ranks, without_evaluation)
    if counts.samples and not counts.tokens:
        tokens = Figure(None, message("no_tokens"))
    figures = {
        "e2e_time": _whole_time(timeline),
        "train_time": _slowest(ranks, train),
        "p_whole": _rate(counts.samples, ranks, train),
        "p_train": _rate(counts.samples, ranks, without_evaluation),
        "p_core": _rate(counts.samples, ranks, without_waiting),
        "token/p/s": Figure(
            None if tokens.value is None else tokens.value / len(ranks), tokens.reason
        ),
    }
    if counts.sequences not in (0, counts.samples):
        # Samples then differ in size, so their rate alone is not informative.
        per_sample = message("sequences_per_sample", sequences=counts.sequences / counts.samples)
        by_sequences = _rate(counts.sequences, ranks, without_evaluation)
        figures["p_train_sequences"] = replace(by_sequences, note=per_sample)
        figures["p_train_tokens"] = _rate(counts.tokens, ranks, without_evaluation)
    steady, rate = _steady(timeline, recipe_warmup_steps, work_unit)
    figures |= steady | _utilisation(ranks, precision, rate, given_tflops)
    figures |= losses(timeline.series.loss, timeline.series.samples)
    figures["mem"] = _memory(ranks, telemetry)
    figures["mem_total"] = _memory_total(ranks)
    figures["allocator_peak"] = _allocator_peak(ranks)
    return figures | usage.compute(
        telemetry, ranks=len(ranks), samples=counts.samples, on_host=on_processor
    )


def _whole_time(timeline: RunTimeline) -> Figure:
    if timeline.end_ns is None:
        return Figure(None, message("no_rank_started"))
    note = None if timeline.finished else message("until_launcher_saw_end")
    return Figure((timeline.end_ns - timeline.launch_ns) / NS_PER_S, note=note)


def _slowest(ranks: list[RankTimeline], time_ns: Callable[[RankTimeline], int | None]) -> Figure:
    times = [value for rank in ranks if (value := time_ns(rank)) is not None]
    return (
        Figure(max(times) / NS_PER_S) if len(times) == len(ranks) else Figure(None, _NO_TRAIN_TIME)
    )


def losses(loss: NDArray[np.float64], samples: NDArray[np.int64]) -> dict[str, Figure]:
    """Return the mean training loss over all steps, and over the last tenth of them."""
    tail = max(1, round(len(loss) * _FINAL_SHARE))
    return {
        "loss": _mean_loss(loss, samples),
        "final_loss": _mean_loss(loss[-tail:], samples[-tail:]),
    }


def _mean_loss(losses: NDArray[np.float64], samples: NDArray[np.int64]) -> Figure:
    """Return the mean over samples of the steps whose loss is a finite number."""
    known = np.isfinite(losses)
    total = int(samples[known].sum())
    if total == 0:
        return Figure(None, message("no_finite_loss"))
    return Figure(float(losses[known] @ samples[known]) / total)


def _steady(
    timeline: RunTimeline, warmup_steps: int, work_unit: str
) -> tuple[dict[str, Figure], Figure]:
    """Return the figures over the steps after the warm-up, and the rate of model FLOPs."""
    phases = [rank.phases["train"] for rank in timeline.ranks]
    slowest_ns = max(phase.windows_ns for phase in phases)
    samples = sum(phase.counts.samples for phase in phases)
    times = spread(timeline.series.step_ns[timeline.warmup_steps :])
    if samples == 0 or slowest_ns == 0 or times is None:
        reason = message("no_step_after_warmup", steps=warmup_steps)
    elif any(phase.steps == 0 for phase in phases):
        reason = message("rank_without_measured_step")
    else:
        work = sum(getattr(phase.counts, work_unit) for phase in phases)
        figures = {"final_result": Figure(work * NS_PER_S / slowest_ns)}
        for name in _STEP_TIMES[:-1]:
            figures[name] = Figure(getattr(times, name.removeprefix("step_time_")))
        figures["step_time_cv"] = (
            Figure(None, message("one_step_has_no_deviation"))
            if times.cv is None
            else Figure(100 * times.cv)
        )
        return figures, _model_flops_per_device(phases, slowest_ns)
    none = {name: Figure(None, reason) for name in ("final_result", *_STEP_TIMES)}
    return none, Figure(None, reason)


def _model_flops_per_device(phases: list[Phase], slowest_ns: int) -> Figure:
    parts = [phase.model_flops for phase in phases]
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        return Figure(None, message("no_flop_formula"))
    return Figure(sum(known) * NS_PER_S / slowest_ns / len(parts))


def _utilisation(
    ranks: list[RankTimeline], precision: Precision, rate: Figure, given_tflops: float | None
) -> dict[str, Figure]:
    """Return model FLOP rates against the dense peak and the measured matmul rate."""
    matmul = _matmul_flops_per_device(ranks)
    mamfu = Figure(None, rate.reason or matmul.reason)
    if rate.value is not None and matmul.value is not None:
        mamfu = Figure(100 * rate.value / matmul.value)
    return {
        "model_flops_per_device": rate,
        "matmul_flops_per_device": matmul,
        "MFU": _mfu(ranks, precision, rate, given_tflops),
        "MAMFU": mamfu,
    }


def _mfu(
    ranks: list[RankTimeline], precision: Precision, rate: Figure, given_tflops: float | None
) -> Figure:
    if rate.value is None:
        return Figure(None, rate.reason)
    products = {rank.facts.device.get("name", "an unnamed device") for rank in ranks}
    if len(products) > 1:
        return Figure(None, message("devices_differ", products=", ".join(sorted(products))))
    (product,) = products
    peak = dense_peak(product, precision)
    published = None if peak is None else peak.flops_per_second / 1e12
    tflops = published if given_tflops is None else given_tflops
    if tflops is None:
        return Figure(None, message("peak_unknown", precision=precision, product=product))
    args = {"precision": precision, "tflops": tflops}
    if peak is None:
        note = message("given_peak", **args)
    elif given_tflops is None:
        note = message("dense_peak", **args, evidence=peak.evidence)
    else:
        note = message("given_peak_beside", **args, published=published, evidence=peak.evidence)
    return Figure(100 * rate.value / (tflops * 1e12), note=note)


def _matmul_flops_per_device(ranks: list[RankTimeline]) -> Figure:
    rates = [rank.facts.matmul_flops_per_second for rank in ranks]
    known = [value for value in rates if value]
    if len(known) < len(ranks):
        return Figure(None, message("matmul_rate_unmeasured"))
    return Figure(sum(known) / len(known), note=message("measured_in_preflight"))


def _memory(ranks: list[RankTimeline], telemetry: Telemetry | None) -> Figure:
    used = [float(rank.used_bytes) for rank in ranks if rank.used_bytes is not None]
    if used and _process_scope(ranks):
        return Figure(sum(used), note=message("resident_memory_sum"))
    by_ranks = max(used, default=-1.0)
    by_monitor = usage.peak_memory_bytes(telemetry, len(ranks))
    if by_monitor is not None and by_monitor > by_ranks:
        return Figure(by_monitor, note=message("device_memory_by_monitor"))
    if not used:
        return Figure(None, message("memory_unreported"))
    return Figure(by_ranks, note=message("device_memory_at_edges"))


def _process_scope(ranks: list[RankTimeline]) -> bool:
    """Tell whether memory is counted per process (ranks share the host), not per device."""
    return all(rank.facts.memory_scope == "process" for rank in ranks)


def _memory_total(ranks: list[RankTimeline]) -> Figure:
    totals = [rank.facts.device.get("memory_total_bytes") for rank in ranks]
    known = [float(total) for total in totals if total]
    if not known:
        return Figure(None, message("device_unreported"))
    return Figure(max(known))


def _allocator_peak(ranks: list[RankTimeline]) -> Figure:
    peaks = [rank.result.allocator_peak_bytes for rank in ranks]
    known = [float(peak) for peak in peaks if peak is not None]
    if not known:
        return Figure(None, message("no_counting_allocator"))
    return Figure(max(known))
