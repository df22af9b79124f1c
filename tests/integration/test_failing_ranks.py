"""A rank that fails, hangs or misses the target: the record names the cause."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from support import faulty_runs
from support.real_runs import read_checked_record, wait_for_end
from support.run_fixtures import CASES
from trainmark.rank.failure import DISK_FULL_EXIT


def test_exception_of_a_rank_is_the_cause(start_run):
    # The case ``faulty``, whose fault comes at the start of step 15 if the recipe says no other.
    # ``fault=raise``: the rank raises a ValueError about row 17.
    process, run_dir = start_run("--nproc", "2", "fault=raise", "fault_rank=1")
    code, out, _ = wait_for_end(process)
    record = read_checked_record(run_dir)
    assert code == 1
    assert record.status == "failed"
    assert record.cause.kind == "error"
    assert record.cause.rank == 1
    assert record.cause.place == "train"
    assert record.cause.type == "ValueError"
    assert "row 17 of the data is upside down" in str(record.cause.message.args["text"])
    assert "upside down" in out
    assert record.ranks[1].steps == 14  # it raised in its fifteenth step


@pytest.mark.nightly
def test_killed_rank_is_the_cause(start_run, fifo):
    """Rank 1 of two waits in a step, where it is killed; the other one has to end too.

    ``check_killed_rank`` checks the record that the run leaves.
    """
    faulty_runs.check_killed_rank(start_run, fifo, "--nproc", "2", rank=1)


@pytest.mark.nightly
def test_diverged_loss_is_the_cause(start_run):
    """``check_divergence`` trains toy with a learning rate of 1e38, and checks the record."""
    faulty_runs.check_divergence(start_run)


def test_hang_is_the_cause_after_the_timeout(start_run, fifo):
    """The last of two ranks computes for ever, and the other one waits for it.

    ``check_hang`` lets the run reach its time limit, and checks that its record names the place.
    """
    faulty_runs.check_hang(start_run, fifo, "--nproc", "2", ranks=2)


def test_out_of_memory_is_the_cause(start_run):
    """``check_out_of_memory`` lets rank 0 allocate more than there is, and checks the record."""
    faulty_runs.check_out_of_memory(start_run)


def test_missed_target_is_the_cause(start_run):
    """One epoch of toy with a learning rate of 1e-5 does not reach the target of its recipe.

    ``start_run`` starts ``trainmark run`` with these words, of the case ``faulty`` unless
    another is named, and returns the process and the folder of the run.
    """
    process, run_dir = start_run("lr=1e-5", "epochs=1", case="toy")
    code, out, _ = wait_for_end(process)
    record = read_checked_record(run_dir)
    assert code == 1
    assert record.status == "target_missed"
    assert record.cause.message.code == "target_missed"
    assert "target" in out


def test_full_disk_is_reported_by_the_exit_code_of_a_rank(tmp_path):
    # A rank whose work fails as writing to a full disk does. ``DISK_FULL_EXIT`` is the exit code by
    # which it tells the launcher; an event could not be written.
    script = (
        "import errno, os, sys; from pathlib import Path; from trainmark.rank import worker\n"
        "def full(*_): raise OSError(errno.ENOSPC, 'No space left on device')\n"
        "worker.run_rank = full\n"
        "os._exit(worker.main(Path(sys.argv[1])))\n"
    )
    process = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)],
        check=False,
        env=os.environ | {"RANK": "0", "LOCAL_RANK": "0"},
    )
    assert process.returncode == DISK_FULL_EXIT


@pytest.mark.parametrize(
    ("fault", "expected_text"),
    [
        ("evaluation_not_reduced", "scores were not summed over the ranks"),
        pytest.param(
            "evaluation_of_training_rows", "must not score training rows", marks=pytest.mark.nightly
        ),
        pytest.param(
            "evaluation_without_last_batch",
            "the validation data has 1000",
            marks=pytest.mark.nightly,
        ),
        pytest.param(
            "evaluation_of_batch_means",
            "the mean of its scores over all rows",
            marks=pytest.mark.nightly,
        ),
        pytest.param("evaluation_silent", "the Evaluation.scores", marks=pytest.mark.nightly),
    ],
)
def test_case_check_detects_a_wrong_evaluation(trainmark, monkeypatch, fault, expected_text):
    """``trainmark check`` finds it in each evaluation that is wrong.

    ``fault``: the mistake that the case ``faulty`` makes; ``expected_text``: a part of a line of
    the check.
    """
    monkeypatch.setenv("TRAINMARK_CASE_PATH", str(CASES))
    checked_case = trainmark("check", "faulty", f"fault={fault}", "--device", "cpu")
    assert checked_case.returncode == 1, checked_case.stdout + checked_case.stderr
    faults = [line for line in checked_case.stdout.splitlines() if line.startswith("FAULT")]
    assert any(expected_text in line for line in faults), checked_case.stdout


def test_ranks_that_report_different_qualities_fail_immediately(start_run):
    """Two ranks of the case ``faulty``, whose evaluation is not summed over the ranks.

    ``start_run`` starts ``trainmark run`` with these words, of the case ``faulty`` unless
    another is named, and returns the process and the folder of the run.
    """
    # Each rank reports the quality of its own rows; even an easy target does not count then.
    process, run_dir = start_run("fault=evaluation_not_reduced", "--nproc", "2", "target=0.5")
    code, out, err = wait_for_end(process)
    assert code == 1, out + err
    cause = read_checked_record(run_dir).cause
    assert (cause.kind, cause.message.code) == (
        "impossible_figure",
        "evaluation_differs_over_ranks",
    )
