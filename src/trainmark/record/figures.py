"""Compute every figure from the events and counts of a run; ``figures.toml`` defines them.

A figure that cannot be known is None with a reason, never 0. Each throughput is all samples over
the slowest rank's time of that kind, so that ``p_core >= p_train >= p_whole`` and none is
overstated by a rank that waited for others. An energy is the difference of counters; what power
readings add up to is an estimate, in figures of another name.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np

from trainmark import cases
from trainmark.devices import peaks
from trainmark.events.series import MAX_UNSEEN_SHARE
from trainmark.record.record import FigureEntry
from trainmark.record.stats import summarize_step_times
from trainmark.record.witnessed import withhold_figures
from trainmark.spec import Figure, Message, OwnFigures, message, read_page

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from trainmark.recipe import Precision
    from trainmark.record.measurement import Measurement
    from trainmark.spec import FigureSpec, PageSpec
    from trainmark.telemetry.summary import IntervalName, Use

NS_PER_S = 1e9
FIGURES_PLACE = "figures"  # of the error of a case that cannot compute its own figures
_FINAL_SHARE = 0.1  # part of the steps, at the end, over which the final loss is the mean
_UNIT_WORDS = {"%": "percent", "/": "_per_"}  # in names of columns
_FIGURES_AFTER_WARMUP = (
    "final_result",
    "step_time_p50",
    "step_time_p90",
    "step_time_p99",
    "step_time_mad",
    "step_time_cv",
    "model_flops_per_device",
)
FIGURES: dict[str, FigureSpec] = {
    spec.name: spec for spec in read_page(Path(__file__).with_suffix(".toml")).figures
}


def name_column(name: str, unit: str, spec: FigureSpec | None) -> str:
    """Return the name of a figure's column in tables: as declared, or its name with its unit.

    Args:
        name: of the figure.
        unit: of its value in the record.
        spec: its declaration; None: the figure of a case that is no longer installed.
    """
    if spec is not None and spec.column:
        return spec.column
    for sign, word in _UNIT_WORDS.items():  # such as ``/`` and ``_per_``
        unit = unit.replace(sign, word)
    return re.sub(r"\W+", "_", f"{name}_{unit}").strip("_")


def list_specs(page: PageSpec) -> dict[str, FigureSpec]:
    """Return the declaration of each figure by name: those of all cases, then the case's own.

    Args:
        page: what pages show of one case in addition, such as its own figures.
    """
    # A figure that every case has keeps its declaration, even if the case declares it again.
    of_case = {spec.name: spec for spec in page.figures if spec.name not in FIGURES}
    return FIGURES | of_case


def compute_figures(measurement: Measurement) -> dict[str, Figure]:
    """Return the figures that every case has, by name; those that cannot be known are None."""
    after_warmup = _compute_after_warmup(measurement)
    figures = {
        **_compute_times(measurement),
        **_compute_throughput(measurement),
        **after_warmup,
        **_compute_device_rates(measurement, after_warmup["model_flops_per_device"]),
        **_compute_losses(measurement),
        **_compute_replays(measurement),
        **_compute_memory(measurement),
        **_compute_readings(measurement),
        **_compute_energies(measurement),
    }
    # A user's own program runs instead of a case, with ``--witness``: a probe watches its training.
    # It cannot measure all figures of a case, so that some lose their value and get a reason.
    if measurement.plan.witness is not None:
        return withhold_figures(measurement, figures)
    return figures


def compute_case_figures(measurement: Measurement, figures: dict[str, Figure]) -> OwnFigures:
    """Return the figures and notes that the case's own module ``figures`` computes.

    Both are empty if the case is not installed, or has no such module.

    Args:
        figures: those that every case has. The case's module may compute its own from them.

    Raises:
        CaseError: the case's code failed.
    """
    case = measurement.plan.case
    if case not in cases.list_names() or not cases.has_part(case, "figures"):
        return OwnFigures({})
    # What rank 0 reported of its training job, such as the number of parameters.
    first_job = measurement.job or {}
    # What each rank trained in the steps after the warm-up: its counts and times.
    work_of_ranks = []
    for rank in measurement.ranks:
        # A rank has facts of its own only if they differ from those of rank 0; None: they do not.
        job = first_job if rank.job is None else rank.job
        work_of_ranks.append(rank.make_work(dict(job)))
    compute = cases.import_part(case, "figures").compute
    # An exception of the case's code becomes a ``CaseError`` that names this part of the case.
    with cases.wrap_case_errors(case, FIGURES_PLACE):
        own_figures: OwnFigures = compute(work_of_ranks, figures)
    return own_figures


def make_entries(
    figures: Mapping[str, Figure], page: PageSpec, *, work_unit: str
) -> dict[str, FigureEntry]:
    """Return figures as a record holds them, each in its declared unit.

    Args:
        page: declares the case's own figures.
        work_unit: what the case counts, such as ``samples``; stands for ``{work}`` in units.
    """
    declared = list_specs(page)
    return {
        name: FigureEntry(
            value=figure.value,
            unit=declared[name].unit.replace("{work}", work_unit),
            reason=figure.reason,
            note=figure.note,
        )
        for name, figure in figures.items()
    }


def _compute_times(measurement: Measurement) -> dict[str, Figure]:
    """Return the time of the run and that of its training, each of the slowest rank."""
    ranks = measurement.ranks
    walls_ns = [rank.wall_ns for rank in ranks if rank.wall_ns is not None]  # None: never started
    train_ns = _list_train_ns(measurement)
    e2e_s = max(walls_ns) / NS_PER_S if walls_ns else None
    train_s = max(train_ns) / NS_PER_S if train_ns else None
    # The time of a rank that did not report its end is measured until the launcher saw its end.
    have_all_finished = all(rank.finished for rank in ranks)
    note = None if have_all_finished else message("until_launcher_saw_end")
    return {
        "e2e_time": _make_figure(e2e_s, reason="no_rank_started", note=note),
        "train_time": _make_figure(train_s, reason="no_train_time"),
    }


def _list_train_ns(measurement: Measurement) -> list[int]:
    """Return each rank's training time, evaluation included; empty if that of one is unknown."""
    times_ns = [rank.train_ns for rank in measurement.ranks if rank.train_ns is not None]
    # The rank of unknown time may be the slowest, whose time counts.
    return times_ns if len(times_ns) == len(measurement.ranks) else []


