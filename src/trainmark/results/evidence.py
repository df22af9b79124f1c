"""The files from which a record is computed, and the other output of the ranks.

Owns which files these are, their redaction after the run, and their digests. Plan and events
need real paths while ranks run, and the record contains their digests, so they are redacted
after the ranks ended and before the record is written.
"""

from __future__ import annotations

import json
import re
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from hashlib import file_digest
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic_core import from_json

from trainmark.data.json_documents import written_whole
from trainmark.devices.vendors.cpu import usable_cores
from trainmark.measure.in_processes import mapped, processes_for
from trainmark.planning.plan import PLAN_FILE, Plan
from trainmark.results.record import EVIDENCE_NAME, RECORD_FILE, Evidence
from trainmark.results.redaction import Redactor

if TYPE_CHECKING:
    from collections.abc import Iterator

_EVENTS = "events.*.jsonl"
_OUTPUTS = ("log.*.txt", "stacks.*.txt")
_SUBMITTED = ("*.json", "*.sh", "*.sbatch", "*.yaml")  # with the plan and the site's file
_LONGEST_LINE = 1 << 22  # bytes; a longer one is taken in pieces
# A window without any words but its own, as nearly all lines are: nothing to redact.
_WINDOW = re.compile(
    rb'\{"event":"window",(?:(?:"phase":"(?:compile|warmup|train)"|"\w+":(?:[-+.\deE]+|null'
    rb'|\[[-+.\deE,nul]*\]|\{(?:"\w+":\d+,?)*\})),?)+\}\n'
)


def evidence(run_dir: Path) -> list[Evidence]:
    """Return the files from which a record is computed, with size and digest, by name.

    One that cannot be read is none of them.
    """
    named = (path for path in run_dir.iterdir() if re.fullmatch(EVIDENCE_NAME, path.name))
    files = sorted(path for path in named if path.is_file())  # a pipe would block
    with ThreadPoolExecutor(usable_cores()) as threads:  # digests are computed without the GIL
        return [entry for entry in threads.map(_entry, files) if entry is not None]


def _entry(path: Path) -> Evidence | None:
    try:
        with path.open("rb") as file:
            digest = file_digest(file, "sha256").hexdigest()
    except OSError:
        return None  # only samples can be missing: a note of the record tells
    return Evidence(name=path.name, bytes=path.stat().st_size, sha256=digest)


def redactor_of(plan: Plan, run_dir: Path) -> Redactor:
    """Return the redactor for the files of a run and its record."""
    return Redactor(
        (run_dir, "<run>"), (Path(plan.run_dir), "<run>"), (Path(plan.data.folder), "<data>")
    )


def redact(run_dir: Path, *, but: str | None = None) -> None:
    """Redact plan, scripts, events, samples and all output in place, after the processes ended.

    Each file is replaced atomically; a file with nothing to redact is not written.

    Args:
        but: name of a file that is left as it is.

    Raises:
        OSError: the disk is full or the folder read-only. The record is redacted nevertheless.
    """
    names = [_EVENTS, "telemetry*.jsonl", *_OUTPUTS, *_SUBMITTED]
    found = {path for name in names for path in run_dir.glob(name) if path.is_file()}
    paths = sorted(path for path in found if path.name not in (RECORD_FILE, but))
    processes = processes_for(sum(path.stat().st_size for path in paths))
    work = partial(_redact_file, Plan.read(run_dir), run_dir)
    deque(mapped(work, paths, processes=processes), maxlen=0)


def _redact_file(plan: Plan, run_dir: Path, path: Path) -> None:
    redactor = redactor_of(plan, run_dir)
    if any(line != _line(line, redactor) for line in _lines(path)):
        _rewrite(path, redactor)


def _rewrite(path: Path, redactor: Redactor) -> None:
    with written_whole(path) as file:
        file.writelines(_line(line, redactor) for line in _lines(path))


def _lines(path: Path) -> Iterator[bytes]:
    """Yield a file's lines; the plan, one JSON document, as a whole."""
    with path.open("rb") as file:
        if path.name == PLAN_FILE:
            yield file.read()
        while line := file.readline(_LONGEST_LINE):
            yield line


def _line(line: bytes, redactor: Redactor) -> bytes:
    """Return a line redacted; in JSON only strings are changed, so that it stays valid JSON."""
    if _WINDOW.fullmatch(line):
        return line
    if line.startswith(b"{"):
        try:
            document = from_json(line, allow_inf_nan=False)
        except ValueError:
            pass  # incomplete or malformed: redacted as text
        else:
            redacted = redactor.document(document)
            if redacted == document:
                return line
            indent, separators = (2, None) if b"\n" in line.rstrip() else (None, (",", ":"))
            return (json.dumps(redacted, indent=indent, separators=separators) + "\n").encode()
    text = line.decode("utf-8", "surrogateescape")
    return redactor.text(text).encode("utf-8", "surrogateescape")
