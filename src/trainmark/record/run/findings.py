"""Findings, which a careful reader needs beside the figures; none fails a run.

Owns their thresholds. Almost all are computed from the record, so that a check of it against
itself finds one that was taken out; the others from events.
"""

from __future__ import annotations

from math import sqrt
from statistics import median_high, median_low
from typing import TYPE_CHECKING

import numpy as np

from trainmark.devices.cores import compact
from trainmark.protocols import SET_LIMITS
from trainmark.record.run.evaluations import over_ranks
from trainmark.spec import Message, message

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainmark.record.record import Record
    from trainmark.record.run.telemetry import IntervalName
    from trainmark.record.run.timeline import RunTimeline

BUSY_SHARE = 0.1  # of the cores; the system's own work and our launcher use less
_CONSTANT_LOSS_STEPS = 10
_ROUNDING = 1e-12
# Of the steps not skipped by the loss scaler. A schedule may begin with a learning rate of 0.
_LEAST_UPDATES = 0.9
# Marks of a step and the host's clock around a window time the same work.
_CLOCK_TOLERANCE = 0.1
# Batches that wait ready when measuring begins were read before: their reading is not measured.
_READ_BEFORE = 0.1
_FEW_ROWS, _LEAST_DISTINCT = 8, 0.9  # real data hold some rows twice
# The counter knows no fused attention of a vendor, which has up to a sixth of the FLOPs.
_FLOPS_TOLERANCE = 0.2
_ALWAYS_READ_AHEAD = 2
# Of the ranks' median step, and of the rate of the other devices of one product.
SLOW_SHARE = 0.05
THROTTLED_SHARE = 0.01  # of the measured time; less is one reading of many
_FLOOR_NS = 100_000_000  # of measured time; in less, the start of threads decides
_GIB = 2**30


# Codes of what a record itself tells, and of what only its events tell.
OF_RECORD = {
    "loss_never_changes", "flops_above_preflight", "evaluated_rows", "evaluation_rows_change",
    "steps_beside_windows", "slow_device", "slow_rank", "slow_data", "nodes_differ",
    "throttled_while_measured", "steadiness_unknown", "not_steady", "quality_above_best",
    "machine_busy", "device_shared", "read_before_measured", "compiled_while_measured", "resumed",
}  # fmt: skip
OF_EVENTS = {
    "own_epoch", "few_updates", "rows_repeated", "flops_above_counted", "evaluation_unchecked",
    "evaluation_rows_repeated",
}  # fmt: skip


def find(record: Record, timeline: RunTimeline) -> list[Message]:
    """Return the first finding of each code: a thousand ranks may have the same in common."""
    first: dict[str, Message] = {}
    for one in (*of_record(record), *_of_events(record, timeline)):
        first.setdefault(one.code, one)
    return list(first.values())


def of_record(record: Record) -> list[Message]:
    """Return the findings that the record itself tells."""
    rules = (
        _constant_loss, _flops, _evaluated_rows, _other_rows, _clocks, _slow_devices, _slow_ranks,
        _unlike_nodes, _throttled, _on_steps, _on_quality, _on_conditions,
    )  # fmt: skip
    faults = record.telemetry.faults if record.telemetry else []
    return [*(one for rule in rules for one in rule(record)), *faults]


def _of_events(record: Record, timeline: RunTimeline) -> Iterator[Message]:
    """Yield what only events tell: of epochs, updates, rows and counted FLOPs."""
    rank, planned = timeline.ranks[0], record.plan.data.train_samples
    own = rank.facts.samples_per_epoch
    if own not in (None, planned):
        yield message("own_epoch", samples=own, rows=planned)
    skipped = record.counts.skipped_steps or 0
    updates = rank.steps if rank.parameters is None else rank.parameters.updates
    if updates < _LEAST_UPDATES * (rank.steps - skipped):
        yield message("few_updates", updates=updates, steps=rank.steps, skipped=skipped)
    rows = [row for one in timeline.ranks for row in one.result.rows]
    distinct = len(set(rows))
    if len(rows) >= _FEW_ROWS and distinct < _LEAST_DISTINCT * len(rows):
        yield message("rows_repeated", rows=len(rows), distinct=distinct)
    yield from _scored_rows(timeline)
    for one in timeline.ranks:
        claimed, counted = one.phases["compile"].model_flops, one.result.flops_counted
        if claimed and counted and claimed > (1 + _FLOPS_TOLERANCE) * counted:
            yield message("flops_above_counted", rank=one.rank, claimed=claimed / 1e9,
                          counted=counted / 1e9, share=claimed / counted)  # fmt: skip


