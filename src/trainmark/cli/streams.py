"""Handle standard streams that are closed, full or without a reader.

Imports only ``trainmark.errors``, because it is called before everything else.
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
    """Standard output cannot be written.

    Attributes:
        has_reader: false if the reader of a pipe has ended, as ``head`` does; that is no error.
    """

    exit_code = EXIT_FAILED

    def __init__(self, error: OSError) -> None:
        super().__init__(f"cannot write to standard output: {error.strerror}")
        self.has_reader = not isinstance(error, BrokenPipeError)


class _Output(io.FileIO):
    """Standard output whose errors are distinguishable from those of other files."""

    def write(self, data: ReadableBuffer, /) -> int:
        """Write to the descriptor; return the number of bytes."""
        try:
            # `FileIO.write` returns None if the descriptor is in non-blocking mode and full. This
            # becomes 0: then the buffer that calls this method tries again until there is room.
            return super().write(data) or 0
        except OSError as error:
            raise LostOutputError(error) from None


class _Errors(io.FileIO):
    """Standard error that ignores errors of writing."""

    def write(self, data: ReadableBuffer, /) -> int:
        """Write to the descriptor; return the number of bytes.

        Bytes that cannot be written count too, so that a lost message does not end the program.
        """
        try:
            # `FileIO.write` returns None if the descriptor is in non-blocking mode and full. This
            # becomes 0: then the buffer that calls this method tries again.
            return super().write(data) or 0
        except OSError:
            return memoryview(data).nbytes


def prepare_streams() -> None:
    """Open closed streams on the null device, and replace standard output and standard error.

    If the descriptor of a stream stayed closed, the next file that is opened would get its number,
    and libraries would print into that file. ``_Output`` turns errors of writing to standard output
    into ``LostOutputError``, and ``_Errors`` ignores those of standard error. Characters that the
    encoding of a stream lacks are printed as ``?``.
    """
    for descriptor in range(3):  # standard input, standard output, standard error
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free descriptor, which is this one
    if sys.stdin is None:
        sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)))
    sys.stdout = _open_text(_Output(1, "w", closefd=False), sys.stdout)
    sys.stderr = _open_text(_Errors(2, "w", closefd=False), sys.stderr)


def _open_text(raw: io.FileIO, previous: TextIO | None) -> io.TextIOWrapper:
    """Return a text stream on ``raw`` with the settings of the previous one, if that was open."""
    return io.TextIOWrapper(
        io.BufferedWriter(raw),
        encoding=previous.encoding if previous else "utf-8",
        errors="replace",
        line_buffering=raw.isatty() or raw.fileno() == 2,  # 2: standard error
        write_through=bool(previous and getattr(previous, "write_through", False)),
    )


def flush_output() -> None:
    """Flush standard output.

    Raises:
        LostOutputError: it cannot be written; the rest of the output is discarded.
    """
    try:
        sys.stdout.flush()
    except LostOutputError:
        drop_output()
        raise


def drop_output() -> None:
    """Discard buffered and all further standard output."""
    sys.stdout = io.TextIOWrapper(io.BufferedWriter(io.FileIO(os.devnull, "w")))