def _compute_throughput(measurement: Measurement) -> dict[str, Figure]:
    """Return samples and tokens per second over the whole training.

    The time of ``p_whole`` includes evaluations. That of ``p_train`` and of the rates of tokens
    excludes them, and that of ``p_core`` excludes the waiting for data as well. ``token/p/s`` is
    the rate of one device, ``p_train_tokens`` that of all.
    """
    ranks = measurement.ranks
    counts = measurement.counts
    # Three times of each rank: all its training, this without evaluation, and without both
    # evaluation and waiting for data.
    whole_ns = _list_train_ns(measurement)
    without_evaluation_ns: list[int] = []
    busy_ns: list[int] = []
    # Not strict: there are no times at all if that of one rank is unknown.
    for rank, rank_ns in zip(ranks, whole_ns, strict=False):
        training_ns = rank_ns - rank.spans_ns["evaluate"]
        without_evaluation_ns.append(training_ns)
        busy_ns.append(training_ns - rank.total_wait_ns)
    token_rate = _compute_rate(counts.tokens, without_evaluation_ns)
    tokens_per_device = token_rate
    if token_rate.value is not None:  # each rank counts as one device
        tokens_per_device = Figure(token_rate.value / len(ranks))
    elif counts.samples and not counts.tokens:  # trained on something else than tokens
        tokens_per_device = Figure(None, message("no_tokens"))
    figures = {
        "p_whole": _compute_rate(counts.samples, whole_ns),
        "p_train": _compute_rate(counts.samples, without_evaluation_ns),
        "p_core": _compute_rate(counts.samples, busy_ns),
        "token/p/s": tokens_per_device,
    }
    # 0: the case counts no sequences. A sample may consist of several, such as a question with one
    # sequence for each possible answer. Samples then differ in size, so that their rate alone is
    # not informative.
    if counts.sequences not in (0, counts.samples):
        note = message("sequences_per_sample", sequences=counts.sequences / counts.samples)
        sequence_rate = _compute_rate(counts.sequences, without_evaluation_ns)
        figures["p_train_sequences"] = replace(sequence_rate, note=note)
        figures["p_train_tokens"] = token_rate
    return figures


