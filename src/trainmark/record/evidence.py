"""The files from which a record is computed, and the other output of the ranks.

Owns which files these are, and their digests. They stay as they were written.
"""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from hashlib import file_digest
from typing import TYPE_CHECKING

from trainmark.devices.cores import usable_cores
from trainmark.record.record import EVIDENCE_NAME, RECORD_FILE, Evidence

if TYPE_CHECKING:
    from pathlib import Path

_EVENTS = "events.*.jsonl"
_OUTPUTS = ("log.*.txt", "stacks.*.txt")
_SUBMITTED = ("*.json", "*.sh", "*.sbatch", "*.yaml")  # with the plan and the site's file
_WORTH_THREADS = 1 << 22  # bytes: a digest of them takes longer than to count the cores


def evidence(run_dir: Path) -> list[Evidence]:
    """Return the files from which a record is computed, with size and digest, by name.

    One that cannot be read is none of them.
    """
    named = (path for path in run_dir.iterdir() if re.fullmatch(EVIDENCE_NAME, path.name))
    files = sorted(path for path in named if path.is_file())  # a pipe would block
    large = sum(path.stat().st_size for path in files) > _WORTH_THREADS
    # Digests are computed without the GIL.
    with ThreadPoolExecutor(usable_cores() if large else 1) as threads:
        return [entry for entry in threads.map(entry_of, files) if entry is not None]


def entry_of(path: Path) -> Evidence | None:
    """Return a file's name, size and digest; None if it cannot be read."""
    try:
        with path.open("rb") as file:
            digest = file_digest(file, "sha256").hexdigest()
    except OSError:
        return None  # only samples can be missing: a note of the record tells
    return Evidence(name=path.name, bytes=path.stat().st_size, sha256=digest)


def outputs(run_dir: Path) -> list[Path]:
    """Return plan, scripts, events, samples and all output of a run, without its record."""
    names = [_EVENTS, "telemetry*.jsonl", *_OUTPUTS, *_SUBMITTED]
    found = {path for name in names for path in run_dir.glob(name) if path.is_file()}
    return sorted(path for path in found if path.name != RECORD_FILE)
