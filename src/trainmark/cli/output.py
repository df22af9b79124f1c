"""Safe printing for verbs: what they print is text of records, logs and people."""

from __future__ import annotations

import json
import os
import shutil
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from trainmark.cli.streams import LostOutputError, drop_output, flush_output
from trainmark.errors import EXIT_FAILED, EnvironmentFault, escape_controls

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from trainmark.errors import TrainmarkError
    from trainmark.results.selection import Selection


_MIN_ROOM = 20  # columns of a text behind what stands before it


def say(text: object, *, err: bool = False, newline: bool = True) -> None:
    """Print ``text``, control characters escaped, to standard output or standard error."""
    typer.echo(escape_controls(text), err=err, nl=newline)


def say_lines(lines: Iterable[str], *, before: str = "") -> None:
    """Print lines; on a terminal those that are wider continue below, at a blank.

    Args:
        before: stands before the first line; the others are indented by as much.
    """
    from trainmark.pages.wrapping import measure_width, wrap

    first, indent = escape_controls(before), " " * measure_width(escape_controls(before))
    room = max(shutil.get_terminal_size().columns - len(indent), _MIN_ROOM)
    for line in map(escape_controls, lines):
        for part in wrap(line, room) if sys.stdout.isatty() else [line]:
            say(f"{first}{part}".rstrip())
            first = indent


def counted(number: int, noun: str) -> str:
    """Return ``1 finding``, ``2 findings``, ``no findings``."""
    if number == 0:
        return f"no {noun}s"
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def say_json(document: Any, *, indent: int | None = None) -> None:
    """Print a document as JSON; letters of any alphabet stay as they are."""
    say(json.dumps(document, indent=indent, ensure_ascii=False))


@contextmanager
def others_to_stderr() -> Iterator[None]:
    """Send to standard error what others print, C libraries of vendors for instance."""
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


@contextmanager
def output_may_be_lost() -> Iterator[None]:
    """Print in the block what files hold too: if that fails, only say so.

    What a run measured, and its exit code, do not depend on who reads its output.
    """
    try:
        yield
        flush_output()
    except LostOutputError as error:
        drop_output()
        if error.has_reader:
            say_remark(error)


def say_remark(text: object, *, lang: str = "en") -> None:
    """Say something about a run on standard error, in ``lang`` if it has sentences in languages."""
    render = getattr(text, "render", None)
    sentence = text if render is None else render(lang)
    say(f"trainmark: {sentence}", err=True)


def say_faults(faults: Iterable[TrainmarkError]) -> None:
    """Name what is left out because it cannot be used, and why."""
    for fault in faults:
        say_remark(fault)


def select_records(words: Sequence[str]) -> Selection:
    """Return the records that words name, and report those that cannot be read."""
    from trainmark.results.selection import select_results

    selection = select_results(words, rows=False)
    say_faults(selection.skipped)
    return selection


def exit_code_with_faults(code: int, selections: Iterable[Selection]) -> int:
    """Return ``code``, or 1 if a record could not be read."""
    if any(selection.skipped for selection in selections):
        return EXIT_FAILED
    return code


def fail_if_damaged(selection: Selection) -> None:
    """Report the records that cannot be read or do not match their raw events.

    Ends with exit code 1 if there is one: call it after everything else is printed.
    """
    say_faults(selection.skipped)
    for path in selection.refuted:
        say_remark(f"{path}: the record does not match its raw events")
    if selection.refuted or selection.skipped:
        raise typer.Exit(EXIT_FAILED)


@contextmanager
def writing(output: Path) -> Iterator[None]:
    """Write in the block to what the user named with ``-o``.

    Raises:
        EnvironmentFault: it cannot be written.
    """
    try:
        yield
    except OSError as error:
        raise EnvironmentFault(
            f"cannot write: {error.strerror}", where=str(output), fix="name another place"
        ) from error


def write_text(output: Path | None, text: str) -> None:
    """Write a file that the user named, whole or not at all, and name it; None: print the text.

    A pipe, a device or a link stays what it is.

    Raises:
        EnvironmentFault: it cannot be written.
    """
    from trainmark.documents import write_atomically

    if output is None:
        say(text, newline=False)
        return
    with writing(output), write_atomically(output) as file:
        file.write(text.encode())
    say(str(output), err=True)


def write_bytes(output: Path, data: bytes) -> None:
    """Write a file that the user named, whole or not at all, and name it.

    Raises:
        EnvironmentFault: it cannot be written.
    """
    from trainmark.documents import write_atomically

    with writing(output), write_atomically(output) as file:
        file.write(data)
    say(str(output), err=True)


def from_here(path: Path) -> Path:
    """Return ``path`` as it is called from the folder we are in, if it lies below it."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path