def _compute_rate(amount: float, times_ns: list[int]) -> Figure:
    """Return an amount over the longest of the ranks' times, in units per second.

    Args:
        times_ns: time of each rank; empty: that of one rank is unknown.
    """
    if not times_ns:
        return Figure(None, message("no_train_time"))
    longest_ns = max(times_ns)
    if amount <= 0 or longest_ns <= 0:
        return Figure(None, message("nothing_trained"))
    return Figure(amount * NS_PER_S / longest_ns)


def _compute_after_warmup(measurement: Measurement) -> dict[str, Figure]:
    """Return the figures over the steps after the warm-up.

    They have no value, but a reason, if the run or one of its ranks has no such step.
    """
    plan = measurement.plan
    steps = measurement.steps
    # The phase ``train`` of a rank is its steps after the warm-up: sums of their times and counts.
    phases = [rank.phases["train"] for rank in measurement.ranks]
    slowest_rank_ns = max(phase.windows_ns for phase in phases)
    # Percentiles of the step time and ``mad``, a deviation, in seconds; ``cv``, a deviation as a
    # fraction of the mean. Empty without a step. ``warmup``: number of steps before those that are
    # measured.
    times = summarize_step_times(np.array(steps.time_ns[steps.warmup :], np.int64))
    if not times or not slowest_rank_ns or not any(phase.steps for phase in phases):
        reason = message("no_step_after_warmup", steps=plan.recipe["warmup_steps"])
        return dict.fromkeys(_FIGURES_AFTER_WARMUP, Figure(None, reason))
    if any(phase.steps == 0 for phase in phases):
        reason = message("rank_without_measured_step")
        return dict.fromkeys(_FIGURES_AFTER_WARMUP, Figure(None, reason))
    # ``work_unit``: what the case counts in its result, ``samples`` or ``tokens``. A phase has a
    # field of either name.
    work = sum(getattr(phase, plan.about.work_unit) for phase in phases)
    known_flops = [phase.model_flops for phase in phases if phase.model_flops is not None]
    flops_per_device = None
    if len(known_flops) == len(phases):
        # The mean over the devices, all in the time of the slowest rank.
        flops_per_device = sum(known_flops) * NS_PER_S / slowest_rank_ns / len(phases)
    cv_percent = None if times["cv"] is None else 100 * times["cv"]
    return {
        "final_result": Figure(work * NS_PER_S / slowest_rank_ns),  # the throughput
        "step_time_p50": Figure(times["p50"]),
        "step_time_p90": Figure(times["p90"]),
        "step_time_p99": Figure(times["p99"]),
        "step_time_mad": Figure(times["mad"]),
        "step_time_cv": _make_figure(cv_percent, reason="one_step_has_no_deviation"),
        "model_flops_per_device": _make_figure(flops_per_device, reason="no_flop_formula"),
    }


def _compute_device_rates(measurement: Measurement, model_rate: Figure) -> dict[str, Figure]:
    """Return the matmul rate of a device, and the model's rate in percent of two limits.

    The limit is the peak of the device for ``MFU``, and the matmul rate for ``MAMFU``. Each rank
    measures its matmul rate in preflight, before it trains.

    Args:
        model_rate: FLOP/s of a device by the formula of the model's FLOPs.
    """
    plan = measurement.plan
    ranks = measurement.ranks
    # A rank that did not measure its device may have the slowest one: then there is no mean.
    rates = [rank.matmul_flops_per_second for rank in ranks if rank.matmul_flops_per_second]
    mean_rate = sum(rates) / len(rates) if len(rates) == len(ranks) else None
    matmul_rate = _make_figure(
        mean_rate, reason="matmul_rate_unmeasured", note=message("measured_in_preflight")
    )
    devices = measurement.environment["devices"]
    # The peak that the user gave (``peak_tflops``), or else the published one of the device.
    peak = find_peak(devices, plan.recipe["precision"], plan.peak_tflops)
    return {
        "matmul_flops_per_device": matmul_rate,
        "MFU": _compute_percentage(model_rate, peak, note=peak.note),
        "MAMFU": _compute_percentage(model_rate, matmul_rate),
    }


