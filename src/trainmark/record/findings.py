"""Find what a careful reader must know besides the figures; no finding makes a run fail.

Owns the thresholds of findings. Almost all follow from values of the record, so that a check of a
record notices one that was removed; the others follow from events.
"""

from __future__ import annotations

from math import sqrt
from statistics import median_high, median_low
from typing import TYPE_CHECKING

import numpy as np

from trainmark.protocols import ERROR_COUNTERS, SET_LIMITS
from trainmark.ranges import format_ranges
from trainmark.record import printed, witnessed
from trainmark.record.evaluations import combine_scores
from trainmark.record.finding_kinds import FindingKind
from trainmark.record.printed import find_in_printed
from trainmark.record.witnessed import find_in_witness
from trainmark.spec import Message, message

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Mapping

    from trainmark.events.timeline import RunTimeline
    from trainmark.record.measurement import Measurement
    from trainmark.record.record import FigureEntry
    from trainmark.telemetry.summary import DeviceTelemetry, IntervalName, Telemetry

BUSY_SHARE = 0.1  # of the cores; the operating system and the launcher use less
_CONSTANT_LOSS_STEPS = 10  # steps with one loss from which this is reported
_ROUNDING = 1e-12  # relative difference of losses that are equal
# Updates over the steps that the loss scaler did not skip. A schedule may begin with a learning
# rate of 0, so that its first steps change nothing.
_MIN_UPDATES_PER_STEP = 0.9
# Relative difference of the time of steps by the device's clock and of their windows by the host's.
_CLOCK_TOLERANCE = 0.1
# Batches that are ready when measuring begins were read before, so that their reading is not
# measured: the largest part of all batches that may be.
_MAX_SHARE_READ_AHEAD = 0.1
_MIN_ROWS = 8  # of fewer rows, some may be repeated by chance
_MIN_DISTINCT_SHARE = 0.9  # part of the rows; real data have some rows twice
# The counter misses vendors' fused attention kernels, which have up to a sixth of the FLOPs.
_FLOPS_TOLERANCE = 0.2
_ALWAYS_ALLOWED_AHEAD = 2  # batches that may be read before measuring begins in any case
_STANDARD_ERRORS = 3  # above the best possible quality that chance explains
# Relative to the ranks' median step, and to the rate of the other devices of the product.
SLOW_SHARE = 0.05
THROTTLED_SHARE = 0.01  # of the measured time; less is one reading of many
# Time of training below which the start of threads hides all else.
_MIN_MEASURED_NS = 100_000_000
_MIN_STEP_S = 1e-9  # stands for a median step of 0 as a divisor
_BYTES_PER_GIB = 2**30
# Errors that may have changed a result, and those that were corrected or repeated.
_UNCORRECTED = frozenset({"ecc_uncorrected", "remapped_rows"})
_CORRECTED = frozenset(ERROR_COUNTERS) - _UNCORRECTED


# By code, what is known of each finding that Trainmark itself makes; a case may add others.
FINDING_KINDS: Mapping[str, FindingKind] = {
    "loss_never_changes": FindingKind("record", "do_not_quote"),
    "flops_above_preflight": FindingKind("record", "do_not_quote"),
    "evaluated_rows": FindingKind("record", "do_not_quote"),
    "evaluation_rows_change": FindingKind("record", "do_not_quote"),
    "steps_beside_windows": FindingKind("record", "do_not_quote"),
    "quality_above_best": FindingKind("record", "do_not_quote"),
    "device_shared": FindingKind("record", "do_not_quote"),
    "replay_differs": FindingKind("record", "do_not_quote"),
    "device_errors": FindingKind("record", "do_not_quote"),
    "slow_device": FindingKind("record", "noisy"),
    "slow_rank": FindingKind("record", "noisy", severity_arg="share"),
    "slow_data": FindingKind("record", "noisy", severity_arg="share"),
    "throttled_while_measured": FindingKind("record", "noisy", severity_arg="share"),
    "steadiness_unknown": FindingKind("record", "noisy"),
    "not_steady": FindingKind("record", "noisy", severity_arg="drift"),
    "machine_busy": FindingKind("record", "noisy", severity_arg="share"),
    "read_before_measured": FindingKind("record", "noisy"),
    "compiled_while_measured": FindingKind("record", "noisy", severity_arg="graphs"),
    "kernel_messages": FindingKind("record", "noisy"),
    "nodes_differ": FindingKind("record", "usable"),
    "resumed": FindingKind("record", "usable"),
    "replay_not_deterministic": FindingKind("record", "usable"),
    "no_window_replayed": FindingKind("record", "usable"),
    "device_errors_corrected": FindingKind("record", "usable"),
    "few_updates": FindingKind("events", "do_not_quote"),
    "rows_repeated": FindingKind("events", "do_not_quote"),
    "flops_above_counted": FindingKind("events", "do_not_quote"),
    "evaluation_rows_repeated": FindingKind("events", "do_not_quote"),
    "own_epoch": FindingKind("events", "usable"),
    "evaluation_unchecked": FindingKind("events", "usable"),
    **witnessed.FINDING_KINDS,
    **printed.FINDING_KINDS,
}
# Those by which repeats of windows, which the recipe asked for, prove nothing.
INCONCLUSIVE_REPLAYS = frozenset({"replay_not_deterministic", "no_window_replayed"})


