"""Followers as processes: what they export, how they end, and the remarks about them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

import psutil
import pytest

from support.fake_backends import STAND_INS, write_part
from support.telemetry_files import write_sampled_run
from trainmark.export.followers import starting
from trainmark.export.followers.starting import MESSAGES, FollowerRemark, Followers
from trainmark.export.followers.targets import parse_targets
from trainmark.launch.processes import StopRequest
from trainmark.record import record, reduce

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

# A target for which the stand-in of W&B writes each call to ``stand_in_calls``.
RECORD_CALLS = "wandb=keep"


@pytest.fixture(autouse=True)
def stand_in_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put the stand-in for W&B first on the path; return the file of its recorded calls.

    ``STAND_INS`` is the folder with its module, which the processes of followers import.
    """
    monkeypatch.setenv("PYTHONPATH", str(STAND_INS), prepend=os.pathsep)
    calls = tmp_path / "calls.jsonl"
    monkeypatch.setenv("STAND_IN_CALLS", str(calls))
    return calls


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """Return a run of 16 steps that has ended, with its record."""
    folder = write_sampled_run(tmp_path / "run", telemetry=None)
    record.write_record(reduce.reduce(folder), folder)
    return folder


def follow_finished_run(
    run_dir: Path,
    *args: str,
    patience_s: float = 60.0,
    act: Callable[[psutil.Process], None] = lambda _: None,
) -> list[FollowerRemark]:
    """Follow a run that has ended; return the remarks about the followers.

    Args:
        run_dir: folder of the run.
        args: targets; the destinations ``keep``, ``refuse``, ``die`` and ``block`` say what the
            stand-in backend does.
        patience_s: how long a follower may take after the end of the run.
        act: is called with the process of each follower that is ready.
    """
    with Followers(run_dir, parse_targets(args), patience_s) as followers:
        followers.wait_until_ready(StopRequest())
        for child in list_followers():
            act(child)
    assert list_followers() == []
    return list(followers.iterate_remarks())


def list_followers() -> list[psutil.Process]:
    """Return the follower processes that this process has started and that still run."""
    followers = []
    for child in psutil.Process().children():
        with suppress(psutil.Error):  # it ended meanwhile
            if "trainmark.export.followers.process" in child.cmdline():
                followers.append(child)
    return followers


def list_steps(calls: Path) -> list[int]:
    """Return the steps that were exported, by the file of the stand-in's recorded calls."""
    documents = [json.loads(line) for line in calls.read_text().splitlines()]
    return [document["train/step"] for document in documents if "train/step" in document]


def test_successful_follower_exports_everything_without_a_remark(
    run_dir: Path, stand_in_calls: Path
) -> None:
    """``RECORD_CALLS``: a target for which the stand-in of W&B notes each call as a line of JSON.

    The run has 16 steps. ``stand_in_calls`` is the file with the calls.
    """
    assert follow_finished_run(run_dir, RECORD_CALLS) == []
    assert list_steps(stand_in_calls) == list(range(1, 17))
    last = json.loads(stand_in_calls.read_text().splitlines()[-1])
    assert (last["exit_code"], last["status"]) == (0, "passed")
    log = (run_dir / "log.follow.wandb.txt").read_text()
    # What the stand-in prints goes to a file, not to the terminal.
    assert "stands in the follower's log" in log


def test_steps_are_exported_during_the_run(
    tmp_path: Path, run_dir: Path, stand_in_calls: Path
) -> None:
    """``RECORD_CALLS``: a target for which the stand-in of W&B notes each call as a line of JSON.

    The events of ``run_dir``, a run of 16 steps that has ended, are written again into ``live``.
    """
    live = tmp_path / "live"
    os.mkfifo(stand_in_calls)  # a read of it waits for the follower
    with Followers(live, parse_targets([RECORD_CALLS]), patience_s=60.0) as followers:
        followers.wait_until_ready(StopRequest())
        live.mkdir()
        (live / "plan.json").write_bytes((run_dir / "plan.json").read_bytes())
        # The seventh line of a rank is its first window: one step, with a loss of 0.75.
        write_part(live, run_dir, lines=7)
        first = json.loads(stand_in_calls.read_text().splitlines()[0])
        assert (first["train/step"], first["train/loss"]) == (1, 0.75)
        stand_in_calls.unlink()  # the rest goes into a file
        write_part(live, run_dir, lines=99)  # all lines
    assert list(followers.iterate_remarks()) == []
    assert list_steps(stand_in_calls)[-1] == 16