def find_peak(
    devices: Sequence[Mapping[str, Any] | None], precision: Precision, given_tflops: float | None
) -> Figure:
    """Return the dense peak of one of the ranks' devices in FLOP/s; all must be of one product.

    Args:
        devices: facts of each rank's device; None: the rank reported none.
        given_tflops: the peak that the user gave, in TFLOP/s; None: the published peak is looked
            up in the table.
    """
    products = {(device or {}).get("name", "an unnamed device") for device in devices}
    if len(products) > 1:
        return Figure(None, message("devices_differ", products=", ".join(sorted(products))))
    (product,) = products
    if given_tflops is not None:
        note = message("given_peak", precision=precision, tflops=given_tflops)
        return Figure(given_tflops * 1e12, note=note)
    peak = peaks.find_peak(product, precision)
    if peak is None:
        return Figure(None, message("peak_unknown", precision=precision, product=product))
    note = message(
        "dense_peak",
        precision=precision,
        tflops=peak.per_second / 1e12,
        evidence=peak.evidence,
    )
    return Figure(peak.per_second, note=note)


def _compute_percentage(rate: Figure, limit: Figure, *, note: Message | None = None) -> Figure:
    """Return a rate in percent of a limit, such as the peak of the devices.

    If the rate or the limit is unknown, the percentage is unknown for the same reason.

    Args:
        note: what a reader must know of the percentage, such as which limit it refers to.
    """
    if rate.value is None or limit.value is None:
        return Figure(None, rate.reason or limit.reason)
    return Figure(100 * rate.value / limit.value, note=note)


def _compute_losses(measurement: Measurement) -> dict[str, Figure]:
    """Return the mean loss of all steps, and of the last tenth."""
    losses = np.array(measurement.steps.loss, np.float64)  # a missing loss (None) becomes NaN
    samples = np.array(measurement.steps.samples)
    num_final = max(1, round(len(losses) * _FINAL_SHARE))
    return {
        "loss": _compute_mean_loss(losses, samples),
        "final_loss": _compute_mean_loss(losses[-num_final:], samples[-num_final:]),
    }


def _compute_mean_loss(losses: NDArray[np.float64], samples: NDArray[np.int64]) -> Figure:
    """Return the mean loss of a sample, over the steps whose loss is a finite number.

    Args:
        losses: mean loss of the samples of each step.
        samples: number of samples of each step.
    """
    is_finite = np.isfinite(losses)
    num_samples = int(samples[is_finite].sum())
    if not num_samples:
        return Figure(None, message("no_finite_loss"))
    total_loss = float(losses[is_finite] @ samples[is_finite])
    return Figure(total_loss / num_samples)


def _compute_replays(measurement: Measurement) -> dict[str, Figure]:
    """Return the number of windows that were repeated, if the recipe asks for repeats.

    A window is some steps that are timed together. Repeated from the same state, it must give the
    same values, bit by bit.
    """
    if measurement.plan.recipe.get("replay_every_windows") is None:
        return {}
    replays = measurement.replays
    num_windows = None if replays is None else float(replays.windows)
    return {"replayed_windows": _make_figure(num_windows, reason="no_window_replayed")}


def _compute_memory(measurement: Measurement) -> dict[str, Figure]:
    """Return the highest memory use, the memory of a device, and the peak of its allocator.

    A device's memory and the allocator's peak are the greatest over ranks.
    """
    devices = measurement.environment["devices"]  # of each rank; None: it reported no device
    totals = [device.get("memory_total_bytes") for device in devices if device is not None]
    allocator_peaks = [rank.allocator_peak_bytes for rank in measurement.ranks]
    return {
        "mem": _find_used_memory(measurement),
        "mem_total": _find_greatest(totals, reason="device_unreported"),
        "allocator_peak": _find_greatest(allocator_peaks, reason="no_counting_allocator"),
    }


