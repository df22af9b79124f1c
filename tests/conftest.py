"""Fixtures that every test may ask for."""

from __future__ import annotations

import pytest
from hypothesis import settings

from fakes import AsyncDevice, FakeClock, SyncDevice

# Slow shared machines must not fail a property, and a failure must come again.
settings.register_profile(
    "trainmark", deadline=None, max_examples=60, derandomize=True, database=None
)
settings.load_profile("trainmark")


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(now_ns=1_000)


@pytest.fixture
def sync_device(clock: FakeClock) -> SyncDevice:
    return SyncDevice(clock)


@pytest.fixture
def async_device(clock: FakeClock) -> AsyncDevice:
    return AsyncDevice(clock)
