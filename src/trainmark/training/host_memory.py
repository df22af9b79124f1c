"""How the C library hands out large blocks on a host.

Owns one setting for jobs whose peak must stay near what they hold.
"""

from __future__ import annotations

import ctypes
import sys

_M_MMAP_THRESHOLD, _M_MMAP_MAX = -3, -4  # malloc.h of glibc


def map_large_blocks(least_bytes: int) -> bool:
    """Have glibc map each block from ``least_bytes`` on its own; tell whether it will.

    Blocks of many sizes that live between each other's frees leave holes in the heap that
    none of them fits: half as much again as what is in use. A mapping of its own leaves
    none, at the price of touching its pages anew. Smaller blocks stay on the heap.
    """
    if sys.platform != "linux":
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(_M_MMAP_MAX, 1 << 16)) and bool(mallopt(_M_MMAP_THRESHOLD, least_bytes))
