"""How the C library allocates large blocks on a host, and frees them.

Owns its settings: one for speed, with which every CPU rank starts, and one for jobs whose
peak memory must stay close to the memory in use.
"""

from __future__ import annotations

import ctypes
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_MMAP_MAX = -1, -3, -4  # malloc.h of glibc


def keep_freed_memory() -> bool:
    """Make glibc reuse freed blocks in the next step; tell whether it accepted the setting.

    By default each tensor above 32 MiB, the gradient of a word embedding for instance, is
    mapped anew, faulted in page by page and unmapped again at every step.
    """
    return _set({_M_MMAP_MAX: 0, _M_TRIM_THRESHOLD: 2**31 - 1})


def map_large_blocks(least_bytes: int) -> bool:
    """Make glibc map each block of at least ``least_bytes`` singly; tell whether it will.

    Blocks of many sizes with interleaved lifetimes fragment the heap: the holes add half of the
    memory in use. Separate mappings leave no holes, but each one faults its pages in again.
    Smaller blocks stay on the heap.
    """
    return _set({_M_MMAP_MAX: 1 << 16, _M_MMAP_THRESHOLD: least_bytes})


def give_back_free_memory() -> bool:
    """Return free memory of glibc's heap to the system, holes too; tell whether there was any.

    Building a model leaves holes between small blocks, too small for later large blocks.
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
