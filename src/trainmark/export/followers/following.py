"""Hand a run to a backend from the beginning, and again after a fault.

A backend writes points of a run in the form of another program, such as TensorBoard or MLflow. A
fault of a backend is noted, never raised. The next try opens the backend again and hands over the
run from its beginning; backends skip the points that they have.
"""

from __future__ import annotations

import fcntl
import time
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import IO, TYPE_CHECKING

from trainmark.export.followers.reading import RunReader
from trainmark.export.followers.targets import load_backend
from trainmark.launch.run_dir import is_locked
from trainmark.plan.plan import read_plan
from trainmark.record.record import RECORD_FILE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from trainmark.export.followers.points import Backend, Point
    from trainmark.export.followers.targets import FollowTarget, OpenBackend

POLL_S = 0.5
RETRY_S = 10.0
_MAX_FAULT_LENGTH = 300


class FollowedElsewhereError(Exception):
    """Another process hands the run to the same target."""


@dataclass(slots=True)
class Following:
    """Hands the points of one run to one backend, a program such as TensorBoard.

    A point has values of the run at one time, such as the loss of a step.

    Args:
        run_dir: folder of the run, with its events.
        target: the backend, and the destination in it, such as a folder or a URL.
        open_backend: opens the backend for a run; it may raise any exception, and so may the
            backend.
        clock: monotonic clock in seconds.
        num_steps: number of the last step that the backend took.
        num_points: points that were handed over since the backend was opened.
        fault: why the backend did not take all points; None: it took them.
        is_complete: the whole run and its result were handed over.

    Attributes:
        _reader: reads the points from the run's events.
        _backend: None: it is not open.
        _next_try_s: after a fault, the time of ``clock`` before which nothing is tried again.
        _lock: the locked file by which other processes know that this one hands the run over.
    """

    run_dir: Path
    target: FollowTarget
    open_backend: OpenBackend
    clock: Callable[[], float] = time.monotonic
    num_steps: int = 0
    num_points: int = 0
    fault: str | None = None
    is_complete: bool = False
    _reader: RunReader = field(init=False)
    _backend: Backend | None = field(default=None, init=False)
    _next_try_s: float = field(default=0.0, init=False)
    _lock: IO[bytes] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._reader = RunReader(read_plan(self.run_dir), self.run_dir)

    def poll(self) -> None:
        """Hand the points since the last call to the backend.

        After a fault of the backend, calls do nothing until ``RETRY_S`` seconds are over.
        """
        if self.fault is None or self.clock() >= self._next_try_s:
            self._try(self._send_new_points)

    def finish(self) -> None:
        """Hand the remaining points of a run that has ended, and its result, to the backend."""
        self._try(self._send_rest_and_result)
        self._release_lock()

    @property
    def is_under_way(self) -> bool:
        """Tell whether the run may still write events."""
        if (self.run_dir / RECORD_FILE).exists():
            return False
        # A launcher holds the lock of the run directory while it runs. It may end before the run
        # if it has submitted the run to a cluster's scheduler: then the nodes still write. If their
        # job was killed they never report their end; the run is under way until a user's
        # `trainmark run --attach` finds the end of the job and writes the record.
        return is_locked(self.run_dir) or self._reader.waits_for_nodes

    def _try(self, hand_over: Callable[[], None]) -> None:
        """Call ``hand_over``, and keep the fault of the backend if it raises.

        Args:
            hand_over: reads points from the run's files and hands them to the backend.
        """
        try:
            hand_over()
        except Exception as error:  # noqa: BLE001 - a backend may raise anything
            self.fault = shorten_fault(error)
            # The next try opens the backend again, reads the run from its beginning and hands over
            # all its points. ``finish`` is not called now, because it would end the run there; the
            # backend that is opened next continues or replaces what this one has written.
            self._backend = None
            self._reader = RunReader(read_plan(self.run_dir), self.run_dir)
            self._next_try_s = self.clock() + RETRY_S
        else:
            self.fault = None

    def _send_new_points(self) -> None:
        """Hand the points of events that were written since the last call to the backend."""
        for points in self._reader.iterate_new():
            self._send_points(points)

    def _send_rest_and_result(self) -> None:
        """Hand the remaining points of a run that has ended to the backend, then its result."""
        self._send_new_points()
        rest = self._reader.take_rest()  # points of the last steps, which some ranks did not reach
        if rest:
            self._send_points(rest)
        # A run whose launcher wrote no event has nothing to hand over: no backend is opened.
        if self._reader.is_started:
            self._get_backend().finish(self._reader.read_result())
            self.is_complete = True

    def _send_points(self, points: list[Point]) -> None:
        """Hand points to the backend, which is opened before the first ones.

        Args:
            points: values of the run at one time each, such as the loss of a step.
        """
        self._get_backend().log(points)
        self.num_points += len(points)
        self.num_steps = self._reader.num_steps

    def _get_backend(self) -> Backend:
        """Return the backend, opened if it is not."""
        if self._backend is None:
            self._hold_lock()  # no other process may hand the run to the same target meanwhile
            self.num_points = 0  # a backend that is opened again gets all points again
            self._backend = self.open_backend(self._reader.describe_run(), self.target.destination)
        return self._backend

    def _hold_lock(self) -> None:
        """Lock the target, so that no other process hands the run to it at the same time."""
        if self._lock is not None:
            return
        # A destination may be a URL or a path, which have slashes. A file's name cannot have them,
        # so it has a digest.
        digest = blake2b(str(self.target).encode(), digest_size=6).hexdigest()
        path = self.run_dir / f".follow.{self.target.backend}.{digest}.lock"
        try:
            self._lock = path.open("wb")
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._release_lock()
            raise FollowedElsewhereError(
                "another process is already sending this run to the same destination"
            ) from None
        except OSError:
            return  # without a lock: the folder is read-only, or the file system has no locks

    def _release_lock(self) -> None:
        """Let other processes hand the run to the target; closing the file unlocks it."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None


@dataclass(slots=True)
class FollowedRuns:
    """Hands several runs to several backends, in this process.

    Args:
        folders: folders of the runs.
        targets: the backends, each with a destination; each gets all runs.
        wait: waits for some seconds between two polls of runs that are under way.
    """

    folders: Sequence[Path]
    targets: Sequence[FollowTarget]
    wait: Callable[[float], None] = time.sleep

    def iterate_done(self) -> Iterator[Following]:
        """Hand each run to each target; yield each such pair once the run has ended.

        The ``is_complete`` of a pair tells whether the whole run was handed over, and its ``fault``
        why it was not.
        """
        # Each target with the class of its backend: its program is imported once, and each
        # ``Following`` constructs the backend for its run.
        backends = [(target, load_backend(target)) for target in self.targets]
        waiting: list[Following] = []
        for folder in self.folders:
            for target, open_backend in backends:
                waiting.append(Following(folder, target, open_backend))
        while waiting:
            still_under_way: list[Following] = []
            for following in waiting:
                if following.is_under_way:
                    following.poll()
                    still_under_way.append(following)
                else:
                    following.finish()
                    yield following
            waiting = still_under_way
            if waiting:
                self.wait(POLL_S)  # sleeps, unless a caller gave another function


def shorten_fault(error: BaseException) -> str:
    """Return the error of a backend as one line of limited length."""
    # The line becomes a part of a sentence, so it has no period at its end.
    text = " ".join(str(error).split()).rstrip(".")
    name = type(error).__name__
    if len(text) > _MAX_FAULT_LENGTH:
        # Keep the beginning, and the end, where the reason often is.
        text = f"{text[: _MAX_FAULT_LENGTH // 2]} … {text[-_MAX_FAULT_LENGTH // 2 :]}"
    return f"{name}: {text}" if text else name
