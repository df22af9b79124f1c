"""Fixtures that every test may ask for."""

from __future__ import annotations

import pytest
from fakes import AsyncDevice, FakeClock, SyncDevice


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(now_ns=1_000)


@pytest.fixture
def sync_device(clock: FakeClock) -> SyncDevice:
    return SyncDevice(clock)


@pytest.fixture
def async_device(clock: FakeClock) -> AsyncDevice:
    return AsyncDevice(clock)
