"""Runs that fail in one way each, and what their records promise; see docs/faults.md.

Apart from the tests, which make them on the CPU and, under the contract, on any device.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import TYPE_CHECKING, Any

from support.real_runs import read_checked_record, wait_for_end, wait_for_fault
from trainmark.events.schema import EventFile, name_rank_file
from trainmark.launch.hang import find_place
from trainmark.rank.contract import STACKS_SIGNAL, format_stacks_name
from trainmark.spec import message

if TYPE_CHECKING:
    from pathlib import Path

    from trainmark.record.record import Record


def check_killed_rank(start_run: Any, fifo: Path, *args: str, rank: int) -> Record:
    """Kill a rank that waits at its fault; check and return the record.

    Args:
        start_run: starts ``trainmark run`` of a case whose rank ``fault_rank`` has a fault at its
            15th step, with these words; returns the process and the folder of the run.
        fifo: the pipe to which the rank writes its process id when it is there.
        args: further words of the command line.
        rank: the one to kill.
    """
    process, run_dir = start_run("fault=wait", f"fault_rank={rank}", *args)
    os.kill(wait_for_fault(fifo), signal.SIGKILL)
    code, _, _ = wait_for_end(process)
    record = read_checked_record(run_dir)
    assert (code, record.status) == (1, "failed")
    cause = record.cause
    assert (cause.kind, cause.signal, cause.rank) == ("signal", "SIGKILL", rank)
    return record


def check_nan_loss(start_run: Any, *args: str) -> Record:
    """Let a loss become NaN; check and return the record.

    ``start_run`` starts ``trainmark run`` of a case that has the fault at step 15 of rank 0, with
    these words; it returns the process and the folder of the run.
    """
    process, run_dir = start_run("fault=nan", *args)
    code, _, _ = wait_for_end(process)
    record = read_checked_record(run_dir)
    assert (code, record.status) == (1, "diverged")
    assert record.cause.message == message("loss_not_finite", value="nan", step=15)
    # Steps are reported in windows of several. The window with the bad step is kept, the loss of
    # that step, whose index is 14, as null.
    assert record.steps.loss[14] is None
    assert record.counts.steps == len(record.steps.loss)
    return record


# ``trainmark`` with a launcher whose clock for the time limit stands still until a file exists: a
# slow machine cannot reach the limit before the rank hangs.
_UNTIL_FILE_EXISTS = """
import os, time
from pathlib import Path
from types import SimpleNamespace
from trainmark import __main__
from trainmark.launch import local

def monotonic():
    return 1e6 if Path(os.environ["LIMIT_REACHED"]).exists() else 0.0

