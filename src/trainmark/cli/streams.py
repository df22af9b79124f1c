"""Standard streams that may be closed, full or without a reader.

Imports nothing of ours but the errors, because it is called before everything else.
"""

from __future__ import annotations

import io
import os
import sys
from typing import TYPE_CHECKING

from trainmark.errors import EXIT_FAILED, TrainmarkError

if TYPE_CHECKING:
    from typing import TextIO

    from _typeshed import ReadableBuffer


class LostOutputError(TrainmarkError):
    """Standard output that takes no more.

    Args:
        has_reader: false if the reader of a pipe went away, as ``head`` does: nothing is wrong.
    """

    exit_code = EXIT_FAILED

    def __init__(self, error: OSError) -> None:
        super().__init__(f"cannot write to standard output: {error.strerror}")
        self.has_reader = not isinstance(error, BrokenPipeError)


class _Output(io.FileIO):
    """Standard output whose errors cannot be taken for those of another file."""

    def write(self, data: ReadableBuffer, /) -> int:
        try:
            return super().write(data) or 0
        except OSError as error:
            raise LostOutputError(error) from None


class _Errors(io.FileIO):
    """Standard error: what it does not take is lost, and stops nothing."""

    def write(self, data: ReadableBuffer, /) -> int:
        try:
            return super().write(data) or 0
        except OSError:
            return memoryview(data).nbytes


def prepare_streams() -> None:
    """Open closed streams on the null device, and let the others fail as this module says.

    A closed descriptor would be given to the next file that is opened, on which every library
    would then print. What the encoding of a stream lacks is printed as ``?``.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free descriptor, which is this one
    if sys.stdin is None:
        sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)))
    sys.stdout = _text(_Output(1, "w", closefd=False), sys.stdout)
    sys.stderr = _text(_Errors(2, "w", closefd=False), sys.stderr)


def _text(raw: io.FileIO, before: TextIO | None) -> io.TextIOWrapper:
    """Return a text stream like the one before it; None: that was closed."""
    return io.TextIOWrapper(
        io.BufferedWriter(raw),
        encoding=before.encoding if before else "utf-8",
        errors="replace",
        line_buffering=raw.isatty() or raw.fileno() == 2,
        write_through=bool(before and getattr(before, "write_through", False)),
    )


def flush_output() -> None:
    """Write what standard output still holds.

    Raises:
        LostOutputError: it takes no more; what is left is thrown away.
    """
    try:
        sys.stdout.flush()
    except LostOutputError:
        drop_output()
        raise


def drop_output() -> None:
    """Throw away what standard output still holds and what will be printed."""
    sys.stdout = io.TextIOWrapper(io.BufferedWriter(io.FileIO(os.devnull, "w")))
