"""Compute the result of an analysis from the mean of its values, by the public tool's modes.

A mode is a formula for the result: the mean is a factor or the divisor, beside the batch size and
the number of devices if the mode has them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

from trainmark.errors import UsageError
from trainmark.published.analysis.quantities import (
    STEPS_UNIT,
    find_rate_seconds,
    normalize_rate_unit,
)
from trainmark.record.index_record import round_result

if TYPE_CHECKING:
    from trainmark.published.analysis.options import Options
    from trainmark.published.analysis.samples import Sample


class Mode(IntEnum):
    """The modes by which the public tool computes a result, with its numbers."""

    SPEED_FROM_STEP_TIMES = -2
    SPEED_OF_DEVICES = -1
    SAMPLES_FROM_STEP_TIMES = 0
    STEPS = 1
    STEPS_FROM_STEP_TIMES = 2
    SAMPLES_FROM_STEPS = 3
    EPOCH_TIME = 4


class _ModeRule(NamedTuple):
    """How a mode, a formula of the public log analyzer, computes its result.

    Args:
        formula: its text. ``mean`` is that of the values; ``batch``, ``devices`` and ``/`` in the
            text decide the properties below.
        unit: of the result, if the mode defines it; empty: that of the user or of the log.
    """

    formula: str
    unit: str

    @property
    def has_batch(self) -> bool:
        """Whether the text of the formula, such as ``batch x mean``, has the batch size."""
        return "batch" in self.formula

    @property
    def has_devices(self) -> bool:
        """Whether the text of the formula, such as ``devices x mean``, has the device count."""
        return "devices" in self.formula

    @property
    def divides(self) -> bool:
        """Whether the formula divides by the mean of the values: its text is ``1 / mean`` or so."""
        return "/" in self.formula


_RULES = {
    Mode.SPEED_FROM_STEP_TIMES: _ModeRule("batch x devices / mean", ""),
    Mode.SPEED_OF_DEVICES: _ModeRule("devices x mean", ""),
    Mode.SAMPLES_FROM_STEP_TIMES: _ModeRule("batch x devices / mean", "samples/s"),
    Mode.STEPS: _ModeRule("mean", STEPS_UNIT),
    Mode.STEPS_FROM_STEP_TIMES: _ModeRule("1 / mean", STEPS_UNIT),
    Mode.SAMPLES_FROM_STEPS: _ModeRule("batch x devices x mean", "samples/s"),
    Mode.EPOCH_TIME: _ModeRule("mean", "s/epoch"),
}
STEP_TIME_MODES = {
    Mode.SPEED_FROM_STEP_TIMES,
    Mode.SAMPLES_FROM_STEP_TIMES,
    Mode.STEPS_FROM_STEP_TIMES,
}
# The default modes by the kind of the values.
_DEFAULT_MODES = {
    "step_time": Mode.STEPS_FROM_STEP_TIMES,
    "steps": Mode.STEPS,
    "speed": Mode.SPEED_OF_DEVICES,
}
_DEFAULT_MODES_WITH_BATCH = {
    "step_time": Mode.SPEED_FROM_STEP_TIMES,
    "steps": Mode.SAMPLES_FROM_STEPS,
    "speed": Mode.SPEED_OF_DEVICES,
}
_SPEED_INDEX = 1  # `index` of a speed, to which the modes apply
_INDEXES_OF_LARGEST = {2, 6}  # `index` of memory or batch: the result is the largest value
_MEANS = {
    "time": "mean over time: the log has the time of each value",
    "work": "mean over work, with times from the log's values",
    "value": "mean over values: the log has neither time nor work of each value",
}


@dataclass(frozen=True, slots=True)
class Result:
    """A result with how it follows from the values.

    Args:
        how: the formula, and how the mean was computed.
        batch: samples of a step, of one device if given and of all if read from the log.
        factor: by which the mean is multiplied; if ``divides``, the number that it divides.
        divides: the formula divides by the mean.
    """

    value: float
    unit: str
    how: str
    batch: float | None
    factor: float
    divides: bool

    def apply_to_mean(self, mean: float) -> float:
        """Return the result of another mean of the same values."""
        return _apply_factor(self.factor, mean, divides=self.divides)


def _apply_factor(factor: float, mean: float, *, divides: bool) -> float:
    """Return the result for a mean of values: the factor times the mean, or divided by the mean.

    A mean of 0 has no quotient: its result is 0, which the record counts as failed.
    """
    if not divides:
        return round_result(factor * mean)
    return round_result(factor / mean) if mean else 0.0


def compute_result(sample: Sample, options: Options, *, keyword_given: bool) -> Result:
    """Return the result of the values: a speed by the formula of a mode, another figure as it is.

    A mode is a formula of the public log analyzer, such as ``batch x devices / mean``.

    Args:
        sample: the values of the log that count, with the batch sizes that it prints.
        options: of the user, by the names of the public log analyzer.
        keyword_given: the values were read by the user's keyword. If the user gives neither a mode
            nor the log format of a known trainer (a preset), the public tool's default mode holds.

    Raises:
        UsageError: a mode without its batch size, a unit that would only rename the result, or
            ``steps_per_value`` for values that are not times.
    """
    # The option ``index`` is the number of a kind of figure: speed, memory, and so on. Modes are
    # only about speeds.
    if options.index != _SPEED_INDEX:
        return _take_value_as_is(sample, options)
    batch: float | None = options.base_batch_size  # of one device
    is_batch_of_log = batch is None and len(sample.batches) > 0
    if is_batch_of_log:  # of all devices
        batch = float(sample.batches.mean())
    mode = _choose_mode(sample, options, has_batch=batch is not None, keyword_given=keyword_given)
    rule = _RULES[mode]
    # The factor collects all of the formula but the mean: batch, devices, units of time.
    factor = 1.0
    if rule.has_batch:
        if batch is None:
            raise UsageError(
                "the batch size is missing",
                where="base_batch_size",
                rule=f"mode {mode:d} computes {rule.formula}",
                fix="set base_batch_size=N, the batch size of one device",
            )
        factor *= batch
    # The log prints the batch size of all devices: multiplied by it, the result is of the job.
    has_global_batch = rule.has_batch and is_batch_of_log
    if rule.has_devices:
        factor *= _count_devices(sample, options, has_global_batch=has_global_batch)
    formula = _describe_formula(rule, sample, options, has_global_batch=has_global_batch)
    # The scale turns the values, and so their mean, into seconds a step or into a rate a second.
    scale = _compute_scale(sample, options, mode)
    # If the formula divides by the mean, it also divides by the mean's scale.
    factor = factor / scale if rule.divides else factor * scale
    log_unit = ""  # not known: then the user's `ips_unit` is taken
    if mode == Mode.SPEED_OF_DEVICES:  # the result counts what the values count
        log_unit = sample.unit
    elif is_batch_of_log:
        log_unit = "samples/s"
    # Most modes define the unit of their result, such as steps/s, and ignore ``ips_unit``. Only the
    # two whose result may count samples or tokens leave it open.
    unit = rule.unit or _choose_unit(log_unit, mode, options)
    how = f"mode {mode:d}: {formula}"
    # Only a mean of several rates depends on how they are weighted, which the report then says.
    if sample.is_rate and len(sample.values) > 1:
        how += f", {_MEANS[sample.weighted_by]}"
    value = _apply_factor(factor, sample.mean, divides=rule.divides)
    return Result(value, unit, how, batch=batch, factor=factor, divides=rule.divides)


def _take_value_as_is(sample: Sample, options: Options) -> Result:
    """Return the result for values that are no speeds: the largest one, or their mean."""
    # The option ``index`` is the number of a kind of figure; these are memory and batch sizes.
    if options.index in _INDEXES_OF_LARGEST:
        name = "largest"
        value = float(sample.values.max())
    else:
        name = "mean"
        value = float(sample.values.mean())
    return Result(
        value=round_result(value),
        unit=options.ips_unit or "",
        how=f"the {name} of the log's values, unchanged",
        batch=options.base_batch_size,
        factor=1.0,  # the mean is not multiplied
        divides=False,
    )


def _choose_mode(sample: Sample, options: Options, *, has_batch: bool, keyword_given: bool) -> Mode:
    """Return the user's mode, else the mode that fits the values.

    A mode is a formula of the public log analyzer by which the result follows from the values.
    ``options.model_mode`` is the number of the mode that the user wants; None: the program chooses.

    Args:
        sample: the values of the log that count.
        has_batch: the batch size is known, so steps can be converted to samples.
        keyword_given: the values were read by the user's keyword.
    """
    if options.model_mode is not None:
        return Mode(options.model_mode)
    # A preset is the log format of a known trainer. Without one, nothing but the keyword is known
    # of the values: the default of the public log analyzer holds.
    if keyword_given and not sample.source.preset:
        return Mode.SPEED_OF_DEVICES
    modes = _DEFAULT_MODES_WITH_BATCH if has_batch else _DEFAULT_MODES
    return modes[sample.source.quantity.kind]  # step times, steps a second, or a speed


def is_of_job(sample: Sample, options: Options) -> bool:
    """Tell whether a speed counts as that of the whole job: it is not multiplied by devices.

    A speed that is not printed as that of one device is taken as that of the job. But if the user
    gives the mode, or only a keyword, the formula of the public log analyzer is used as it is; it
    may multiply by the number of devices.

    Args:
        sample: its source says what the values measure (``quantity``), and by which ``preset``, the
            log format of a known trainer, they were found; empty: by a keyword of the user.
    """
    quantity = sample.source.quantity
    uses_public_formula = not sample.source.preset or options.model_mode is not None
    is_speed_of_job = quantity.kind == "speed" and quantity.scope != "device"
    return is_speed_of_job and not uses_public_formula


def _count_devices(sample: Sample, options: Options, *, has_global_batch: bool) -> int:
    """Return by how many devices to multiply: 1 if the result is of the whole job already.

    The option ``gpu_num`` is the number of devices of the job; None: the user does not give it.

    Args:
        has_global_batch: the formula has the batch size that the log prints, that of all devices.
    """
    if has_global_batch or is_of_job(sample, options):
        return 1
    return options.gpu_num or 1


def _describe_formula(
    rule: _ModeRule, sample: Sample, options: Options, *, has_global_batch: bool
) -> str:
    """Return the formula as it is applied: without the devices if the result is of the whole job.

    Args:
        has_global_batch: the formula has the batch size that the log prints, that of all devices.
    """
    if has_global_batch:
        return rule.formula.replace("batch x devices", "global batch")
    if rule.has_devices and is_of_job(sample, options):
        return rule.formula.replace("devices x mean", "mean of the speed of the whole job")
    return rule.formula


def _compute_scale(sample: Sample, options: Options, mode: Mode) -> float:
    """Return the factor that turns a value into seconds a step, or into a rate a second.

    Args:
        sample: its source says what the values measure: their unit of time, and how many steps a
            printed time covers.
        options: of the user; ``time_unit`` and ``steps_per_value`` outweigh what the log says.
        mode: the formula of the public log analyzer that is applied to the values.

    Raises:
        UsageError: ``steps_per_value`` is given, but the mode's values are not times.
    """
    quantity = sample.source.quantity
    steps = options.steps_per_value
    if steps is not None and mode not in STEP_TIME_MODES:
        rule = f"mode {mode:d} computes {_RULES[mode].formula} from values that are not step times"
        fix = "remove steps_per_value, or set model_mode=2, 0 or -2"
        what = "steps_per_value can be used only if the values in the log are times"
        raise UsageError(what, where="steps_per_value", rule=rule, fix=fix)
    scale = 1.0
    if options.time_unit is not None:  # as in the public tool, `ms` divides rates by 1000, too
        scale = 1e-3 if options.time_unit == "ms" else 1.0
    # The preset is the log format of a known trainer. Without one, the values were read by the
    # user's keyword: then only the option gives the unit of time.
    elif sample.source.preset:
        is_time = quantity.kind == "step_time"
        scale = quantity.time_unit_s if is_time else 1 / quantity.time_unit_s
    if mode in STEP_TIME_MODES:  # from the time of several steps to that of one
        scale /= steps if steps is not None else quantity.num_steps
    return scale


def _is_same_rate(wanted: str, log_unit: str) -> bool:
    """Tell whether two units of rates count the same, in the same time."""
    is_same_time = find_rate_seconds(wanted) == find_rate_seconds(log_unit)
    return is_same_time and normalize_rate_unit(wanted) == normalize_rate_unit(log_unit)


def _choose_unit(log_unit: str, mode: Mode, options: Options) -> str:
    """Return the unit of the result: the user's, else that of the log.

    Args:
        log_unit: unit of the log's values; empty: not known.
        mode: the formula by which the result follows from the values.
        options: of the user; ``ips_unit`` is the unit, None or empty: none is given.

    Raises:
        UsageError: the user's unit would only rename what the log counts.
    """
    wanted = options.ips_unit
    if wanted and log_unit and not _is_same_rate(wanted, log_unit):
        rule = f"the unit in the log is {log_unit}, and ips_unit does not convert values"
        fix = "remove ips_unit, or read step times with model_mode=-2 and base_batch_size=N"
        raise UsageError(
            f"ips_unit={wanted} does not match the log", where="ips_unit", rule=rule, fix=fix
        )
    # The batch that this mode divides by the step time counts samples.
    default = "samples/s" if mode == Mode.SPEED_FROM_STEP_TIMES else ""
    return wanted or log_unit or default
