"""What ``trainmark ceilings`` measures on the device has right results, so that its rates count."""

from __future__ import annotations

from typing import get_args

import pytest

from trainmark.devices import rates
from trainmark.machine.ceilings import try_precision
from trainmark.recipe import Precision

MIB = 1 << 20


def check_result(device, work):
    """Do the work once, and check that its result is right.

    Args:
        device: on which the work is done.
        work: a matrix product or a copy. ``run`` does it, ``fault`` returns what is wrong with its
            result; None: nothing.
    """
    work.run()
    device.synchronize()
    # Not within the ``assert``: pytest would show ``work`` with the device's tensors.
    fault = work.fault()
    assert fault is None


@pytest.mark.parametrize("precision", get_args(Precision))
@pytest.mark.parametrize("shape", [(512, 512, 512), (3000, 96, 160)])
def test_matmul_results_are_correct(vendor, device, precision, shape):
    # ``shape`` is rows, inner and columns: a (rows, inner) by an (inner, columns) matrix, one of
    # them not square. ``try_precision`` switches the device to the precision; it returns why that
    # is not possible, None if it is. ``check_result`` multiplies and fails if the product is wrong.
    why = try_precision(vendor, device, precision)
    if why is not None:
        pytest.skip(why)
    check_result(device, rates.prepare_matmul(device, precision, shape))


def test_device_copy_results_are_correct(device):
    check_result(device, rates.prepare_copy(device, 8 * MIB))


@pytest.mark.parametrize("to_device", [True, False])
def test_host_copy_results_are_correct(device, to_device):
    # 8 MiB are copied from the host to the device, or back. ``check_result`` copies once and fails
    # if other bytes arrive.
    work = rates.prepare_transfer(device, 8 * MIB, to_device=to_device)
    if work is None:
        pytest.skip("the device computes in the host's memory")
    check_result(device, work)
