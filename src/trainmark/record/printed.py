"""Compare the speed that a user's own program prints with the measured one; explain differences.

A difference is explained only if a rule predicts it closely from what was measured.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, NamedTuple

from trainmark.record.finding_kinds import FindingKind
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
_QUANTITIES_OF_FLOPS = ("tflops_per_device", "mfu_percent")
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
_CODES_ABOUT_LAST_VALUE = {_REASONS[rule] for rule in _RULES_ON_MEANS_SINCE_START}
# Findings that a printed speed differs from the measured one, and why.
DIFFERENCE_CODES = {
    "printed_differs",
    "printed_because_peak",
    "printed_because_formula",
    *_REASONS.values(),
}
# The measured figures count, whatever the program prints: none of these lowers the grade.
FINDING_KINDS: Mapping[str, FindingKind] = dict.fromkeys(
    (
        "printed_agrees",
        "printed_unmeasured",
        "printed_nothing",
        "printed_unknown",
        *DIFFERENCE_CODES,
    ),
    FindingKind("record", "usable"),
)


class _MeasuredQuantity(NamedTuple):
    """A printed quantity as it was measured, in the printed unit.

    Args:
        mean: over all steps after the warm-up.
        at_median_step: by the time of the median step.
        whole: over the whole training, with warm-up, evaluations and checkpoints; None: not known.
    """

    mean: float
    at_median_step: float
    whole: float | None


class PrintedComparison(NamedTuple):
    """A printed speed beside the measured one.

    Args:
        reported: the mean of the printed values. It is the last value if the reason is that the
            program prints a mean, or its best, of all steps so far.
        measured: in the printed unit; None: it was not measured.
        change: relative difference of the measured value from the printed one: of both means, or of
            both medians, whichever is smaller. A value that is printed once may be of the whole
            training: if that is nearer, ``measured`` and ``change`` are of the whole.
        reason: why they differ, if a rule predicts it.
    """

    speed: PrintedSpeed
    unit: str
    reported: float
    measured: float | None
    change: float
    reason: Message | None = None

    @property
    def agrees(self) -> bool:
        """Tell whether the printed and the measured value agree.

        A small difference is allowed, because the program may time other steps than we do.
        """
        is_near = self.measured is not None and abs(self.change) <= _AGREEMENT_TOLERANCE
        # If there is a reason, the values measure different things, however near they are.
        return is_near and self.reason is None


def compare_printed(
    measurement: Measurement, figures: Mapping[str, FigureEntry]
) -> list[PrintedComparison]:
    """Return each printed speed with the measured one, their relative difference and its reason.

    Args:
        figures: figures of the measurement by name, such as ``MFU``.
    """
    comparisons = []
    for speed in measurement.printed:
        if speed.mean is None or speed.median is None or speed.mean <= 0:
            continue  # no line of the output had a value
        unit = _UNITS[speed.quantity]
        measured = _find_measured(speed.quantity, measurement, figures)
        if measured is None:
            # Without a measured value there is no change; the field holds 0.
            comparisons.append(
                PrintedComparison(speed, unit, reported=speed.mean, measured=None, change=0.0)
            )
            continue
        # The nearer pair counts: a few slow steps change a mean, but not a median.
        change_of_mean = measured.mean / speed.mean - 1
        change_of_median = measured.at_median_step / speed.median - 1
        change = min(change_of_mean, change_of_median, key=abs)
        measured_value = measured.mean
        # A program that prints its speed once may print that of the whole training, with warm-up
        # and evaluations. The whole is compared instead if it is nearer.
        if speed.lines == 1 and measured.whole is not None:
            change_of_whole = measured.whole / speed.mean - 1
            if abs(change_of_whole) < abs(change):
                change = change_of_whole
                measured_value = measured.whole
        # Checked even if the change is small: a best step is no mean, however near it is.
        reason = _explain_best_so_far(speed, measured)
        if reason is None and abs(change) > _AGREEMENT_TOLERANCE:
            # Only the quantities before this one are known here. That is enough: only those of
            # FLOPs use this flag, and they come last.
            another_agrees = any(comparison.agrees for comparison in comparisons)
            reason = _explain_difference(
                speed, measured, measurement, figures, another_agrees=another_agrees
            )
        reported = speed.mean
        if reason is not None and reason.code in _CODES_ABOUT_LAST_VALUE and speed.last:
            # The reason is about the last value, so that one is compared.
            reported = speed.last
            measured_value = measured.mean
            change = measured_value / reported - 1
        comparisons.append(PrintedComparison(speed, unit, reported, measured_value, change, reason))
    return comparisons


def find_in_printed(
    measurement: Measurement, figures: Mapping[str, FigureEntry]
) -> Iterator[Message]:
    """Yield whether printed speeds agree with the measured ones; if not, one difference, explained.

    Nothing is yielded for a case of Trainmark: only a user's own program prints a speed.

    Args:
        figures: figures of the measurement by name, such as ``MFU``.
    """
    if not measurement.printed:
        witness = measurement.plan.witness  # how a user's own program is measured; None: a case
        # ``speed_line`` is the user's pattern of lines with a speed. Without one, known forms of
        # lines are searched, and none was found.
        if witness is not None and witness.spec.speed_line is None:
            yield message("printed_unknown")
        return
    # There is an entry for each quantity of the user's pattern. It has no mean if no line of the
    # output matches, or if no value is above 0: a value of 0 is no speed.
    if all(speed.mean is None for speed in measurement.printed):
        yield message("printed_nothing")
        return
    comparisons = compare_printed(measurement, figures)
    differing = [x for x in comparisons if x.measured is not None and not x.agrees]
    if differing:
        # Only one difference is reported: the largest with a known reason, which tells the user
        # more than a larger one without; if no reason is known, the largest.
        explained = [x for x in differing if x.reason is not None]
        worst = max(explained or differing, key=lambda x: abs(x.change))
        yield message("printed_differs", **_list_message_args(worst))
        if worst.reason is not None:
            yield worst.reason
        return
    agreeing = [x for x in comparisons if x.agrees]
    if agreeing:
        yield message("printed_agrees", **_list_message_args(agreeing[0]))
    elif comparisons:  # no printed quantity was measured
        first = comparisons[0]
        yield message("printed_unmeasured", reported=first.reported, unit=first.unit)


def _list_message_args(comparison: PrintedComparison) -> dict[str, str | float | None]:
    """Return the arguments of a message that states the printed and the measured speed.

    ``change`` is the relative difference of the measured speed from the printed one.
    """
    return {
        "reported": comparison.reported,
        "unit": comparison.unit,
        "measured": comparison.measured,
        "change": comparison.change,
    }


def _find_measured(
    quantity: str, measurement: Measurement, figures: Mapping[str, FigureEntry]
) -> _MeasuredQuantity | None:
    """Return a printed quantity as it was measured; None: it was not measured.

    Args:
        quantity: its name, such as ``step_ms`` or ``samples_per_second``.
        figures: figures of the measurement by name, such as ``MFU``.
    """
    phases = [rank.phases["train"] for rank in measurement.ranks]  # steps after the warm-up
    slowest_ns = max(phase.windows_ns for phase in phases)
    steps = phases[0].steps  # the same on all ranks, because they step together
    median_step_s = figures["step_time_p50"].value  # p50: the median
    if not slowest_ns or not steps or not median_step_s:
        return None
    mean_step_s = slowest_ns / steps / 1e9
    # The whole training divided by its steps, with warm-up, evaluations and checkpoints.
    whole_step_s = _measure_whole_step_s(measurement)
    if quantity in TIMES:
        unit_s = TIMES[quantity]  # 1 for seconds, 0.001 for milliseconds
        return _MeasuredQuantity(
            mean=mean_step_s / unit_s,
            at_median_step=median_step_s / unit_s,
            whole=None if whole_step_s is None else whole_step_s / unit_s,
        )
    amount = _find_amount_of_step(quantity, measurement, figures, mean_step_s=mean_step_s)
    if amount is None:
        return None
    return _MeasuredQuantity(
        mean=amount / mean_step_s,
        at_median_step=amount / median_step_s,
        whole=None if whole_step_s is None else amount / whole_step_s,
    )


def _measure_whole_step_s(measurement: Measurement) -> float | None:
    """Return the time of the whole training divided by its steps; None: no step was trained.

    The time includes warm-up, evaluations and checkpoints, and is that of the slowest rank.
    """
    times_ns = [rank.train_ns for rank in measurement.ranks if rank.train_ns]
    steps = measurement.ranks[0].steps  # the same on all ranks, because they step together
    if not times_ns or not steps:
        return None
    return max(times_ns) / steps / 1e9


def _find_amount_of_step(
    quantity: str,
    measurement: Measurement,
    figures: Mapping[str, FigureEntry],
    *,
    mean_step_s: float,
) -> float | None:
    """Return the amount that, divided by the time of a step, gives a rate; None: not known.

    For ``samples_per_second`` it is the number of samples of a mean step, for instance.

    Args:
        quantity: a rate: of steps, samples, tokens or TFLOPs a second, or MFU in percent. If its
            name ends in ``_per_device``, the amount is that of one device, else of all together.
        figures: figures of the measurement by name, such as ``MFU``.
        mean_step_s: mean time of a step.
    """
    # The phase ``train`` has the measured steps, those after the warm-up.
    phases = [rank.phases["train"] for rank in measurement.ranks]
    steps = phases[0].steps  # the same on all ranks, because they step together
    num_ranks = len(phases)
    if quantity == "steps_per_second":
        return 1.0
    # The figures of FLOPs and MFU are rates. Multiplied by the time of the mean step, they give the
    # amount of that step.
    if quantity == "tflops_per_device":
        flops_per_second = figures["model_flops_per_device"].value
        return None if flops_per_second is None else flops_per_second / 1e12 * mean_step_s
    if quantity == "mfu_percent":
        mfu_percent = figures["MFU"].value
        return None if mfu_percent is None else mfu_percent * mean_step_s
    # ``final_result`` is the throughput. It is None if a rank has no measured step: the sum over
    # ranks below would lack that rank's part.
    if figures["final_result"].value is None:
        return None
    if quantity.startswith("samples"):
        amount = sum(phase.samples for phase in phases) / steps
    else:
        amount = sum(phase.tokens for phase in phases) / steps  # tokens without padding
    if not amount:  # it was not counted
        return None
    return amount / num_ranks if quantity.endswith("_per_device") else amount


def _explain_best_so_far(speed: PrintedSpeed, measured: _MeasuredQuantity) -> Message | None:
    """Return that a program prints the speed of its fastest step so far; None: it does not.

    It does if no printed value is slower than an earlier one, and the last printed value is faster
    than the measured mean.

    Args:
        speed: the values of one quantity that the program printed.
        measured: the same quantity as it was measured.
    """
    if not speed.is_best_so_far or speed.last is None:
        return None
    ratio = _compare_speeds(speed.quantity, speed.last, measured.mean)
    is_faster = ratio > 1 + _MIN_BEST_LEAD
    return message("printed_because_fastest", ratio=ratio) if is_faster else None


def _compare_speeds(quantity: str, printed: float, measured: float) -> float:
    """Return the printed over the measured speed; of times the inverse."""
    return measured / printed if quantity in TIMES else printed / measured


def _explain_difference(
    speed: PrintedSpeed,
    measured: _MeasuredQuantity,
    measurement: Measurement,
    figures: Mapping[str, FigureEntry],
    *,
    another_agrees: bool,
) -> Message | None:
    """Return why a printed speed differs, by the rule that predicts it best; None: none does.

    Args:
        speed: the values of one quantity that the program printed.
        measured: the same quantity as it was measured.
        figures: figures of the measurement by name, such as ``MFU``.
        another_agrees: another quantity that the program prints agrees with its measured value.
    """
    # If another quantity agrees, the program counts steps, time and ranks as we do. Then only its
    # formula of FLOPs, or its peak, can explain FLOP/s or MFU.
    if another_agrees and speed.quantity in _QUANTITIES_OF_FLOPS:
        return _explain_other_formula(speed, measured, measurement, figures)
    best_reason = None
    smallest_error = inf  # relative difference of the ratio from the one that a rule predicts
    for rule, predicted_ratio in _predict_ratios(speed.quantity, measurement):
        if rule in _RULES_ON_MEANS_SINCE_START:
            # The program prints a mean or best over all steps so far: only the last value counts.
            pairs = [(speed.last, measured.mean)]
        else:
            # Either pair may fit: a few slow steps change a mean, but not a median.
            pairs = [(speed.mean, measured.mean), (speed.median, measured.at_median_step)]
        for printed_value, measured_value in pairs:
            if not printed_value:  # missing or 0, of which there is no ratio
                continue
            ratio = _compare_speeds(speed.quantity, printed_value, measured_value)
            error = abs(ratio / predicted_ratio - 1)
            if error <= _RULE_TOLERANCE and error < smallest_error:
                smallest_error = error
                best_reason = message(_REASONS[rule], ratio=predicted_ratio)
    if best_reason is not None:
        return best_reason
    # No rule fits: of MFU and FLOP/s, the peak or the formula of FLOPs may still be the reason.
    return _explain_other_formula(speed, measured, measurement, figures)


def _predict_ratios(quantity: str, measurement: Measurement) -> Iterator[tuple[str, float]]:
    """Yield the name of each rule, and the ratio of printed to measured speed that it predicts.

    A rule is a way in which programs compute their speed otherwise than Trainmark, such as counting
    the time of the warm-up. ``_REASONS`` has the message of each rule.

    Args:
        quantity: the printed quantity, such as ``tokens_per_second_per_device``.
    """
    ranks = measurement.ranks
    first_rank = ranks[0]  # stands for all ranks: they step together
    train = first_rank.phases["train"]  # sums over the steps after the warm-up
    # ``train.steps`` is above 0: without measured steps there is no measured speed to compare.
    micro_batches_per_step = train.micro_batches / train.steps
    if train.windows_ns and first_rank.steps:
        step_ns = train.windows_ns / train.steps
        step_with_warmup_ns = first_rank.total_windows_ns / first_rank.steps
        yield "warmup", step_ns / step_with_warmup_ns  # the time of the warm-up counts
        whole_step_s = _measure_whole_step_s(measurement)
        if whole_step_s is not None:
            yield "whole", step_ns / 1e9 / whole_step_s  # all time since the start counts
        busy_ns = max(1, train.windows_ns - train.wait_ns)  # above 0, because it is a divisor
        yield "waiting", train.windows_ns / busy_ns  # waiting for data does not count
        fastest_step_ns = max(1, min(measurement.steps.time_ns[measurement.steps.warmup :]))
        yield "fastest", step_ns / fastest_step_ns  # the best step so far counts
    if micro_batches_per_step > 1:
        yield "micro_batches", micro_batches_per_step  # each one counts as a whole step
        yield "accumulation", 1 / micro_batches_per_step  # only one of a step counts
    if train.tokens and train.tokens_padded > train.tokens:
        yield "padding", train.tokens_padded / train.tokens  # padding counts as tokens
    # Ranks step together, so that the number of steps and their times do not depend on the ranks.
    depends_on_ranks = quantity != "steps_per_second" and quantity not in TIMES
    if len(ranks) > 1 and depends_on_ranks:
        is_per_device = quantity.endswith("_per_device") or quantity == "mfu_percent"
        if not is_per_device:
            yield "one_rank", 1 / len(ranks)  # only the work of one rank counts
        # The work of all ranks counts as that of one, or is multiplied by the ranks once more.
        yield "all_ranks", float(len(ranks))
    yield "twice", 2.0  # all work counts twice


def _explain_other_formula(
    speed: PrintedSpeed,
    measured: _MeasuredQuantity,
    measurement: Measurement,
    figures: Mapping[str, FigureEntry],
) -> Message | None:
    """Return why a printed MFU or FLOP/s differs: the peak (MFU) or the FLOPs of a step (FLOP/s).

    None: the quantity is neither, or why the MFU differs is not known. If the program also prints
    its FLOP/s and these differ, too, the peak is not taken as the reason: the reason is given for
    the FLOP/s, which are compared by themselves.

    Args:
        speed: the values of one quantity that the program printed.
        measured: the same quantity as it was measured.
        figures: figures of the measurement by name, such as ``MFU``.
    """
    assert speed.mean is not None, "callers pass only speeds with a value"
    if speed.quantity == "tflops_per_device":
        return message("printed_because_formula", ratio=speed.mean / measured.mean)
    printed_means = {x.quantity: x.mean for x in measurement.printed if x.mean is not None}
    if speed.quantity == "mfu_percent":
        flops_per_second = figures["model_flops_per_device"].value
        mfu_percent = figures["MFU"].value
        if not flops_per_second or not mfu_percent:
            return None
        # If the program also prints its FLOP/s and they differ, the peak is not the reason.
        printed_tflops = printed_means.get("tflops_per_device")
        measured_tflops = flops_per_second / 1e12
        can_be_peak = (
            printed_tflops is None
            or abs(measured_tflops / printed_tflops - 1) <= _AGREEMENT_TOLERANCE
        )
        if can_be_peak:
            # MFU is FLOP/s divided by the peak, so the peaks follow from the measured FLOP/s:
            # the program's from the printed MFU, ours from the measured MFU.
            return message(
                "printed_because_peak",
                theirs=flops_per_second / (speed.mean / 100) / 1e12,
                ours=flops_per_second / (mfu_percent / 100) / 1e12,
            )
    return None