def _scored_rows(timeline: RunTimeline) -> Iterator[Message]:
    """Yield that an evaluation scored rows twice, or did not say which."""
    if any(rank.result.evaluation_unchecked for rank in timeline.ranks):
        yield message("evaluation_unchecked")
    for of_ranks in zip(*(rank.evaluations for rank in timeline.ranks), strict=False):
        scored = over_ranks([one.scores for one in of_ranks])
        if scored and scored.keys >= _FEW_ROWS and scored.distinct < _LEAST_DISTINCT * scored.keys:
            rows = scored.keys
            yield message("evaluation_rows_repeated", rows=rows, distinct=scored.distinct)


def _constant_loss(record: Record) -> Iterator[Message]:
    """Yield a finding if the loss is the same in every step, up to rounding of means over ranks."""
    loss = np.array(record.steps.loss, np.float64)
    if len(loss) >= _CONSTANT_LOSS_STEPS and np.ptp(loss) <= _ROUNDING * abs(loss[0]):
        yield message("loss_never_changes", loss=float(loss[0]), steps=len(loss))


def _flops(record: Record) -> Iterator[Message]:
    rate, matmul = (record.figure(f"{x}_flops_per_device") for x in ("model", "matmul"))
    if rate and matmul and rate > matmul:
        yield message("flops_above_preflight", tflops=rate / 1e12, matmul_tflops=matmul / 1e12,
                      share=rate / matmul)  # fmt: skip


def _evaluated_rows(record: Record) -> Iterator[Message]:
    """Compare the rows of the last evaluation with the validation data."""
    scored, rows = record.quality.eval_samples, record.plan.data.eval_samples
    if scored not in (None, rows):
        yield message("evaluated_rows", scored=scored, rows=rows)


def _other_rows(record: Record) -> Iterator[Message]:
    """Yield that evaluations did not score the same rows."""
    digests = [point.scored["digest"] for point in record.quality.history if point.scored]
    if len(set(digests)) > 1:
        yield message("evaluation_rows_change", evaluations=len(digests))


def _clocks(record: Record) -> Iterator[Message]:
    """Compare the steps' time by the device's marks with their windows' by the host's clock.

    They differ if a mark is taken before the work it should follow, or runs at another rate.
    """
    for rank in record.ranks:
        phase = rank.phases["train"]
        windows_s, steps_s = phase.windows_ns / 1e9, phase.step_ns / 1e9
        if phase.windows_ns >= _FLOOR_NS and abs(1 - steps_s / windows_s) > _CLOCK_TOLERANCE:
            yield message(
                "steps_beside_windows", rank=rank.rank, steps_s=steps_s, windows_s=windows_s
            )


def _slow_devices(record: Record) -> Iterator[Message]:
    """Compare each device's matmul rate in preflight with the median of all of the same product.

    Only devices that ranks do not share. Of two, the slower is compared with the faster.
    """
    if record.plan.device.torch_type == "cpu":
        return
    rates: dict[str, dict[int, float]] = {}
    for rank, device in zip(record.ranks, record.environment["devices"], strict=True):
        if rank.matmul_flops_per_second and device and "name" in device:
            known = rates.setdefault(device["name"], {})
            known[rank.rank] = rank.matmul_flops_per_second
    for product, known in rates.items():
        usual = median_high(known.values())
        for number, rate in known.items():
            if rate < (1 - SLOW_SHARE) * usual:
                yield message(
                    "slow_device", rank=number, device=product, tflops=rate / 1e12,
                    others_tflops=usual / 1e12, share=1 - rate / usual,
                )  # fmt: skip


