"""The public tool's modes: from a mean in the log to FINAL_RESULT."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from trainmark.errors import DataError, UsageError
from trainmark.record.index_record import rounded

if TYPE_CHECKING:
    from collections.abc import Callable

DEFAULT_UNIT = "samples/s"
TIME_UNITS = {"s": 1.0, "ms": 1000.0}


class Mode(NamedTuple):
    """One formula.

    Args:
        compute: result from the mean in seconds (or of a speed), the batch of a device
            and the number of devices.
        unit: of the result; None: the one given by ``ips_unit``.
        reads_speed: whether the log has a speed, not a time.
    """

    formula: str
    compute: Callable[[float, float, int], float]
    unit: str | None
    reads_speed: bool


MODES = {
    -2: Mode("batch x devices / mean", lambda m, b, n: b * n / m, None, False),
    -1: Mode("devices x mean", lambda m, _, n: n * m, None, True),
    0: Mode("batch x devices / mean", lambda m, b, n: b * n / m, DEFAULT_UNIT, False),
    1: Mode("mean", lambda m, *_: m, "steps/s", True),
    2: Mode("1 / mean", lambda m, *_: 1 / m, "steps/s", False),
    3: Mode("batch x devices x mean", lambda m, b, n: b * n * m, DEFAULT_UNIT, True),
    4: Mode("mean", lambda m, *_: m, "s/epoch", False),
}


def check_mode(number: int, batch: float | None) -> Mode:
    """Return a mode whose inputs are there.

    Raises:
        UsageError: for a number without a mode, or a batch that is missing.
    """
    mode = MODES.get(number)
    if mode is None:
        known = "; ".join(f"{key}: {each.formula}" for key, each in MODES.items())
        raise UsageError(f"no mode {number}", where="model_mode", remedy=f"choose from {known}")
    if "batch" in mode.formula and batch is None:
        rule = f"mode {number} is {mode.formula}"
        remedy = "give base_batch_size=N, what one device takes in a step"
        raise UsageError("no batch size", where="base_batch_size", rule=rule, remedy=remedy)
    return mode


def final_result(
    number: int, mean: float, *, batch: float | None, devices: int, time_unit: str
) -> float:
    """Return FINAL_RESULT of mode ``number``, as ``index_record.rounded`` gives it.

    ``ms`` divides the mean by 1000 first, whatever the mode. A mean of zero is a result of
    zero.

    Raises:
        DataError: for a mean below zero or a result that overflows.
    """
    mode = check_mode(number, batch)
    mean /= TIME_UNITS[time_unit]
    if mean == 0:
        return 0.0
    result = mode.compute(mean, batch or 0.0, devices) if mean > 0 else math.nan
    if not math.isfinite(result):
        what = f"no result from a mean of {mean:g}"
        rule = f"mode {number} is {mode.formula}, a finite number above zero"
        raise DataError(what, rule=rule, remedy="check keyword and position")
    return rounded(result)
