"""The hollow card as a device: every test here needs it, and `make test-hollow` provides it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from support import hollow_card
from trainmark import devices

if TYPE_CHECKING:
    from pathlib import Path

    from trainmark.protocols import Device, Vendor


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests here as nightly, and let torch's warnings about the card pass.

    In other folders each warning is an error; the filter "default" only prints them.
    """
    for item in items:
        if item.path.is_relative_to(__file__.rpartition("/")[0]):
            item.add_marker(pytest.mark.nightly)
            item.add_marker(pytest.mark.filterwarnings("default"))


@pytest.fixture(scope="session", autouse=True)
def _hollow_card() -> None:
    """Skip all tests without the hollow card, libraries that simulate a card and compute nothing.

    Fail if it should be there, but torch uses other libraries.
    """
    if hollow_card.load_runtime() is not None:
        return
    if "HOLLOW_DEVICE_NODES" in os.environ:  # set by on_card.sh
        pytest.fail("torch does not run on the hollow card: another CUDA runtime is installed")
    pytest.skip("no hollow card: run `make test-hollow`")


@pytest.fixture(scope="session")
def vendor() -> Vendor:
    """Return the vendor whose libraries the hollow card replaces."""
    return devices.choose_vendor("nvidia")


@pytest.fixture
def device(vendor: Vendor) -> Device:
    """Return the first hollow card, opened as by the only rank of a run."""
    return vendor.open(local_rank=0, ranks_here=1)


@pytest.fixture(scope="session")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of generated data."""
    return tmp_path_factory.mktemp("generated")