def find_findings(
    measurement: Measurement, figures: Mapping[str, FigureEntry], timeline: RunTimeline
) -> list[Message]:
    """Return what a reader must know besides the figures: the first finding of each code.

    The code of a message names its sentence. A thousand ranks may have the same finding, so that
    further findings with the code are left out.
    """
    findings: dict[str, Message] = {}
    for finding in find_in_measurement(measurement, figures):
        findings.setdefault(finding.code, finding)
    for finding in _find_in_events(measurement, timeline):
        findings.setdefault(finding.code, finding)
    return list(findings.values())


def find_in_measurement(
    measurement: Measurement, figures: Mapping[str, FigureEntry]
) -> list[Message]:
    """Return the findings that need no events: a record has all that they follow from."""
    findings = [
        *_find_constant_loss(measurement),
        *_find_impossible_flops(figures),
        *_find_wrong_evaluation_size(measurement),
        *_find_changing_evaluation_rows(measurement),
        *_find_unlike_clocks(measurement),
        *_find_slow_devices(measurement),
        *_find_slow_ranks(measurement),
        *_find_unlike_nodes(measurement),
        *_find_throttling(measurement),
        *_find_device_errors(measurement),
        *_find_kernel_messages(measurement),
        *_find_drift(measurement),
        *_find_impossible_quality(measurement),
        *_find_replay_differences(measurement),
        *_find_machine_conditions(measurement),
        *_find_training_conditions(measurement),
    ]
    # A user's own program trained instead of a case: what a probe saw of it, and what it printed.
    if measurement.plan.witness is not None:
        findings += find_in_witness(measurement)
        findings += find_in_printed(measurement, figures)
    if measurement.telemetry is not None:  # why readings are missing
        findings += measurement.telemetry.faults
    return findings


def _find_in_events(measurement: Measurement, timeline: RunTimeline) -> Iterator[Message]:
    """Yield findings on epochs, updates, rows and counted FLOPs.

    They follow from the ranks' events, the ``timeline``; a record does not have these values.
    """
    plan = measurement.plan
    rank0 = timeline.ranks[0]
    samples_per_epoch = rank0.facts.samples_per_epoch  # as the case defines an epoch
    if samples_per_epoch not in (None, plan.data.train_samples):  # None: an epoch has all samples
        yield message("own_epoch", samples=samples_per_epoch, rows=plan.data.train_samples)
    skipped = measurement.counts.skipped_steps or 0
    # An update is a step that should have changed parameters: the loss scaler did not skip it, and
    # its learning rate was not 0. If rank 0 did not report its updates, each step counts as one, so
    # that nothing is found.
    updates = rank0.steps if rank0.parameters is None else rank0.parameters.updates
    # The loss scaler of fp16 may skip some steps. Of those that it did not skip, the first may not
    # be updates, because a schedule may begin with a learning rate of 0.
    if updates < _MIN_UPDATES_PER_STEP * (rank0.steps - skipped):
        yield message("few_updates", updates=updates, steps=rank0.steps, skipped=skipped)
    # Digests of rows of the first epoch, in which each row should come only once.
    rows = [row for rank in timeline.ranks for row in rank.result.rows]
    num_distinct = len(set(rows))
    if len(rows) >= _MIN_ROWS and num_distinct < _MIN_DISTINCT_SHARE * len(rows):
        yield message("rows_repeated", rows=len(rows), distinct=num_distinct)
    yield from _find_repeated_evaluation_rows(timeline)
    for rank in timeline.ranks:
        # FLOPs are counted only in the first step. It is a phase of its own, ``compile``.
        claimed = rank.phases["compile"].model_flops  # by the case's formula; None: it has none
        # The counter misses fused attention kernels; the tolerance below allows for these FLOPs.
        counted = rank.result.flops_counted
        if claimed and counted and claimed > (1 + _FLOPS_TOLERANCE) * counted:
            yield message(
                "flops_above_counted",
                rank=rank.rank,
                claimed=claimed / 1e9,
                counted=counted / 1e9,
                share=claimed / counted,
            )


