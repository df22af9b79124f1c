"""Wait for the end of an engine's job: ask the engine for its state, and cancel it."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING

from trainmark.errors import EnvironmentFault
from trainmark.launch.launchers import JobState

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainmark.launch.launchers import EngineJob, Launcher

_POLL_S = 1.0  # between two states that a caller gets
_CANCEL_PATIENCE_S = 90.0  # from the first cancel until a job that ignores it is left alone
_CANCEL_INTERVAL_S = 30.0  # a second cancel may use more force, as in ``Slurm.cancel``


class JobWatch:
    """Waits for the end of a job; cancels it if its caller asks for that.

    The caller decides why the job is cancelled, and what is shown and written meanwhile::

        watch = JobWatch(launcher, job)
        for state in watch.iterate_states():
            ...
            if must_end:
                watch.cancel()

    Args:
        launcher: asks the engine for the job's state, and cancels the job.

    Attributes:
        state: what the engine said last; until it has answered, that the job was submitted. While
            it does not answer, the description says why, and the phase stays as it was.
        is_state_new: whether the engine answered just before the latest iteration. An older state
            may be up to ``launcher.poll_s`` seconds old, or more if the engine does not answer.
    """

    def __init__(self, launcher: Launcher, job: EngineJob) -> None:
        self.state = JobState(phase="waiting", description="submitted")
        self.is_state_new = False
        self._launcher = launcher
        self._job = job
        # All times are seconds of the monotonic clock.
        self._answered_at_s = time.monotonic()  # when the engine last answered; at first, now
        self._next_query_at_s = -inf  # when the engine is next asked for the job's state
        self._running_since_s: float | None = None  # None: the job has not begun to run
        # Both are set when the job is to be cancelled.
        self._next_cancel_at_s = inf  # moves on with each cancel, until the job ends
        self._give_up_at_s = inf  # end of the wait for a job that ignores being cancelled

    @property
    def running_s(self) -> float:
        """For how many seconds the job has been running; the time in a queue does not count.

        It is known only since this watch has seen the job run.
        """
        if self._running_since_s is None:
            return 0.0
        return time.monotonic() - self._running_since_s

    @property
    def silent_s(self) -> float:
        """Seconds since the engine last answered; if it never has, since this watch was made."""
        return time.monotonic() - self._answered_at_s

    def iterate_states(self) -> Iterator[JobState]:
        """Yield the job's state about once a second; the last one is that it ended or was lost.

        The states end earlier if the job has ignored being cancelled for too long.

        Raises:
            RecordError: the run directory does not name the job.
        """
        while True:
            self._update_state()
            yield self.state
            if self.state.phase in ("ended", "lost"):
                return
            if time.monotonic() >= self._give_up_at_s:
                return
            self._cancel_if_due()
            time.sleep(_POLL_S)

    def cancel(self) -> None:
        """Let the job be cancelled, now and repeatedly until it ends; further calls do nothing."""
        if self._give_up_at_s == inf:
            self._next_cancel_at_s = time.monotonic()
            self._give_up_at_s = self._next_cancel_at_s + _CANCEL_PATIENCE_S

    def _update_state(self) -> None:
        """Query the job's state if that is due; keep its phase if the engine does not answer."""
        now_s = time.monotonic()
        self.is_state_new = False
        if now_s < self._next_query_at_s:
            return
        self._next_query_at_s = now_s + self._launcher.poll_s
        try:
            self.state = self._launcher.read_state(self._job)
            self.is_state_new = True
            self._answered_at_s = now_s
        except EnvironmentFault as fault:
            # An engine that does not answer has not ended the job.
            self.state = replace(self.state, description=fault.what)
        if self.state.phase == "waiting":
            self._running_since_s = None
        elif self._running_since_s is None:
            self._running_since_s = now_s

    def _cancel_if_due(self) -> None:
        """Cancel the job if its caller asked for that and the last cancel is long enough ago.

        Until the caller asks, by ``cancel``, the time of the next cancel is infinite.
        """
        now_s = time.monotonic()
        if now_s < self._next_cancel_at_s:
            return
        self._next_cancel_at_s = now_s + _CANCEL_INTERVAL_S
        self._next_query_at_s = now_s  # the next state shows whether the job has ended
        self._job.num_cancels += 1  # Slurm's launcher kills the job from the second attempt on
        # If the engine does not answer, the job goes on, and is cancelled again.
        with suppress(EnvironmentFault):
            self._launcher.cancel(self._job)
