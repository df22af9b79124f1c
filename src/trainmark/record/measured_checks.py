"""Compare what ranks measured in a record with its plan, its spans, its steps and its readings.

Each function yields values of the record with what they must be; if they differ, the record is
wrong. A value that must lie in a range is yielded only if it does not. Spans are the parts of a
rank's time; a window is some steps of the training that are timed together.
"""

from __future__ import annotations

from math import isclose
from typing import TYPE_CHECKING

import numpy as np

from trainmark import cases
from trainmark.events.series import SUMMARY_LINES
from trainmark.plan.recipes import compute_step_samples
from trainmark.ranges import format_ranges
from trainmark.recipe import AUTOCAST
from trainmark.record import cause
from trainmark.record.compared import (
    ComparedValue,
    check_at_least,
    check_range,
    move_into_range,
)
from trainmark.record.evaluations import is_same_quality

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainmark.events.values import PhaseName
    from trainmark.record.record import QualityPoint, RankEntry, Record
    from trainmark.telemetry.summary import IntervalName, Telemetry, Use

_POINT_ROUNDING = 1e-9  # of the points of charts, relative
_SUM_ROUNDING = 1e-6  # of floating-point sums, relative
_COMPLETE_STATUSES = (
    "passed",
    "target_missed",
)  # statuses of runs that reached their end on all ranks


def compare_measured_values(record: Record) -> Iterator[ComparedValue]:
    """Yield measured values with what the plan, or other measured values, require them to be."""
    yield from _compare_precision_flags(record)
    yield from _compare_status(record)
    yield from _compare_counts(record)
    for rank in record.ranks:
        yield from _compare_rank(record, rank)
    yield from _compare_steps(record)
    yield from _compare_with_limits(record)
    for number, point in enumerate(record.quality.history):
        yield from _compare_evaluation(record, point, f"quality.history[{number}]")
    yield from _compare_readings(record)


def _compare_precision_flags(record: Record) -> Iterator[ComparedValue]:
    """Yield the flags of torch, which must be those of the recipe's precision.

    A user's own program sets its flags itself, at any time: they are not compared.
    """
    plan = record.plan
    if plan.witness is not None:  # how a user's own program is measured; None: a case
        return
    precision = plan.recipe["precision"]
    flags = record.environment.get("precision_flags") or {}
    # A CPU has no TF32: the flags stay off.
    uses_tf32 = precision == "tf32" and plan.device.torch_type != "cpu"
    expected_flags = {
        "tf32": uses_tf32,
        "cudnn_tf32": uses_tf32,
        "float32_matmul": "high" if uses_tf32 else "highest",
        "autocast": AUTOCAST.get(precision),  # None: the precision needs no autocast
    }
    for name, expected in expected_flags.items():
        if name in flags:  # the rank reported it
            yield ComparedValue(f"environment.precision_flags.{name}", flags[name], expected)


def _compare_status(record: Record) -> Iterator[ComparedValue]:
    """Yield the ranks, the status and the rank of the cause with what plan and target require."""
    plan = record.plan
    yield ComparedValue("ranks", [rank.rank for rank in record.ranks], list(range(plan.world_size)))
    yield ComparedValue("status", record.status, cause.decide_status(record.cause))
    if record.cause is not None:  # why the run did not pass
        yield from check_range("cause.rank", record.cause.rank, 0, plan.world_size - 1)
    if record.status not in _COMPLETE_STATUSES:
        return
    are_finished = [rank.finished for rank in record.ranks]
    yield ComparedValue("ranks.finished", are_finished, [True] * len(record.ranks))
    if plan.target is not None:
        # The status `passed` is only for runs that reached a required target. Compared here are not
        # two statuses, but whether it is `passed`, and whether it must be.
        must_pass = record.quality.reached or not plan.target.required
        yield ComparedValue("status", record.passed, must_pass)


