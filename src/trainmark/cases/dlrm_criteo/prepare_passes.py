"""Work on blocks of lines with all cores, and say how far it is.

Owns the order of results, the bound on blocks held, rows in errors, and progress. Must not
know what is made of a block.

Threads are enough: numpy lets go of the interpreter's lock in all that takes time here.
"""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, TypeVar

from trainmark.errors import DataError

from .prepare_rows import RowFault, columns_of
from .prepare_sources import read_blocks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Executor, Future
    from pathlib import Path

    from trainmark.preparing import Say

    from .prepare_rows import Columns
    from .prepare_sources import Block

SAY_EVERY_S = 10.0
WAITING_BLOCKS = 2  # beside one for each thread

Result = TypeVar("Result")


def work_on(
    path: Path, work: Callable[[Columns], Result], pool: Executor, threads: int
) -> Iterator[tuple[Block, Result]]:
    """Yield what ``work`` makes of each block of a file, in order, with the block.

    Raises:
        DataError: a faulty row, named by file and row (counted from 1), or a faulty file.
    """
    waiting: deque[tuple[Block, Future[Result]]] = deque()
    try:
        for block in read_blocks(path):
            waiting.append((block, pool.submit(_work, block, work)))
            if len(waiting) >= threads + WAITING_BLOCKS:
                yield _first(waiting)
        while waiting:
            yield _first(waiting)
    finally:
        for _, future in waiting:
            future.cancel()


def _first(waiting: deque[tuple[Block, Future[Result]]]) -> tuple[Block, Result]:
    block, future = waiting.popleft()
    return block, future.result()


def _work(block: Block, work: Callable[[Columns], Result]) -> Result:
    try:
        return work(columns_of(block.lines))
    except RowFault as fault:
        raise DataError(
            fault.what,
            where=f"{block.path}, row {block.first_row + fault.number + 1}",
            rule=fault.rule,
            remedy="fetch the file again, or mend the row",
        ) from None


class Progress:
    """Say how far a pass over all files is, now and then.

    Args:
        name: what the pass does.
        total_bytes: of all files, as they lie on disk.
        say: called with a line.
        clock: seconds from any start.
    """

    def __init__(
        self, name: str, total_bytes: int, say: Say, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._name = name
        self._total_bytes = total_bytes
        self._say = say
        self._clock = clock
        self._began = self._said = clock()
        self._done_bytes = self._worked_bytes = self._rows = 0

    def skip(self, size_bytes: int) -> None:
        """Take note of a file that an earlier call finished."""
        self._done_bytes += size_bytes

    def finish(self, size_bytes: int, rows: int) -> None:
        """Take note of a file that is done."""
        self._done_bytes += size_bytes
        self._worked_bytes += size_bytes
        self._rows += rows

    def at(self, file: str, read_bytes: int, rows: int) -> None:
        """Take note of what was read of the present file; speak when it is time."""
        now = self._clock()
        if now - self._said < SAY_EVERY_S:
            return
        self._said = now
        seconds = now - self._began
        left_bytes = self._total_bytes - self._done_bytes - read_bytes
        left_s = left_bytes * seconds / (self._worked_bytes + read_bytes)
        share = (self._done_bytes + read_bytes) / self._total_bytes
        self._say(
            f"{self._name} {file}: {rows:,} rows, {share:.1%} of all, "
            f"{(self._rows + rows) / seconds:,.0f} rows/s, {_duration(left_s)} left"
        )


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"
