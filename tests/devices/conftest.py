"""The vendor that most tests of NVIDIA's cards are about."""

from __future__ import annotations

import pytest

from trainmark.devices.accelerator import TorchBuild
from trainmark.devices.vendors import nvidia
from trainmark.devices.vendors.nvidia import driver


@pytest.fixture
def vendor(monkeypatch: pytest.MonkeyPatch) -> nvidia.Nvidia:
    """The vendor with a torch for CUDA 13.0 and a driver for 13.0."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(nvidia, "read_torch_build", lambda: TorchBuild("2.13.0+cu130", cuda="13.0"))
    monkeypatch.setattr(driver, "read_supported_cuda", lambda: (13, 0))
    return nvidia.Nvidia()
