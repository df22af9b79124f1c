"""Measure the matmul rate of a rank before it trains, and refuse an impossible rate."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainmark.devices.peaks import find_peak
from trainmark.errors import ContradictionError

if TYPE_CHECKING:
    from trainmark.protocols import Device, MatmulRate
    from trainmark.recipe import Precision


def measure_matmul(device: Device, precision: Precision) -> MatmulRate:
    """Return the rate of large matmuls in ``precision``, which is already in effect.

    Raises:
        ContradictionError: the rate is above the published peak of this model of device.
    """
    rate = device.matmul_rate(precision)
    device_name = device.describe()["name"]
    published = find_peak(device_name, precision)
    if published is not None and rate.flops_per_second > published.per_second:
        raise ContradictionError(
            "matmul_above_peak",
            tflops=rate.flops_per_second / 1e12,
            precision=precision,
            peak=published.per_second / 1e12,
            product=device_name,
        )
    return rate
