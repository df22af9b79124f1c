"""A plan file that is stopped, killed and taken up again, with real ranks."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest

from support.real_runs import read_checked_record, wait_for_end, wait_for_fault
from support.run_fixtures import CASES

PLAN = """\
device: cpu
runs:
- {name: a, case: faulty, repeat: 2, set: {fault: hold}}
- {name: b, case: toy, set: {target_value: none}}
- {name: eight, case: toy, nproc: 1000, set: {target_value: none}}
"""


@pytest.fixture
def start(tmp_path):
    """Return a function that starts ``trainmark run plan.yaml``; its processes end with the test.

    ``PLAN`` is the text of the plan file. Ranks of its case ``faulty``, in the folder ``CASES``,
    report their fault through the pipe ``fifo`` and wait until the test writes to ``go``.
    """
    os.mkfifo(tmp_path / "fifo")
    os.mkfifo(tmp_path / "go")
    (tmp_path / "plan.yaml").write_text(PLAN)
    env = os.environ | {
        "TRAINMARK_CASE_PATH": str(CASES),
        "TRAINMARK_CACHE": str(tmp_path / "cache"),
        "FAULT_FIFO": str(tmp_path / "fifo"),
        "OMP_NUM_THREADS": "1",
    }
    processes = []

    def call(*args):
        """Start the runs of the plan file with further options; return the process."""
        command = [sys.executable, "-m", "trainmark", "run", "plan.yaml", *args]
        pipe = subprocess.PIPE
        process = subprocess.Popen(
            command, env=env, cwd=tmp_path, stdout=pipe, stderr=pipe, text=True
        )
        processes.append(process)
        return process

    yield call
    for process in processes:
        process.kill()
        process.communicate()


def list_attempts(runs):
    """Return the folders of a plan's entries: ``a``, and ``a-2`` of a second attempt."""
    return sorted(path.name for path in runs.iterdir() if not path.name.startswith("."))


def test_plan_resumes_after_a_stop_and_a_kill_and_keeps_finished_runs(start, tmp_path):
    """The plan file has the runs ``a`` with two launches, ``b`` with one, and ``eight``.

    Launches start in the order a/r1, b, a/r2. Those of ``a`` wait at a step until the test writes
    to the pipe ``go``. Each call that starts launches of ``a`` puts them in a folder of its own:
    ``a``, ``a-2``, ``a-3``. Launches that passed in an earlier call are not repeated.
    """
    runs, fifo = tmp_path / "runs/plan", tmp_path / "fifo"

    # Stop the first call in its first launch.
    process = start()
    wait_for_fault(fifo)
    process.send_signal(signal.SIGINT)
    code, out, err = wait_for_end(process)
    assert code == 1, err
    assert read_checked_record(runs / "a/r1").status == "interrupted"
    assert "b: stopped after 0 of 1 launches" in out
    assert list_attempts(runs) == ["a"]

    # The second call starts with r1 again. Let r1 and b pass, and kill the call while r2 waits.
    process = start()
    wait_for_fault(fifo)
    (tmp_path / "go").write_text("")
    wait_for_fault(fifo)
    process.kill()
    _, _, err = wait_for_end(process)
    finished = [runs / "a-2/r1", runs / "b"]
    records_before = [(folder / "record.json").read_bytes() for folder in finished]
    assert [read_checked_record(folder).status for folder in finished] == ["passed", "passed"]
    assert not (runs / "a-2/r2/record.json").exists()

    # The third call starts only r2, which is missing.
    process = start("--json")
    wait_for_fault(fifo)
    record = read_checked_record(runs / "a-2/r2")  # left by this call, before it launched anything
    assert (record.status, record.cause.kind) == ("interrupted", "launcher_killed")
    (tmp_path / "go").write_text("")
    code, out, err = wait_for_end(process)
    assert code == 0, err
    run_by_name = {run["name"]: run for run in json.loads(out)["runs"]}
    states = {name: run["status"] for name, run in run_by_name.items()}
    # "eight" is planned with 1,000 ranks, for which this machine has too few cores.
    assert states == {"a": "passed", "b": "finished", "eight": "skipped"}
    assert (run_by_name["a"]["run_dir"], run_by_name["b"]["run_dir"]) == (
        "runs/plan/a-3",
        "runs/plan/b",
    )
    assert run_by_name["a"]["run_ids"] == [
        read_checked_record(runs / x).run_id for x in ("a-2/r1", "a-3/r2")
    ]
    assert sorted(run_by_name["a"]["did_not_pass_before"]) == ["a-2/r2", "a/r1"]
    assert [(folder / "record.json").read_bytes() for folder in finished] == records_before

    code, second_output, _ = wait_for_end(start("--json"))  # nothing is left to do
    assert code == 0
    rerun_by_name = {run["name"]: run for run in json.loads(second_output)["runs"]}
    assert rerun_by_name["a"] == run_by_name["a"] | {"status": "finished"}
    assert list_attempts(runs) == ["a", "a-2", "a-3", "b"]
