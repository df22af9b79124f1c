"""Real runs with followers: whatever becomes of these, the run is the same."""

from __future__ import annotations

import json
import os
import signal

import psutil
import pytest

from support.fake_backends import STAND_INS
from support.real_runs import read_checked_record, wait_for_end, wait_for_fault
from support.telemetry_files import write_sampled_run
from trainmark.record.messages import render


@pytest.fixture
def wandb_calls(tmp_path, monkeypatch):
    """Put the stand-in for W&B first on the path; return the file of its recorded calls.

    Followers are processes of their own, so that they import the stand-in from ``STAND_INS``, which
    writes its calls to the file in ``STAND_IN_CALLS``.
    """
    monkeypatch.setenv("PYTHONPATH", str(STAND_INS))
    path = tmp_path / "calls.jsonl"
    monkeypatch.setenv("STAND_IN_CALLS", str(path))
    return path


def read_calls(calls_file):
    """Return the calls that a stand-in recorded."""
    return [json.loads(line) for line in calls_file.read_text().splitlines()]


def find_followers(run_dir):
    """Return the living followers of a run."""
    followers = []
    for process in psutil.process_iter(["cmdline"]):
        args = process.info["cmdline"] or []
        if str(run_dir) in args and "trainmark.export.followers.process" in args:
            followers.append(process)
    return followers


def test_failed_followers_change_nothing_and_give_one_remark_each(start_run, wandb_calls):
    """The stand-in for W&B acts by the target, ``wandb=…``; ``wandb_calls`` has its recorded calls.

    A remark about a follower names the command ``trainmark follow``, which exports the run
    later. ``start_run`` starts ``trainmark run`` with these words, of the case ``faulty``
    unless another is named, and returns the process and the folder of the run.
    """
    # Three followers: one that works, one whose server refuses, one whose process dies.
    args = ("wandb=keep", "wandb=refuse", "wandb=die")
    process, run_dir = start_run(*(f"--follow={word}" for word in args), "--lang", "zh", "--quiet")
    code, out, err = wait_for_end(process)
    record = read_checked_record(run_dir)
    # A record that is read has not been compared with its evidence yet.
    assert (code, record.status, record.verification) == (0, "passed", "unverified"), out + err
    remarks = [line for line in err.splitlines() if "trainmark follow" in line]
    assert len(remarks) == 2
    assert remarks[0].startswith("trainmark: wandb=refuse：ConnectionError: no server")
    assert remarks[1].startswith("trainmark: wandb=die：")
    assert find_followers(run_dir) == []
    steps = [call for call in read_calls(wandb_calls) if "train/step" in call]
    assert [call["train/loss"] for call in steps] == record.steps.loss
    assert [call["train/step"] for call in steps] == list(range(1, record.counts.steps + 1))
    assert read_calls(wandb_calls)[-1]["final/p_core_samples_per_s"] == record.figure("p_core")
    # The faults of followers are no findings about the run.
    assert not any("--follow" in str(render(finding, "en")) for finding in record.findings)


def test_a_follower_that_is_killed_does_not_change_the_run(start_run, wandb_calls, fifo):
    """``fifo``: the pipe to which the rank writes at its fault; then it waits to read ``go``.

    ``wandb_calls`` lets the follower import the stand-in for W&B. A process that signal 9,
    SIGKILL, ended has the exit code -9. ``start_run`` starts ``trainmark run`` with these
    words, of the case ``faulty`` unless another is named, and returns the process and the
    folder of the run.
    """
    # The rank waits in a step, so that the run lasts until the follower is dead.
    process, run_dir = start_run("fault=hold", "--follow", "wandb=keep")
    wait_for_fault(fifo)
    (follower,) = find_followers(run_dir)
    follower.send_signal(signal.SIGKILL)
    (fifo.parent / "go").write_text("go")  # let the rank train on
    code, out, err = wait_for_end(process)
    assert (code, read_checked_record(run_dir).status) == (0, "passed"), out + err
    assert "wandb=keep: the follower process ended before the run did (exit code -9)" in err


def test_followers_end_with_a_run_that_is_stopped(start_run, wandb_calls, fifo):
    """The rank waits in a step (``fault=wait``), so that the signal comes during training.

    The follower exports to the stand-in for W&B, whose calls are in the file ``wandb_calls``.
    ``start_run`` starts ``trainmark run`` with these words, of the case ``faulty`` unless
    another is named, and returns the process and the folder of the run.
    """
    process, run_dir = start_run("fault=wait", "--follow", "wandb=keep")
    wait_for_fault(fifo)
    for pid in (process.pid, *(follower.pid for follower in find_followers(run_dir))):
        os.kill(pid, signal.SIGINT)  # as Ctrl-C does
    code, out, err = wait_for_end(process)
    record = read_checked_record(run_dir)
    assert (code, record.status) == (1, "interrupted"), out + err
    assert "trainmark follow" not in err  # no remark about a fault
    assert find_followers(run_dir) == []
    calls = read_calls(wandb_calls)
    assert (calls[-1]["exit_code"], calls[-1]["status"]) == (1, "interrupted")
    assert [call["train/loss"] for call in calls if "train/step" in call] == record.steps.loss


def test_follow_prints_json_alone_on_standard_output(trainmark, tmp_path, wandb_calls):
    """The stand-in for W&B takes the points of the target ``keep``, and refuses ``refuse``."""
    run_dir = write_sampled_run(tmp_path / "run", telemetry=None)
    process = trainmark("follow", "run", "--to", "wandb=keep", "--to", "wandb=refuse", "--json")
    (kept_run, refused) = json.loads(process.stdout)
    assert process.returncode == 1
    assert kept_run == {
        "run_dir": "run",
        "to": "wandb=keep",
        "steps": 16,
        "points": 17,  # of 16 steps and an evaluation; telemetry would add more
        "complete": True,
        "fault": None,
    }
    assert (refused["complete"], refused["fault"]) == (
        False,
        "ConnectionError: no server at example.org",
    )
    # What the stand-in prints to standard output, which must have the document alone.
    assert "this text of a backend's program" in process.stderr
    assert (run_dir / "record.json").exists()  # written when the run was read
