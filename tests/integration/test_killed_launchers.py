"""Kill launcher, keeper or both: a record is left, or can be made; no process survives."""

from __future__ import annotations

import json
import signal

import psutil

from real_runs import checked, ended, keeper_of, kill_both, wait_for_fault


def test_launcher_killed(started, fifo):
    process, run_dir = started("--nproc", "2", "fault=wait")
    wait_for_fault(fifo)
    process.kill()
    code, _, _ = ended(process)
    record = checked(run_dir)
    assert code == -signal.SIGKILL
    assert record.status == "interrupted"
    assert record.cause.kind == "launcher_killed"
    assert record.counts.steps == 14


def test_keeper_killed_then_launcher(started, fifo):
    """The launcher replaces a dead keeper, so that one of the two is always there."""
    process, run_dir = started("fault=wait")
    rank_pid = wait_for_fault(fifo)
    first = keeper_of(process)
    first.kill()
    first.wait()
    rank = psutil.Process(rank_pid)
    while not any(
        "keeper" in " ".join(child.cmdline())
        for child in psutil.Process(process.pid).children()
        if child.pid != first.pid
    ):
        rank.status()  # raises once the rank is gone: nothing replaced the keeper
    process.kill()
    ended(process)
    record = checked(run_dir)
    assert (record.status, record.cause.kind) == ("interrupted", "launcher_killed")


def test_a_stopped_keeper_holds_nobody_up(started, fifo):
    process, run_dir = started("fault=wait")
    wait_for_fault(fifo)
    keeper_of(process).suspend()
    process.send_signal(signal.SIGINT)
    code, _, _ = ended(process)
    assert code == 1
    assert checked(run_dir).status == "interrupted"


def test_keeper_and_launcher_killed_together(started, fifo, trainmark):
    process, run_dir = started("--nproc", "2", "fault=wait")
    wait_for_fault(fifo)
    running = trainmark("record", str(run_dir))
    assert running.returncode == 2
    assert "still running" in running.stderr
    kill_both(process)
    ended(process)
    assert not (run_dir / "record.json").exists()
    done = trainmark("record", str(run_dir))
    assert done.returncode == 1, done.stderr
    record = checked(run_dir)
    assert (record.status, record.cause.kind) == ("interrupted", "launcher_killed")
    assert record.counts.steps == 14
    assert (run_dir / "page.html").exists()
    assert "INTERRUPTED" in done.stdout
    again = trainmark("record", str(run_dir))
    assert again.returncode == 2
    assert "the record exists already" in again.stderr


def test_a_series_whose_keeper_and_launcher_were_killed_together(started, fifo, trainmark):
    process, run_dir = started("--repeat", "3", "fault=hold")
    wait_for_fault(fifo)
    fifo.with_name("go").write_text("on")
    wait_for_fault(fifo)
    kill_both(process)
    ended(process)
    done = trainmark("record", str(run_dir), "--json")
    assert done.returncode == 1, done.stderr
    assert [one["status"] for one in json.loads(done.stdout)] == ["passed", "interrupted"]
    assert checked(run_dir / "r2").cause.kind == "launcher_killed"
    assert len(json.loads((run_dir / "repeats.json").read_text())["run_ids"]) == 2
    assert (run_dir / "page.html").exists()
    assert trainmark("record", str(run_dir)).returncode == 2
