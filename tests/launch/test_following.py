"""Following a job that this or another process submitted."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from trainmark.errors import EnvironmentFault, LostRunError, RecordError
from trainmark.launch import job_watch, launchers, run_dir, submission
from trainmark.launch.cluster import Cluster
from trainmark.launch.launchers import EngineCommand, EngineJob, JobState, Launcher
from trainmark.launch.processes import StopRequest
from trainmark.launch.run_dir import LOCK_FILE
from trainmark.plan.choosing import RemoteTarget
from trainmark.plan.request import RunRequest
from trainmark.plan.resolving import resolve
from trainmark.record.verify import verify_evidence

if TYPE_CHECKING:
    from collections.abc import Callable

    from trainmark.launch.job_spec import JobSpec
    from trainmark.plan.plan import Plan


class Held(Launcher):
    """An engine whose job runs until it is cancelled, and whose nodes' files cannot be copied.

    Args:
        stays: the job goes on although it was cancelled.
        answers: whether the engine answers after the first question for the job's state.
    """

    def __init__(self, *, stays: bool = False, answers: bool = True) -> None:
        """Store what the class describes."""
        self.stays, self.answers = stays, answers
        self.num_questions = 0  # for the state of the job

    def check(self, spec: JobSpec, cluster: Cluster) -> None:
        """Check nothing."""

    def build_command(self, spec: JobSpec, cluster: Cluster) -> EngineCommand:
        """Return a command that submits nothing: what the job does is up to ``read_state``."""
        return EngineCommand(argv=("true",), files={})

    def read_state(self, job: EngineJob) -> JobState:
        """Return that the job runs, or that it was cancelled, unless it stays.

        An engine that does not answer raises an error at every question but the first.
        """
        self.num_questions += 1
        if self.num_questions > 1 and not self.answers:
            raise EnvironmentFault("no controller")
        if job.num_cancels and not self.stays:
            return JobState(phase="lost", description="CANCELLED")
        return JobState(phase="running", description="RUNNING")

    def cancel(self, job: EngineJob) -> None:
        """Raise if the engine does not answer; the caller counts the cancels in ``job``."""
        if not self.answers:
            raise EnvironmentFault("no controller")

    def collect(self, job: EngineJob) -> None:
        """Fail to copy the files of the nodes."""
        raise EnvironmentFault("no host\x1b[2J")  # a text that would clear the terminal


class SleepClock:
    """Stands for the module ``time``: its clock shows the seconds that were slept so far."""

    def __init__(self) -> None:
        """Begin at 0 s."""
        self._now_s = 0.0

    def monotonic(self) -> float:
        """Return the seconds that were slept so far."""
        return self._now_s

    def sleep(self, seconds: float) -> None:
        """Return at once; only the clock moves."""
        self._now_s += seconds


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    """Return the plan of a run on two nodes, whose folder is prepared as before a submission."""
    resolved = resolve(
        RunRequest(case="toy", device="cpu", nnodes=2, nproc=1, out=tmp_path / "run"),
        generated_root=tmp_path,
        remote=RemoteTarget(launcher="slurm"),
    )
    (tmp_path / "run").mkdir()
    run_dir.begin_run(resolved, tmp_path / "run", {}).close()
    return resolved


@pytest.fixture
def use_engine(monkeypatch: pytest.MonkeyPatch) -> Callable[[Held], None]:
    """Return a function that replaces every launcher by a given engine.

    The engine is asked for the job's state every 10 ms, so that a test is quick.
    """

    def use(engine: Held) -> None:
        """Let every launcher be this engine, and ask for the job's state every 10 ms."""
        monkeypatch.setattr(launchers, "load_launcher", lambda _: engine)
        monkeypatch.setattr(job_watch, "_POLL_S", 0.01)
        monkeypatch.setattr(Held, "poll_s", 0.01)

    return use


def test_a_signal_cancels_the_job_and_leaves_a_record(
    plan: Plan, use_engine: Callable[[Held], None], capsys: pytest.CaptureFixture[str]
) -> None:
    """``Held`` is an engine whose job runs until it is cancelled.

    ``follow`` calls its last argument with each new description of the job's state.
    ``use_engine`` puts an engine in the place of every launcher.
    """
    use_engine(Held())
    job, stop = EngineJob(submission.describe_job(plan), Cluster()), StopRequest()

    def stop_after_message(message: str) -> None:
        """While the job runs, try to follow it a second time; then send the signal."""
        if message != "RUNNING":
            return
        with pytest.raises(RecordError, match="another process is already following"):
            submission.follow(job, StopRequest())
        stop.signal_name = "SIGINT"

    record = submission.follow(job, stop, stop_after_message)
    assert job.num_cancels == 1
    assert (record.status, record.cause.kind) == ("interrupted", "signal")
    assert verify_evidence(record, Path(plan.run_dir)) == []
    # ``Held`` fails to copy files, with this text; control characters in it are escaped.
    assert r"files of nodes are missing: no host\u001b[2J" in capsys.readouterr().err