@pytest.mark.parametrize(
    ("target", "code", "text"),
    [
        ("wandb=refuse", "failed", "ConnectionError: no server at example.org"),
        ("wandb=die", "ended", "exit code -9"),
    ],
)
def test_failed_follower_gives_one_remark(run_dir: Path, target: str, code: str, text: str) -> None:
    """A follower is a process that exports a run; its target names a stand-in for W&B.

    Of the stand-in, ``refuse`` raises a ConnectionError with this text, and ``die`` kills its
    own process with SIGKILL, signal 9. ``code`` and ``text`` are of the remark about it.
    ``run_dir`` is a run of 16 steps that has ended.
    """
    (remark,) = follow_finished_run(run_dir, target)
    assert (remark.message.code, remark.message.args["text"]) == (code, text)
    for lang in ("en", "zh"):  # both name the command that exports the run later
        assert f"trainmark follow {run_dir} --to {target}" in remark.render(lang)
    assert remark.render("en") == str(remark) != remark.render("zh")


def test_blocked_backend_is_abandoned_after_a_timeout(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stand-in for W&B called ``block`` never returns; ``patience_s`` is the timeout.

    It is short, half a second, because the test has to wait for it. ``run_dir`` is a run of 16
    steps that has ended.
    """
    # The follower ends itself; on a busy machine this may take longer than the usual 2 s, after
    # which it would be killed.
    monkeypatch.setattr(starting, "_KILL_PATIENCE_S", 600.0)
    (remark,) = follow_finished_run(run_dir, "wandb=block", patience_s=0.5)
    assert remark.message.code == "slow"
    assert remark.message.args["step"] == 0  # the last one that was exported: none


def test_suspended_follower_is_killed_after_a_timeout(run_dir: Path) -> None:
    """``patience_s``: how long a follower may take after the end of the run, which has ended.

    ``RECORD_CALLS`` is a target whose backend, a stand-in for W&B, would work. ``act`` is
    called with the process of the follower once that is ready. ``run_dir`` is a run of 16 steps
    that has ended.
    """
    # A suspended process ignores the request to end.
    (remark,) = follow_finished_run(
        run_dir, RECORD_CALLS, patience_s=0.0, act=lambda child: child.suspend()
    )
    assert remark.message.code == "killed"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signal_that_stops_the_launcher_does_not_interrupt_the_follower(
    run_dir: Path, stand_in_calls: Path, number: signal.Signals
) -> None:
    """Ctrl-C reaches the follower too, which must still export all 16 steps of the run.

    ``RECORD_CALLS``: a target for which the stand-in of W&B notes each call in ``stand_in_calls``.
    """
    remarks = follow_finished_run(
        run_dir, RECORD_CALLS, act=lambda child: child.send_signal(number)
    )
    assert remarks == []
    assert list_steps(stand_in_calls)[-1] == 16


def test_backend_that_cannot_be_imported_gives_one_remark(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The follower of the target ``wandb`` imports a module of this name; this one raises.

    ``run_dir`` is a run of 16 steps that has ended.
    """
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "wandb.py").write_text("raise RuntimeError('built for another Python')\n")
    monkeypatch.setenv("PYTHONPATH", str(broken))
    (remark,) = follow_finished_run(run_dir, "wandb")
    assert remark.message.code == "failed"
    assert remark.message.args["text"] == "RuntimeError: built for another Python"


def test_run_that_did_not_start_is_not_followed(tmp_path: Path) -> None:
    """A follower waits for the folder of its run, which here is never made.

    It ends with the launcher, without a remark. ``RECORD_CALLS`` is a target that would work.
    """
    assert follow_finished_run(tmp_path / "nothing", RECORD_CALLS) == []
    assert not (tmp_path / "nothing").exists()


