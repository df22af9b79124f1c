"""What a single run and a plan file share at the command line: launch, write, print."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainmark.launch.stopping import StopRequest
    from trainmark.plan import Plan
    from trainmark.results.record import Record


def launch_and_write(plan: Plan, request: StopRequest, *, label: str, quiet: bool) -> list[Record]:
    """Launch as often as the plan says and write the pages; return the records.

    They are fewer than the plan says where ``request`` came to hold a signal.
    """
    from trainmark.launch.repeats import launch_all
    from trainmark.report.files import write_pages, write_repeats

    records = launch_all(
        plan,
        request,
        label=label,
        quiet=quiet,
        ended=lambda record, folder: write_pages([record], folder),
    )
    if plan.repeat_count > 1 and records:
        write_repeats(records, Path(plan.run_dir))
    return records


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
