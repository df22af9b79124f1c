"""The precision set is the one the device computes with, judged by the error of a product."""

from __future__ import annotations

import pytest
import torch

from trainmark.errors import EnvironmentFault
from trainmark.recipe import Recipe
from trainmark.train.stepper import AUTOCAST_DTYPES

SIZE = 1024
# Of the relative error in the Frobenius norm. A rounding error is below 2**-24 of a number in fp32,
# 2**-11 in TF32 and fp16, 2**-9 in bf16; its mean square is about half of that, and both factors
# and, in 16 bits, the product are rounded.
BOUNDS = {"fp32": (0, 5e-6), "tf32": (5e-5, 2e-3), "fp16": (5e-5, 2e-3), "bf16": (1e-3, 1e-2)}


def set_precision(vendor, device, precision):
    """Set the precision and return the device's flags; skip the test if it is refused."""
    refusal = vendor.refuse(Recipe(precision=precision), nproc=1)
    if refusal is not None:
        pytest.skip(refusal.why)
    try:
        return device.set_precision(precision)
    except EnvironmentFault as refused:
        pytest.skip(str(refused))


def measure_product_error(device, precision):
    """Return the error of a product of random matrices as a job computes it in ``precision``.

    The matrices have 1024 rows (``SIZE``). ``AUTOCAST_DTYPES`` has torch's type of the precisions
    of 16 bits; in fp32 and TF32 there is no autocast. The error is that of the whole product,
    relative to the product in 64 bits on the host (Frobenius norm).
    """
    generator = torch.Generator().manual_seed(5)
    first, second = (torch.randn(SIZE, SIZE, generator=generator) for _ in range(2))
    dtype = AUTOCAST_DTYPES.get(precision)
    with torch.autocast(device.torch_type, dtype=dtype, enabled=dtype is not None):
        product = device.place(first) @ device.place(second)
    assert product.dtype == (dtype or torch.float32)
    exact = first.double() @ second.double()
    return float((product.cpu().double() - exact).norm() / exact.norm())


@pytest.mark.parametrize("precision", BOUNDS)
def test_precision_flags_match_the_error_of_a_product(vendor, device, precision):
    """The flags that a device reports fit the rounding errors with which it multiplies.

    ``BOUNDS`` has the least and the largest relative error of a product by precision, from the bits
    of its numbers: fp32 0 to 5e-6, TF32 and fp16 5e-5 to 2e-3, bf16 1e-3 to 1e-2. The precisions in
    ``AUTOCAST_DTYPES``, of 16 bits, are reached by autocast.
    """
    flags = set_precision(vendor, device, precision)
    assert flags["tf32"] is (precision == "tf32")
    assert flags["autocast"] == (precision if precision in AUTOCAST_DTYPES else None)
    # A smaller error shows a finer precision than the flags say, a larger one a coarser.
    low, high = BOUNDS[precision]
    assert low <= measure_product_error(device, precision) <= high
