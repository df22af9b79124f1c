"""Every vendor that is present here keeps what is required of it."""

from __future__ import annotations

import pytest

from trainmark import devices
from trainmark.conformance.vendor_check import device_faults, vendor_faults


@pytest.mark.parametrize("vendor", devices.list_vendors().values(), ids=lambda vendor: vendor.name)
def test_vendor_conforms(vendor):
    assert vendor_faults(vendor) == []


@pytest.mark.parametrize("vendor", devices.list_vendors().values(), ids=lambda vendor: vendor.name)
def test_device_conforms(vendor):
    if vendor.count() == 0:
        pytest.skip(f"no {vendor.name} device here")
    # ``device_faults`` opens the vendor's first device and returns a text for each rule of the
    # protocol ``Device`` that it breaks: a member that is missing or returns another type.
    assert device_faults(vendor) == []
