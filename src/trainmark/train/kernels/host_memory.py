"""How the C library of a CPU rank frees large blocks."""

from __future__ import annotations

import ctypes
import sys

_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4  # malloc.h of glibc


def keep_freed_memory() -> bool:
    """Make glibc reuse freed blocks in the next step; tell whether it accepted the setting.

    By default each tensor above 32 MiB, the gradient of a word embedding for instance, is
    mapped anew, faulted in page by page and unmapped again at every step.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    options = {_M_MMAP_MAX: 0, _M_TRIM_THRESHOLD: 2**31 - 1}
    return mallopt is not None and all(bool(mallopt(*item)) for item in options.items())