def _compare_counts(record: Record) -> Iterator[ComparedValue]:
    """Yield the samples, which must be those of the epochs that were begun."""
    plan = record.plan
    counts = record.counts
    has_ended_regularly = record.status in _COMPLETE_STATUSES
    # A user's own program: neither its data nor its epochs are known.
    is_own_program = plan.witness is not None
    # A case may define an epoch otherwise than as all samples of the data.
    has_own_epoch = any(finding.code == "own_epoch" for finding in record.findings)
    if has_ended_regularly and not is_own_program and not has_own_epoch:
        epoch_samples = plan.data.train_samples
        # All epochs but the last are whole, and of the last there is at least one sample.
        min_samples = (counts.epochs - 1) * epoch_samples + 1
        if plan.resumed:
            min_samples = 0  # it begins within an epoch, of which an earlier run trained a part
        max_samples = counts.epochs * epoch_samples
        yield from check_range("counts.samples", counts.samples, min_samples, max_samples)


def _compare_rank(record: Record, rank: RankEntry) -> Iterator[ComparedValue]:
    """Yield times of a rank: of its spans, its windows, its training and its steps.

    Spans are the parts of a rank's time; a window is some steps that are timed together.
    """
    spans_ns = rank.spans_ns
    if rank.wall_ns is not None:
        yield ComparedValue("ranks.spans_ns", sum(spans_ns.values()), rank.wall_ns)
    # Each phase of the training is a span of the same name: the sum of the phase's windows.
    for name, phase in rank.phases.items():
        yield ComparedValue("ranks.phases.windows_ns", phase.windows_ns, spans_ns[name])
        # Waiting for data is a part of the steps; both are sums over the phase.
        yield from check_range("ranks.phases.wait_ns", phase.wait_ns, 0, phase.step_ns)
    # The training holds all windows and evaluations, and may hold checkpoints and pauses.
    min_train_ns = rank.total_windows_ns + spans_ns["evaluate"]
    max_train_ns = min_train_ns + spans_ns["checkpoint"] + spans_ns["other"]
    yield from check_range("ranks.train_ns", rank.train_ns, min_train_ns, max_train_ns)
    # In a run that was cut off, ranks may have ended after different numbers of steps.
    if record.status not in _COMPLETE_STATUSES:
        return
    yield ComparedValue("ranks.steps", rank.steps, record.counts.steps)
    measured_ns = record.steps.time_ns[record.steps.warmup :]
    if rank.step_ns is not None and measured_ns:
        # The record has the time of each step on its slowest rank. So the median of a rank's own
        # steps, ``rank.step_ns``, is not above that of the record, and is the same if there is only
        # one rank.
        median_ns = int(np.median(measured_ns))
        min_step_ns = median_ns if len(record.ranks) == 1 else 0
        yield from check_range("ranks.step_ns", rank.step_ns, min_step_ns, median_ns)


def _compare_steps(record: Record) -> Iterator[ComparedValue]:
    """Yield sums of the steps, which must be those of the ranks, and figures that are negative."""
    counts = record.counts
    steps = record.steps
    yield ComparedValue("steps.time_ns", len(steps.time_ns), counts.steps)
    yield ComparedValue("steps.samples", sum(steps.samples), counts.samples)
    rank_totals_ns = [rank.total_step_ns for rank in record.ranks]
    # The record has the time of each step on its slowest rank, which may be another one each time.
    yield from check_range(
        "steps.time_ns", sum(steps.time_ns), max(rank_totals_ns), sum(rank_totals_ns)
    )
    for name, entry in record.figures.items():
        if entry.unit and entry.value is not None:  # a loss has no unit, and may be negative
            yield from check_at_least(f"figures.{name}", entry.value, 0.0)


