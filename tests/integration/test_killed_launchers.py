"""Kill the launcher: no process survives, and whoever reads the run next makes its record."""

from __future__ import annotations

import signal

import psutil

from support.real_runs import read_checked_record, wait_for_end, wait_for_fault
from trainmark.launch.processes import find_processes
from trainmark.plan.plan import Plan


def test_report_builds_the_record_from_events_of_a_killed_launcher(start_run, fifo, trainmark):
    """``trainmark report`` refuses a run that still runs, and writes the record of a killed one.

    ``start_run`` starts the case ``faulty``; a rank reports its fault through ``fifo``.
    ``wait_for_fault`` returns the id of the process of that rank.
    """
    # The ranks wait in their fifteenth step until they are killed.
    process, run_dir = start_run("--nproc", "2", "fault=wait")
    rank = psutil.Process(wait_for_fault(fifo))
    running = trainmark("report", str(run_dir))
    assert running.returncode == 2
    assert "still in progress" in running.stderr

    process.kill()
    wait_for_end(process)
    psutil.wait_procs([rank, *find_processes(Plan.read(run_dir).run_id)])
    assert not rank.is_running()
    assert not (run_dir / "record.json").exists()

    report = trainmark("report", str(run_dir))
    assert report.returncode == 0, report.stderr
    record = read_checked_record(run_dir)
    assert (record.status, record.cause.kind) == ("interrupted", "launcher_killed")
    assert record.counts.steps == 14
    # A second report leaves the record as it is.
    record_bytes = (run_dir / "record.json").read_bytes()
    assert trainmark("report", str(run_dir)).returncode == 0
    assert (run_dir / "record.json").read_bytes() == record_bytes


def test_process_with_its_own_environment_ends_with_a_stopped_run(start_run, fifo):
    """The rank starts the process in a session of its own, and reports its id through ``fifo``.

    The process lacks the environment variable by which processes of a run are found.
    ``start_run`` starts ``trainmark run`` with these words, of the case ``faulty`` unless
    another is named, and returns the process and the folder of the run.
    """
    process, _ = start_run("fault=hide_child")
    hidden = psutil.Process(wait_for_fault(fifo))
    process.send_signal(signal.SIGTERM)
    wait_for_end(process)
    assert not hidden.is_running()


def test_process_with_its_own_environment_ends_with_a_killed_launcher(start_run, fifo):
    """The rank starts the process in a session of its own, and reports its id through ``fifo``.

    The process lacks the environment variable by which processes of a run are found.
    ``start_run`` starts ``trainmark run`` with these words, of the case ``faulty`` unless
    another is named, and returns the process and the folder of the run.
    """
    process, _ = start_run("fault=hide_child")
    hidden = psutil.Process(wait_for_fault(fifo))
    process.kill()
    wait_for_end(process)
    hidden.wait(timeout=600)  # raises if the process is still there
