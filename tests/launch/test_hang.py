"""Stacks into places and groups: text written by hand, random text, and two real ranks."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import TYPE_CHECKING

import psutil
import pytest

from trainmark.launch import stacks as stacks_module
from trainmark.launch.hang import RankPlace, find_place, group_ranks
from trainmark.launch.stacks import save_stacks
from trainmark.rank.contract import STACKS_SIGNAL

if TYPE_CHECKING:
    from pathlib import Path

LIB = "/usr/lib/python3.12"
TORCH = "/opt/venv/lib/python3.12/site-packages/torch"
JOB = "/home/u/cases/mine/job.py"
# Frames of a stack, the innermost first: file, line, function. ENTRY and MAIN begin every program.
ENTRY = [("<frozen runpy>", 88, "_run_code"), ("<frozen runpy>", 198, "_run_module_as_main")]
MAIN = [("/opt/trainmark/measure/worker.py", 258, "<module>"), *ENTRY]


def format_thread(
    *calls: tuple[str, int, str], head: str = "Current thread 0x7f (most recent call first)"
):
    """Return a thread's stack as faulthandler prints it.

    Args:
        calls: file, line and function of each call, the innermost one first.
        head: first line of the stack, without its colon; the numbers in it do not matter.
    """
    lines = [f'  File "{file}", line {line} in {function}' for file, line, function in calls]
    return "\n".join([f"{head}:", *lines]) + "\n"


BARRIER = format_thread(
    (f"{TORCH}/distributed/distributed_c10d.py", 4818, "barrier"),
    (f"{TORCH}/distributed/c10d_logger.py", 81, "wrapper"),
    (JOB, 31, "step"),
    *MAIN,
)
READER = format_thread(
    (f"{LIB}/concurrent/futures/thread.py", 81, "_worker"),
    (f"{LIB}/threading.py", 1002, "_bootstrap"),
    head="Thread 0x7e [read_ahead] (most recent call first)",
)


@pytest.mark.parametrize(
    ("calls", "expected"),
    [
        ([(JOB, 65, "fault"), (JOB, 30, "step")], ("elsewhere", None, "mine/job.py:65 fault")),
        (
            [
                (f"{TORCH}/distributed/distributed_c10d.py", 3000, "_check_op"),
                (f"{TORCH}/distributed/distributed_c10d.py", 3026, "all_reduce"),
                (f"{TORCH}/distributed/c10d_logger.py", 83, "wrapper"),
                (JOB, 12, "step"),
            ],
            ("collective", "all_reduce", "mine/job.py:12 step"),
        ),
        (
            [
                (f"{TORCH}/distributed/_functional_collectives.py", 140, "wait_tensor"),
                (f"{TORCH}/distributed/tensor/_redistribute.py", 9, "redistribute_local_tensor"),
                (JOB, 13, "step"),
            ],
            ("collective", "wait_tensor", "mine/job.py:13 step"),
        ),
        (
            [
                (f"{TORCH}/autograd/graph.py", 979, "_engine_run_backward"),
                (f"{TORCH}/_tensor.py", 623, "backward"),
                ("/opt/trainmark/training/stepper.py", 237, "_backward"),
            ],
            ("waits", "backward", "training/stepper.py:237 _backward"),
        ),
        (
            [(f"{TORCH}/cuda/__init__.py", 1114, "synchronize"), (JOB, 7, "check")],
            ("waits", "synchronize", "mine/job.py:7 check"),
        ),
        (
            [
                (f"{LIB}/threading.py", 359, "wait"),
                (f"{LIB}/queue.py", 180, "get"),
                ("/opt/venv/lib/python3.12/site-packages/plug/data.py", 5, "__next__"),
            ],
            ("elsewhere", None, "plug/data.py:5 __next__"),
        ),
        # Only torch and Python: the innermost call.
        ([(f"{LIB}/ssl.py", 3, "read")], ("elsewhere", None, "python3.12/ssl.py:3 read")),
    ],
)
def test_place_of_a_rank_is_its_innermost_call_outside_of_torch_and_python(
    calls: list, expected: tuple
) -> None:
    """The stack is printed after that of another thread, ``READER``.

    ``LIB`` and ``TORCH`` are the folders of Python's library and of torch, ``JOB`` is a file of a
    case, and ``MAIN`` has the outermost calls of a rank.

    Args:
        calls: file, line and function of each call of the rank's stack, the innermost one first.
        expected: the state (in a ``collective``, ``waits`` for the device, or ``elsewhere``), the
            function of torch that the rank called in the first two, and the place of the rank.
    """
    innermost_file, _line, _function = calls[0]
    # MAIN has a frame of the program, which would be found in the last of the cases above.
    is_library_only = innermost_file.endswith("ssl.py")
    outer_calls = [("<frozen runpy>", 88, "<module>")] if is_library_only else MAIN
    assert find_place(READER + "\n" + format_thread(*calls, *outer_calls)) == RankPlace(*expected)


def test_thousand_ranks_at_two_positions_are_two_groups(tmp_path: Path) -> None:
    """Rank 517 is still loading, the others wait in a barrier; rank 1024 has no stacks.

    ``JOB`` is the file mine/job.py of a case, ``MAIN`` has the outermost calls of a rank, and
    ``BARRIER`` is the stack of a rank whose step, in line 31 of ``JOB``, waits in a barrier.
    """
    files = {rank: tmp_path / f"stacks.rank{rank}.txt" for rank in range(1024)}
    for rank, path in files.items():
        path.write_text(format_thread((JOB, 65, "load"), *MAIN) if rank == 517 else BARRIER)
    position = {"where": "mine/job.py:31 step", "state": "collective", "call": "barrier"}
    assert group_ranks(files | {1024: tmp_path / "absent"}) == [
        {**position, "ranks": "0-516,518-1023"},
        {"where": "mine/job.py:65 load", "state": "elsewhere", "call": None, "ranks": "517"},
        {"where": "?", "state": "silent", "call": None, "ranks": "1024"},
    ]


# A rank; its arguments: number, file of the rendezvous, file for stacks, signal. Rank 0 waits in a
# barrier on line 9 of the file, rank 1 reads its input on line 10.
RANK = """
import faulthandler, signal, sys
import torch.distributed as dist
rank, store, stacks = int(sys.argv[1]), sys.argv[2], open(sys.argv[3], "w")
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
faulthandler.register(int(sys.argv[4]), file=stacks, all_threads=True)
print("ready", flush=True)
if rank == 0:
    dist.barrier()
