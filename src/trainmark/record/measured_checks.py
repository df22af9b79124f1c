"""Hold what ranks measured in a record against its plan, its spans, its steps and its readings.

Yields values of a record that contradict others in it: their path, the value recorded, the value
that follows from the others.
"""

from __future__ import annotations

from math import isclose
from typing import TYPE_CHECKING, Any

import numpy as np

from trainmark import cases
from trainmark.events.series import SUMMARY_LINES
from trainmark.ranges import format_ranges
from trainmark.recipe import AUTOCAST
from trainmark.record import cause
from trainmark.record.evaluations import is_same_quality

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainmark.events.values import PhaseName
    from trainmark.record.record import QualityPoint, RankEntry, Record
    from trainmark.telemetry.summary import IntervalName, Telemetry, Use

Difference = tuple[str, Any, Any]  # path of the value, as recorded, as computed again
_ENDED = ("passed", "target_missed")  # on all ranks


def clamp(value: float | None, low: float, high: float) -> float | None:
    """Return the value, or the bound that it passes."""
    return value if value is None else max(low, min(value, high))


def check_measured(record: Record) -> Iterator[Difference]:
    """Yield what ranks measured that plan, spans, steps or readings contradict."""
    yield from _conditions(record)
    yield from _counts(record)
    for rank in record.ranks:
        yield from _rank(record, rank)
    yield from _steps(record)
    yield from _limits(record)
    for number, point in enumerate(record.quality.history):
        yield from _evaluation(record, point, f"quality.history[{number}]")
    yield from _readings(record)


def _conditions(record: Record) -> Iterator[Difference]:
    """Yield flags of the precision and a status that others contradict."""
    plan, quality = record.plan, record.quality
    precision, flags = plan.recipe["precision"], record.environment.get("precision_flags") or {}
    tf32 = precision == "tf32" and plan.device.torch_type != "cpu"
    wanted = {
        "tf32": tf32,
        "cudnn_tf32": tf32,
        "float32_matmul": "high" if tf32 else "highest",
        "autocast": AUTOCAST.get(precision),
    }
    names = wanted.keys() & flags.keys()
    if plan.witness is not None:
        names = set()  # the program sets its flags when it wants
    for name in names:
        yield f"environment.precision_flags.{name}", flags[name], wanted[name]
    yield "ranks", [rank.rank for rank in record.ranks], list(range(plan.world_size))
    yield "status", record.status, cause.decide_status(record.cause)
    if record.cause is not None and record.cause.rank is not None:
        of_rank = record.cause.rank
        yield "cause.rank", of_rank, clamp(of_rank, 0, plan.world_size - 1)
    if record.status in _ENDED:
        yield "ranks.finished", [rank.finished for rank in record.ranks], [True] * len(record.ranks)
        if plan.target is not None:
            yield "status", record.passed, quality.reached or not plan.target.required


def _counts(record: Record) -> Iterator[Difference]:
    """Yield counts that are not those of so many epochs of the data."""
    plan, counts = record.plan, record.counts
    ended = record.status in _ENDED and plan.witness is None
    if ended and not any(finding.code == "own_epoch" for finding in record.findings):
        begun, whole = counts.epochs, plan.data.train_samples
        fewest = 0 if plan.resumed else (begun - 1) * whole + 1
        yield "counts.samples", counts.samples, clamp(counts.samples, fewest, begun * whole)


def _rank(record: Record, rank: RankEntry) -> Iterator[Difference]:
    """Yield spans and sums of a rank that do not add up."""
    spans_ns = rank.spans_ns
    if rank.wall_ns is not None:
        yield "ranks.spans_ns", sum(spans_ns.values()), rank.wall_ns
    for name, phase in rank.phases.items():
        yield "ranks.phases.windows_ns", phase.windows_ns, spans_ns[name]
        yield "ranks.phases.wait_ns", phase.wait_ns, clamp(phase.wait_ns, 0, phase.step_ns)
    min_ns = rank.total_windows_ns + spans_ns["evaluate"]
    max_ns = min_ns + spans_ns["checkpoint"] + spans_ns["other"]
    yield "ranks.train_ns", rank.train_ns, clamp(rank.train_ns, min_ns, max_ns)
    ended = record.status in _ENDED
    yield "ranks.steps", rank.steps, record.counts.steps if ended else rank.steps
    measured = record.steps.time_ns[record.steps.warmup :]
    if rank.step_ns is not None and measured and ended:
        # Of each step the record has the slowest rank's time.
        median_ns = int(np.median(measured))
        least_ns = median_ns if len(record.ranks) == 1 else 0
        yield "ranks.step_ns", rank.step_ns, clamp(rank.step_ns, least_ns, median_ns)


def _steps(record: Record) -> Iterator[Difference]:
    """Yield sums of the steps that are not those of the ranks."""
    counts, steps = record.counts, record.steps
    yield "steps.time_ns", len(steps.time_ns), counts.steps
    yield "steps.samples", sum(steps.samples), counts.samples
    of_ranks_ns = [rank.total_step_ns for rank in record.ranks]
    # Of each step the slowest rank's time.
    total_ns = clamp(sum(steps.time_ns), max(of_ranks_ns), sum(of_ranks_ns))
    yield "steps.time_ns", sum(steps.time_ns), total_ns
    for name, entry in record.figures.items():
        if entry.unit and entry.value is not None:  # a loss may be negative
            yield f"figures.{name}", entry.value, max(entry.value, 0.0)


