"""What tests of cases from the command line share."""

import os
import signal
import subprocess
import sys

import pytest


@pytest.fixture(autouse=True)
def hang_up_as_usual():
    """Start programs that heed SIGHUP, also where the tests run under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.fixture
def trainmark(tmp_path):
    def call(*words, limit_s=280):
        env = os.environ | {"TRAINMARK_CACHE": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1"}
        return subprocess.run(
            [sys.executable, "-m", "trainmark", *words],
            env=env, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=limit_s,
        )  # fmt: skip

    return call
