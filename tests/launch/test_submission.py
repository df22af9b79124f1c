"""How a submitted job is watched and ended."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from trainmark.launch.contract import JobState
from trainmark.launch.stopping import StopRequest
from trainmark.launch.submission import _Watch

RUNNING = JobState(phase="running", said="RUNNING")
PLAN: Any = SimpleNamespace(recipe={"timeout_s": 60})


@dataclass
class Scripted:
    """A job with given states; the last one stays."""

    states: list[JobState]
    cancelled: int = 0
    id: str = "1"
    asked: list[JobState] = field(default_factory=list)

    def state(self) -> JobState:
        return self.states.pop(0) if len(self.states) > 1 else self.states[0]

    def cancel(self) -> None:
        self.cancelled += 1

    def collect(self) -> None:
        """Nothing to fetch."""


def test_a_job_that_ends_is_not_cancelled() -> None:
    done = JobState(phase="ended", said="COMPLETED", ending="completed")
    job = Scripted([JobState(phase="waiting"), RUNNING, done])
    watch = _Watch(PLAN, job, StopRequest())
    assert [watch.over(now_s) for now_s in (0.0, 1.0, 2.0, 3.0)] == [False, False, False, True]
    assert (watch.state, watch.stop, job.cancelled) == (done, None, 0)


def test_a_signal_cancels_again_until_patience_ends() -> None:
    job, request = Scripted([RUNNING]), StopRequest()
    watch = _Watch(PLAN, job, request)
    assert not watch.over(0.0)
    request.signal_name = "SIGTERM"
    told = [(watch.over(float(now_s)), job.cancelled) for now_s in (1, 2, 31, 61, 91, 92)]
    assert told == [(False, 1), (False, 1), (False, 2), (False, 3), (False, 4), (True, 4)]
    assert watch.stop == {"reason": "signal", "signal": "SIGTERM"}


def test_the_nodes_own_time_limit_has_grace_and_waiting_does_not_count() -> None:
    job = Scripted([JobState(phase="waiting"), RUNNING])
    watch = _Watch(PLAN, job, StopRequest())
    assert [watch.over(now_s) for now_s in (0.0, 10_000.0, 10_360.0)] == [False] * 3
    assert (watch.stop, job.cancelled) == (None, 0)
    assert not watch.over(10_361.0)
    assert (watch.stop, job.cancelled) == ({"reason": "timeout", "timeout_s": 60.0}, 1)
