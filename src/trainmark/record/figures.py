"""Compute every figure from the events and counts of a run; ``figures.toml`` defines them.

A figure that cannot be known is None with a reason, never 0. Each
throughput is all samples over the slowest rank's time of that kind, so that
``p_core >= p_train >= p_whole`` and none is overstated by a rank that waited for others.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from trainmark.devices.peaks import dense_peak
from trainmark.protocols import Counts
from trainmark.record.run import usage
from trainmark.record.stats import spread
from trainmark.spec import Figure, message, read_page

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from trainmark.recipe import Precision
    from trainmark.record.record import RankEntry, Record, Steps
    from trainmark.record.run.telemetry import Telemetry
    from trainmark.record.shapes import DeviceFacts, Phase
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


def compute(record: Record) -> dict[str, Figure]:
    """Return the figures that every case has, by name, from the measured parts of a record."""
    plan, ranks, devices = record.plan, record.ranks, record.environment["devices"]
    counts = sum((rank.counts for rank in ranks), Counts())
    ended = all(rank.train_ns is not None for rank in ranks)
    whole = [rank.train_ns or 0 for rank in ranks] if ended else []
    trained = [x - rank.spans_ns["evaluate"] for x, rank in zip(whole, ranks, strict=False)]
    busy = [x - rank.sum_of("wait_ns") for x, rank in zip(trained, ranks, strict=False)]
    tokens = _rate(counts.tokens, trained)
    if counts.samples and not counts.tokens:
        tokens = Figure(None, message("no_tokens"))
    figures = {
        "e2e_time": _whole_time(ranks),
        "train_time": Figure(max(whole) / NS_PER_S) if whole else Figure(None, _NO_TRAIN_TIME),
        "p_whole": _rate(counts.samples, whole),
        "p_train": _rate(counts.samples, trained),
        "p_core": _rate(counts.samples, busy),
        "token/p/s": Figure(
            None if tokens.value is None else tokens.value / len(ranks), tokens.reason
        ),
    }
    if counts.sequences not in (0, counts.samples):
        # Samples then differ in size, so their rate alone is not informative.
        per_sample = message("sequences_per_sample", sequences=counts.sequences / counts.samples)
        figures["p_train_sequences"] = replace(_rate(counts.sequences, trained), note=per_sample)
        figures["p_train_tokens"] = _rate(counts.tokens, trained)
    steps = record.steps
    steady, rate = _steady(ranks, steps, plan.recipe["warmup_steps"], plan.about.work_unit)
    figures |= steady | _utilisation(
        ranks, devices, plan.recipe["precision"], rate, plan.peak_tflops
    )
    figures |= _losses(np.array(steps.loss, np.float64), np.array(steps.samples, np.int64))
    figures["mem"] = _memory(ranks, record.telemetry)
    totals = [one.get("memory_total_bytes") for one in devices if one]
    figures["mem_total"] = _greatest(totals, "device_unreported")
    peaks = [rank.allocator_peak_bytes for rank in ranks]
    figures["allocator_peak"] = _greatest(peaks, "no_counting_allocator")
    # The processor's packages count as the device of ranks that run on it.
    on_host = plan.device.vendor == "cpu"
    return figures | usage.compute(
        record.telemetry, ranks=len(ranks), samples=counts.samples, on_host=on_host
    )


def _rate(amount: float, times_ns: list[int]) -> Figure:
    """Return an amount over the longest of the ranks' times; none: one of them is unknown."""
    if not times_ns:
        return Figure(None, _NO_TRAIN_TIME)
    if amount == 0 or max(times_ns) <= 0:
        return Figure(None, message("nothing_trained"))
    return Figure(amount * NS_PER_S / max(times_ns))


def _whole_time(ranks: Sequence[RankEntry]) -> Figure:
    walls = [rank.wall_ns for rank in ranks if rank.wall_ns is not None]
    if not walls:
        return Figure(None, message("no_rank_started"))
    finished = all(rank.finished for rank in ranks)
    return Figure(
        max(walls) / NS_PER_S, note=None if finished else message("until_launcher_saw_end")
    )


