"""A Vulkan device that computes on the processor: `make test-vulkan` provides it."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

from support.run_fixtures import restore_default_signals, trainmark
from trainmark import devices

if TYPE_CHECKING:
    from pathlib import Path

    from trainmark.protocols import Device

__all__ = ["restore_default_signals", "trainmark"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests here as nightly, and let the backend's warnings pass."""
    for item in items:
        if item.path.is_relative_to(__file__.rpartition("/")[0]):
            item.add_marker(pytest.mark.nightly)
            item.add_marker(pytest.mark.filterwarnings("default"))


@pytest.fixture(scope="session", autouse=True)
def _torchvulkan() -> None:
    """Skip all tests of this folder if the backend is not installed."""
    if find_spec("torchvulkan") is None:
        pytest.skip("no torchvulkan: run `make test-vulkan`")


@pytest.fixture(scope="session")
def device() -> Device:
    """Return the Vulkan device as the only rank of a machine opens it."""
    return devices.choose_vendor("vulkan").open(local_rank=0, ranks_here=1)


@pytest.fixture(scope="session")
def processor() -> Device:
    """Return the CPU as the only rank of a machine opens it, to compare with."""
    return devices.choose_vendor("cpu").open(local_rank=0, ranks_here=1)


@pytest.fixture(scope="session")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an empty folder, in which the runs of the session generate their data and share it."""
    return tmp_path_factory.mktemp("generated")