def _find_repeated_evaluation_rows(timeline: RunTimeline) -> Iterator[Message]:
    """Yield that an evaluation scored rows twice, or that which rows it scored is unknown."""
    # ``evaluation_unchecked``: the job does not say which rows the rank scored.
    if any(rank.result.evaluation_unchecked for rank in timeline.ranks):
        yield message("evaluation_unchecked")
    # Not strict: a rank may have ended before the last evaluation.
    for reports in zip(*(rank.evaluations for rank in timeline.ranks), strict=False):
        scored = combine_scores([report.scores for report in reports])
        # A key is a hash of a row: equal rows have equal keys. ``keys``: number of scored rows that
        # have a key; ``distinct``: number of different keys on a rank, added up over ranks. Of few
        # rows, some may be equal by chance.
        if scored is None or scored.keys < _MIN_ROWS:
            continue
        if scored.distinct < _MIN_DISTINCT_SHARE * scored.keys:
            yield message("evaluation_rows_repeated", rows=scored.keys, distinct=scored.distinct)


def _find_constant_loss(measurement: Measurement) -> Iterator[Message]:
    """Yield a finding if the loss is the same in every step, up to rounding of means over ranks."""
    # A missing loss (None) becomes NaN, with which the loss does not count as constant.
    loss = np.array(measurement.steps.loss, np.float64)
    if len(loss) >= _CONSTANT_LOSS_STEPS and np.ptp(loss) <= _ROUNDING * abs(loss[0]):
        yield message("loss_never_changes", loss=float(loss[0]), steps=len(loss))


def _find_impossible_flops(figures: Mapping[str, FigureEntry]) -> Iterator[Message]:
    """Yield that a device trained at more FLOP/s than its matmuls had in preflight."""
    model = figures.get("model_flops_per_device")
    matmul = figures.get("matmul_flops_per_device")
    if model is None or matmul is None or not model.value or not matmul.value:
        return
    if model.value > matmul.value:
        yield message(
            "flops_above_preflight",
            tflops=model.value / 1e12,
            matmul_tflops=matmul.value / 1e12,
            share=model.value / matmul.value,
        )


def _find_wrong_evaluation_size(measurement: Measurement) -> Iterator[Message]:
    """Yield that the last evaluation scored fewer or more rows than the validation data has."""
    num_scored = measurement.quality.eval_samples  # None: there was no evaluation
    num_rows = measurement.plan.data.eval_samples
    if num_scored not in (None, num_rows):
        yield message("evaluated_rows", scored=num_scored, rows=num_rows)


def _find_changing_evaluation_rows(measurement: Measurement) -> Iterator[Message]:
    """Yield that evaluations did not score the same rows, as the digests of their rows show."""
    # Without ``scored``, an evaluation did not report which rows it scored.
    digests = [point.scored["digest"] for point in measurement.evaluations if point.scored]
    if len(set(digests)) > 1:
        yield message("evaluation_rows_change", evaluations=len(digests))


def _find_unlike_clocks(measurement: Measurement) -> Iterator[Message]:
    """Compare the time of steps by the device's clock with that of their windows by the host's.

    A window is some steps that the host times together. The two times differ if the device records
    a time before the work that it should follow, or if its clock runs at another rate.
    """
    for rank in measurement.ranks:
        phase = rank.phases["train"]  # the steps after the warm-up
        if phase.windows_ns < _MIN_MEASURED_NS:
            continue  # too short to compare the clocks
        windows_s = phase.windows_ns / 1e9
        steps_s = phase.step_ns / 1e9
        if abs(1 - steps_s / windows_s) > _CLOCK_TOLERANCE:
            yield message(
                "steps_beside_windows", rank=rank.rank, steps_s=steps_s, windows_s=windows_s
            )


