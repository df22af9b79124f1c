"""What a program printed of its own speed, beside what was measured, and why they differ.

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

_AGREES = 0.05  # share by which a printed speed may differ: programs time other steps than we do
_EXPLAINS = 0.03  # share by which a rule may miss a difference
_UNITS = {
    "tokens_per_second": "tokens/s",
    "tokens_per_second_per_device": "tokens/s/device",
    "samples_per_second": "samples/s",
    "steps_per_second": "steps/s",
    "step_s": "s/step",
    "step_ms": "ms/step",
    "tflops_per_device": "TFLOP/s",
    "mfu_percent": "% MFU",
}
_REASONS: dict[str, str] = {
    "warmup": "printed_because_warmup",
    "micro_batches": "printed_because_micro_batches",
    "accumulation": "printed_because_accumulation",
    "padding": "printed_because_padding",
    "all_ranks": "printed_because_all_ranks",
    "one_rank": "printed_because_one_rank",
    "waiting": "printed_because_waiting",
    "fastest": "printed_because_fastest",
    "twice": "printed_because_twice",
}
_SINCE_THE_START = ("warmup", "fastest")  # rules on a value that is of all steps so far
CODES = {
    "printed_agrees", "printed_differs", "printed_unmeasured", "printed_nothing",
    "printed_because_peak", "printed_because_formula", *_REASONS.values(),
}  # fmt: skip


class _Rates(NamedTuple):
    """Two measured rates of the same quantity: over the time, and at the median step."""

    mean: float
    typical: float


class Comparison(NamedTuple):
    """A printed speed beside the measured one.

    Args:
        measured: in the printed unit; None: it was not measured.
        change: share by which the measured value differs from the printed one, over the time or
            at the median step, whichever is nearer.
        reason: why they differ, if a rule predicts it.
    """

    speed: PrintedSpeed
    unit: str
    measured: float | None
    change: float
    reason: Message | None = None

    @property
    def agrees(self) -> bool:
        """Tell whether both are the same but for what is timed."""
        return self.measured is not None and abs(self.change) <= _AGREES


def compare_printed(
    measurement: Measurement, figures: Mapping[str, FigureEntry]
) -> list[Comparison]:
    """Return each printed quantity beside what was measured."""
    comparisons = []
    for speed in measurement.printed:
        if speed.mean is None or speed.median is None or speed.mean <= 0:
            continue
        unit = _UNITS[speed.quantity]
        measured = _find_measured(speed.quantity, measurement, figures)
        if measured is None:
            comparisons.append(Comparison(speed, unit, None, 0.0))
            continue
        changes = (measured.mean / speed.mean - 1, measured.typical / speed.median - 1)
        change = min(changes, key=abs)
        reason = None
        if abs(change) > _AGREES:
            reason = _find_reason(speed, measured, measurement, figures)
        comparisons.append(Comparison(speed, unit, measured.mean, change, reason))
    return comparisons


def find_in_printed(
    measurement: Measurement, figures: Mapping[str, FigureEntry]
) -> Iterator[Message]:
    """Yield whether what the program prints agrees; the largest difference, with its reason."""
    printed = measurement.printed
    if printed and not any(speed.lines for speed in printed):
        yield message("printed_nothing")
        return
    comparisons = compare_printed(measurement, figures)
    differing = [x for x in comparisons if x.measured is not None and not x.agrees]
    if differing:
        worst = max(differing, key=lambda x: (x.reason is not None, abs(x.change)))
        yield message("printed_differs", **_describe(worst))
        if worst.reason is not None:
            yield worst.reason
    elif any(x.agrees for x in comparisons):
        agreeing = next(x for x in comparisons if x.agrees)
        yield message("printed_agrees", **_describe(agreeing))
    elif comparisons:
        first = comparisons[0]
        yield message("printed_unmeasured", reported=first.speed.mean, unit=first.unit)


def _describe(comparison: Comparison) -> dict[str, str | float | None]:
    """Return the arguments of a finding on a comparison."""
    return {
        "reported": comparison.speed.mean,
        "unit": comparison.unit,
        "measured": comparison.measured,
        "change": comparison.change,
    }


def _find_measured(
    quantity: str, measurement: Measurement, figures: Mapping[str, FigureEntry]
) -> _Rates | None:
    """Return what was measured of a printed quantity, in its unit; None: nothing was."""
    phases = [rank.phases["train"] for rank in measurement.ranks]
    slowest_ns, steps = max(phase.windows_ns for phase in phases), phases[0].steps
    typical_s = figures["step_time_p50"].value
    if not slowest_ns or not steps or not typical_s:
        return None
    mean_s = slowest_ns / steps / 1e9
    if quantity in TIMES:
        return _Rates(mean_s / TIMES[quantity], typical_s / TIMES[quantity])
    per_step = _find_amount(quantity, measurement, figures, mean_s=mean_s)
    return None if per_step is None else _Rates(per_step / mean_s, per_step / typical_s)


def _find_amount(
    quantity: str,
    measurement: Measurement,
    figures: Mapping[str, FigureEntry],
    *,
    mean_s: float,
) -> float | None:
    """Return what a step is of a rate: steps, samples, tokens, TFLOPs, or percent of a peak."""
    phases = [rank.phases["train"] for rank in measurement.ranks]
    steps = phases[0].steps
    samples = tokens = None
    if figures["final_result"].value is not None:
        samples = sum(phase.samples for phase in phases) / steps or None
        tokens = sum(phase.tokens for phase in phases) / steps or None
    flops = figures["model_flops_per_device"].value
    share = figures["MFU"].value
    amounts = {
        "steps_per_second": 1.0,
        "samples_per_second": samples,
        "tokens_per_second": tokens,
        "tokens_per_second_per_device": None if tokens is None else tokens / len(phases),
        "tflops_per_device": None if flops is None else flops / 1e12 * mean_s,
        "mfu_percent": None if share is None else share * mean_s,
    }
    return amounts[quantity]


def _find_reason(
    speed: PrintedSpeed,
    measured: _Rates,
    measurement: Measurement,
    figures: Mapping[str, FigureEntry],
) -> Message | None:
    """Return the rule that predicts a difference best, if one predicts it closely."""
    predictions = dict(_predict_ratios(speed.quantity, measurement))
    candidates: list[tuple[float, Message]] = []
    for name, predicted in predictions.items():
        pairs = [(speed.mean, measured.mean), (speed.median, measured.typical)]
        if name in _SINCE_THE_START:
            pairs = [(speed.last, measured.mean)]
        for printed, rate in pairs:
            if printed:
                # As speeds: how many times the measured speed the program prints.
                ratio = rate / printed if speed.quantity in TIMES else printed / rate
                reason = message(_REASONS[name], ratio=predicted)
                candidates.append((abs(ratio / predicted - 1), reason))
    close = [item for item in candidates if item[0] <= _EXPLAINS]
    if close:
        return min(close, key=lambda item: item[0])[1]
    return _find_other_formula(speed, measured, measurement, figures)


def _predict_ratios(quantity: str, measurement: Measurement) -> Iterator[tuple[str, float]]:
    """Yield by the name of each rule the ratio of printed to measured speed that it predicts."""
    ranks = measurement.ranks
    phases = [rank.phases["train"] for rank in ranks]
    train, whole = phases[0], ranks[0]
    is_per_device = quantity in ("tokens_per_second_per_device", "tflops_per_device", "mfu_percent")
    per_step = train.micro_batches / train.steps
    if train.windows_ns and whole.steps:
        step_ns, step_of_all_ns = (
            train.windows_ns / train.steps,
            whole.total_windows_ns / whole.steps,
        )
        yield "warmup", step_ns / step_of_all_ns
        yield "waiting", train.windows_ns / max(1, train.windows_ns - train.wait_ns)
        times = measurement.steps.time_ns[measurement.steps.warmup :]
        yield "fastest", step_ns / max(1, min(times))
    if per_step > 1:
        yield "micro_batches", per_step
        yield "accumulation", 1 / per_step
    if train.tokens and train.tokens_padded > train.tokens:
        yield "padding", train.tokens_padded / train.tokens
    if len(ranks) > 1 and quantity != "steps_per_second" and quantity not in TIMES:
        if is_per_device:
            yield "all_ranks", float(len(ranks))
        else:
            yield "one_rank", 1 / len(ranks)
            yield "all_ranks", float(len(ranks))
    yield "twice", 2.0


def _find_other_formula(
    speed: PrintedSpeed,
    measured: _Rates,
    measurement: Measurement,
    figures: Mapping[str, FigureEntry],
) -> Message | None:
    """Return that a program takes another peak, or other FLOPs a step, than we do."""
    assert speed.mean is not None, "the caller has a value"
    by_quantity = {x.quantity: x.mean for x in measurement.printed if x.mean is not None}
    if speed.quantity == "mfu_percent":
        rate = figures["model_flops_per_device"].value
        share = figures["MFU"].value
        printed_rate = by_quantity.get("tflops_per_device")
        same_rate = printed_rate is None or (
            rate is not None and abs(rate / 1e12 / printed_rate - 1) <= _AGREES
        )
        if rate and share and same_rate:
            return message(
                "printed_because_peak",
                theirs=rate / (speed.mean / 100) / 1e12,
                ours=rate / (share / 100) / 1e12,
            )
    if speed.quantity == "tflops_per_device":
        return message("printed_because_formula", ratio=speed.mean / measured.mean)
    return None
