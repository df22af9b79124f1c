"""Where the verbs print; what they print is text of records, logs and people."""

from __future__ import annotations

import json
import os
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer

from trainmark.errors import EnvironmentFault, escaped

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from trainmark.errors import TrainmarkError


def say(text: object, *, err: bool = False, newline: bool = True) -> None:
    """Print ``text``, control characters escaped, to standard output or standard error."""
    typer.echo(escaped(text), err=err, nl=newline)


def say_json(document: Any, *, indent: int | None = None) -> None:
    """Print a document as JSON; letters of any alphabet stay as they are."""
    say(json.dumps(document, indent=indent, ensure_ascii=False))


@contextmanager
def others_to_stderr() -> Iterator[None]:
    """Send to standard error what others print, vendors' packages for instance."""
    out, err = sys.stdout.fileno(), sys.stderr.fileno()
    sys.stdout.flush()
    before = os.dup(out)
    os.dup2(err, out)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(before, out)
        os.close(before)


def say_faults(faults: Iterable[TrainmarkError]) -> None:
    """Name what is left out because it cannot be used, and why."""
    for fault in faults:
        say(f"trainmark: {fault}", err=True)


def write_text(output: Path, text: str) -> None:
    """Write a file that the user named with ``-o``.

    Raises:
        EnvironmentFault: it cannot be written.
    """
    try:
        output.write_text(text, encoding="utf-8")
    except OSError as error:
        raise EnvironmentFault(
            f"cannot write: {error.strerror}", where=str(output), remedy="choose another -o"
        ) from error
