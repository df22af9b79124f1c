"""Do the same work on many items in several processes, where that is faster.

Results come in the order of the items, so that a sum over them is the same to the last bit
whatever the number of processes. Knows nothing of the work.
"""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, TypeVar

from trainmark.devices.vendors.cpu import usable_cores
from trainmark.rank.worker import die_with_parent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    _Item = TypeVar("_Item")
    _Found = TypeVar("_Found")

# A process takes half a second to start; in that time one core reads 32 MB of events.
_BYTES_WORTH_A_PROCESS = 128 << 20


def processes_for(size_bytes: int) -> int:
    """Return how many processes read ``size_bytes`` fastest: 1 means that this one does."""
    worth = size_bytes // _BYTES_WORTH_A_PROCESS
    return min(worth, usable_cores()) if worth > 1 else 1


def mapped(
    work: Callable[[_Item], _Found], items: Sequence[_Item], *, processes: int
) -> Iterator[_Found]:
    """Yield ``work(item)`` of every item in their order.

    Should a process be killed or not start, the rest is done in this one.

    Raises:
        Exception: what ``work`` raises.
    """
    done = 0
    if processes > 1:
        # Small runs need neither, and do not wait for their import.
        from concurrent.futures import BrokenExecutor, ProcessPoolExecutor
        from multiprocessing import get_context

        try:
            # Not forked: the threads of this process could hold locks.
            spawn, own = get_context("spawn"), (os.getpid(),)
            with ProcessPoolExecutor(processes, spawn, _begin, own) as pool:
                for found in pool.map(work, items):
                    yield found
                    done += 1
        except (BrokenExecutor, OSError):  # an OSError of the work itself comes again below
            pass
    yield from map(work, items[done:])


def _begin(parent: int) -> None:
    """Let a process end with the one that started it, which alone answers Ctrl-C."""
    die_with_parent()
    if os.getppid() != parent:  # it ended before
        os._exit(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
