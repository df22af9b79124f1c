"""What tests that start the program share."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING

import psutil

from trainmark.launch.processes import of_run
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
    """Return exit code, output and errors of a program."""
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
    return record


def wait_for_fault(fifo: Path) -> int:
    """Block until the faulty rank has reached its step; return its process id."""
    return int(fifo.read_text())


def processes_with(variable: str, value: str) -> list[psutil.Process]:
    """Return the living processes with a value in their environment."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):  # ended meanwhile, or another user's
            if process.environ().get(variable) == value:
                found.append(process)
    return found