sys.stdin.read()
"""


def test_real_rank_missing_from_a_collective_is_named(tmp_path: Path) -> None:
    """``RANK`` is a program that starts one of two ranks, and prints "ready" when it has begun.

    On the signal ``STACKS_SIGNAL`` a rank writes the stacks of its threads into its file.
    ``group_ranks`` reads these files, and returns the ranks at each place of the code.
    """
    code = tmp_path / "rank.py"
    code.write_text(RANK)
    files = {rank: tmp_path / f"stacks.rank{rank}.txt" for rank in (0, 1)}
    ranks = [
        subprocess.Popen(
            [sys.executable, code, str(rank), tmp_path / "store", file, str(int(STACKS_SIGNAL))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for rank, file in files.items()
    ]
    folder = tmp_path.name
    # Rank 0 waits in the barrier on line 9 of `RANK`; rank 1 reads its input on line 10 instead.
    expected = [
        {
            "state": "collective",
            "call": "barrier",
            "where": f"{folder}/rank.py:9 <module>",
            "ranks": "0",
        },
        {
            "state": "elsewhere",
            "call": None,
            "where": f"{folder}/rank.py:10 <module>",
            "ranks": "1",
        },
    ]
    try:
        for rank in ranks:
            assert rank.stdout is not None
            assert rank.stdout.readline() == b"ready\n"
        stacks: list[dict[str, object]] = []
        # Repeated: rank 0 may not be in the barrier yet, and stacks are written with a delay.
        deadline_s = time.monotonic() + 600  # so that a test that fails ends
        while stacks != expected and time.monotonic() < deadline_s:
            save_stacks(ranks, list(files.values()), STACKS_SIGNAL)
            stacks = sorted(group_ranks(files), key=lambda group: str(group["ranks"]))
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()
    assert stacks == expected


def test_rank_that_ends_before_its_state_is_read_counts_as_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with subprocess.Popen(["true"]) as ended:
        pass  # the end of the block waits for the end of the process
    # On the signal ``STACKS_SIGNAL`` a rank would write the stacks of its threads into the file.
    # psutil takes a process for one that exists; it ends before its state is read.
    monkeypatch.setattr(psutil, "pid_exists", lambda _: True)
    monkeypatch.setattr(stacks_module, "_TIMEOUT_S", 0)  # waits for no stacks
    file = tmp_path / "stacks.txt"
    save_stacks([ended], [file], STACKS_SIGNAL)
    assert "(state: gone)" in file.read_text()