local.time = SimpleNamespace(
    monotonic=monotonic, sleep=time.sleep, perf_counter_ns=time.perf_counter_ns
)
__main__.main()
"""


def check_hang(start_run: Any, fifo: Path, *args: str, ranks: int) -> Record:
    """Let the last rank spin and the others wait for it, then reach the time limit.

    Return the record, after checking that it reports who waits for whom.

    Args:
        start_run: starts ``trainmark run`` of a case with these words, by ``program``, and with
            environment variables such as ``LIMIT_REACHED``; returns process and folder.
        fifo: the pipe to which the last rank writes its process id when it begins to spin.
        ranks: how many there are.
    """
    last = ranks - 1
    # ``_UNTIL_FILE_EXISTS`` is a program that runs ``trainmark`` with another clock for the time
    # limit, here of a second: the clock stands still until this file exists.
    limit_reached = fifo.with_name("limit_reached")
    process, run_dir = start_run(
        "fault=spin",
        f"fault_rank={last}",
        *args,
        "--timeout",
        "1",
        program=(sys.executable, "-c", _UNTIL_FILE_EXISTS),
        LIMIT_REACHED=str(limit_reached),
    )
    wait_for_fault(fifo)
    for rank in range(last):
        _wait_until_waiting(run_dir, rank)
    _wait_until_quiet(run_dir)
    limit_reached.touch()
    code, _, _ = wait_for_end(process)
    record = read_checked_record(run_dir)
    assert (code, record.status) == (1, "timed_out")
    assert record.cause.stacks == [f"stacks.rank{rank}.txt" for rank in range(ranks)]
    # Every rank was in the training: the last in its fault, the others where they wait for it.
    for name in record.cause.stacks:
        stacks = (run_dir / name).read_text()
        assert "worker.py" in stacks, stacks
        assert "loop.py" in stacks, stacks
    assert "in fault" in (run_dir / f"stacks.rank{last}.txt").read_text()
    _check_missing_rank(record, last)
    return record


def _wait_until_waiting(run_dir: Path, rank: int) -> None:
    """Return once the stacks of a rank show that it waits for others.

    Stacks are the calls in which its threads are. The rank writes them to a file of the run when it
    gets ``STACKS_SIGNAL``. Its first event has its process id; it opens the file before that event.
    """
    start = next(event for event in EventFile(run_dir / name_rank_file(rank)) if "pid" in event)
    stacks = run_dir / format_stacks_name(rank)
    while not (stacks.stat().st_size and find_place(stacks.read_text()).state == "waits"):
        os.kill(start["pid"], STACKS_SIGNAL)  # the rank writes its stacks
        time.sleep(0.2)


def _wait_until_quiet(run_dir: Path) -> None:
    """Return once a run that hangs has been quiet for four times as long as its longest window.

    It hangs when this is called, so that no window follows those that it has written. A run that
    reaches its time limit earlier is recorded as one that still trained, not as hung: a window is
    reported only at its end. ``trainmark.record.cause`` waits for less than four times.
    """
    windows = [
        event for event in EventFile(run_dir / name_rank_file(0)) if event["event"] == "window"
    ]
    longest_ns = max(window["end_ns"] - window["start_ns"] for window in windows)
    while time.perf_counter_ns() - windows[-1]["end_ns"] < 4 * longest_ns:
        time.sleep(0.1)


def _check_missing_rank(record: Record, last: int) -> None:
    """Check that the report of a hang names the last rank, which spins, and what the others do."""
    # ``hang`` has groups of ranks with the same state: they wait for others, or are elsewhere, at a
    # place in the code. The fault is in the function ``fault`` of the case ``faulty``.
    recorded_cause = record.cause
    spinning = next(group for group in recorded_cause.hang if group["ranks"] == str(last))
    assert spinning["state"] == "elsewhere"
    assert spinning["where"].startswith("faulty/job.py:")
    assert spinning["where"].endswith(" fault")
    if last:  # with one rank nobody waits for another
        assert recorded_cause.message.code == "timed_out_missing"
        assert (recorded_cause.message.args["missing"], recorded_cause.message.args["steps"]) == (
            str(last),
            14,  # it spins in its fifteenth step
        )
        (waiting,) = (group for group in recorded_cause.hang if group is not spinning)
        assert waiting["state"] == "waits"
        # The others wait for the missing rank's gradients: on a CPU in the backward pass, which
        # reduces them; on an accelerator, whose queue holds the reduction, in ``synchronize``.
        assert waiting["call"] in ("backward", "synchronize")


def check_out_of_memory(start_run: Any, *args: str) -> Record:
    """Let rank 0 allocate more than the device has; check and return the record.

    ``start_run`` starts ``trainmark run`` of a case that has the fault (oom: out of memory) with
    these words; it returns the process and the folder of the run.
    """
    process, run_dir = start_run("fault=oom", *args)
    code, _, _ = wait_for_end(process)
    record = read_checked_record(run_dir)
    assert (code, record.status, record.cause.rank) == (1, "oom", 0)
    assert record.cause.traceback
    return record


def check_divergence(start_run: Any, *args: str) -> Record:
    """Train with a learning rate at which the loss diverges; check and return the record.

    ``start_run`` starts ``trainmark run`` of the toy case with these words; it returns the process
    and the folder of the run.
    """
    # In windows of one step the first loss that is not finite ends the run at once.
    process, run_dir = start_run("lr=1e38", "window_steps=1", *args, case="toy")
    code, _, _ = wait_for_end(process)
    record = read_checked_record(run_dir)
    assert (code, record.status) == (1, "diverged")
    return record