def _greatest(values: Sequence[int | None], reason: str) -> Figure:
    known = [float(value) for value in values if value is not None]
    return Figure(max(known)) if known else Figure(None, message(reason))


def _losses(loss: NDArray[np.float64], samples: NDArray[np.int64]) -> dict[str, Figure]:
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
    ranks: Sequence[RankEntry], steps: Steps, warmup_steps: int, work_unit: str
) -> tuple[dict[str, Figure], Figure]:
    """Return the figures over the steps after the warm-up, and the rate of model FLOPs."""
    phases = [rank.phases["train"] for rank in ranks]
    slowest_ns = max(phase.windows_ns for phase in phases)
    samples = sum(phase.samples for phase in phases)
    times = spread(np.array(steps.time_ns[steps.warmup :], np.int64))
    if samples == 0 or slowest_ns == 0 or times is None:
        reason = message("no_step_after_warmup", steps=warmup_steps)
    elif any(phase.steps == 0 for phase in phases):
        reason = message("rank_without_measured_step")
    else:
        work = sum(getattr(phase, work_unit) for phase in phases)
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
    ranks: Sequence[RankEntry], devices: Sequence[DeviceFacts | None], precision: Precision,
    rate: Figure, given_tflops: float | None,
) -> dict[str, Figure]:  # fmt: skip
    """Return model FLOP rates against the dense peak and the measured matmul rate."""
    matmul = _matmul_flops_per_device(ranks)
    mamfu = Figure(None, rate.reason or matmul.reason)
    if rate.value is not None and matmul.value is not None:
        mamfu = Figure(100 * rate.value / matmul.value)
    return {
        "model_flops_per_device": rate,
        "matmul_flops_per_device": matmul,
        "MFU": _mfu(devices, precision, rate, given_tflops),
        "MAMFU": mamfu,
    }


def _mfu(
    devices: Sequence[DeviceFacts | None],
    precision: Precision,
    rate: Figure,
    given_tflops: float | None,
) -> Figure:
    if rate.value is None:
        return Figure(None, rate.reason)
    products = {(one or {}).get("name", "an unnamed device") for one in devices}
    if len(products) > 1:
        return Figure(None, message("devices_differ", products=", ".join(sorted(products))))
    (product,) = products
    peak = dense_peak(product, precision)
    published = None if peak is None else peak.flops_per_second / 1e12
    tflops = published if given_tflops is None else given_tflops
    if tflops is None:
        return Figure(None, message("peak_unknown", precision=precision, product=product))
    note = message("given_peak", precision=precision, tflops=tflops)
    if peak is not None and given_tflops is None:
        note = message("dense_peak", precision=precision, tflops=tflops, evidence=peak.evidence)
    return Figure(100 * rate.value / (tflops * 1e12), note=note)


def _matmul_flops_per_device(ranks: Sequence[RankEntry]) -> Figure:
    known = [rate for rank in ranks if (rate := rank.matmul_flops_per_second)]
    if len(known) < len(ranks):
        return Figure(None, message("matmul_rate_unmeasured"))
    return Figure(sum(known) / len(known), note=message("measured_in_preflight"))


def _memory(ranks: Sequence[RankEntry], telemetry: Telemetry | None) -> Figure:
    used = [float(rank.used_bytes) for rank in ranks if rank.used_bytes is not None]
    if used and all(rank.memory_scope == "process" for rank in ranks):
        return Figure(sum(used), note=message("resident_memory_sum"))
    by_ranks = max(used, default=-1.0)
    by_monitor = usage.peak_memory_bytes(telemetry, len(ranks))
    if by_monitor is not None and by_monitor > by_ranks:
        return Figure(by_monitor, note=message("device_memory_by_monitor"))
    if not used:
        return Figure(None, message("memory_unreported"))
    return Figure(by_ranks, note=message("device_memory_at_edges"))
