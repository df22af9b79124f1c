"""Read the counters of the hollow card; see tests/hollow/README.md."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

RUNTIME = "libcudart.so.13"
# In the order of `struct counters` in tests/hollow/card/card.h.
COUNTERS = (
    "launches",
    "matmuls",
    "cudnn_runs",
    "collectives",
    "copies_in",
    "copies_out",
    "copies_within",
    "memsets",
    "waits",
    "allocations",
)


@cache
def load_runtime() -> Any | None:
    """Return the library of the hollow card, a simulated GPU that computes nothing.

    None if another runtime, or none, is installed.
    """
    try:
        library = ctypes.CDLL(RUNTIME)
    except OSError:
        return None
    if not hasattr(library, "hollow_read_counters"):
        return None
    # Otherwise ctypes would take the returned number of bytes for one of 32 bits.
    library.hollow_used_bytes.restype = ctypes.c_size_t
    return library


def read_counters() -> dict[str, int]:
    """Return the number of calls to the hollow card since ``reset_counters``, by kind.

    The hollow card is a simulated GPU that computes nothing. ``COUNTERS`` has the ten kinds, such
    as ``launches`` and ``matmuls``, in the order in which its library (C) writes their numbers.
    """
    values = (ctypes.c_uint64 * len(COUNTERS))()
    load_runtime().hollow_read_counters(values)
    return dict(zip(COUNTERS, values, strict=True))


def reset_counters() -> None:
    """Set all counters to 0."""
    load_runtime().hollow_reset_counters()


def read_used_bytes(device: int) -> int:
    """Return how many bytes this process has allocated on the device with this number."""
    return load_runtime().hollow_used_bytes(device)
