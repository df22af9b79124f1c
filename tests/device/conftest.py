"""The device that the contract is about: ``pytest tests/device --device NAME``, default ``cpu``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from support.run_fixtures import fifo, restore_default_signals, start_run, trainmark
from trainmark import devices

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from trainmark.protocols import Device, Vendor

__all__ = ["fifo", "restore_default_signals", "start_run", "trainmark"]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Let warnings fail a test on the CPU only, where they come from this project.

    On other devices they come from the vendor's software and are only shown.
    """
    if config.getoption("device") != "cpu":
        for item in items:
            item.add_marker(pytest.mark.filterwarnings("default"))


@pytest.fixture(scope="session")
def vendor(pytestconfig: pytest.Config) -> Vendor:
    """Return the vendor that pytest's option ``--device`` names."""
    return devices.choose_vendor(pytestconfig.getoption("device"))


@pytest.fixture
def accelerator(vendor: Vendor) -> Vendor:
    """Return the vendor that ``--device`` names; skip the test on a CPU.

    There tests of other folders cover it.
    """
    if vendor.torch_type == "cpu":
        pytest.skip("on the CPU: tests/devices and tests/integration")
    return vendor


@pytest.fixture(autouse=True)
def _restore_torch_settings() -> Iterator[None]:
    """Restore torch's threads and matmul precision, which a device of the CPU changes."""
    threads, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    yield
    torch.set_num_threads(threads)
    torch.set_float32_matmul_precision(precision)


@pytest.fixture
def device(vendor: Vendor) -> Device:
    """Open the first device of the vendor that ``--device`` names, which is that of rank 0.

    A CPU is opened as for one of as many ranks as it has cores: with one thread, so that tests can
    run side by side.
    """
    return vendor.open(local_rank=0, ranks_here=vendor.count() if vendor.counts_cores else 1)


@pytest.fixture(scope="session")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder, empty at first, in which tests keep the data that they generate."""
    return tmp_path_factory.mktemp("generated")