def test_run_that_ends_before_the_follower_sees_it_is_exported(
    tmp_path: Path, run_dir: Path, stand_in_calls: Path
) -> None:
    """A follower looks for the run twice a second; this run begins and ends between two looks.

    ``run_dir`` is a run of 16 steps that has ended. The follower's process gets a stand-in for what
    waits for the end of the run: during the first wait it moves the whole run to its place.
    ``RECORD_CALLS``: a target for which the stand-in of W&B notes each call in ``stand_in_calls``.
    """
    code = (
        "import sys; from pathlib import Path\n"
        "from trainmark.export.followers import process\n"
        "from trainmark.export.followers.targets import parse_targets\n"
        "source, run_dir = Path(sys.argv[1]), Path(sys.argv[2])\n"
        "class ShortRun:\n"
        "    def __init__(self):\n"
        "        self.event = self\n"
        "    def wait(self, _seconds=None):\n"
        "        if source.exists():\n"
        "            source.rename(run_dir)\n"
        "        return True\n"  # the run has ended
        "process._RunEnd = ShortRun\n"
        # 60 s: how long it may take after the end of the run.
        "process.follow_process(run_dir, parse_targets([sys.argv[3]])[0], 60.0)\n"
    )
    output = subprocess.check_output(
        [sys.executable, "-c", code, str(run_dir), str(tmp_path / "short"), RECORD_CALLS]
    )
    # Code None: nothing of the run is missing, so that the launcher says nothing.
    assert [json.loads(line) for line in output.splitlines()] == [{"ready": True}, {"code": None}]
    assert list_steps(stand_in_calls)[-1] == 16


class SilentFollowers:
    """Stands for ``select`` and ``time`` of the module of followers; its followers print nothing.

    Args:
        stop: gets a signal at the second 1.0 of this clock.
    """

    def __init__(self, stop: StopRequest) -> None:
        """Begin at 0 s; only ``select`` moves this clock."""
        self._stop = stop
        self.now_s = 0.0

    def monotonic(self) -> float:
        """Return the seconds that ``select`` has waited so far."""
        return self.now_s

    def select(self, _read: object, _write: object, _error: object, wait_s: float) -> object:
        """Let ``wait_s`` seconds pass, in which no follower prints anything."""
        self.now_s += wait_s
        if self.now_s >= 1.0:
            self._stop.signal_name = "SIGTERM"
        return [], [], []


def test_stop_signal_ends_the_wait_for_followers(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wait is for the import of a backend, which may take 30 s; a signal is noted after 1 s.

    ``SilentFollowers`` is a clock and a ``select`` whose followers print nothing; it gives
    ``stop`` the signal at 1 s of this clock. ``run_dir`` is a run of 16 steps that has ended.
    """
    stop = StopRequest()
    silent = SilentFollowers(stop)
    with Followers(run_dir, parse_targets([RECORD_CALLS]), patience_s=60.0) as followers:
        with monkeypatch.context() as patched:
            patched.setattr(starting, "select", silent)
            patched.setattr(starting, "time", silent)
            followers.wait_until_ready(stop)
        # A signal is looked for five times a second.
        assert silent.now_s == pytest.approx(1.0)


def test_follower_ends_if_its_launcher_is_killed(run_dir: Path, stand_in_calls: Path) -> None:
    # ``run_dir`` is a run of 16 steps that has ended. ``RECORD_CALLS`` is a target for which the
    # stand-in of W&B notes each call in the file ``stand_in_calls``.
    # A launcher that starts a follower, prints the follower's process id and sleeps.
    code = (
        "import sys, time; from pathlib import Path\n"
        "from trainmark.export.followers.starting import Followers\n"
        "from trainmark.export.followers.targets import parse_targets\n"
        "followers = Followers(Path(sys.argv[1]), parse_targets([sys.argv[2]])).__enter__()\n"
        "print(followers._followers[0].process.pid, flush=True); time.sleep(3600)\n"
    )
    launcher = subprocess.Popen(
        [sys.executable, "-c", code, str(run_dir), RECORD_CALLS],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert launcher.stdout is not None
    follower = psutil.Process(int(launcher.stdout.readline()))
    launcher.kill()
    launcher.communicate()
    psutil.wait_procs([follower])
    assert not follower.is_running()
    assert list_steps(stand_in_calls)[-1] == 16  # it exported what there was


def test_every_remark_has_both_languages() -> None:
    """``MESSAGES`` has what may be said about a follower, by code, in English and Chinese."""
    assert set(MESSAGES) == {"failed", "slow", "ended", "killed"}
    assert all(text.zh and text.zh != text.en for text in MESSAGES.values())