def _find_slow_devices(measurement: Measurement) -> Iterator[Message]:
    """Yield each device whose rate of matmuls is below the median of all of the same product.

    The rate was measured before the training. It counts as below if it is lower by more than
    ``SLOW_SHARE``. The median is the higher one: of two devices, the slower is compared with the
    faster. On a CPU ranks share the device, so that nothing is compared.
    """
    if measurement.plan.device.torch_type == "cpu":
        return
    rates_by_product: dict[str, dict[int, float]] = {}  # of each product the rate by rank
    devices = measurement.environment["devices"]
    for rank, device in zip(measurement.ranks, devices, strict=True):
        if rank.matmul_flops_per_second and device and "name" in device:
            rates = rates_by_product.setdefault(device["name"], {})
            rates[rank.rank] = rank.matmul_flops_per_second
    for product, rates in rates_by_product.items():
        median_rate = median_high(rates.values())
        for rank_number, rate in rates.items():
            if rate < (1 - SLOW_SHARE) * median_rate:
                yield message(
                    "slow_device",
                    rank=rank_number,
                    device=product,
                    tflops=rate / 1e12,
                    others_tflops=median_rate / 1e12,
                    share=1 - rate / median_rate,
                )


def _find_slow_ranks(measurement: Measurement) -> Iterator[Message]:
    """Yield the rank with the longest steps, and the one that waits longest for data.

    Each is yielded only if it is clearly slower than the median rank. With more ranks than cores
    nothing is compared: which rank waits for a core is chance.
    """
    if "oversubscribed" in measurement.plan.labels:
        return
    # Ranks whose measured time is not too short to compare. The phase ``train`` has the measured
    # steps, those after the warm-up.
    ranks = [
        rank for rank in measurement.ranks if rank.phases["train"].windows_ns >= _MIN_MEASURED_NS
    ]
    if not ranks:
        return
    # Of each rank its median step, not the mean: ranks begin a window up to a step apart, and the
    # first ones wait for the others in its first step.
    steps_s = {rank.rank: (rank.step_ns or 0) / 1e9 for rank in ranks}
    # Of each rank its mean wait for data in a step. There is no median: only the sum of the waits
    # in all steps is known.
    waits_s = {rank.rank: (rank.wait_ns or 0) / 1e9 for rank in ranks}
    # Above 0, because it is a divisor.
    median_step_s = max(_MIN_STEP_S, median_low(steps_s.values()))
    nproc = measurement.plan.nproc
    yield from _find_slowest("slow_rank", steps_s, median_step_s=median_step_s, nproc=nproc)
    yield from _find_slowest("slow_data", waits_s, median_step_s=median_step_s, nproc=nproc)


