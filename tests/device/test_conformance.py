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
    assert device_faults(vendor) == []