def _find_used_memory(measurement: Measurement) -> Figure:
    """Return the highest memory use of any device; on a CPU, the sum over the ranks' processes.

    The memory of a device is read by its ranks, at the end of windows, and by a monitor at any
    time: the higher of both counts.
    """
    ranks = measurement.ranks
    # The highest reading of each rank.
    used_bytes = [float(rank.used_bytes) for rank in ranks if rank.used_bytes is not None]
    # On a CPU a rank reads the memory of its own process, else that of the whole device.
    if used_bytes and all(rank.memory_scope == "process" for rank in ranks):
        return Figure(sum(used_bytes), note=message("resident_memory_sum"))
    by_ranks = max(used_bytes, default=None)
    device_uses = _list_device_uses(measurement, "run")
    # None without a monitor, or if it did not report the memory of all devices.
    by_monitor = _summarize_readings(device_uses, "memory_used_bytes", highest=True).value
    if by_monitor is not None and by_monitor > (by_ranks or 0.0):
        return Figure(by_monitor, note=message("device_memory_by_monitor"))
    return _make_figure(
        by_ranks, reason="memory_unreported", note=message("device_memory_at_edges")
    )


def _find_greatest(values: Sequence[int | None], *, reason: str) -> Figure:
    """Return the greatest of the values that are known.

    Args:
        reason: code of the message that says why there is no value if all are None.
    """
    known_values = [float(value) for value in values if value is not None]
    return _make_figure(max(known_values, default=None), reason=reason)


def _compute_readings(measurement: Measurement) -> dict[str, Figure]:
    """Return what a monitor read of the devices while they trained.

    Utilization and power are means, the temperature is the highest reading.
    """
    device_uses = _list_device_uses(measurement, "train")
    return {
        "utilization": _summarize_readings(device_uses, "utilization_percent"),
        "power": _summarize_readings(device_uses, "power_w"),
        "temperature": _summarize_readings(device_uses, "temperature_c", highest=True),
    }


def _list_device_uses(measurement: Measurement, interval: IntervalName) -> list[Use] | Message:
    """Return what a monitor read of each device in an interval, or why readings are missing.

    A monitor is a library or a tool of the vendor that reads the state of devices. A sampler, a
    process of Trainmark, asks it periodically.

    Args:
        interval: ``run``: the whole run; ``train``: all of its training, warm-up included; or
            ``to_target``: from the start of the training until the target was reached.
    """
    telemetry = measurement.telemetry
    if telemetry is None:
        return message("not_sampled")
    if interval not in telemetry.intervals_s:
        # ``run`` is missing if no rank began, and then nothing was trained either.
        return message("target_not_reached" if interval == "to_target" else "nothing_trained")
    has_sampler_begun = telemetry.interval_s is not None  # the sampler reported its period
    # "No monitor" is the reason only if the sampler looked for one and none failed. If one failed,
    # there are no readings either, and the end of this function returns that as the reason.
    has_monitor_failed = any(fault.args["source"] == "monitor" for fault in telemetry.faults)
    if has_sampler_begun and telemetry.monitor is None and not has_monitor_failed:
        return message("devices_unmonitored")
    device_uses = [device.over[interval] for device in telemetry.devices]
    # A rank has one device, which ranks may share. The devices of some ranks do not stand for those
    # of all ranks.
    num_monitored_ranks = sum(len(device.ranks) for device in telemetry.devices)
    are_all_monitored = num_monitored_ranks == len(measurement.ranks)
    if not are_all_monitored or not all(use.readings for use in device_uses):
        return message("no_reading_in_interval")
    return device_uses


def _summarize_readings(
    device_uses: list[Use] | Message, quantity_name: str, *, highest: bool = False
) -> Figure:
    """Return the mean of a quantity over the devices and the time.

    The figure has no value if a device did not report the quantity: the other devices do not stand
    for all.

    Args:
        device_uses: what a monitor read of each device, at least one; or why it read nothing.
        highest: return the highest reading of any device instead.
    """
    if isinstance(device_uses, Message):
        return Figure(None, device_uses)
    quantities = [
        use.quantities[quantity_name] for use in device_uses if quantity_name in use.quantities
    ]
    if len(quantities) < len(device_uses):
        return Figure(None, message("quantity_untold", quantity=quantity_name))
    num_readings = min(quantity.readings for quantity in quantities)
    note = message("over_devices", devices=len(quantities), readings=num_readings)
    if highest:
        return Figure(max(quantity.highest for quantity in quantities), note=note)
    return Figure(fmean(quantity.mean for quantity in quantities), note=note)


