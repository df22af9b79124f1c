"""What a single run and a plan file share at the command line: launch, write, print."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from trainmark.cli.output import say, say_json

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trainmark.launch.site import Site
    from trainmark.launch.stopping import StopRequest
    from trainmark.planning.plan import Plan
    from trainmark.results.record import Record


def launch_and_write(
    plan: Plan, request: StopRequest, *, site: Site, label: str, quiet: bool
) -> list[Record]:
    """Launch as often as the plan says and write the pages; return the records.

    A failed launch does not stop the others. They are fewer than the plan says where ``request``
    came to hold a signal.
    """
    from trainmark.launch.repeats import launches
    from trainmark.launch.run_dir import refuse_used
    from trainmark.report.files import write_repeats

    if plan.repeat_count > 1:
        refuse_used(Path(plan.run_dir))
    records = []
    for single in launches(plan):
        if request.signal_name is None:
            records.append(launch_one(single, site, label, request=request, quiet=quiet))
    for record, single in zip(records, launches(plan), strict=False):
        _bring_back(record, Path(single.run_dir))
    if plan.repeat_count > 1 and records:
        write_repeats(records, Path(plan.run_dir))
    return records


def launch_one(single: Plan, site: Site, label: str, request: StopRequest, quiet: bool) -> Record:
    """Do one launch and write its pages."""
    from trainmark import devices
    from trainmark.launch.repeats import launch_shown
    from trainmark.report.files import write_pages

    here = single.node_processes == 0
    for one in devices.occupants(single.device.vendor, single.nproc) if here else ():
        if one.computes:
            say(f"trainmark: {one.said()}: figures of this run must not be quoted", err=True)
    record = launch_shown(single, request, site=site, label=label, quiet=quiet)
    write_pages([record], Path(single.run_dir))
    return record


def _bring_back(record: Record, folder: Path) -> None:
    """Write a record again whose folder was deleted while later launches ran."""
    from trainmark.report.files import write_pages
    from trainmark.results.record import RECORD_FILE, write

    if (folder / RECORD_FILE).exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    write(record, folder)
    write_pages([record], folder)
    say(f"trainmark: {folder}: was deleted; record and pages are back, events are not", err=True)


def print_tables(found: Sequence[tuple[Path, Record]], *, repeated: bool) -> None:
    """Print the table of each launch, and of a series their summary.

    Args:
        found: the folder of each launch, or the record file itself, and its record.
    """
    from trainmark.report.terminal import repeats_table, run_table

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


@contextmanager
def verdict_stands() -> Iterator[None]:
    """Keep the exit code when nobody can read what is printed: records and pages are written."""
    try:
        yield
    except OSError as error:
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115 - until the process ends
        with suppress(OSError):
            print(f"trainmark: cannot print the table: {error.strerror}", file=sys.stderr)


def from_here(path: Path) -> Path:
    """Return ``path`` as it is called from the folder we are in, if it lies below it."""
    try:
        here = Path.cwd()
    except FileNotFoundError:
        return path  # the folder we are in was deleted
    return path.relative_to(here) if path.is_relative_to(here) else path
