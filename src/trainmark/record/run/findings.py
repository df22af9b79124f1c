"""Findings, which make figures doubtful, and notes: neither fails a run.

Owns their thresholds. Computed from events, plan and figures alone.
"""

from __future__ import annotations

from itertools import groupby
from math import sqrt
from statistics import median_high
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from trainmark.devices.cores import cores_of_rank
from trainmark.record.compilation import graphs_while_measured
from trainmark.record.run import usage
from trainmark.record.run.checks import samples_per_epoch
from trainmark.record.run.unlike import node_facts, slow_ranks, unlike_nodes
from trainmark.spec import Message, message

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from trainmark.plan.plan import Plan
    from trainmark.record.record import FigureEntry, Quality, Steps
    from trainmark.record.run.telemetry import Telemetry
    from trainmark.record.run.timeline import RunTimeline

BUSY_SHARE = 0.1  # of the cores; the system's own work and our launcher use less
# The forward pass of a row is a third of its training step. Evaluations may have longer rows,
# other batches and uncompiled code, but should not take ten times a whole step.
_EVALUATION_FACTOR = 10.0
_EVALUATION_FLOOR_S = 1.0  # in shorter ones, the fixed cost of an evaluation dominates
_CONSTANT_LOSS_STEPS = 10
_ROUNDING = 1e-12
# Of the steps not skipped by the loss scaler. A schedule may begin with a learning rate of 0.
_LEAST_UPDATES = 0.9
# Marks of a step and the host's clock around a window time the same work.
_CLOCK_TOLERANCE = 0.1
_CLOCK_FLOOR_S = 0.1  # in shorter windows, the time between the two dominates
# Batches that wait ready when measuring begins were read before: their reading is not measured.
_READ_BEFORE = 0.1
_FEW_ROWS, _LEAST_DISTINCT = 8, 0.9  # real data hold some rows twice
# The counter knows no fused attention of a vendor, which has up to a sixth of the FLOPs.
_FLOPS_TOLERANCE = 0.2
_SLOW_DEVICE = 0.05  # below the other devices of the same product
_ALWAYS_READ_AHEAD = 2
_MOST_OF_A_CODE = 8  # what a thousand ranks have in common is not said a thousand times
_NS_PER_S = 1e9
_GIB = 2**30


class Inputs(NamedTuple):
    """The data from which findings and notes are computed."""

    plan: Plan
    timeline: RunTimeline
    figures: dict[str, FigureEntry]
    telemetry: Telemetry | None = None


def find(run: Inputs) -> list[Message]:
    """Return the findings: reasons to doubt the figures."""
    rules = (
        _long_evaluation, _constant_loss, _flops, _own_epoch, _evaluated_rows, _few_updates,
        _clocks, _slow_devices, _repeated_rows,
    )  # fmt: skip
    doubts = [found for rule in rules for found in rule(run)]
    doubts += [*slow_ranks(run.timeline, run.plan.nproc), *unlike_nodes(node_facts(run.timeline))]
    return _few([*doubts, *usage.throttled(run.telemetry)])


def _few(found: Iterable[Message]) -> list[Message]:
    """Return the first messages of each code, and how many more there are."""
    kept: list[Message] = []
    for _, group in groupby(found, key=lambda one: one.code):
        same = list(group)
        kept += same[:_MOST_OF_A_CODE]
        if len(same) > _MOST_OF_A_CODE:
            kept.append(message("the_same_more_often", more=len(same) - _MOST_OF_A_CODE))
    return kept


def _long_evaluation(run: Inputs) -> Iterator[Message]:
    """Compare the time per evaluated row with the time per trained sample."""
    rank, samples = run.timeline.ranks[0], run.timeline.counts.samples
    rows = sum(event.samples for event in rank.evaluations)
    trained_s = sum(phase.windows_ns for phase in rank.phases.values()) / _NS_PER_S
    evaluated_s = rank.evaluate_ns / _NS_PER_S
    if not (rows and samples and trained_s) or evaluated_s < _EVALUATION_FLOOR_S:
        return
    row_s, sample_s = evaluated_s / rows, trained_s / samples
    if row_s > _EVALUATION_FACTOR * sample_s:
        yield message(
            "evaluation_far_longer",
            evaluation_s=evaluated_s,
            rows=rows,
            row_s=row_s,
            sample_s=sample_s,
            factor=row_s / sample_s,
            limit=_EVALUATION_FACTOR,
        )


