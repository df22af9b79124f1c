"""Where the verbs print; what they print is text of records, logs and people."""

from __future__ import annotations

import typer

from trainmark.errors import escaped


def say(text: object, *, err: bool = False, newline: bool = True) -> None:
    """Print ``text``, control characters escaped, to standard output or standard error."""
    typer.echo(escaped(text), err=err, nl=newline)


def say_skipped_vendors() -> None:
    """Name each package whose kind of device cannot be used, and why."""
    from trainmark import devices

    for fault in devices.load_all()[1]:
        say(f"trainmark: {fault}", err=True)