def _compute_energies(measurement: Measurement) -> dict[str, Figure]:
    """Return the energy of the training per sample, and the energy until the target was reached.

    The name of each figure begins with ``energy`` or, if it is an estimate, ``estimated_energy``.
    """
    per_sample = _find_energy(measurement, "train", num_parts=measurement.counts.samples)
    to_target = _find_energy(measurement, "to_target", num_parts=1)
    figures = {f"{name}_per_sample": energy for name, energy in per_sample.items()}
    figures |= {f"{name}_to_target": energy for name, energy in to_target.items()}
    return figures


def _find_energy(
    measurement: Measurement, interval: IntervalName, *, num_parts: int
) -> dict[str, Figure]:
    """Return the energy of an interval in joules, divided by a number of parts.

    Devices, and the packages of processors, have counters of energy. If a counter is missing,
    ``energy`` has no value, and an estimate from readings of the power, if any, is added. For
    ranks on processors this is the power of whole nodes.

    Args:
        interval: ``train``: all of the training; or ``to_target``: until the target was reached.
        num_parts: number of samples of the interval, for the energy of one sample; 1: the energy of
            the whole interval; 0: no sample was trained, so there is no energy of one.

    Returns:
        ``energy``, and ``estimated_energy`` if it was estimated.
    """
    telemetry = measurement.telemetry
    # What was read of each device or, for ranks on processors, of each host.
    uses = _list_device_uses(measurement, interval)
    on_host = measurement.plan.device.vendor == "cpu"  # ranks train on the processors of the host
    if on_host and telemetry and interval in telemetry.intervals_s:
        uses = [host[interval] for host in telemetry.hosts]
    if not num_parts:
        uses = message("nothing_trained")
    if isinstance(uses, Message):
        return {"energy": Figure(None, uses)}
    assert telemetry is not None, "without telemetry, the uses are a message with the reason"
    source_args: dict[str, Any] = {}  # arguments of the notes
    if not on_host:
        source_args = {"devices": len(uses), "monitor": telemetry.monitor}
    # Of each device or host whose energy is unknown, the reason.
    reasons = [use.energy.reason for use in uses if use.energy.reason is not None]
    if not reasons:
        # The start and the end of the interval lie between two readings of a counter, where its
        # value is interpolated. ``between_s`` is the time between such two readings: the longest
        # over all counters. Without a reason both are known: the 0.0 is only for the type checker.
        between_s = max(use.energy.between_s or 0.0 for use in uses)
        joules = sum(use.energy.joules or 0.0 for use in uses)
        code = "energy_of_packages" if on_host else "energy_of_devices"
        note = message(code, between_s=between_s, **source_args)
        return {"energy": Figure(joules / num_parts, note=note)}
    # One device of unknown energy makes the sum unknown. The first reason stands for all.
    figures = {"energy": Figure(None, reasons[0])}
    start_s, end_s = telemetry.intervals_s[interval]
    estimate = _estimate_energy(uses, end_s - start_s)
    if estimate is not None:
        joules, gap_s = estimate
        code = "estimated_of_node" if on_host else "estimated_of_devices"
        note = message(code, gap_s=gap_s, **source_args)
        figures["estimated_energy"] = Figure(joules / num_parts, note=note)
    return figures


def _estimate_energy(uses: list[Use], duration_s: float) -> tuple[float, float] | None:
    """Return the energy in joules by the mean power, and the longest time without a reading in s.

    None if a device or host did not report its power, or reported it too seldom.

    Args:
        uses: readings of each device or host in the interval.
        duration_s: length of the interval.
    """
    powers = [use.quantities["power_w"] for use in uses if "power_w" in use.quantities]
    longest_gap_s = max((power.longest_gap_s for power in powers), default=0.0)
    if len(powers) < len(uses) or longest_gap_s > MAX_UNSEEN_SHARE * duration_s:
        return None
    total_power_w = sum(power.mean for power in powers)
    return total_power_w * duration_s, longest_gap_s


def _make_figure(value: float | None, *, reason: str, note: Message | None = None) -> Figure:
    """Return a figure that has the value and the note or, if the value is None, the reason.

    Args:
        reason: code of the message that says why there is no value.
        note: what a reader must know of the value; None: nothing.
    """
    if value is None:
        return Figure(None, message(reason))
    return Figure(value, note=note)
