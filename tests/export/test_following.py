"""Export of a run to a backend: faults, retries, and the end."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

import trainmark
from support.fake_backends import KeptRun, write_part
from support.fakes import WARMUP_WINDOW, FakeClock
from support.telemetry_files import make_ranks_with_devices, write_sampled_run
from trainmark.errors import RecordError, UsageError
from trainmark.export.followers import following as following_module
from trainmark.export.followers.following import RETRY_S, FollowedRuns, Following
from trainmark.export.followers.targets import FollowTarget
from trainmark.launch.run_dir import lock_folder
from trainmark.record import record, reduce

if TYPE_CHECKING:
    from pathlib import Path

TARGET = FollowTarget("wandb", "team/project")


class Seconds(FakeClock):
    """A clock that is called for its time in seconds, and moves only by ``pass_by``."""

    def __call__(self) -> float:
        return self.now_ns / 1e9

    def pass_by(self, seconds: float) -> None:
        """Move the clock forward."""
        self.advance(round(seconds * 1e9))


def make_followed_run(run_dir: Path, backend: KeptRun, clock: Any = None) -> Following:
    """Return what follows the run for the destination "team/project" (``TARGET``) of a backend.

    Args:
        run_dir: folder of the run.
        backend: keeps what it gets.
        clock: tells when a fault is old enough for another attempt; None: one that stands still.
    """
    return Following(run_dir, TARGET, backend.open, clock or Seconds())


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """Return a run of 16 steps on two ranks that has ended, with its record."""
    folder = write_sampled_run(tmp_path / "run", telemetry=None)
    record.write_record(reduce.reduce(folder), folder)
    return folder


def test_each_poll_exports_new_points_and_the_end_exports_the_result(tmp_path: Path) -> None:
    """A followed run is exported as its files grow, its result at the end.

    ``KeptRun`` is a backend that keeps what it gets; ``make_followed_run`` follows the run for it,
    with the destination "team/project". ``write_part`` copies the first lines of each event file.
    The events of a rank have a window of 1 step in line 7, of 2 in line 8 and of 13 in line 9: 16
    steps.
    """
    source = write_sampled_run(tmp_path / "source", telemetry=None)
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    (run_dir / "plan.json").write_bytes((source / "plan.json").read_bytes())
    backend = KeptRun()
    followed = make_followed_run(run_dir, backend)
    # Lines of each event file that are written so far, and steps that are complete then.
    for lines, steps in ((5, 0), (7, 1), (8, 3), (9, 16), (99, 16)):
        write_part(run_dir, source, lines)
        followed.poll()
        assert (len(backend.list_steps()), followed.num_steps) == (steps, steps)
    assert (backend.opened, backend.results, backend.destination) == (1, [], "team/project")
    record.write_record(reduce.reduce(run_dir), run_dir)
    followed.finish()
    (result,) = backend.results
    assert result is not None
    assert (result.status, result.num_steps) == ("passed", 16)
    assert (followed.fault, followed.is_complete, followed.num_points) == (
        None,
        True,
        16 + 1,  # steps and the evaluation
    )


def test_after_a_fault_the_run_is_exported_again_from_its_start(run_dir: Path) -> None:
    """After a fault a backend is opened again, but not before ``RETRY_S``, 10 s, have passed.

    ``KeptRun`` is a backend whose calls raise ``fault``, and which counts how often it was opened.
    ``Seconds`` is a clock that moves only by ``pass_by``.
    ``run_dir`` is a run of 16 steps that has ended.
    """
    backend, clock = KeptRun(fault=ConnectionError("refused.")), Seconds()
    followed = make_followed_run(run_dir, backend, clock)
    followed.poll()
    assert (followed.fault, backend.opened) == ("ConnectionError: refused", 0)
    backend.fault = None
    clock.pass_by(RETRY_S - 0.001)  # not yet time for another attempt
    followed.poll()
    assert (followed.fault, backend.opened) == ("ConnectionError: refused", 0)
    clock.pass_by(0.001)
    followed.poll()
    assert (followed.fault, backend.opened, backend.list_steps()) == (None, 1, list(range(1, 17)))
    # A fault at the very end leaves the export incomplete.
    backend.fault = OSError(28, "No space left on device")
    followed.finish()
    assert followed.fault == "OSError: [Errno 28] No space left on device"
    assert (followed.num_steps, followed.is_complete) == (16, False)


def test_end_of_a_run_is_exported_immediately_after_a_fault(run_dir: Path) -> None:
    # ``KeptRun`` is a backend that keeps what it gets; each call raises ``fault``, if there is one.
    # ``run_dir`` is a run of 16 steps that has ended. The usual pause after a fault is 10 s; the
    # clock of this test stands still.
    backend = KeptRun(fault=ValueError())
    followed = make_followed_run(run_dir, backend)
    followed.poll()
    assert followed.fault == "ValueError"
    backend.fault = None
    followed.finish()  # does not wait for the next attempt
    assert (followed.fault, followed.is_complete) == (None, True)
    assert (backend.list_steps(), len(backend.results)) == (list(range(1, 17)), 1)


def test_only_one_process_exports_a_run_to_a_target(run_dir: Path) -> None:
    # ``KeptRun`` is a backend that keeps what it gets, and counts how often it was opened;
    # ``make_followed_run`` follows the run for it. Both have the same destination, "team/project"
    # of W&B; a file in the run's folder is locked for it, as it would be by another process.
    first, second = KeptRun(), KeptRun()
    followed, other = make_followed_run(run_dir, first), make_followed_run(run_dir, second)
    followed.poll()
    other.poll()
    assert other.fault == (
        "FollowedElsewhereError: another process is already sending this run to the same "
        "destination"
    )
    assert second.opened == 0  # the target was not even opened
    followed.finish()
    other.finish()  # the first one has released it
    assert (other.fault, second.opened, len(second.results)) == (None, 1, 1)


def test_a_run_without_a_record_has_no_result(tmp_path: Path) -> None:
    # ``KeptRun`` is a backend that keeps what it gets, and counts how often it was opened;
    # ``make_followed_run`` follows the run for it. The run has all its events, but no record was
    # written, from which its result would be read: the result that the backend gets is None.
    backend = KeptRun()
    followed = make_followed_run(write_sampled_run(tmp_path / "run", telemetry=None), backend)
    followed.finish()
    assert (followed.fault, followed.is_complete, backend.results) == (None, True, [None])


def test_run_that_never_started_opens_no_target(tmp_path: Path) -> None:
    # ``KeptRun`` is a backend that keeps what it gets, and counts how often it was opened;
    # ``make_followed_run`` follows the run for it. Without the launcher's events the time of the
    # launch is not known.
    folder = write_sampled_run(tmp_path / "run", telemetry=None)
    (folder / "events.launcher.jsonl").unlink()  # the launcher had not begun
    backend = KeptRun()
    followed = make_followed_run(folder, backend)
    followed.finish()
    assert (backend.opened, followed.fault, followed.is_complete) == (0, None, False)


def test_running_runs_are_followed_until_they_end(
    tmp_path: Path, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that has ended is done first; one that is running, once it has ended.

    ``KeptRun`` is a backend that keeps what it gets, ``TARGET`` names a backend and its
    destination. ``run_dir`` is a run of 16 steps that has ended. ``rank[:WARMUP_WINDOW]`` are the
    events of a rank up to its warm-up; ``wait`` is called for each pause between two polls.
    """
    backend = KeptRun()
    monkeypatch.setattr(following_module, "load_backend", lambda _: backend.open)
    # A run whose events end before its warm-up, and the whole of it.
    live = write_sampled_run(
        tmp_path / "live",
        telemetry=None,
        ranks=[rank[:WARMUP_WINDOW] for rank in make_ranks_with_devices(2)],
    )
    finished_run = write_sampled_run(tmp_path / "whole", telemetry=None)
    waits_s: list[float] = []

    def wait(seconds: float) -> None:
        """Let the run end during the first pause between two polls."""
        waits_s.append(seconds)
        if len(waits_s) == 1:
            write_part(live, finished_run, lines=99)  # all lines: no file has so many
            record.write_record(reduce.reduce(live), live)

    with lock_folder(live):  # as the launcher of a run that is running
        followed_runs = list(FollowedRuns([live, run_dir], [TARGET], wait).iterate_done())
    assert [item.run_dir for item in followed_runs] == [run_dir, live]
    assert [item.num_steps for item in followed_runs] == [16, 16]
    assert len(waits_s) == 1  # it ended during the first pause


