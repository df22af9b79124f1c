"""The disks: where runs are written, and where data is read."""

from __future__ import annotations

import os
import tempfile
import time
from itertools import islice
from typing import TYPE_CHECKING, BinaryIO

from trainmark.doctor.subject import judged
from trainmark.launch.run_dir import RESERVE_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from trainmark.doctor.subject import Subject
    from trainmark.protocols import Condition

_LOW_BYTES = 1 << 30  # events and logs of a long run, and what a case saves, fit easily
_CHUNK_BYTES = 4 << 20
_MOST_BYTES, _MOST_S = 128 << 20, 2.0  # of each writing and reading
_FILES_LOOKED_AT = 1_000  # for the largest of a folder
# A hard disk of any age reads 100 MB/s in a row; below this the disk or network is disturbed.
_LEAST_BYTES_PER_S = 20e6


def out_folder(subject: Subject) -> Iterator[Condition]:
    """Write a file where runs go, and read how much space there is."""
    place = _existing(subject.out)
    try:
        with tempfile.TemporaryFile(dir=place) as file:
            file.write(b"trainmark")
            file.flush()
    except OSError as error:
        remedy = "choose an --out with write permission and space"
        yield judged(f"{place}: {error.strerror}", remedy, stops=True)
        return
    free = subject.free_bytes(place)
    yield judged(
        f"{place}: {free / 2**30:.1f} GiB free",
        "free some space, or choose --out on another disk, before it fills up during a run",
        stops=free < 2 * RESERVE_BYTES,
        spoils=free < _LOW_BYTES,
    )


def _existing(folder: Path) -> Path:
    """Return ``folder``, or the lowest folder above it that exists."""
    place = folder.absolute()
    return next(path for path in (place, *place.parents) if path.exists())


def out_speed(subject: Subject) -> Iterator[Condition]:
    """Measure how fast a file is written where runs go, to the disk itself."""
    chunk = os.urandom(_CHUNK_BYTES)  # that no file system can compress
    with tempfile.TemporaryFile(dir=_existing(subject.out)) as file:

        def write() -> int:
            written = file.write(chunk)
            file.flush()
            os.fsync(file.fileno())
            return written

        bytes_per_s = rate(write, time.perf_counter)
        read_per_s = _read_rate(file)
    yield _slow(f"writes {{}}, reads {read_per_s / 1e6:.0f} MB/s", bytes_per_s, "--out")


def data_speed(subject: Subject) -> Iterator[Condition]:
    """Measure how fast the largest data file is read, which the kernel is asked to forget."""
    if subject.data is None:
        return
    files = (path for path in islice(subject.data.rglob("*"), _FILES_LOOKED_AT) if path.is_file())
    largest = max(files, key=lambda path: path.stat().st_size, default=None)
    if largest is None:
        raise FileNotFoundError(0, "no file", str(subject.data))
    with largest.open("rb") as file:
        yield _slow(f"reads {{}} from {largest.name}", _read_rate(file), "--data")


def _slow(what: str, bytes_per_s: float, option: str) -> Condition:
    remedy = f"give {option} on a local disk that nobody else uses"
    what = what.format(f"{bytes_per_s / 1e6:.0f} MB/s")
    return judged(what, remedy, spoils=bytes_per_s < _LEAST_BYTES_PER_S)


def _read_rate(file: BinaryIO) -> float:
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    file.seek(0)
    return rate(lambda: len(file.read(_CHUNK_BYTES)), time.perf_counter)


def rate(move: Callable[[], int], clock: Callable[[], float]) -> float:
    """Return bytes per second of ``move``, called for a short time or until it returns 0."""
    start_s, total = clock(), 0
    while moved := move():
        total += moved
        if total >= _MOST_BYTES or clock() - start_s >= _MOST_S:
            break
    return total / (clock() - start_s)
