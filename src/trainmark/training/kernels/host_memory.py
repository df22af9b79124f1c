"""How the C library hands out large blocks on a host, and takes them back.

Owns its settings: one for speed, which every CPU rank starts with, and one for jobs whose
peak must stay near what they hold.
"""

from __future__ import annotations

import ctypes
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_MMAP_MAX = -1, -3, -4  # malloc.h of glibc


def keep_freed_memory() -> bool:
    """Have glibc keep freed blocks for the next step; tell whether it took the setting.

    By default each tensor above 32 MiB, the gradient of a word embedding for instance, is
    mapped anew, faulted in page by page and unmapped again at every step.
    """
    return _set({_M_MMAP_MAX: 0, _M_TRIM_THRESHOLD: 2**31 - 1})


def map_large_blocks(least_bytes: int) -> bool:
    """Have glibc map each block from ``least_bytes`` on its own; tell whether it will.

    Blocks of many sizes that live between each other's frees leave holes in the heap that
    none of them fits: half as much again as what is in use. A mapping of its own leaves
    none, at the price of touching its pages anew. Smaller blocks stay on the heap.
    """
    return _set({_M_MMAP_MAX: 1 << 16, _M_MMAP_THRESHOLD: least_bytes})


def give_back_free_memory() -> bool:
    """Return what is free on glibc's heap to the system, holes too; tell whether any was.

    Building a model leaves holes between small blocks that stay, and no large block fits.
    """
    trim = _of_the_c_library("malloc_trim")
    return trim is not None and bool(trim(0))


def _set(options: Mapping[int, int]) -> bool:
    mallopt = _of_the_c_library("mallopt")
    return mallopt is not None and all(bool(mallopt(*item)) for item in options.items())


def _of_the_c_library(name: str) -> Callable[..., int] | None:
    if sys.platform != "linux":
        return None
    return getattr(ctypes.CDLL(None), name, None)
