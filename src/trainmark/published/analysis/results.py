"""The result of an analysis: from the mean of the values, by the public tool's modes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainmark.errors import UsageError
from trainmark.published.analysis.quantities import STEPS_UNIT, unit_class
from trainmark.record.index_record import round_result

if TYPE_CHECKING:
    from trainmark.published.analysis.options import Options
    from trainmark.published.analysis.samples import Sample

MODES = {
    -2: ("batch x devices / mean", ""),
    -1: ("devices x mean", ""),
    0: ("batch x devices / mean", "samples/s"),
    1: ("mean", STEPS_UNIT),
    2: ("1 / mean", STEPS_UNIT),
    3: ("batch x devices x mean", "samples/s"),
    4: ("mean", "s/epoch"),
}  # by number: formula and unit of the result; empty: the log's
TIME_MODES = {-2, 0, 2}  # those whose values are seconds a step
_OF_PRESET = {"step_time": (2, -2), "steps": (1, 3), "speed": (-1, -1)}  # without, with a batch
_LARGEST = {2, 6}  # an index of memory or batch: the result is the largest value
_MEANS = {
    "time": "mean by time: the log has the time of each value",
    "work": "mean by time: the log has the work of each value",
    "value": "mean by value: the log has neither time nor work of each",
}


@dataclass(frozen=True, slots=True)
class Result:
    """A result with how it follows from the values.

    Args:
        factor: result over mean, or result times mean where the formula divides.
        batch: samples of a step, of one device if given and of all if read from the log.
    """

    value: float
    unit: str
    how: str
    batch: float | None
    factor: float
    divides: bool

    def of_mean(self, mean: float) -> float:
        """Return the result of another mean of the same values."""
        if not self.divides:
            return round_result(self.factor * mean)
        return round_result(self.factor / mean) if mean else 0.0


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
        return _as_it_is(sample, options)
    batch: float | None = options.base_batch_size
    batch_of_log = batch is None and len(sample.batches) > 0
    if batch_of_log:
        batch = float(sample.batches.mean())
    mode = _mode(sample, options, has_batch=batch is not None, keyword_given=keyword_given)
    formula, unit = MODES[mode]
    if batch is None and "batch" in formula:
        rule, fix = f"mode {mode} is {formula}", "give base_batch_size=N, of one device"
        raise UsageError("no batch size", where="base_batch_size", rule=rule, fix=fix)
    factor = 1.0
    if batch is not None and "batch" in formula:
        factor *= batch
    if "devices" in formula:
        factor *= _devices(sample, options, batch_of_log=batch_of_log)
    divides = "/" in formula
    scale = _scale(sample, options, mode)
    factor = factor / scale if divides else factor * scale
    counted = sample.unit if mode == -1 else "samples/s" if batch_of_log else ""
    how = f"mode {mode}: {formula}"
    if sample.is_rate and len(sample.values) > 1:
        how += f", {_MEANS[sample.weighted_by]}"
    result = Result(0.0, unit or _unit(counted, mode, options), how, batch, factor, divides)
    return Result(
        result.of_mean(sample.mean), result.unit, how, batch, result.factor, result.divides
    )


def _as_it_is(sample: Sample, options: Options) -> Result:
    """Return a memory, a largest batch or a profile: a value of the log."""
    if options.index in _LARGEST:
        name, value = "largest", float(sample.values.max())
    else:
        name, value = "mean", float(sample.values.mean())
    how = f"the {name} of the log's values, as it is"
    unit = options.ips_unit or ""
    return Result(round_result(value), unit, how, options.base_batch_size, 1.0, divides=False)


def _mode(sample: Sample, options: Options, *, has_batch: bool, keyword_given: bool) -> int:
    if options.model_mode is not None:
        return options.model_mode
    if keyword_given and not sample.source.preset:
        return -1
    return _OF_PRESET[sample.source.quantity.reads][has_batch]


def is_of_job(sample: Sample, options: Options) -> bool:
    """Tell whether a speed is taken as that of the whole job, which is not multiplied."""
    quantity = sample.source.quantity
    is_known = bool(sample.source.preset) and options.model_mode is None
    return is_known and quantity.reads == "speed" and quantity.scope != "device"


def _devices(sample: Sample, options: Options, *, batch_of_log: bool) -> int:
    """Return by how many devices to multiply."""
    return 1 if batch_of_log or is_of_job(sample, options) else options.gpu_num or 1


def _scale(sample: Sample, options: Options, mode: int) -> float:
    """Return what turns a value into seconds a step, or into something a second."""
    quantity = sample.source.quantity
    steps = options.steps_per_value
    if steps is not None and mode not in TIME_MODES:
        rule = f"mode {mode} is {MODES[mode][0]}, and its values are not times of steps"
        fix = "leave steps_per_value out, or give model_mode=2, 0 or -2"
        raise UsageError("no times", where="steps_per_value", rule=rule, fix=fix)
    scale = 1.0
    if options.time_unit is not None:
        scale = 1e-3 if options.time_unit == "ms" else 1.0
    elif sample.source.preset:
        is_time = quantity.reads == "step_time"
        scale = quantity.seconds if is_time else 1 / quantity.seconds
    if mode in TIME_MODES:
        scale /= steps if steps is not None else quantity.steps
    return scale


def _unit(counted: str, mode: int, options: Options) -> str:
    """Return the unit of the result; refuse one that would only rename what the log counts."""
    wanted = options.ips_unit
    if wanted and counted and unit_class(wanted) != unit_class(counted):
        rule = f"the log counts {counted}, and a unit does not convert them"
        fix = "leave ips_unit out, or read step times with model_mode=-2 and base_batch_size=N"
        raise UsageError(f"{wanted} would rename the result", where="ips_unit", rule=rule, fix=fix)
    return wanted or counted or ("samples/s" if mode == -2 else "")
