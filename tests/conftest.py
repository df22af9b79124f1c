"""Fixtures that every test may ask for."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from support.fakes import AsyncDevice, FakeClock, SyncDevice

try:
    from hypothesis import settings
except ImportError:  # the contract needs none on a machine with a card
    settings = None

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

# Slow shared machines must not fail a property, and a failure must come again.
if settings is not None:
    settings.register_profile(
        "trainmark", deadline=None, max_examples=60, derandomize=True, database=None
    )
    settings.load_profile("trainmark")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--device", default="cpu", help="vendor whose device tests/device checks")


@pytest.fixture(autouse=True)
def _forget_devices() -> None:
    """Clear what vendors cached about the machine in earlier tests."""
    if "trainmark.devices" in sys.modules:
        sys.modules["trainmark.devices"].load_all.cache_clear()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(now_ns=1_000)


@pytest.fixture
def sync_device(clock: FakeClock) -> SyncDevice:
    return SyncDevice(clock)


@pytest.fixture
def async_device(clock: FakeClock) -> AsyncDevice:
    return AsyncDevice(clock)


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Have torch compute in one thread, so that sums are the same on every machine."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def cli(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Callable[..., tuple[int, str, str]]:
    """Return a function that calls the program in this process, in a folder of the test's own.

    Its arguments are the words of the command line; it returns exit code, stdout and stderr.
    """
    from trainmark.cli.app import main

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRAINMARK_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("TRAINMARK_STORE", raising=False)

    def call(*args: object) -> tuple[int, str, str]:
        """Run ``main`` with these arguments; a program that returns ended with exit code 0."""
        monkeypatch.setattr(sys, "argv", ["trainmark", *map(str, args)])
        code: object = 0
        try:
            main()
        except SystemExit as ending:
            code = ending.code or 0
        return (code, *capsys.readouterr())

    return call
