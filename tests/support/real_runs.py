"""What tests that start the program share."""

from __future__ import annotations

import json
import signal
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import psutil

from trainmark.events.schema import JOB_EVENTS_FILE, EventFile
from trainmark.launch.processes import find_processes
from trainmark.record.record import describe_schema, read_record
from trainmark.record.verify import check_itself

try:
    import jsonschema
except ImportError:  # beside a card it may be missing; reading a record checks its types
    jsonschema = None

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

    from trainmark.record.record import Record


def wait_for_end(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Return exit code, output and errors of a program."""
    out, err = process.communicate()
    return process.returncode, out, err


def read_checked_record(run_dir: Path) -> Record:
    """Return the record after checking what every ending promises, also that of a failed run.

    It fits its schema, each file of events (``events.*.jsonl``) can be read, no process of the run
    is left, and the figures of the record do not contradict each other.
    """
    document = json.loads((run_dir / "record.json").read_text())
    if jsonschema is not None:  # None: it is not installed
        jsonschema.validate(document, json.loads(describe_schema()))
    for path in run_dir.glob("events.*.jsonl"):
        events = EventFile(path)
        assert list(events), path  # not empty; reading also counts malformed lines
        assert events.malformed_lines == 0, path
    record = read_record(run_dir)
    assert find_processes(record.run_id) == []  # no process of the run is left
    assert check_itself(record) == []  # nothing in it contradicts the rest
    return record


def wait_for_fault(fifo: Path) -> int:
    """Block until the faulty rank has reached its step; return its process id."""
    return int(fifo.read_text())


def read_job_states(run_dir: Path) -> list[dict[str, Any]]:
    """Return the job events of a run in their order."""
    return [event for event in EventFile(run_dir / JOB_EVENTS_FILE) if event["event"] == "job"]


def interrupt_and_check_run(process: subprocess.Popen[str], run_dir: Path, fifo: Path) -> Record:
    """Send SIGINT to a program whose faulty rank waits; check and return its record.

    An interrupted run has exit code 1, and its record names the signal as the cause.

    Args:
        fifo: a pipe to which the rank writes when it has reached the step in which it waits.
    """
    wait_for_fault(fifo)
    process.send_signal(signal.SIGINT)
    code, out, err = wait_for_end(process)
    record = read_checked_record(run_dir)  # no process of the run is left
    assert (code, record.status) == (1, "interrupted"), out + err
    assert (record.cause.kind, record.cause.signal) == ("signal", "SIGINT")
    return record


def train_distilbert_on_two_ranks(start_run: Any, *args: str) -> Path:
    """Train DistilBERT for an epoch on two ranks; return the run directory.

    Args:
        start_run: starts the program with words that choose the engine, such as Slurm.
        args: further words of the command line.
    """
    # Without a target of quality, which would end the training earlier.
    process, run_dir = start_run("max_epochs=1", "target=none", *args, case="distilbert_sst2")
    code, out, err = wait_for_end(process)
    assert code == 0, out + err
    record = read_checked_record(run_dir)
    assert (record.status, len(record.ranks)) == ("passed", 2)
    assert read_job_states(run_dir)[-1]["phase"] == "ended"
    return run_dir


def find_processes_with(variable: str, value: str) -> list[psutil.Process]:
    """Return the living processes whose environment sets ``variable`` to ``value``."""
    processes = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):  # ended meanwhile, or another user's
            if process.environ().get(variable) == value:
                processes.append(process)
    return processes
