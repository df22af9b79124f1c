"""The files from which a record is computed, and the other output of the ranks.

Owns which files these are, their digests, and their redaction where copies of them leave the machine.
"""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from hashlib import file_digest
from pathlib import Path
from typing import IO, TYPE_CHECKING

from pydantic_core import from_json

from trainmark.devices.vendors.cpu import usable_cores
from trainmark.plan.plan import Plan
from trainmark.record.record import EVIDENCE_NAME, RECORD_FILE, Evidence
from trainmark.record.redaction import Redactor

if TYPE_CHECKING:
    from collections.abc import Iterator

_EVENTS = "events.*.jsonl"
_OUTPUTS = ("log.*.txt", "stacks.*.txt")
_SUBMITTED = ("*.json", "*.sh", "*.sbatch", "*.yaml")  # with the plan and the site's file
_WORTH_THREADS = 1 << 22  # bytes: a digest of them takes longer than to count the cores
_LONGEST_LINE = 1 << 22  # bytes; a longer one is taken in pieces
_LONGEST_KEY = 1 << 14  # bytes; of 16,384 bits it has 12,700
_KEY_BEGUN = re.compile(rb"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----(?!.*-----END )", re.DOTALL)
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


def redactor_of(plan: Plan, run_dir: Path) -> Redactor:
    """Return the redactor for the files of a run and its record."""
    return Redactor(
        (run_dir, "<run>"), (Path(plan.run_dir), "<run>"), (Path(plan.data.folder), "<data>")
    )


def outputs(run_dir: Path) -> list[Path]:
    """Return plan, scripts, events, samples and all output of a run, without its record."""
    names = [_EVENTS, "telemetry*.jsonl", *_OUTPUTS, *_SUBMITTED]
    found = {path for name in names for path in run_dir.glob(name) if path.is_file()}
    return sorted(path for path in found if path.name != RECORD_FILE)


def redacted(path: Path, redactor: Redactor) -> Iterator[bytes]:
    """Yield a file in redacted pieces."""
    return (_line(line, redactor) for line in _lines(path))


def _lines(path: Path) -> Iterator[bytes]:
    """Yield a file's lines; a JSON document and a private key each as a whole."""
    with path.open("rb") as file:
        if path.suffix == ".json" and path.stat().st_size <= _LONGEST_LINE:
            yield file.read()
        while line := file.readline(_LONGEST_LINE):
            if b"PRIVATE KEY" in line and not line.startswith(b"{"):
                line += _rest_of_key(line, file)
            yield line


def _rest_of_key(line: bytes, file: IO[bytes]) -> bytes:
    """Return the lines up to the end of a private key that begins in ``line``."""
    rest = b""
    while _KEY_BEGUN.search(line + rest) and (more := file.readline(_LONGEST_KEY - len(rest))):
        rest += more
    return rest


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
