"""What the card and its machine are, found out in a process that ends before any section starts.

The parent never opens the device: its memory and its clocks belong to the sections alone.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from benchmarks.card.section import Card
    from trainmark.protocols import Device, Vendor

TITLE = "The card and its machine"


@dataclass(frozen=True, slots=True)
class Facts:
    """What a reader needs to compare results.

    Args:
        device: what the device says of itself; see ``Device.describe``.
        clocks: see ``clocks``.
        environment: host, driver and versions; see ``results.environment``.
        computes: whether a product on the device has the right values.
    """

    device: Mapping[str, Any]
    clocks: Mapping[str, float | None]
    environment: Mapping[str, Any]
    computes: bool


def read_clocks(vendor: Vendor) -> dict[str, float | None]:
    """Return clock, power and temperature of the first device; empty where nothing reads them."""
    from trainmark.protocols import MonitorFault

    try:
        monitor = vendor.monitor()
        samples = [] if monitor is None else monitor.read()
    except MonitorFault:
        return {}
    own = vendor.monitored(1)[:1]
    names = ("clock_mhz", "power_w", "temperature_c")
    return {name: getattr(x, name) for x in samples if [x.index] == own for name in names}


def is_product_right(device: Device) -> bool:
    """Tell whether a matrix product on ``device`` has the values that it must have."""
    import torch

    ones = device.place(torch.ones(8, 8))
    return bool((torch.mm(ones, ones).cpu() == len(ones)).all())


def run(card: Card) -> Facts:
    from trainmark import devices
    from trainmark.launch.environment import describe_environment

    vendor = devices.choose_vendor(card.device)
    device = vendor.open(0, 1)
    return Facts(
        device=device.describe(),
        clocks=read_clocks(vendor),
        environment=describe_environment(os.environ, vendor),
        computes=is_product_right(device),
    )