@pytest.mark.parametrize("answers", [True, False])
def test_job_that_does_not_end_is_abandoned_after_its_time_limit(
    plan: Plan, use_engine: Callable[[Held], None], monkeypatch: pytest.MonkeyPatch, answers: bool
) -> None:
    """A job of at most 60 s is cancelled after these and 300 s of grace, and again every 30 s.

    It is abandoned 90 s after the first time. ``Held`` is an engine whose job runs until it is
    cancelled, or longer if it ``stays``. ``SleepClock`` shows the seconds that were slept so
    far; the job's state is asked for every second (``_POLL_S``). ``use_engine`` puts an engine in
    the place of every launcher.
    """
    # The job goes on although it is cancelled; an engine that does not answer cannot cancel it.
    use_engine(Held(stays=True, answers=answers))
    clock = SleepClock()
    monkeypatch.setattr(job_watch, "time", clock)
    monkeypatch.setattr(job_watch, "_POLL_S", 1.0)
    short = plan.model_copy(update={"recipe": plan.recipe | {"timeout_s": 60.0}})
    job, messages = EngineJob(submission.describe_job(short), Cluster()), list[str]()
    assert submission.follow(job, StopRequest(), messages.append).status == "timed_out"
    # The limit is exceeded at 361 s; the cancels are then, and 30 and 60 s later.
    assert job.num_cancels == 3
    assert clock.monotonic() == 361 + 90
    assert messages[-1] == ("RUNNING" if answers else "no controller")


def test_deleted_run_directory_is_reported_after_the_job_was_cancelled(
    plan: Plan, use_engine: Callable[[Held], None]
) -> None:
    # ``Held`` is an engine whose job runs until it is cancelled; ``follow`` calls its last argument
    # with each new description of the job's state.
    use_engine(Held())
    job, stop = EngineJob(submission.describe_job(plan), Cluster()), StopRequest()

    def delete_folder(message: str) -> None:
        """While the job runs, delete its folder and send a signal, on which it is cancelled."""
        if message == "RUNNING":
            shutil.rmtree(plan.run_dir, ignore_errors=True)
            stop.signal_name = "SIGINT"

    with pytest.raises(LostRunError, match="the record cannot be written"):
        submission.follow(job, stop, delete_folder)
    assert job.num_cancels == 1


def test_failed_job_whose_log_was_deleted_has_ended(plan: Plan) -> None:
    # The words of the log, which usually tell why a command failed, are missing then.
    command = EngineCommand(argv=("sh", "-c", "rm log.job.txt; exit 3"), files={})
    job = launchers.start_job(command, submission.describe_job(plan), Cluster())
    assert job.process is not None
    assert job.process.wait() == 3
    # The state as any launcher reads it, which ``Held`` replaces.
    assert Launcher.read_state(Held(), job) == JobState(phase="ended")


def test_job_whose_files_cannot_be_written_begins_no_run(
    plan: Plan, use_engine: Callable[[Held], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A file in a folder that is missing stands for any file that the disk does not take.

    ``Held`` is an engine, whose command here has such a file, after one that is written.
    ``use_engine`` puts an engine in the place of every launcher.
    """
    new_plan = plan.model_copy(update={"run_dir": str(tmp_path / "new")})
    use_engine(Held())
    command = EngineCommand(argv=("true",), files={"job.sh": "", "missing/job.sh": ""})
    monkeypatch.setattr(Held, "build_command", lambda *_: command)
    monkeypatch.setattr(submission, "require_launcher", lambda *_: Held())
    with pytest.raises(EnvironmentFault, match="cannot write to this folder"):
        submission.prepare_job(new_plan, Cluster())
    # No run has begun, and its folder can be used again.
    assert [path.name for path in (tmp_path / "new").iterdir()] == [LOCK_FILE]


def test_submitting_command_saves_the_job_id(plan: Plan) -> None:
    """The output of a command that submits, here 7, is the id of its job, for ``job.id``.

    ``cp`` in the same command copies that file, which therefore exists already. A command that
    fails is an error with the text that it printed.
    """
    # Its id is saved while the command still runs: this process may be killed before it ends.
    text = "echo 7; cp job.id seen"
    spec = submission.describe_job(plan)
    launchers.start_job(
        EngineCommand(argv=("sh", "-c", text), files={}, submits=True), spec, Cluster()
    )
    assert (Path(plan.run_dir) / "seen").read_text() == "7\n"

    refused = EngineCommand(
        argv=("sh", "-c", "echo no such queue >&2; exit 3"), files={}, submits=True
    )
    with pytest.raises(EnvironmentFault, match="no such queue"):
        launchers.start_job(refused, spec, Cluster())