def test_job_is_running_until_all_nodes_have_ended(tmp_path: Path) -> None:
    # ``write_sampled_run`` writes a run of two ranks that its launcher started here and saw end; it
    # becomes a job of Slurm on two nodes with a rank each. A node's event "finished" is its end.
    # ``KeptRun`` is a backend that keeps what it gets.
    folder = write_sampled_run(tmp_path / "run", telemetry=None)
    path = folder / "plan.json"
    plan = json.loads(path.read_text()) | {"launcher": "slurm", "nnodes": 2, "nproc": 1}
    path.write_text(json.dumps(plan))
    followed = make_followed_run(folder, KeptRun())
    assert followed.is_under_way  # the launcher's end is only that of submitting the job
    for node, is_under_way in ((1, True), (0, False)):
        (folder / f"events.node{node}.jsonl").write_text('{"event":"finished","t_ns":1}\n')
        followed.poll()
        assert followed.is_under_way == is_under_way


def test_python_api_follows_a_run(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # ``run_dir``, a run of 16 steps, is in ``tmp_path``. ``KeptRun`` is a backend that keeps what
    # it gets; ``load_backend`` would load that of W&B.
    backend = KeptRun()
    monkeypatch.setattr(following_module, "load_backend", lambda _: backend.open)
    # The package of W&B need not be installed.
    monkeypatch.setattr("trainmark.api.following.require_backends", lambda *_, **__: None)
    # The runs of a folder and its subfolders.
    (done,) = trainmark.follow(tmp_path, to="wandb=team/project")
    assert (done.run_dir, done.num_steps, done.fault) == (run_dir, 16, None)
    with pytest.raises(RecordError, match="no run in this folder"):
        trainmark.follow(tmp_path / "nowhere", to=["wandb"])
    with pytest.raises(UsageError, match="unknown backend 'comet'"):
        trainmark.follow(run_dir, to="comet")
