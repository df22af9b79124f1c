"""The cores on which the operating system lets this process run."""

from __future__ import annotations

import os


def count_allowed_cores() -> int:
    """Return the number of cores on which this process may run, by its CPU affinity.

    macOS has no affinity: there it is the number of all cores.
    """
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))  # 0: of this process
    return os.cpu_count() or 1
