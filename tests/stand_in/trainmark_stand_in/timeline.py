"""The device's clock: one queue of work that runs behind the host.

Owns when queued work is done, what a mark is worth, and which calls wait. Does not import torch.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@dataclass(frozen=True)
class Mark:
    """A point in the queue: the host time at which the device reaches it."""

    reached_ns: int


def sleep_ns(duration_ns: int) -> None:
    time.sleep(duration_ns / 1e9)


class Timeline:
    """A queue of work. Results exist at once; the time that they cost passes on this clock.

    Args:
        clock: host time in ns.
        sleep: let the given ns of host time pass.
        operation_ns: device time of one operation.
    """

    def __init__(
        self,
        *,
        operation_ns: int,
        clock: Callable[[], int] = time.perf_counter_ns,
        sleep: Callable[[int], None] = sleep_ns,
    ) -> None:
        self.operation_ns = operation_ns
        self.clock, self.sleep = clock, sleep
        self.operations = 0  # queued so far
        self.waits: Counter[str] = Counter()  # number of waits by cause
        self._end_ns = 0  # host time at which all queued work is done
        self._forbidden = 0  # how many blocks of ``forbid_synchronization`` are open
        self._lock = threading.Lock()  # several threads may queue work

    def queue(self) -> None:
        """Append one operation. It starts when the one before it is done, never before now."""
        # ``_end_ns``: host time at which all that was queued before is done.
        with self._lock:
            self.operations += 1
            self._end_ns = max(self._end_ns, self.clock()) + self.operation_ns

    def mark(self) -> Mark:
        """Return the end of the queue without waiting for it.

        A mark holds the host time at which the device reaches it: when all queued work is done, or
        now if it is done already.
        """
        with self._lock:
            return Mark(max(self._end_ns, self.clock()))

    def elapsed_ns(self, start: Mark, end: Mark) -> int:
        """Return the device time between two marks.

        Raises:
            RuntimeError: the device has not reached a mark yet.
        """
        if max(start.reached_ns, end.reached_ns) > self.clock():
            raise RuntimeError("a mark was read before the device reached it")
        return end.reached_ns - start.reached_ns

    def synchronize(self, cause: str) -> None:
        """Wait until the queue is done.

        Raises:
            RuntimeError: within ``forbid_synchronization``.
        """
        if self._forbidden:
            raise RuntimeError(f"{cause} synchronises where that is forbidden")
        self.waits[cause] += 1
        left_ns = self._end_ns - self.clock()
        # In a loop: a sleep may end early, and another thread may queue more work.
        while left_ns > 0:
            self.sleep(left_ns)
            left_ns = self._end_ns - self.clock()

    @contextmanager
    def forbid_synchronization(self) -> Iterator[None]:
        """Make every call that waits for the device raise."""
        self._forbidden += 1
        try:
            yield
        finally:
            self._forbidden -= 1
