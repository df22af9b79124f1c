"""Print safely: the text of commands comes from records, logs and people, and is escaped."""

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
from trainmark.errors import EXIT_FAILED, EnvironmentFault, UsageError, escape_controls

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from trainmark.errors import TrainmarkError
    from trainmark.results.selection import Selection


_MIN_TEXT_WIDTH = 20  # columns of a text after its prefix


def print_text(text: object, *, err: bool = False, newline: bool = True) -> None:
    """Print ``text``, control characters escaped, to standard output or standard error."""
    typer.echo(escape_controls(text), err=err, nl=newline)


def print_lines(lines: Iterable[str], *, before: str = "") -> None:
    """Print lines; on a terminal, lines that are too wide continue on the next line.

    Args:
        before: prefix of the first line; the other lines are indented by its width.
    """
    from trainmark.pages.wrapping import measure_width, wrap

    prefix = escape_controls(before)
    indent = " " * measure_width(prefix)
    width = max(shutil.get_terminal_size().columns - len(indent), _MIN_TEXT_WIDTH)
    for line in map(escape_controls, lines):
        parts = wrap(line, width) if sys.stdout.isatty() else [line]
        for part in parts:
            print_text(f"{prefix}{part}".rstrip())
            prefix = indent  # after the first line


def format_count(number: int, noun: str) -> str:
    """Return ``1 finding``, ``2 findings``, ``no findings``.

    Args:
        noun: in the singular; its plural must end in ``s``.
    """
    if number == 0:
        return f"no {noun}s"
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def print_json(document: Any, *, indent: int | None = None) -> None:
    """Print a document as JSON; characters outside of ASCII are not escaped."""
    print_text(json.dumps(document, indent=indent, ensure_ascii=False))


@contextmanager
def redirect_to_stderr() -> Iterator[None]:
    """Redirect standard output in the block to standard error, also that of C libraries.

    Those write to the file descriptor and do not know of ``sys.stdout``.
    """
    stdout = sys.stdout.fileno()
    sys.stdout.flush()  # what was printed before the block still goes to standard output
    saved_stdout = os.dup(stdout)
    os.dup2(sys.stderr.fileno(), stdout)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(saved_stdout, stdout)
        os.close(saved_stdout)


@contextmanager
def tolerate_lost_output() -> Iterator[None]:
    """Report, but do not raise, that the output of the block cannot be written.

    The result of a run is in its files, and its exit code must not depend on its output.
    """
    try:
        yield
        flush_output()
    except LostOutputError as error:
        drop_output()
        if error.has_reader:  # without a reader, as of `head`, this is no fault
            print_remark(error)


def print_remark(text: object, *, lang: str = "en") -> None:
    """Print a remark to standard error.

    Args:
        text: a text, or an object whose method ``render`` returns the text in a language.
        lang: the language, ``en`` or ``zh``.
    """
    render = getattr(text, "render", None)
    sentence = text if render is None else render(lang)
    print_text(f"trainmark: {sentence}", err=True)


def print_faults(faults: Iterable[TrainmarkError]) -> None:
    """Print to standard error what is skipped because it cannot be used, and why."""
    for fault in faults:
        print_remark(fault)


def reject_repeated_runs(selection: Selection) -> None:
    """Refuse a run that is given twice, because its launches would count twice.

    Raises:
        UsageError: a run is given twice. Records that cannot be read are printed first.
    """
    from trainmark.record.work import reject_duplicates

    try:
        reject_duplicates((record.run_id for record in selection.records), selection.places)
    except UsageError:
        print_faults(selection.skipped)
        raise


def select_records(words: Sequence[str]) -> Selection:
    """Return the records that words name; print those that cannot be read.

    Args:
        words: arguments of a command: runs, records, folders of runs or bundles; none: the newest
            run.
    """
    from trainmark.results.selection import select_results

    selection = select_results(words, rows=False)  # published rows are not accepted
    print_faults(selection.skipped)
    return selection


def choose_exit_code(code: int, selections: Iterable[Selection]) -> int:
    """Return the exit code ``code``, or 1 if a record of the selections could not be read."""
    if any(selection.skipped for selection in selections):
        return EXIT_FAILED
    return code


def fail_if_damaged(selection: Selection) -> None:
    """Print the records that cannot be read or do not match their raw events.

    If there is one, this ends the program with exit code 1: call it last.
    """
    print_faults(selection.skipped)
    for path in selection.refuted:
        print_remark(f"{path}: the record does not match its raw events")
    if selection.refuted or selection.skipped:
        raise typer.Exit(EXIT_FAILED)


@contextmanager
def explain_write_errors(output: Path) -> Iterator[None]:
    """Turn errors of writing the file ``output``, in the block, into an ``EnvironmentFault``."""
    try:
        yield
    except OSError as error:
        raise EnvironmentFault(
            f"cannot write: {error.strerror}", where=str(output), fix="choose another path"
        ) from error


def write_text(output: Path | None, text: str) -> None:
    """Write a file that the user named, whole or not at all, and print its name.

    A pipe, a device or a link is written to, not replaced.

    Args:
        output: the file; None: print the text.
        text: the content.

    Raises:
        EnvironmentFault: it cannot be written.
    """
    from trainmark.documents import write_atomically

    if output is None:
        print_text(text, newline=False)
        return
    with explain_write_errors(output), write_atomically(output) as file:
        file.write(text.encode())
    print_text(str(output), err=True)


def write_bytes(output: Path, data: bytes) -> None:
    """Write a file that the user named, whole or not at all, and print its name.

    Raises:
        EnvironmentFault: it cannot be written.
    """
    from trainmark.documents import write_atomically

    with explain_write_errors(output), write_atomically(output) as file:
        file.write(data)
    print_text(str(output), err=True)


def shorten_path(path: Path) -> Path:
    """Return ``path`` relative to the current directory, if it is below it."""
    current = Path.cwd()
    return path.relative_to(current) if path.is_relative_to(current) else path


def format_path(path: Path) -> str:
    """Return ``path`` as text, relative to the current directory if it is below it."""
    return str(shorten_path(path))
