"""A rank that fails, hangs or trains nothing of use: its record says how."""

from __future__ import annotations

import os
import signal

from real_runs import checked, ended, wait_for_fault
from trainmark.spec import message


def test_rank_that_raises(started):
    process, run_dir = started("--nproc", "2", "fault=raise", "fault_rank=1")
    code, out, _ = ended(process)
    record = checked(run_dir)
    assert code == 1
    assert record.status == "failed"
    assert record.cause.kind == "error"
    assert record.cause.rank == 1
    assert record.cause.place == "train"
    assert record.cause.type == "ValueError"
    assert "row 17 of the data is upside down" in str(record.cause.message.args["text"])
    assert "upside down" in out
    assert record.ranks[1].steps == 14


def test_rank_that_raises_and_leaves_a_child(started):
    process, run_dir = started("fault=leave_child")
    code, _, _ = ended(process)
    record = checked(run_dir)
    assert (code, record.status) == (1, "failed")
    assert (record.cause.kind, record.cause.type) == ("error", "ValueError")


def test_an_evaluation_that_raises(started):
    process, run_dir = started("fault=raise_in_evaluation")
    code, _, _ = ended(process)
    record = checked(run_dir)
    assert (code, record.status) == (1, "failed")
    assert (record.cause.kind, record.cause.place) == ("error", "evaluate")


def test_rank_killed(started, fifo):
    process, run_dir = started("--nproc", "2", "fault=wait", "fault_rank=1")
    rank_pid = wait_for_fault(fifo)
    os.kill(rank_pid, signal.SIGKILL)
    code, _, _ = ended(process)
    record = checked(run_dir)
    assert code == 1
    assert record.status == "failed"
    assert (record.cause.kind, record.cause.signal, record.cause.rank) == ("signal", "SIGKILL", 1)


def test_loss_becomes_nan(started):
    process, run_dir = started("fault=nan")
    code, _, _ = ended(process)
    record = checked(run_dir)
    assert code == 1
    assert record.status == "diverged"
    assert record.cause.message == message("loss_not_finite", value="nan", step=15)
    # The window with the bad step is kept, the step's loss as null.
    assert record.steps.loss[14] is None
    assert record.counts.steps == len(record.steps.loss)


def test_divergence_for_real(started):
    process, run_dir = started("lr=1e38", "window_steps=1", case="toy")
    code, _, _ = ended(process)
    assert code == 1
    assert checked(run_dir).status == "diverged"


def test_hang_past_the_timeout(started):
    process, run_dir = started("--nproc", "2", "fault=spin", "fault_rank=1", "--timeout", "25")
    code, _, _ = ended(process)
    record = checked(run_dir)
    assert code == 1
    assert record.status == "timed_out"
    assert record.cause.stacks == ["stacks.rank0.txt", "stacks.rank1.txt"]
    for name in record.cause.stacks:
        stacks = (run_dir / name).read_text()
        assert "worker.py" in stacks, stacks
        assert "loop.py" in stacks, stacks
    assert "in fault" in (run_dir / "stacks.rank1.txt").read_text()


def test_out_of_memory(started):
    process, run_dir = started("fault=oom")
    code, _, _ = ended(process)
    record = checked(run_dir)
    assert code == 1
    assert record.status == "oom"
    assert record.cause.rank == 0


def test_target_missed(started):
    process, run_dir = started("lr=1e-5", "epochs=1", case="toy")
    code, out, _ = ended(process)
    record = checked(run_dir)
    assert code == 1
    assert record.status == "target_missed"
    assert record.cause.message.code == "target_missed"
    assert "target" in out
