"""``trainmark attach``: wait for a job that was submitted before, and make its record."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trainmark.cli.running import from_here, print_records, verdict_stands
from trainmark.errors import EXIT_FAILED

NAME = "attach"
EXAMPLES = """\
  trainmark attach runs/RUN             a run of --detach, or of a pasted script
  trainmark attach 4711                 the same, by the engine's number of the job
  trainmark attach runs/RUN --cancel    end the job; the record tells so
"""


def command(
    job: Annotated[str, typer.Argument(help="Folder of the run, or the engine's id of its job.")],
    runs: Annotated[Path, typer.Option(help="Folder in which a job's run is looked for.")] = Path(
        "runs"
    ),
    cancel: Annotated[bool, typer.Option("--cancel", help="End the job first.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the record as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
) -> None:
    """Follow a submitted job to its end, collect its files, record it.

    Ctrl-C ends only the waiting; the job goes on.
    """
    from trainmark.launch import submission
    from trainmark.launch.progress import Progress
    from trainmark.launch.repeats import shown
    from trainmark.launch.stopping import StopRequest
    from trainmark.library.importers.references import published
    from trainmark.pages.files import write_pages

    folder = submission.folder_of(job, runs)
    plan, running = submission.attach(folder)
    request = StopRequest("SIGINT" if cancel else None)
    show = shown(Progress(plan), plan.case, quiet=quiet)
    record = submission.follow(plan, running, request, show)
    write_pages([record], folder, against=[*published([plan.case])])
    with verdict_stands():
        print_records([(from_here(folder), record)], as_json=as_json, repeated=False)
    if not record.passed:
        raise typer.Exit(EXIT_FAILED)