def _limits(record: Record) -> Iterator[Difference]:
    """Yield what passes a limit that plan or counts give."""
    plan, counts, recipe = record.plan, record.counts, record.plan.recipe
    batch = recipe["micro_batch_size"] * recipe["grad_accum_steps"] * plan.world_size
    ended = record.status in _ENDED
    largest = max(record.steps.samples, default=0)
    step = batch // recipe.get("tensor_parallel", 1)  # ranks of a replica train the same samples
    if ended and cases.is_shipped(plan.case) and plan.data.train_samples >= step:
        yield "steps.samples", largest, step
    if plan.witness is not None:
        batch = 0  # the file of --witness says or counts it
    limits = {
        "counts.epochs": (counts.epochs, recipe["max_epochs"]),
        "counts.tokens_padded": (
            counts.tokens_padded,
            counts.sequences * recipe.get("seq_length", 0),
        ),
        "steps.samples": (largest, batch),
        "figures.mem": (record.figure("mem"), record.figure("mem_total")),
        "figures.MFU": (record.figure("MFU") if ended else None, 100.0),
    }
    for place, (value, upper_limit) in limits.items():
        if upper_limit:
            yield place, value, clamp(value, 0, upper_limit)


def _evaluation(record: Record, point: QualityPoint, place: str) -> Iterator[Difference]:
    """Yield what of an evaluation steps, epochs, data or its own scores contradict."""
    plan, counts, quality = record.plan, record.counts, record.quality
    yield f"{place}.step", point.step, clamp(point.step, 0, counts.steps)
    yield f"{place}.epoch", point.epoch, clamp(point.epoch, 0, counts.epochs - 1)
    share = plan.about.higher_is_better and (quality.target or quality.best_possible or 2) <= 1
    if share:
        yield f"{place}.value", point.value, clamp(point.value, 0.0, 1.0)
    scored = point.scored
    if scored is None or record.status not in _ENDED:
        return
    yield f"{place}.scored.rows", scored["rows"], plan.data.eval_samples
    yield f"{place}.samples", point.samples, scored["rows"]
    claimed = point.detail.get(scored["of"]) if scored["of"] else point.value
    if scored["mean"] is not None and not is_same_quality(claimed, scored["mean"]):
        yield f"{place}.value", claimed, scored["mean"]


def _readings(record: Record) -> Iterator[Difference]:
    """Yield readings of devices and hosts that times or each other contradict."""
    telemetry = record.telemetry
    if telemetry is None:
        yield "series", len(record.series), 0
        return
    yield "plan.sample_every_s", record.plan.sample_every_s > 0, True
    yield from _intervals(record, telemetry)
    members = [device.over for device in telemetry.devices] + list(telemetry.hosts)
    for over in members:
        for name, use in over.items():
            yield from _use(use, telemetry.intervals_s[name])
    of_devices = {format_ranges(device.ranks): device.over for device in telemetry.devices}
    of_hosts = {str(number): over for number, over in enumerate(telemetry.hosts)}
    for line in record.series:
        known = (of_hosts if line.of_host else of_devices).get(line.of)
        if line.of in SUMMARY_LINES or known is None or "run" not in known:
            continue
        _, end_s = telemetry.intervals_s["run"]
        quantity = known["run"].quantities.get(line.quantity)
        if quantity is None:
            continue
        for second, value in line.points:
            if 0 <= second <= end_s:
                bounded = clamp(value, quantity.lowest, quantity.highest)
                if not isclose(value, bounded or 0.0, rel_tol=1e-9):  # points are rounded
                    yield f"series.{line.quantity}", value, bounded


def _intervals(record: Record, telemetry: Telemetry) -> Iterator[Difference]:
    """Yield intervals that are not the run's."""
    spans = telemetry.intervals_s
    walls_ns = [rank.wall_ns for rank in record.ranks if rank.wall_ns is not None]
    if "run" in spans and walls_ns:
        yield "telemetry.intervals_s.run", list(spans["run"]), [0.0, max(walls_ns) / 1e9]
    for name, (start_s, end_s) in spans.items():
        outer = spans["train"] if name == "measured" else spans["run"]
        bounded = [clamp(edge, *outer) for edge in (start_s, end_s)]
        yield f"telemetry.intervals_s.{name}", [start_s, end_s], bounded
    phases: dict[IntervalName, tuple[PhaseName, ...]] = {
        "train": ("compile", "warmup", "train"),
        "measured": ("train",),
    }
    for of, names in phases.items():
        if of not in spans:
            continue
        start_s, end_s = spans[of]
        windows_ns = [
            sum(rank.phases[phase].windows_ns for phase in names) for rank in record.ranks
        ]
        length_s, least_s = end_s - start_s, max(windows_ns) / 1e9
        if length_s < least_s and not isclose(length_s, least_s, rel_tol=1e-6):
            yield f"telemetry.intervals_s.{of}", length_s, least_s


def _use(use: Use, interval: tuple[float, float]) -> Iterator[Difference]:
    """Yield readings over an interval whose mean, ends or gaps cannot be."""
    start_s, end_s = interval
    for name, quantity in use.quantities.items():
        place = f"telemetry.{name}"
        bounded = clamp(quantity.mean, quantity.lowest, quantity.highest)
        if not isclose(quantity.mean, bounded or 0.0, rel_tol=1e-6):  # a sum of weights
            yield f"{place}.mean", quantity.mean, bounded
        yield f"{place}.readings", quantity.readings, clamp(quantity.readings, 1, use.readings)
        longest_s = clamp(quantity.longest_gap_s, 0.0, end_s - start_s)
        yield f"{place}.longest_gap_s", quantity.longest_gap_s, longest_s
