"""Compute the result of an analysis from the mean of its values, by the public tool's modes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from trainmark.errors import UsageError
from trainmark.published.analysis.quantities import STEPS_UNIT, normalize_rate_unit
from trainmark.record.index_record import round_result

if TYPE_CHECKING:
    from trainmark.published.analysis.options import Options
    from trainmark.published.analysis.samples import Sample


class _Mode(NamedTuple):
    """How the public tool computes a result.

    Args:
        formula: of the result, by the mean of the values.
        unit: of the result; empty: that of the log.
    """

    formula: str
    unit: str

    @property
    def has_batch(self) -> bool:
        return "batch" in self.formula

    @property
    def has_devices(self) -> bool:
        return "devices" in self.formula

    @property
    def divides(self) -> bool:
        return "/" in self.formula


MODES = {  # by the number that the public tool gives it
    -2: _Mode("batch x devices / mean", ""),
    -1: _Mode("devices x mean", ""),
    0: _Mode("batch x devices / mean", "samples/s"),
    1: _Mode("mean", STEPS_UNIT),
    2: _Mode("1 / mean", STEPS_UNIT),
    3: _Mode("batch x devices x mean", "samples/s"),
    4: _Mode("mean", "s/epoch"),
}
TIME_MODES = {-2, 0, 2}  # those whose values are seconds a step
_DEFAULT_MODES = {"step_time": 2, "steps": 1, "speed": -1}  # by the kind of the values
_DEFAULT_MODES_WITH_BATCH = {"step_time": -2, "steps": 3, "speed": -1}
_INDEXES_OF_LARGEST = {2, 6}  # an index of memory or batch: the result is the largest value
_MEANS = {
    "time": "mean by time: the log has the time of each value",
    "work": "mean by time: the log has the work of each value",
    "value": "mean by value: the log has neither time nor work of each",
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
        return _apply(self.factor, mean, divides=self.divides)


def _apply(factor: float, mean: float, *, divides: bool) -> float:
    """Return the result of a mean: the factor times the mean, or divided by it."""
    if not divides:
        return round_result(factor * mean)
    return round_result(factor / mean) if mean else 0.0


def compute_result(sample: Sample, options: Options, *, keyword_given: bool) -> Result:
    """Return the result of the values.

    Args:
        keyword_given: the values were read by the user's keyword, so that without a mode the
            public tool's default holds, and units of time are those of the options alone.

    Raises:
        UsageError: a mode without its batch size, a unit that would only rename the result, or
            ``steps_per_value`` for values that are not times.
    """
    if options.index != 1:
        return _take_value_as_is(sample, options)
    batch: float | None = options.base_batch_size
    is_batch_of_log = batch is None and len(sample.batches) > 0
    if is_batch_of_log:
        batch = float(sample.batches.mean())
    number = _choose_mode(sample, options, has_batch=batch is not None, keyword_given=keyword_given)
    mode = MODES[number]
    factor = 1.0
    if mode.has_batch:
        if batch is None:
            rule, fix = f"mode {number} is {mode.formula}", "give base_batch_size=N, of one device"
            raise UsageError("no batch size", where="base_batch_size", rule=rule, fix=fix)
        factor *= batch
    if mode.has_devices:
        factor *= _count_devices(sample, options, is_batch_of_log=is_batch_of_log)
    scale = _compute_scale(sample, options, number)
    factor = factor / scale if mode.divides else factor * scale
    log_unit = ""
    if number == -1:
        log_unit = sample.unit
    elif is_batch_of_log:
        log_unit = "samples/s"
    unit = mode.unit or _choose_unit(log_unit, number, options)
    how = f"mode {number}: {mode.formula}"
    if sample.is_rate and len(sample.values) > 1:
        how += f", {_MEANS[sample.weighted_by]}"
    value = _apply(factor, sample.mean, divides=mode.divides)
    return Result(value, unit, how, batch, factor, mode.divides)


def _take_value_as_is(sample: Sample, options: Options) -> Result:
    """Return a memory, a largest batch or a profile: a value of the log."""
    if options.index in _INDEXES_OF_LARGEST:
        name, value = "largest", float(sample.values.max())
    else:
        name, value = "mean", float(sample.values.mean())
    how = f"the {name} of the log's values, as it is"
    unit = options.ips_unit or ""
    return Result(round_result(value), unit, how, options.base_batch_size, 1.0, divides=False)


def _choose_mode(sample: Sample, options: Options, *, has_batch: bool, keyword_given: bool) -> int:
    """Return the number of the user's mode, else of the mode that fits the values."""
    if options.model_mode is not None:
        return options.model_mode
    if keyword_given and not sample.source.preset:
        return -1
    modes = _DEFAULT_MODES_WITH_BATCH if has_batch else _DEFAULT_MODES
    return modes[sample.source.quantity.kind]


def is_of_job(sample: Sample, options: Options) -> bool:
    """Tell whether a speed is taken as that of the whole job, which is not multiplied."""
    quantity = sample.source.quantity
    is_known = bool(sample.source.preset) and options.model_mode is None
    return is_known and quantity.kind == "speed" and quantity.scope != "device"


def _count_devices(sample: Sample, options: Options, *, is_batch_of_log: bool) -> int:
    """Return by how many devices to multiply: 1 if the values are of the whole job already."""
    if is_batch_of_log or is_of_job(sample, options):
        return 1
    return options.gpu_num or 1


def _compute_scale(sample: Sample, options: Options, mode: int) -> float:
    """Return the factor that turns a value into seconds a step, or into a rate a second."""
    quantity = sample.source.quantity
    steps = options.steps_per_value
    if steps is not None and mode not in TIME_MODES:
        rule = f"mode {mode} is {MODES[mode].formula}, and its values are not times of steps"
        fix = "leave steps_per_value out, or give model_mode=2, 0 or -2"
        raise UsageError("no times", where="steps_per_value", rule=rule, fix=fix)
    scale = 1.0
    if options.time_unit is not None:
        scale = 1e-3 if options.time_unit == "ms" else 1.0
    elif sample.source.preset:
        is_time = quantity.kind == "step_time"
        scale = quantity.seconds if is_time else 1 / quantity.seconds
    if mode in TIME_MODES:
        scale /= steps if steps is not None else quantity.steps
    return scale


def _choose_unit(log_unit: str, mode: int, options: Options) -> str:
    """Return the unit of the result: the user's, else that of the log.

    Args:
        log_unit: unit of the log's values; empty: not known.

    Raises:
        UsageError: the user's unit would only rename what the log counts.
    """
    wanted = options.ips_unit
    if wanted and log_unit and normalize_rate_unit(wanted) != normalize_rate_unit(log_unit):
        rule = f"the log counts {log_unit}, and a unit does not convert them"
        fix = "leave ips_unit out, or read step times with model_mode=-2 and base_batch_size=N"
        raise UsageError(f"{wanted} would rename the result", where="ips_unit", rule=rule, fix=fix)
    return wanted or log_unit or ("samples/s" if mode == -2 else "")