def _constant_loss(run: Inputs) -> Iterator[Message]:
    """Yield a finding if the loss is the same in every step, up to rounding of means over ranks."""
    loss = run.timeline.series.loss
    if len(loss) >= _CONSTANT_LOSS_STEPS and np.ptp(loss) <= _ROUNDING * abs(loss[0]):
        yield message("loss_never_changes", loss=float(loss[0]), steps=len(loss))


def _flops(run: Inputs) -> Iterator[Message]:
    rate = run.figures["model_flops_per_device"].value
    matmul = run.figures["matmul_flops_per_device"].value
    if rate and matmul and rate > matmul:
        yield message(
            "flops_above_preflight",
            tflops=rate / 1e12,
            matmul_tflops=matmul / 1e12,
            share=rate / matmul,
        )
    for rank in run.timeline.ranks:
        claimed, counted = rank.phases["compile"].model_flops, rank.result.flops_counted
        if claimed and counted and claimed > (1 + _FLOPS_TOLERANCE) * counted:
            yield message("flops_above_counted", rank=rank.rank, claimed=claimed / 1e9,
                          counted=counted / 1e9, share=claimed / counted)  # fmt: skip


def _clocks(run: Inputs) -> Iterator[Message]:
    """Compare the steps' time by the device's marks with their windows' by the host's clock.

    They differ if a mark is taken before the work it should follow, or runs at another rate.
    """
    for rank in run.timeline.ranks:
        phase = rank.phases["train"]
        windows_s, steps_s = phase.windows_ns / _NS_PER_S, phase.step_ns / _NS_PER_S
        if windows_s < _CLOCK_FLOOR_S:
            continue
        if abs(1 - steps_s / windows_s) > _CLOCK_TOLERANCE:
            yield message(
                "steps_beside_windows", rank=rank.rank, steps_s=steps_s, windows_s=windows_s
            )


def _own_epoch(run: Inputs) -> Iterator[Message]:
    """Yield a finding if the job declares an epoch that differs from its training data."""
    samples = samples_per_epoch(run.plan, run.timeline)
    if samples != run.plan.data.train_samples:
        yield message("own_epoch", samples=samples, rows=run.plan.data.train_samples)


def _evaluated_rows(run: Inputs) -> Iterator[Message]:
    """Compare the rows of the last evaluation with the validation data."""
    rows = run.plan.data.eval_samples
    for event in run.timeline.ranks[0].evaluations[-1:]:
        if event.samples != rows:
            yield message("evaluated_rows", scored=event.samples, rows=rows)


def _few_updates(run: Inputs) -> Iterator[Message]:
    """Yield a finding for steps that used batches and time but changed no parameter."""
    rank = run.timeline.ranks[0]
    if rank.parameters is None:
        return
    skipped = rank.result.job.get("skipped_steps") or 0
    updates = rank.parameters.updates
    if updates < _LEAST_UPDATES * (rank.steps - skipped):
        yield message("few_updates", updates=updates, steps=rank.steps, skipped=skipped)


def _repeated_rows(run: Inputs) -> Iterator[Message]:
    """Count the distinct rows among first rows of batches of an epoch, over all ranks."""
    rows = [row for rank in run.timeline.ranks for row in rank.result.rows]
    distinct = len(set(rows))
    if len(rows) >= _FEW_ROWS and distinct < _LEAST_DISTINCT * len(rows):
        yield message("rows_repeated", rows=len(rows), distinct=distinct)


def _slow_devices(run: Inputs) -> Iterator[Message]:
    """Compare each device's matmul rate in preflight with the median of all of the same product.

    Only devices of the same product that ranks do not share. Of two, the slower is compared with
    the faster.
    """
    rates: dict[str, dict[int, float]] = {}
    for rank in run.timeline.ranks:
        rate = rank.facts.matmul_flops_per_second
        product = rank.facts.device.get("name")
        if rate and product and rank.facts.shares_cores is False:
            rates.setdefault(product, {})[rank.rank] = rate
    for product, known in rates.items():
        usual = median_high(known.values()) if len(known) > 1 else 0.0
        for number, rate in known.items():
            if rate < (1 - _SLOW_DEVICE) * usual:
                yield message(
                    "slow_device", rank=number, device=product, tflops=rate / 1e12,
                    others_tflops=usual / 1e12, share=1 - rate / usual,
                )  # fmt: skip