def _compare_with_limits(record: Record) -> Iterator[ComparedValue]:
    """Yield counts, memory and MFU above their limits, and the samples of the largest step.

    Limits follow from the recipe and from other values of the record. The largest step of a
    complete run of a case of Trainmark must have exactly the samples of the recipe's batch.
    """
    plan = record.plan
    counts = record.counts
    recipe = plan.recipe
    is_complete = record.status in _COMPLETE_STATUSES
    max_step_samples = max(record.steps.samples, default=0)
    full_step_samples = compute_step_samples(recipe, plan.world_size)
    # With fewer training samples than a full step takes, no step is full.
    has_full_step = plan.data.train_samples >= full_step_samples
    # A case of another package, or a user's program, may count samples otherwise.
    if is_complete and cases.is_shipped(plan.case) and has_full_step:
        yield ComparedValue("steps.samples", max_step_samples, full_step_samples)
    yield from _check_limit("counts.epochs", counts.epochs, recipe["max_epochs"])
    # A recipe without a length of sequences gives 0, which ``_check_limit`` takes as no limit.
    max_tokens = counts.sequences * recipe.get("seq_length", 0)
    yield from _check_limit("counts.tokens_padded", counts.tokens_padded, max_tokens)
    # No step is larger than the batches of all ranks, in unfinished runs and cases of other
    # packages too. ``full_step_samples`` counts a sample once, even if several ranks share it. A
    # case of another package may count it once for each of these ranks, and so does this limit.
    # A user's own program has no such batch; only its plan has a ``witness``, how it is measured.
    if plan.witness is None:
        batch_of_rank = recipe["micro_batch_size"] * recipe["grad_accum_steps"]
        max_counted_samples = batch_of_rank * plan.world_size
        yield from _check_limit("steps.samples", max_step_samples, max_counted_samples)
    yield from _check_limit("figures.mem", record.figure("mem"), record.figure("mem_total"))
    # A run that trains to its end with an MFU above 100% fails for this reason, ``mfu_above_one``.
    # So an MFU above 100% contradicts the record only if it says that the run is complete.
    if is_complete:
        yield from _check_limit("figures.MFU", record.figure("MFU"), 100.0)


def _check_limit(place: str, value: float | None, limit: float | None) -> Iterator[ComparedValue]:
    """Yield a value that is negative or above its limit.

    Args:
        value: None: the record does not have it, and nothing is checked.
        limit: 0 or None: there is none, and nothing is checked.
    """
    if limit:
        yield from check_range(place, value, 0, limit)


def _compare_evaluation(record: Record, point: QualityPoint, place: str) -> Iterator[ComparedValue]:
    """Yield values of an evaluation with what steps, epochs, data and its own scores require.

    Args:
        place: path of the evaluation in the record, such as ``quality.history[0]``.
    """
    plan = record.plan
    counts = record.counts
    quality = record.quality
    yield from check_range(f"{place}.step", point.step, 0, counts.steps)
    yield from check_range(f"{place}.epoch", point.epoch, 0, counts.epochs - 1)
    # A quality that is better if it is higher, and whose goal is at most 1, is a fraction of 1.
    goal = quality.target or quality.best_possible
    has_goal_up_to_one = goal is not None and 0 < goal <= 1
    if plan.about.higher_is_better and has_goal_up_to_one:
        yield from check_range(f"{place}.value", point.value, 0.0, 1.0)
    # What all ranks scored together: ``rows`` is the number of rows of the data, ``mean`` the mean
    # of their scores. None: a rank reported no scores.
    scored = point.scored
    # Of a run that was cut off, the scores may lack rows.
    if scored is None or record.status not in _COMPLETE_STATUSES:
        return
    yield ComparedValue(f"{place}.scored.rows", scored["rows"], plan.data.eval_samples)
    yield ComparedValue(f"{place}.samples", point.samples, scored["rows"])
    # ``of``: name of the detail that is the mean of the scores; empty: the quality itself is.
    claimed = point.detail.get(scored["of"]) if scored["of"] else point.value
    if scored["mean"] is not None and not is_same_quality(claimed, scored["mean"]):
        yield ComparedValue(f"{place}.value", claimed, scored["mean"])


def _compare_readings(record: Record) -> Iterator[ComparedValue]:
    """Yield readings of devices and hosts with what times and other readings require."""
    telemetry = record.telemetry
    if telemetry is None:  # no sampler ran, so there are no lines of readings
        yield ComparedValue("series", len(record.series), 0)
        return
    # There are readings only if the plan asks for them, with a period above 0.
    yield ComparedValue("plan.sample_every_s", record.plan.sample_every_s > 0, True)
    yield from _compare_intervals(record, telemetry)
    # One dictionary for each device and each host: what was read of it, by interval.
    devices_and_hosts = [device.over for device in telemetry.devices] + list(telemetry.hosts)
    for uses_by_interval in devices_and_hosts:
        for interval, use in uses_by_interval.items():
            yield from _compare_use(use, telemetry.intervals_s[interval])
    yield from _compare_lines(record, telemetry)


