"""What the verbs that end with records share: how records are printed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from trainmark.cli.output import say_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainmark.record.record import Record


def print_tables(found: Sequence[tuple[Path, Record]], *, repeated: bool) -> None:
    """Print the table of each launch, and of a series their summary.

    Args:
        found: the folder of each launch, or the record file itself, and its record.
    """
    from trainmark.pages.terminal import repeats_table, run_table

    for path, record in found:
        typer.echo(run_table(record, run_dir=path.parent if path.is_file() else path))
    if repeated and found:
        typer.echo(repeats_table([record for _, record in found]))


def print_records(found: Sequence[tuple[Path, Record]], *, as_json: bool, repeated: bool) -> None:
    """Print the records of a run: as JSON, in a list where it is a series, or as tables.

    Args:
        found: the folder of each launch and its record.
    """
    if as_json:
        documents = [record.model_dump(mode="json") for _, record in found]
        say_json(documents if repeated or len(documents) != 1 else documents[0])
        return
    print_tables([(from_here(folder), record) for folder, record in found], repeated=repeated)


def from_here(path: Path) -> Path:
    """Return ``path`` as it is called from the folder we are in, if it lies below it."""
    try:
        here = Path.cwd()
    except FileNotFoundError:
        return path  # the folder we are in was deleted
    return path.relative_to(here) if path.is_relative_to(here) else path
