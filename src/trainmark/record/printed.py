"""Compare the speed that a user's own program prints with the measured one; explain differences.

A difference is explained only if a rule predicts it closely from what was measured.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from trainmark.record.printed_speed import TIMES
from trainmark.spec import Message, message

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from trainmark.record.measurement import Measurement
    from trainmark.record.printed_speed import PrintedSpeed
    from trainmark.record.record import FigureEntry

# Relative difference up to which a printed speed agrees: programs time other steps than we do.
_AGREEMENT_TOLERANCE = 0.05
_MIN_BEST_LEAD = 0.01  # relative lead over the mean of the fastest step until then
_RULE_TOLERANCE = 0.03  # relative difference up to which a rule explains a printed speed
_UNITS = {
    "tokens_per_second": "tokens/s",
    "tokens_per_second_per_device": "tokens/s/device",
    "samples_per_second": "samples/s",
    "samples_per_second_per_device": "samples/s/device",
    "steps_per_second": "steps/s",
    "step_s": "s/step",
    "step_ms": "ms/step",
    "tflops_per_device": "TFLOP/s",
    "mfu_percent": "% MFU",
}
_OF_FLOPS = ("tflops_per_device", "mfu_percent")
_REASONS: dict[str, str] = {
    "warmup": "printed_because_warmup",
    "whole": "printed_because_whole",
    "micro_batches": "printed_because_micro_batches",
    "accumulation": "printed_because_accumulation",
    "padding": "printed_because_padding",
    "all_ranks": "printed_because_all_ranks",
    "one_rank": "printed_because_one_rank",
    "waiting": "printed_because_waiting",
    "fastest": "printed_because_fastest",
    "twice": "printed_because_twice",
}
# Rules for programs that print a mean or best over all steps so far: the last value counts.
_RULES_ON_MEANS_SINCE_START = ("warmup", "whole", "fastest")
CODES = {
    "printed_agrees", "printed_differs", "printed_unmeasured", "printed_nothing", "printed_unknown",
    "printed_because_peak", "printed_because_formula", *_REASONS.values(),
}  # fmt: skip


class _MeasuredQuantity(NamedTuple):
    """A printed quantity as it was measured, in the printed unit.

    Args:
        mean: over the time of all steps after the warm-up.
        at_median_step: by the time of the median step.
        whole: over the whole training, with warm-up, evaluations and checkpoints; None: not known.
    """

    mean: float
    at_median_step: float
    whole: float | None


class PrintedComparison(NamedTuple):
    """A printed speed beside the measured one.

    Args:
        measured: in the printed unit; None: it was not measured.
        change: relative difference of the measured value from the printed one: of both means, or of
            both medians, whichever is smaller. A value that is printed once may be of the whole
            training: if that is nearer, ``measured`` and ``change`` are of the whole.
        reason: why they differ, if a rule predicts it.
    """

    speed: PrintedSpeed
    unit: str
    measured: float | None
    change: float
    reason: Message | None = None

    @property
    def agrees(self) -> bool:
        """Tell whether both are the same, except that they may time different steps."""
        is_near = self.measured is not None and abs(self.change) <= _AGREEMENT_TOLERANCE
        return is_near and self.reason is None


def compare_printed(
    measurement: Measurement, figures: Mapping[str, FigureEntry]
) -> list[PrintedComparison]:
    """Return each printed quantity beside what was measured."""
    comparisons = []
    for speed in measurement.printed:
        if speed.mean is None or speed.median is None or speed.mean <= 0:
            continue
        unit = _UNITS[speed.quantity]
        measured = _find_measured(speed.quantity, measurement, figures)
        if measured is None:
            comparisons.append(PrintedComparison(speed, unit, None, 0.0))
            continue
        changes = (measured.mean / speed.mean - 1, measured.at_median_step / speed.median - 1)
        change = min(changes, key=abs)
        shown = measured.mean
        if speed.lines == 1 and measured.whole is not None:
            change_of_whole = measured.whole / speed.mean - 1
            if abs(change_of_whole) < abs(change):
                shown, change = measured.whole, change_of_whole
        reason = _find_best_so_far(speed, measured)
        if reason is None and abs(change) > _AGREEMENT_TOLERANCE:
            agrees = any(comparison.agrees for comparison in comparisons)
            reason = _find_reason(speed, measured, measurement, figures, another_agrees=agrees)
        comparisons.append(PrintedComparison(speed, unit, shown, change, reason))
    return comparisons


def find_in_printed(
    measurement: Measurement, figures: Mapping[str, FigureEntry]
) -> Iterator[Message]:
    """Yield whether the printed speeds agree; if not, the largest difference with its reason."""
    if not measurement.printed:
        witness = measurement.plan.witness
        if witness is not None and witness.spec.speed_line is None:
            yield message("printed_unknown")
        return
    if not any(speed.lines for speed in measurement.printed):
        yield message("printed_nothing")
        return
    comparisons = compare_printed(measurement, figures)
    differing = [x for x in comparisons if x.measured is not None and not x.agrees]
    if differing:
        # An explained difference comes before all others.
        worst = max(differing, key=lambda x: (x.reason is not None, abs(x.change)))
        yield message("printed_differs", **_describe(worst))
        if worst.reason is not None:
            yield worst.reason
        return
    agreeing = [x for x in comparisons if x.agrees]
    if agreeing:
        yield message("printed_agrees", **_describe(agreeing[0]))
    elif comparisons:
        first = comparisons[0]
        yield message("printed_unmeasured", reported=first.speed.mean, unit=first.unit)


def _describe(comparison: PrintedComparison) -> dict[str, str | float | None]:
    """Return the arguments of a finding on a comparison."""
    return {
        "reported": comparison.speed.mean,
        "unit": comparison.unit,
        "measured": comparison.measured,
        "change": comparison.change,
    }


def _find_measured(
    quantity: str, measurement: Measurement, figures: Mapping[str, FigureEntry]
) -> _MeasuredQuantity | None:
    """Return a printed quantity as it was measured; None: it was not measured."""
    phases = [rank.phases["train"] for rank in measurement.ranks]
    slowest_ns = max(phase.windows_ns for phase in phases)
    steps = phases[0].steps
    median_s = figures["step_time_p50"].value
    if not slowest_ns or not steps or not median_s:
        return None
    mean_s = slowest_ns / steps / 1e9
    whole_s = _measure_whole_step(measurement)
    if quantity in TIMES:
        unit_s = TIMES[quantity]
        whole = None if whole_s is None else whole_s / unit_s
        return _MeasuredQuantity(mean_s / unit_s, median_s / unit_s, whole)
    per_step = _find_amount_of_step(quantity, measurement, figures, mean_s=mean_s)
    if per_step is None:
        return None
    whole = None if whole_s is None else per_step / whole_s
    return _MeasuredQuantity(per_step / mean_s, per_step / median_s, whole)


def _measure_whole_step(measurement: Measurement) -> float | None:
    """Return the seconds of a step if all time of the training counts; None: not known."""
    times_ns = [rank.train_ns for rank in measurement.ranks if rank.train_ns]
    steps = measurement.ranks[0].steps
    return max(times_ns) / steps / 1e9 if times_ns and steps else None


def _find_amount_of_step(
    quantity: str,
    measurement: Measurement,
    figures: Mapping[str, FigureEntry],
    *,
    mean_s: float,
) -> float | None:
    """Return how much of what a rate counts is in a step; None: not known.

    Args:
        quantity: a rate: of steps, samples, tokens or TFLOPs a second, or MFU in percent.
        mean_s: mean time of a step.
    """
    phases = [rank.phases["train"] for rank in measurement.ranks]
    steps = phases[0].steps
    samples = tokens = None
    if figures["final_result"].value is not None:
        samples = sum(phase.samples for phase in phases) / steps or None
        tokens = sum(phase.tokens for phase in phases) / steps or None
    flops = figures["model_flops_per_device"].value
    mfu = figures["MFU"].value
    amounts = {
        "steps_per_second": 1.0,
        "samples_per_second": samples,
        "samples_per_second_per_device": None if samples is None else samples / len(phases),
        "tokens_per_second": tokens,
        "tokens_per_second_per_device": None if tokens is None else tokens / len(phases),
        "tflops_per_device": None if flops is None else flops / 1e12 * mean_s,
        "mfu_percent": None if mfu is None else mfu * mean_s,
    }
    return amounts[quantity]


def _find_best_so_far(speed: PrintedSpeed, measured: _MeasuredQuantity) -> Message | None:
    """Return that a program prints its fastest step until then; None: it does not."""
    if not speed.is_best_so_far or speed.last is None:
        return None
    ratio = _compare_speeds(speed.quantity, speed.last, measured.mean)
    is_faster = ratio > 1 + _MIN_BEST_LEAD
    return message("printed_because_fastest", ratio=ratio) if is_faster else None


def _compare_speeds(quantity: str, printed: float, measured: float) -> float:
    """Return the printed over the measured speed; of times the inverse."""
    return measured / printed if quantity in TIMES else printed / measured


def _find_reason(
    speed: PrintedSpeed,
    measured: _MeasuredQuantity,
    measurement: Measurement,
    figures: Mapping[str, FigureEntry],
    *,
    another_agrees: bool,
) -> Message | None:
    """Return why a printed speed differs, by the rule that predicts it best; None: none does.

    Args:
        another_agrees: another quantity of the same lines agrees, so that time and work do.
    """
    if another_agrees and speed.quantity in _OF_FLOPS:
        return _find_other_formula(speed, measured, measurement, figures)
    predictions = dict(_predict_ratios(speed.quantity, measurement))
    candidates: list[tuple[float, Message]] = []
    for name, predicted in predictions.items():
        pairs = [(speed.mean, measured.mean), (speed.median, measured.at_median_step)]
        if name in _RULES_ON_MEANS_SINCE_START:
            pairs = [(speed.last, measured.mean)]
        for printed, rate in pairs:
            if printed:
                ratio = _compare_speeds(speed.quantity, printed, rate)
                reason = message(_REASONS[name], ratio=predicted)
                candidates.append((abs(ratio / predicted - 1), reason))
    close_candidates = [item for item in candidates if item[0] <= _RULE_TOLERANCE]
    if close_candidates:
        _, reason = min(close_candidates, key=lambda item: item[0])
        return reason
    return _find_other_formula(speed, measured, measurement, figures)


def _predict_ratios(quantity: str, measurement: Measurement) -> Iterator[tuple[str, float]]:
    """Yield by the name of each rule the ratio of printed to measured speed that it predicts."""
    ranks = measurement.ranks
    phases = [rank.phases["train"] for rank in ranks]
    train = phases[0]
    first_rank = ranks[0]
    is_per_device = quantity.endswith("_per_device") or quantity == "mfu_percent"
    micro_batches_per_step = train.micro_batches / train.steps
    if train.windows_ns and first_rank.steps:
        step_ns = train.windows_ns / train.steps
        step_with_warmup_ns = first_rank.total_windows_ns / first_rank.steps
        yield "warmup", step_ns / step_with_warmup_ns
        whole_s = _measure_whole_step(measurement)
        if whole_s is not None:
            yield "whole", step_ns / 1e9 / whole_s
        yield "waiting", train.windows_ns / max(1, train.windows_ns - train.wait_ns)
        times = measurement.steps.time_ns[measurement.steps.warmup :]
        yield "fastest", step_ns / max(1, min(times))
    if micro_batches_per_step > 1:
        yield "micro_batches", micro_batches_per_step
        yield "accumulation", 1 / micro_batches_per_step
    if train.tokens and train.tokens_padded > train.tokens:
        yield "padding", train.tokens_padded / train.tokens
    if len(ranks) > 1 and quantity != "steps_per_second" and quantity not in TIMES:
        if not is_per_device:
            yield "one_rank", 1 / len(ranks)
        yield "all_ranks", float(len(ranks))
    yield "twice", 2.0


def _find_other_formula(
    speed: PrintedSpeed,
    measured: _MeasuredQuantity,
    measurement: Measurement,
    figures: Mapping[str, FigureEntry],
) -> Message | None:
    """Return that a program takes another peak, or other FLOPs a step, than we do."""
    assert speed.mean is not None, "the caller has a value"
    by_quantity = {x.quantity: x.mean for x in measurement.printed if x.mean is not None}
    if speed.quantity == "mfu_percent":
        rate = figures["model_flops_per_device"].value
        mfu_percent = figures["MFU"].value
        printed_rate = by_quantity.get("tflops_per_device")
        is_same_rate = printed_rate is None or (
            rate is not None and abs(rate / 1e12 / printed_rate - 1) <= _AGREEMENT_TOLERANCE
        )
        if rate and mfu_percent and is_same_rate:
            return message(
                "printed_because_peak",
                theirs=rate / (speed.mean / 100) / 1e12,
                ours=rate / (mfu_percent / 100) / 1e12,
            )
    if speed.quantity == "tflops_per_device":
        return message("printed_because_formula", ratio=speed.mean / measured.mean)
    return None