def _compare_lines(record: Record, telemetry: Telemetry) -> Iterator[ComparedValue]:
    """Yield the points of a chart's lines, which must lie between the extremes of the readings.

    A line is one quantity of a device or host over time. ``line.of`` names it: the ranks of the
    device, as 0-3, or the number of the host.
    """
    # By ``line.of``: what was read of the device or host, by interval.
    devices = {format_ranges(device.ranks): device.over for device in telemetry.devices}
    hosts = {str(number): uses for number, uses in enumerate(telemetry.hosts)}
    for line in record.series:
        if line.of in SUMMARY_LINES:
            continue  # a line of many devices has no readings of its own
        uses_by_interval = hosts.get(line.of) if line.of_host else devices.get(line.of)
        if uses_by_interval is None or "run" not in uses_by_interval:
            continue
        _, end_s = telemetry.intervals_s["run"]
        quantity = uses_by_interval["run"].quantities.get(line.quantity)
        if quantity is None:
            continue
        for time_s, value in line.points:
            if 0 <= time_s <= end_s:  # the extremes are of readings during the run
                nearest = move_into_range(value, quantity.lowest, quantity.highest)
                if not isclose(value, nearest, rel_tol=_POINT_ROUNDING):
                    yield ComparedValue(f"series.{line.quantity}", value, nearest)


def _compare_intervals(record: Record, telemetry: Telemetry) -> Iterator[ComparedValue]:
    """Yield the intervals of readings, which must lie in the run and be as long as its windows.

    ``run`` is from the launcher's start to the end of the last rank, ``train`` from the first
    window to the last, and ``measured`` the part of ``train`` after the warm-up. A window is some
    steps that are timed together.
    """
    intervals_s = telemetry.intervals_s
    # Each from the launcher's start, not the rank's own, to the rank's end.
    walls_ns = [rank.wall_ns for rank in record.ranks if rank.wall_ns is not None]
    if "run" in intervals_s and walls_ns:
        yield ComparedValue(
            "telemetry.intervals_s.run", list(intervals_s["run"]), [0.0, max(walls_ns) / 1e9]
        )
    for name, (start_s, end_s) in intervals_s.items():
        # The measured interval is a part of the training. All other intervals are parts of the run.
        min_s, max_s = intervals_s["train"] if name == "measured" else intervals_s["run"]
        nearest = [move_into_range(edge_s, min_s, max_s) for edge_s in (start_s, end_s)]
        yield ComparedValue(f"telemetry.intervals_s.{name}", [start_s, end_s], nearest)
    # The phase of a rank that is named ``train`` has only the steps after the warm-up.
    phases_in_interval: dict[IntervalName, tuple[PhaseName, ...]] = {
        "train": ("compile", "warmup", "train"),
        "measured": ("train",),
    }
    for interval, phase_names in phases_in_interval.items():
        if interval not in intervals_s:
            continue
        start_s, end_s = intervals_s[interval]
        windows_ns = [
            sum(rank.phases[phase].windows_ns for phase in phase_names) for rank in record.ranks
        ]
        # An interval holds the windows of every rank, also of the one whose windows take longest.
        length_s = end_s - start_s
        min_length_s = max(windows_ns) / 1e9
        if length_s < min_length_s and not isclose(length_s, min_length_s, rel_tol=_SUM_ROUNDING):
            yield ComparedValue(f"telemetry.intervals_s.{interval}", length_s, min_length_s)


def _compare_use(use: Use, interval: tuple[float, float]) -> Iterator[ComparedValue]:
    """Yield the mean, the number of readings and the longest gap of a quantity if out of range.

    Args:
        use: number of readings of one device or host in one interval, with a summary of each
            quantity that was read, such as the power.
        interval: start and end of the interval in seconds.
    """
    start_s, end_s = interval
    for name, quantity in use.quantities.items():
        place = f"telemetry.{name}"
        # A mean lies between the extremes, but for the rounding of its sum.
        nearest = move_into_range(quantity.mean, quantity.lowest, quantity.highest)
        if not isclose(quantity.mean, nearest, rel_tol=_SUM_ROUNDING):
            yield ComparedValue(f"{place}.mean", quantity.mean, nearest)
        # Some readings may lack the quantity: then it has fewer than the device has.
        yield from check_range(f"{place}.readings", quantity.readings, 1, use.readings)
        yield from check_range(
            f"{place}.longest_gap_s", quantity.longest_gap_s, 0.0, end_s - start_s
        )
