"""Train as the toy job does, but kill every rank of a machine that has ``CRASH_FILE``."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from trainmark.cases.toy.job import ToyJob, load_data

__all__ = ["build", "load_data"]


def build(context, data):
    if Path(os.environ["CRASH_FILE"]).exists():
        os.kill(os.getpid(), signal.SIGKILL)
    return ToyJob(context, data)
