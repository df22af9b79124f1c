"""The public tool's modes: from a mean in the log to FINAL_RESULT.

Owns formulas and units. Must not know logs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainmark.errors import DataError, UsageError
from trainmark.record.index_record import rounded

if TYPE_CHECKING:
    from collections.abc import Callable

DEFAULT_UNIT = "samples/s"
TIME_UNITS = {"s": 1.0, "ms": 1000.0}


@dataclass(frozen=True, slots=True)
class Mode:
    """One formula.

    Args:
        formula: as shown to users.
        compute: result from the mean in seconds (or of a speed), the batch of a device
            and the number of devices.
        unit: of the result; None: the one given by ``--ips_unit``.
        needs_batch: whether the formula contains the batch.
        reads_speed: whether the log has a speed, not a time.
    """

    formula: str
    compute: Callable[[float, float, int], float]
    unit: str | None
    needs_batch: bool = False
    reads_speed: bool = False


MODES = {
    -2: Mode("batch x devices / mean", lambda m, b, n: b * n / m, None, needs_batch=True),
    -1: Mode("devices x mean", lambda m, _, n: n * m, None, reads_speed=True),
    0: Mode("batch x devices / mean", lambda m, b, n: b * n / m, "samples/s", needs_batch=True),
    1: Mode("mean", lambda m, *_: m, "steps/s", reads_speed=True),
    2: Mode("1 / mean", lambda m, *_: 1 / m, "steps/s"),
    3: Mode(
        "batch x devices x mean", lambda m, b, n: b * n * m, "samples/s",
        needs_batch=True, reads_speed=True,
    ),
    4: Mode("mean", lambda m, *_: m, "s/epoch"),
}  # fmt: skip


def check_mode(number: int, base_batch_size: float | None) -> Mode:
    """Return a mode whose inputs are there.

    Raises:
        UsageError: for a number without a mode, or a batch that is missing.
    """
    mode = MODES.get(number)
    if mode is None:
        known = "; ".join(f"{key}: {each.formula}" for key, each in MODES.items())
        raise UsageError(f"no mode {number}", where="--model_mode", remedy=f"choose from {known}")
    if mode.needs_batch and base_batch_size is None:
        rule = f"mode {number} is {mode.formula}"
        remedy = "give --base_batch_size N, what one device takes in a step"
        raise UsageError("no batch size", where="--base_batch_size", rule=rule, remedy=remedy)
    return mode


def final_result(
    number: int, mean: float, *, batch: float | None, devices: int, time_unit: str
) -> float:
    """Return FINAL_RESULT of mode ``number``, as ``index_record.rounded`` gives it.

    ``mean`` is the mean of the values, or their median.
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
        raise DataError(what, rule=rule, remedy="check --keyword and --position")
    return rounded(result)
