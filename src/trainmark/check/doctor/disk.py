"""The disks: where runs are written, and where data is read."""

from __future__ import annotations

import os
import shutil
import tempfile
from itertools import islice
from time import perf_counter
from typing import TYPE_CHECKING

from trainmark.check.doctor.subject import Conditions, Subject, judged

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from trainmark.protocols import Condition

_LEAST_BYTES = 8 << 20  # for the events and the record of a short run
_LOW_BYTES = 1 << 30  # events and logs of a long run, and what a case saves, fit easily
_CHUNK_BYTES = 4 << 20
_MOST_BYTES, _MOST_S = 128 << 20, 2.0  # of each writing and reading
_FILES_LOOKED_AT = 1_000  # for the largest of a folder
# A hard disk of any age reads 100 MB/s in a row; below this the disk or network is disturbed.
_LEAST_BYTES_PER_S = 20e6


def out_folder(subject: Subject) -> Conditions:
    """Write a file where runs go, and read how much space there is."""
    place = subject.out
    try:
        place = _existing(subject.out)
        with tempfile.TemporaryFile(dir=place) as file:
            file.write(b"trainmark")
            file.flush()
    except OSError as error:
        remedy = "choose an --out with write permission and space"
        yield judged(f"{place}: {error.strerror}", remedy, stops=True)
        return
    free = shutil.disk_usage(place).free
    yield judged(
        f"{place}: {free / 2**30:.1f} GiB free",
        "free some space, or choose --out on another disk, before it fills up during a run",
        stops=free < _LEAST_BYTES,
        spoils=free < _LOW_BYTES,
    )


def _existing(folder: Path) -> Path:
    """Return ``folder``, or the lowest folder above it that exists."""
    place = folder.absolute()
    return next(path for path in (place, *place.parents) if path.exists())


def data_folder(subject: Subject) -> Conditions:
    """Look into the folder with data."""
    if subject.data is None:
        return
    try:
        fault = None if any(subject.data.iterdir()) else "empty"
    except OSError as error:
        fault = error.strerror
    what = f"{subject.data}: {fault or 'can be read'}"
    yield judged(what, "give the folder of prepared data", stops=fault is not None)


def out_speed(subject: Subject) -> Conditions:
    """Measure how fast a file is written where runs go, to the disk itself."""
    chunk = os.urandom(_CHUNK_BYTES)  # that no file system can compress
    with tempfile.TemporaryFile(dir=_existing(subject.out), buffering=0) as file:

        def write() -> int:
            written = file.write(chunk)
            os.fsync(file.fileno())
            return written

        yield _judged_rate("written", rate(write), "--out")


def data_speed(subject: Subject) -> Conditions:
    """Measure how fast the largest data file is read, which the kernel is asked to forget."""
    if subject.data is None:
        return
    files = (path for path in islice(subject.data.rglob("*"), _FILES_LOOKED_AT) if path.is_file())
    largest = max(files, key=lambda path: path.stat().st_size, default=None)
    if largest is None or largest.stat().st_size < _CHUNK_BYTES:
        return  # opening it takes longer than reading it
    with largest.open("rb", buffering=0) as file:
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        found = rate(lambda: len(file.read(_CHUNK_BYTES)))
    yield _judged_rate(f"read from {largest.name}", found, "--data")


def _judged_rate(what: str, bytes_per_s: float, option: str) -> Condition:
    return judged(
        f"{bytes_per_s / 1e6:.0f} MB/s {what}",
        f"give {option} on a local disk that nobody else uses",
        spoils=bytes_per_s < _LEAST_BYTES_PER_S,
    )


def rate(move: Callable[[], int]) -> float:
    """Return bytes per second of ``move``, called for a short time or until it returns 0."""
    start_s, total = perf_counter(), 0
    while moved := move():
        total += moved
        if total >= _MOST_BYTES or perf_counter() - start_s >= _MOST_S:
            break
    return total / (perf_counter() - start_s)
