"""``trainmark record``: the record of a run that was killed together with its keeper."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trainmark.cli.running import print_records
from trainmark.errors import EXIT_FAILED

NAME = "record"
EXAMPLES = """\
  trainmark record runs/RUN         after `kill -9` of everything, or a power cut
  trainmark record runs/RUN --json
"""


def command(
    run: Annotated[Path, typer.Argument(help="Folder of a run, or of its repeats.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the record as JSON.")] = False,
) -> None:
    """Build the record and pages of a run that ended without them."""
    from trainmark.errors import RecordError
    from trainmark.launch.late_record import complete
    from trainmark.library.importers.references import published
    from trainmark.pages.files import write_pages, write_repeats
    from trainmark.record.record import RECORD_FILE, read

    run = run.absolute()
    launches = [run] if (run / "plan.json").exists() else sorted(run.glob("r[0-9]*"))
    lacking = [folder for folder in launches if not (folder / RECORD_FILE).exists()]
    if not lacking:
        raise RecordError("the record exists already", where=str(run))
    for folder in lacking:
        complete(folder)
        made = read(folder)
        write_pages([made], folder, against=[*published([made.plan.case])])
    records = [read(folder) for folder in launches]
    repeated = launches != [run]
    if repeated:
        beside = [*published(record.plan.case for record in records)]
        write_repeats(records, run, against=beside)
    found = list(zip(launches, records, strict=True))
    print_records(found, as_json=as_json, repeated=repeated)
    if not all(record.passed for record in records):
        raise typer.Exit(EXIT_FAILED)
