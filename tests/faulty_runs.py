"""Runs that fail in one way each, and what their records promise; see docs/faults.md.

Apart from the tests, which make them on the CPU and, under the contract, on any device.
"""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any

from real_runs import checked, ended, wait_for_fault
from trainmark.spec import message

if TYPE_CHECKING:
    from pathlib import Path

    from trainmark.record.record import Record


def rank_killed(started: Any, fifo: Path, *words: str, rank: int) -> Record:
    process, run_dir = started("fault=wait", f"fault_rank={rank}", *words)
    os.kill(wait_for_fault(fifo), signal.SIGKILL)
    code, _, _ = ended(process)
    record = checked(run_dir)
    assert (code, record.status) == (1, "failed")
    cause = record.cause
    assert (cause.kind, cause.signal, cause.rank) == ("signal", "SIGKILL", rank)
    return record


def loss_becomes_nan(started: Any, *words: str) -> Record:
    process, run_dir = started("fault=nan", *words)
    code, _, _ = ended(process)
    record = checked(run_dir)
    assert (code, record.status) == (1, "diverged")
    assert record.cause.message == message("loss_not_finite", value="nan", step=15)
    # The window with the bad step is kept, the step's loss as null.
    assert record.steps.loss[14] is None
    assert record.counts.steps == len(record.steps.loss)
    return record


def hang(started: Any, *words: str, ranks: int, timeout_s: int) -> Record:
    last = ranks - 1
    more = ("--timeout", str(timeout_s))
    process, run_dir = started("fault=spin", f"fault_rank={last}", *words, *more)
    code, _, _ = ended(process)
    record = checked(run_dir)
    assert (code, record.status) == (1, "timed_out")
    assert record.cause.stacks == [f"stacks.rank{rank}.txt" for rank in range(ranks)]
    for name in record.cause.stacks:
        stacks = (run_dir / name).read_text()
        assert "worker.py" in stacks, stacks
        assert "loop.py" in stacks, stacks
    assert "in fault" in (run_dir / f"stacks.rank{last}.txt").read_text()
    _missing(record, last)
    return record


def _missing(record: Record, last: int) -> None:
    """Hold the report of a hang to naming the rank that spins in the job and what others do."""
    found = record.cause
    spinning = next(group for group in found.hang if group["ranks"] == str(last))
    assert spinning["state"] == "elsewhere"
    assert spinning["where"].startswith("faulty/job.py:")
    assert spinning["where"].endswith(" fault")
    if last:
        assert found.message.code == "timed_out_missing"
        assert (found.message.args["missing"], found.message.args["steps"]) == (str(last), 14)
        (waiting,) = (group for group in found.hang if group is not spinning)
        assert waiting["state"] == "waits"
        assert waiting["call"] in ("backward", "synchronize")


def out_of_memory(started: Any, *words: str) -> Record:
    process, run_dir = started("fault=oom", *words)
    code, _, _ = ended(process)
    record = checked(run_dir)
    assert (code, record.status, record.cause.rank) == (1, "oom", 0)
    assert record.cause.traceback
    return record


def diverged(started: Any, *words: str) -> Record:
    process, run_dir = started("lr=1e38", "window_steps=1", *words, case="toy")
    code, _, _ = ended(process)
    record = checked(run_dir)
    assert (code, record.status) == (1, "diverged")
    return record
