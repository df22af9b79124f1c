"""Ctrl-C, SIGTERM and SIGHUP during a run: a record and pages."""

from __future__ import annotations

import os
import signal

import pytest

from support.real_runs import read_checked_record, wait_for_end, wait_for_fault


@pytest.mark.parametrize(
    "stop_signal", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.nightly)]
)
def test_run_stopped_by_a_signal_leaves_a_record(start_run, fifo, stop_signal):
    """The rank waits in a step (``fault=wait``), so that the signal comes during training.

    ``start_run`` starts ``trainmark run`` with these words, of the case ``faulty`` unless
    another is named, and returns the process and the folder of the run.
    """
    process, run_dir = start_run("fault=wait")
    wait_for_fault(fifo)
    process.send_signal(stop_signal)
    code, _, _ = wait_for_end(process)
    record = read_checked_record(run_dir)
    assert code == 1
    assert record.status == "interrupted"
    assert record.cause.signal == stop_signal.name
    # What was trained before the signal is measured.
    assert record.figures["p_whole"].value is not None


@pytest.mark.nightly
def test_ignored_hangup_stays_ignored(start_run, fifo):
    """As under nohup: the signal is ignored before the program starts.

    ``prefix``: words before the command, here a shell that ignores the signal and becomes the
    program. ``wait_for_fault`` returns the id of the rank's process, which waits in a step.
    ``start_run`` starts ``trainmark run`` with these words, of the case ``faulty`` unless
    another is named, and returns the process and the folder of the run.
    """
    process, run_dir = start_run("fault=wait", prefix=("sh", "-c", 'trap "" HUP; exec "$@"', "sh"))
    rank_pid = wait_for_fault(fifo)
    process.send_signal(signal.SIGHUP)
    os.kill(rank_pid, signal.SIGKILL)  # ends the run in another way
    wait_for_end(process)
    record = read_checked_record(run_dir)
    assert (record.cause.kind, record.cause.signal) == ("signal", "SIGKILL")