def notes(run: Inputs, steps: Steps, quality: Quality) -> list[Message]:
    """Return the notes that a careful reader needs beside the figures."""
    found = [
        *_on_steps(steps, quality),
        *_on_quality(run.plan, quality),
        *_on_conditions(run),
        *usage.notes(run.telemetry),
    ]
    return _few(found)


def _on_steps(steps: Steps, quality: Quality) -> Iterator[Message]:
    if steps.steady is False:
        yield message("not_steady", drift=steps.drift)
    if steps.steady is None:
        yield message("steadiness_unknown")
    known = [loss for loss in steps.loss if loss is not None]
    tenth = len(known) // 10
    if quality.history or tenth == 0:
        return  # an evaluation is more informative than the training loss
    (first, first_error), (last, last_error) = _mean(known[:tenth]), _mean(known[-tenth:])
    if first - last <= 2 * sqrt(first_error**2 + last_error**2):  # within the steps' noise
        yield message("loss_did_not_fall", first=first, last=last)


def _mean(values: list[float]) -> tuple[float, float]:
    """Return the mean and its standard error."""
    mean = sum(values) / len(values)
    variance = sum((value - mean) ** 2 for value in values) / len(values)
    return mean, sqrt(variance / len(values))


def _on_quality(plan: Plan, quality: Quality) -> Iterator[Message]:
    metric, value, best = quality.metric, quality.value, quality.best_possible
    required = plan.target is None or plan.target.required
    if value is None:
        return
    if quality.reached is False and not required:
        yield message(
            "target_missed_not_required", metric=metric, value=value, target=quality.target
        )
    if above_best(plan, quality):
        yield message("quality_above_best", metric=metric, value=value, best=best)


def above_best(plan: Plan, quality: Quality) -> bool:
    """Tell whether a quality is above the best possible by more than its noise.

    Three standard errors of an accuracy on these rows; for an error metric the variance over
    samples is not known here.
    """
    value, best = quality.value, quality.best_possible
    if value is None or not best or not plan.about.higher_is_better:
        return False
    return value > best + 3 * sqrt(best * (1 - best) / max(quality.eval_samples or 1, 1))


def _on_conditions(run: Inputs) -> Iterator[Message]:
    others = run.timeline.others_cpu_share
    if others is not None and others > BUSY_SHARE:
        yield message("machine_busy", share=others)
    for user in run.timeline.launcher.launch.environment.get("device_users", ()):
        if user["computes"]:
            yield message(
                "device_shared" if user["used_bytes"] is not None else "device_shared_unknown",
                device=user["device"],
                process=user["process"],
                gib=(user["used_bytes"] or 0) / _GIB,
            )
    recipe, steps = run.plan.recipe, run.timeline.ranks[0].phases["train"].steps
    ahead, batches = recipe["read_ahead_batches"], steps * recipe["grad_accum_steps"]
    if steps and ahead > max(_ALWAYS_READ_AHEAD, _READ_BEFORE * batches):
        yield message("read_before_measured", ahead=ahead, batches=batches)
    graphs = graphs_while_measured(run.timeline)
    if graphs:
        yield message("compiled_while_measured", graphs=graphs)
    if resumed := run.plan.resumed:
        yield message("resumed", steps=resumed.progress.steps, runs=", ".join(resumed.runs))
    if "oversubscribed" in run.plan.labels:
        yield message("oversubscribed")
    yield from _many_threads(run)
    for rank in run.timeline.ranks:
        if rank.malformed_lines:
            yield message("malformed_event_lines", rank=rank.rank, lines=rank.malformed_lines)


def _many_threads(run: Inputs) -> Iterator[Message]:
    """Yield a note for the first rank with more threads than cores that can run them."""
    total = run.timeline.launcher.launch.environment.get("cpu_cores")
    for rank in run.timeline.ranks:
        placed = rank.facts.placement or {}
        own, threads = placed.get("usable_cores"), placed.get("threads")
        if not (own and threads):
            continue
        shared = rank.facts.shares_cores is True
        cores = cores_of_rank(own, total=total or own, ranks=run.plan.nproc, shared=shared)
        if threads > cores:
            yield message("more_threads_than_cores", rank=rank.rank, threads=threads, cores=cores)
            return