def _find_slowest(
    code: str, times_s: dict[int, float], *, median_step_s: float, nproc: int
) -> Iterator[Message]:
    """Yield the rank with the longest time, if it is above the median by ``SLOW_SHARE`` of a step.

    The median is the lower one: of two ranks, the slower is compared with the faster.

    Args:
        code: of the finding.
        times_s: time of each rank by its number.
        median_step_s: median step of all ranks, of which differences are shares.
        nproc: number of ranks of a node.
    """
    median_s = median_low(times_s.values())
    slow_ranks = [
        rank for rank, time_s in times_s.items() if time_s - median_s > SLOW_SHARE * median_step_s
    ]
    if not slow_ranks:
        return
    slowest = max(slow_ranks, key=lambda rank: times_s[rank])
    yield message(
        code,
        rank=slowest,
        node=slowest // nproc,
        own_s=times_s[slowest],
        median_s=median_s,
        share=(times_s[slowest] - median_s) / median_step_s,
        slow=len(slow_ranks),
        nodes=len({rank // nproc for rank in slow_ranks}),
    )


def _find_unlike_nodes(measurement: Measurement) -> Iterator[Message]:
    """Yield nodes whose hardware or versions differ from the first."""
    # One dictionary for each node, with the facts in which it differs from the first node.
    differences = measurement.environment.get("nodes", [])
    # A dictionary without values keeps each name once, in order.
    fact_names = dict.fromkeys(name for node in differences for name in node)
    if fact_names:
        numbers = format_ranges(number for number, node in enumerate(differences) if node)
        yield message("nodes_differ", nodes=numbers, names=", ".join(fact_names))


def find_throttling_shares(
    telemetry: Telemetry | None, interval: IntervalName
) -> dict[int, dict[str, float]]:
    """Return for what shares of an interval's time each throttled device had lowered clocks.

    Clocks that only a set limit lowers, a power cap for instance, do not count.

    Args:
        telemetry: what was read of the devices of a run; None: nothing was.
        interval: part of the run, such as ``measured``, the training after the warm-up.

    Returns:
        For each throttled device, by the number of its first rank: the share of the time by
        reason. Two reasons may hold at the same time.
    """
    shares_by_rank: dict[int, dict[str, float]] = {}
    if telemetry is None:
        return shares_by_rank
    for device in telemetry.devices:
        use = device.over.get(interval)  # what was read of the device in the interval
        if use is None or use.throttled is None:
            continue  # the device reported nothing, or not why its clocks were lowered
        shares = {
            reason: share for reason, share in use.throttled.items() if reason not in SET_LIMITS
        }
        if any(share > 0 for share in shares.values()):
            shares_by_rank[device.ranks[0]] = shares
    return shares_by_rank


def _find_throttling(measurement: Measurement) -> Iterator[Message]:
    """Yield that devices had lowered clocks while steps were measured.

    The finding names the device whose clocks were lowered for the largest share of the time.
    """
    telemetry = measurement.telemetry
    # For each device, by the number of its first rank: the share of the time by reason. Reasons may
    # hold at the same time, so the largest share counts, not their sum.
    throttled_devices = {
        rank: shares
        for rank, shares in find_throttling_shares(telemetry, "measured").items()
        if max(shares.values()) > THROTTLED_SHARE
    }
    if telemetry is None or not throttled_devices:
        return
    worst_rank = max(throttled_devices, key=lambda rank: max(throttled_devices[rank].values()))
    worst_shares = throttled_devices[worst_rank]
    yield message(
        "throttled_while_measured",
        devices=len(throttled_devices),
        of=len(telemetry.devices),
        rank=worst_rank,
        share=max(worst_shares.values()),
        reasons=", ".join(f"{reason} {share:.0%}" for reason, share in worst_shares.items()),
    )


def _find_device_errors(measurement: Measurement) -> Iterator[Message]:
    """Yield that counters of errors rose during the run, or that a driver reported a fault.

    There is one finding on errors that may have changed results, to which faults belong, and one
    on errors that were corrected. Each names the first device with such errors.
    """
    if measurement.telemetry is None:
        return
    uncorrected: dict[int, str] = {}  # the errors of a device as text, by its first rank
    corrected: dict[int, str] = {}
    for device in measurement.telemetry.devices:
        rank = device.ranks[0]
        texts = _describe_error_rises(device, _UNCORRECTED) + device.faults
        if texts:
            uncorrected[rank] = ", ".join(texts)
        texts = _describe_error_rises(device, _CORRECTED)
        if texts:
            corrected[rank] = ", ".join(texts)
    yield from _report_device_errors("device_errors", uncorrected, measurement)
    yield from _report_device_errors("device_errors_corrected", corrected, measurement)


def _describe_error_rises(device: DeviceTelemetry, names: Container[str]) -> list[str]:
    """Return by how much each of the named counters of errors rose, if it did."""
    return [
        f"{name} +{counter.rise}"
        for name, counter in device.errors.items()
        if name in names and counter.rise
    ]


def _report_device_errors(
    code: str, texts_by_rank: dict[int, str], measurement: Measurement
) -> Iterator[Message]:
    """Yield a finding on devices with errors, if there are any.

    Args:
        code: of the finding.
        texts_by_rank: the errors of each such device, by its first rank.
    """
    if not texts_by_rank or measurement.telemetry is None:
        return
    rank, text = next(iter(texts_by_rank.items()))
    yield message(
        code,
        devices=len(texts_by_rank),
        of=len(measurement.telemetry.devices),
        rank=rank,
        node=rank // measurement.plan.nproc,
        errors=text,
    )


def _find_kernel_messages(measurement: Measurement) -> Iterator[Message]:
    """Yield that a machine's operating system logged problems of devices; quote the first message.

    The log is that of the kernel of the operating system.
    """
    telemetry = measurement.telemetry
    if telemetry is None or telemetry.kernel is None or not telemetry.kernel.messages:
        return
    messages = telemetry.kernel.messages  # one entry for each machine and kind of message
    first = messages[0]
    yield message(
        "kernel_messages",
        count=sum(entry.count for entry in messages),
        kinds=", ".join(dict.fromkeys(entry.kind for entry in messages)),
        node=first.node,
        kernel_text=first.kernel_text,
    )


def _find_drift(measurement: Measurement) -> Iterator[Message]:
    """Yield that steps became slower or faster, or that there are too few steps to know."""
    steps = measurement.steps
    if steps.steady is None:  # too few steps
        yield message("steadiness_unknown")
    elif not steps.steady:  # drift: change from the first third of the steps to the last
        yield message("not_steady", drift=steps.drift)


def _find_impossible_quality(measurement: Measurement) -> Iterator[Message]:
    """Yield that the quality is higher than the best possible one by more than chance explains.

    Chance explains three standard errors of a share of correct samples. A metric that is better if
    it is lower is not checked: its variance over samples is not known.
    """
    quality = measurement.quality
    value = quality.value
    best = quality.best_possible  # None: not known, as of real data
    if value is None or not best or not measurement.plan.about.higher_is_better:
        return
    if not 0 < best <= 1:  # no share of samples: how far chance explains it is not known
        return
    # The quality is taken as a share of correct samples: the number of these is binomial. If the
    # number of evaluated samples is not known (None or 0), it counts as 1: the error is then
    # widest, so that nothing is reported wrongly.
    num_samples = quality.eval_samples or 1
    standard_error = sqrt(best * (1 - best) / num_samples)
    if value > best + _STANDARD_ERRORS * standard_error:
        yield message("quality_above_best", metric=quality.metric, value=value, best=best)


def _find_replay_differences(measurement: Measurement) -> Iterator[Message]:
    """Yield that repeated windows gave another result, or that their repeats prove nothing.

    Ranks repeat some windows from a saved state and compare the results bit by bit. If a repeat
    differs, two more follow, and the difference counts only if these two agree.
    """
    replays = measurement.replays
    if replays is None:  # no window was repeated
        if measurement.plan.recipe.get("replay_every_windows") is not None:
            yield message("no_window_replayed")
        return
    # ``not_deterministic``: number of windows whose two further repeats differ from each other. If
    # there are any, repeats may differ without a fault, so a difference in another window proves no
    # rank wrong.
    if replays.not_deterministic:
        yield message(
            "replay_not_deterministic",
            windows=replays.not_deterministic,
            of=replays.windows,  # number of windows that were repeated
        )
    elif replays.differences:
        first = replays.differences[0]
        nodes = {rank // measurement.plan.nproc for rank in first.ranks}
        yield message(
            "replay_differs",
            ranks=format_ranges(first.ranks),
            nodes=format_ranges(sorted(nodes)),
            step=first.step,
            # What differs first: a weight or a gradient with its name, or the loss.
            place=first.part if first.tensor is None else f"{first.part} {first.tensor}",
            windows=replays.different,  # number of windows with a difference
            of=replays.windows,
        )


def _find_machine_conditions(measurement: Measurement) -> Iterator[Message]:
    """Yield that other programs used the machine's cores or the run's devices."""
    environment = measurement.environment
    # Share of the machine's CPU time that other programs used; None: not known.
    others_share = environment["others_cpu_share"]
    if others_share is not None and others_share > BUSY_SHARE:
        yield message("machine_busy", share=others_share)
    for user in environment.get("device_users", ()):
        if user["computes"]:  # a program that only draws, such as a desktop, is not reported
            gib = None if user["used_bytes"] is None else user["used_bytes"] / _BYTES_PER_GIB
            yield message("device_shared", device=user["device"], process=user["process"], gib=gib)


def _find_training_conditions(measurement: Measurement) -> Iterator[Message]:
    """Yield what of the training makes its speed less certain.

    Data were read before the measurement began, graphs were compiled while measuring, or the run
    resumes another one.
    """
    plan = measurement.plan
    phases = [rank.phases["train"] for rank in measurement.ranks]  # steps after the warm-up
    num_ahead = plan.recipe.get("read_ahead_batches", 0)
    num_batches = phases[0].steps * plan.recipe["grad_accum_steps"]  # measured on each rank
    # Batches that are ready before measuring begins are trained without the time to read them.
    if num_batches and num_ahead > max(_ALWAYS_ALLOWED_AHEAD, _MAX_SHARE_READ_AHEAD * num_batches):
        yield message("read_before_measured", ahead=num_ahead, batches=num_batches)
    num_graphs = max(phase.graphs_compiled for phase in phases)
    if num_graphs:
        yield message("compiled_while_measured", graphs=num_graphs)
    if plan.resumed is not None:
        runs = ", ".join(plan.resumed.runs)
        yield message("resumed", steps=plan.resumed.progress.steps, runs=runs)
