"""Worker processes that encode blocks, and their results in the order of the corpus.

Owns starting, feeding and ending workers, and the bound on what is held in memory. Must not
know files or tokens.

At most ``HELD_BLOCKS`` blocks for each worker are on their way or wait for their turn, so
memory follows from the number of workers and the size of a block, never from the corpus.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import deque
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Pipe, wait
from typing import TYPE_CHECKING, Any, Self

from trainmark.errors import DataError, EnvironmentFault

from .prepare_encode import LineFault

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from multiprocessing.connection import Connection
    from pathlib import Path

    from .prepare_encode import Encoded
    from .prepare_sources import Block

HELD_BLOCKS = 4  # for each worker
SENT_BLOCKS = 2  # one at work, one waiting at the worker
GRACE_S = 5.0


@dataclass(slots=True)
class _Worker:
    process: subprocess.Popen[bytes]
    pipe: Connection[Any, Any]
    sent: deque[int] = field(default_factory=deque)


class Workers:
    """Some worker processes; leaving the block ends them.

    Args:
        count: how many.
        tokenizer: folder of the tokenizer.
        dtype: name of the element type of the ids.
        text_key: under which key a line has its text.
    """

    def __init__(self, count: int, *, tokenizer: Path, dtype: str, text_key: str) -> None:
        self._count = count
        self._settings = (str(tokenizer), dtype, text_key)
        self._workers: list[_Worker] = []

    def __enter__(self) -> Self:
        """Start them."""
        try:
            for _ in range(self._count):
                worker = _start()
                self._workers.append(worker)
                _send(worker, self._settings)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """End them, whatever they are at."""
        for worker in self._workers:
            worker.pipe.close()
        for worker in self._workers:
            worker.process.kill()
            worker.process.wait()

    @property
    def process_ids(self) -> list[int]:
        """The workers' process ids."""
        return [worker.process.pid for worker in self._workers]

    def in_order(self, blocks: Iterable[Block]) -> Iterator[tuple[Block, Encoded]]:
        """Yield every block, its lines let go, with what became of it; in the order given.

        Raises:
            DataError: a line holds no text; always the first such line of the corpus.
            EnvironmentFault: a worker ended.
        """
        source = iter(blocks)
        held: dict[int, Block] = {}
        replies: dict[int, Any] = {}
        given = due = 0
        exhausted = False
        while True:
            while not exhausted and len(held) < HELD_BLOCKS * self._count:
                idlest = min(self._workers, key=lambda worker: len(worker.sent))
                if len(idlest.sent) >= SENT_BLOCKS:
                    break
                block = next(source, None)
                if block is None:
                    exhausted = True
                    break
                held[given] = replace(block, data=b"")
                idlest.sent.append(given)
                _send(idlest, block.data)
                given += 1
            if not held:
                return
            self._receive(replies)
            while due in replies:
                yield _result(held.pop(due), replies.pop(due))
                due += 1

    def _receive(self, replies: dict[int, Any]) -> None:
        """Wait until a worker replies, or ends."""
        pipes = {worker.pipe: worker for worker in self._workers}
        for pipe in wait(pipes):
            worker = pipes[pipe]  # type: ignore[index]
            try:
                reply = worker.pipe.recv()
            except (EOFError, OSError):
                raise _ended(worker) from None
            replies[worker.sent.popleft()] = reply


def _start() -> _Worker:
    ours, theirs = Pipe()
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", f"{__package__}.prepare_worker", str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            start_new_session=True,  # Ctrl-C is for the one that can say what to do next
            env=os.environ | {"TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"},
        )
    return _Worker(process, ours)


def _send(worker: _Worker, what: bytes | tuple[str, str, str]) -> None:
    try:
        if isinstance(what, bytes):
            worker.pipe.send_bytes(what)
        else:
            worker.pipe.send(what)
    except OSError:
        raise _ended(worker) from None


def _result(block: Block, reply: Encoded | LineFault) -> tuple[Block, Encoded]:
    if isinstance(reply, LineFault):
        raise DataError(
            reply.what,
            where=f"{block.path}, line {block.start.lines + reply.number + 1}",
            rule="a line is one JSON object in UTF-8 with a text",
            remedy=reply.remedy,
        )
    return block, reply


def _ended(worker: _Worker) -> EnvironmentFault:
    """Return what to say of a worker that is gone."""
    try:
        code = worker.process.wait(GRACE_S)
    except subprocess.TimeoutExpired:  # its pipe is closed, its process hangs in the system
        code = 0
    how = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
    return EnvironmentFault(
        f"a worker ended {how}",
        where=f"process {worker.process.pid}",
        rule="workers live as long as the call",
        remedy="call again: finished parts are kept"
        + ("; where memory ran out, give fewer --workers" if code == -signal.SIGKILL else ""),
    )
