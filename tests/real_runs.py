"""What tests that start the program share."""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING

import psutil

from trainmark.launch.processes import of_run
from trainmark.launch.sampling import SAMPLER_VARIABLE
from trainmark.rank.events import EventFile
from trainmark.record.record import read, schema

try:
    import jsonschema
except ImportError:  # beside a card it may be missing; ``read`` holds a record to its model
    jsonschema = None

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

    from trainmark.record.record import Record


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Wait until launcher and keeper are gone: both hold standard error open."""
    out, err = process.communicate(timeout=240)  # below the limit of a test
    return process.returncode, out, err


def checked(run_dir: Path) -> Record:
    """Return the record after checking what every ending promises."""
    document = json.loads((run_dir / "record.json").read_text())
    if jsonschema is not None:
        jsonschema.validate(document, schema())
    for path in run_dir.glob("events.*.jsonl"):
        events = EventFile(path)
        assert list(events), path
        assert events.malformed_lines == 0, path
    record = read(run_dir)
    assert of_run(record.run_id) == []
    assert of_run(record.run_id, SAMPLER_VARIABLE) == []
    assert not (run_dir / ".reserve").exists()
    return record


def wait_for_fault(fifo: Path) -> int:
    """Block until the faulty rank has reached its step; return its process id."""
    return int(fifo.read_text())


def keeper_of(process: subprocess.Popen[str]) -> psutil.Process:
    """Return the keeper beside the run of a launcher."""
    for child in psutil.Process(process.pid).children():
        if "trainmark.launch.keeper" in child.cmdline():
            return child
    raise AssertionError("no keeper beside the run")


def kill_both(process: subprocess.Popen[str]) -> None:
    """Kill launcher and keeper with no time between for either to act."""
    keeper = keeper_of(process)
    process.send_signal(signal.SIGSTOP)  # it must not replace the keeper
    keeper.kill()
    process.kill()