def _slow_ranks(record: Record) -> Iterator[Message]:
    """Yield the rank with the longest steps, and the one that waits longest for data.

    The median is the lower one: of two ranks, the slower is compared with the faster.
    """
    nproc = record.plan.nproc
    measured = [x for x in record.ranks if x.phases["train"].windows_ns >= _FLOOR_NS]
    if not measured:
        return
    # The median: ranks begin a window up to a step apart, and those that begin first wait in it.
    steps_s = {rank.rank: (rank.step_ns or 0) / 1e9 for rank in measured}
    waits_s = {rank.rank: (rank.wait_ns or 0) / 1e9 for rank in measured}
    step_s = median_low(steps_s.values()) or 1e-9
    for code, taken in (("slow_rank", steps_s), ("slow_data", waits_s)):
        usual_s = median_low(taken.values())
        slow = [rank for rank in taken if taken[rank] - usual_s > SLOW_SHARE * step_s]
        if slow:
            rank = max(slow, key=taken.__getitem__)
            yield message(
                code, rank=rank, node=rank // nproc, own_s=taken[rank], median_s=usual_s,
                share=(taken[rank] - usual_s) / step_s, slow=len(slow),
                nodes=len({other // nproc for other in slow}),
            )  # fmt: skip


def _unlike_nodes(record: Record) -> Iterator[Message]:
    """Yield nodes whose hardware or versions differ from the first."""
    found = record.environment.get("nodes", [])
    names = dict.fromkeys(name for node in found for name in node)
    if names:
        unlike = compact(number for number, node in enumerate(found) if node)
        yield message("nodes_differ", nodes=unlike, names=", ".join(names))


def throttled(record: Record, interval: IntervalName) -> dict[int, dict[str, float]]:
    """Return the shares of an interval with clocks lowered beyond set limits, by first rank."""
    found: dict[int, dict[str, float]] = {}
    for device in record.telemetry.devices if record.telemetry else ():
        shares = device.over[interval].throttled if interval in device.over else None
        counted = {x: share for x, share in (shares or {}).items() if x not in SET_LIMITS}
        if max(counted.values(), default=0.0) > 0:
            found[device.ranks[0]] = counted
    return found


def _throttled(record: Record) -> Iterator[Message]:
    """Yield that devices were held below their limits while steps were measured.

    It names the device with lowered clocks for the largest share of the time.
    """
    found = [
        (share, rank, reasons) for rank, reasons in throttled(record, "measured").items()
        if (share := max(reasons.values())) > THROTTLED_SHARE
    ]  # fmt: skip
    if found and record.telemetry:
        share, rank, reasons = max(found, key=lambda item: item[0])
        listed = ", ".join(f"{name} {part:.0%}" for name, part in reasons.items())
        yield message("throttled_while_measured", devices=len(found),
                      of=len(record.telemetry.devices), rank=rank, share=share,
                      reasons=listed)  # fmt: skip


def _on_steps(record: Record) -> Iterator[Message]:
    steps = record.steps
    if steps.steady is None:
        yield message("steadiness_unknown")
    elif not steps.steady:
        yield message("not_steady", drift=steps.drift)


def _on_quality(record: Record) -> Iterator[Message]:
    """Yield a quality that none can have.

    Above the best possible by three standard errors of an accuracy on these rows; for an error
    metric the variance over samples is not known here.
    """
    plan, quality = record.plan, record.quality
    metric, value, best = quality.metric, quality.value, quality.best_possible
    if value is not None and best and plan.about.higher_is_better:
        noise = sqrt(best * (1 - best) / max(quality.eval_samples or 1, 1))
        if value > best + 3 * noise:
            yield message("quality_above_best", metric=metric, value=value, best=best)


def _on_conditions(record: Record) -> Iterator[Message]:
    plan, environment = record.plan, record.environment
    others = environment["others_cpu_share"]
    if others is not None and others > BUSY_SHARE:
        yield message("machine_busy", share=others)
    for user in environment.get("device_users", ()):
        if user["computes"]:
            gib = None if user["used_bytes"] is None else user["used_bytes"] / _GIB
            yield message("device_shared", device=user["device"], process=user["process"], gib=gib)
    ahead = plan.recipe.get("read_ahead_batches", 0)
    batches = record.ranks[0].phases["train"].steps * plan.recipe["grad_accum_steps"]
    if batches and ahead > max(_ALWAYS_READ_AHEAD, _READ_BEFORE * batches):
        yield message("read_before_measured", ahead=ahead, batches=batches)
    graphs = max(rank.phases["train"].graphs_compiled for rank in record.ranks)
    if graphs:
        yield message("compiled_while_measured", graphs=graphs)
    if resumed := plan.resumed:
        yield message("resumed", steps=resumed.progress.steps, runs=", ".join(resumed.runs))
