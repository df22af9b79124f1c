"""Following a job that this or another process submitted."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from trainmark.errors import EnvironmentFault
from trainmark.launch import run_dir, submission
from trainmark.launch.contract import Command, JobState
from trainmark.launch.stopping import StopRequest
from trainmark.plan.capabilities import Elsewhere
from trainmark.plan.request import RunRequest
from trainmark.plan.resolving import resolve
from trainmark.record.verify import verify

if TYPE_CHECKING:
    from trainmark.plan.plan import Plan


@dataclass
class HeldJob:
    """A job that runs until it is cancelled."""

    id: str = "7"
    cancelled: threading.Event = field(default_factory=threading.Event)
    cancels: int = 0

    def state(self) -> JobState:
        if self.cancelled.is_set():
            return JobState(phase="ended", said="CANCELLED", ending="cancelled")
        return JobState(phase="running", said="RUNNING")

    def cancel(self) -> None:
        self.cancels += 1
        self.cancelled.set()

    def collect(self) -> None:
        """No node has files."""


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    found = resolve(
        RunRequest(case="toy", device="cpu", nnodes=2, nproc=1, out=tmp_path / "run"),
        generated_root=tmp_path, elsewhere=Elsewhere(launcher="slurm"),
    )  # fmt: skip
    (tmp_path / "run").mkdir()
    run_dir.begin(found, tmp_path / "run", {}).close()
    return found


def test_two_that_follow_a_run_leave_one_record_that_holds(
    plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(submission, "_POLL_S", 0.01)
    monkeypatch.setattr(run_dir, "_LOCK_POLL_S", 0.01)
    job, records, follows = HeldJob(), [], threading.Event()

    def first() -> None:
        records.append(submission.follow(plan, job, StopRequest(), lambda _: follows.set()))

    other = threading.Thread(target=first)
    other.start()
    assert follows.wait(60)
    said: list[str] = []
    records.append(submission.follow(plan, job, StopRequest("SIGINT"), said.append))
    other.join(60)
    assert said[0] == "another process follows it"
    assert job.cancels >= 1
    assert records[0].model_dump() == records[1].model_dump()
    assert records[0].status == "interrupted"
    assert verify(records[0], Path(plan.run_dir)) == []


def test_the_id_of_a_job_is_kept_by_the_command_itself(tmp_path: Path) -> None:
    text = "echo 7; cp job.id seen"  # as if this process were killed before the command ended
    command = Command(argv=("sh", "-c", text), prints_job=True)
    assert submission.submit(command, tmp_path) == "7\n"
    assert (tmp_path / "seen").read_text() == "7\n"
    with pytest.raises(EnvironmentFault, match="no such queue"):
        submission.submit(Command(argv=("sh", "-c", "echo no such queue; exit 3")), tmp_path)
