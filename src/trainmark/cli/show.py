"""``trainmark show``: the table of a run that is over.

Owns which runs a folder holds and how their records are read for showing: held against
their evidence.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trainmark.cli.output import say, say_json
from trainmark.cli.running import print_tables
from trainmark.errors import EXIT_FAILED

if TYPE_CHECKING:
    from trainmark.results.record import Record

NAME = "show"
EXAMPLES = """\
  trainmark show                    the newest run under ./runs
  trainmark show runs/RUN
  trainmark show runs/demo          every run of a plan
  trainmark show runs/RUN --json
"""


@dataclass(slots=True)
class Reader:
    """Read records and remember which of them their evidence contradicts.

    Args:
        verify: whether to look at the evidence at all.
    """

    verify: bool = True
    refuted: list[Path] = field(default_factory=list)

    def read(self, path: Path) -> Record:
        """Return the record of a run directory or a file, with its evidence in its trust.

        Raises:
            RecordError: no such file, or not a record of this schema.
        """
        from trainmark.results import record, trust
        from trainmark.results.verify import verify

        found = record.read(path)
        if not self.verify:
            return found
        findings = verify(found, path if path.is_dir() else path.parent)
        found = trust.with_findings(found, findings)
        if trust.refuted(found.trust):
            self.refuted.append(path)
        return found

    def end(self) -> None:
        """Name the records that do not agree with their evidence, and fail."""
        for path in self.refuted:
            say(f"trainmark: {path}: the record does not agree with its evidence", err=True)
        if self.refuted:
            raise typer.Exit(EXIT_FAILED)


def newest_run() -> Path:
    """Return the newest run under ``./runs`` that has a record; the whole series of a repeat.

    Raises:
        RecordError: there is none.
    """
    from trainmark.errors import RecordError
    from trainmark.planning.plan import RUNS_DIR
    from trainmark.results.record import RECORD_FILE, read

    # A run of its own, one of a plan or of a series, a repeat of a plan's run.
    found = [
        path for below in ("*", "*/*", "*/*/*") for path in RUNS_DIR.glob(f"{below}/{RECORD_FILE}")
    ]
    if not found:
        raise RecordError(
            "no run there yet", where=str(RUNS_DIR), remedy="`trainmark run CASE`, or name a run"
        )
    newest = max(found, key=lambda path: path.stat().st_mtime_ns).parent
    return newest.parent if read(newest).plan.repeat_count > 1 else newest


def find_runs(folder: Path) -> list[list[Path]]:
    """Return the runs that ``folder`` is or holds, each as the directories of its launches.

    A run is its own launch or has repeats ``r1``, ``r2`` …; the runs of a plan file lie one
    down. Where there is no record, ``folder`` alone is returned: reading it says so.
    """
    repeats = _launches(folder)
    if folder.is_file() or repeats == [folder]:
        return [[folder]]
    below = [found for child in sorted(folder.glob("*")) if (found := _launches(child))]
    # A plan file may call a run r1: repeats are alone in their folder.
    if repeats and len(repeats) == len(below):
        return [repeats]
    return below or [[folder]]


def _launches(run: Path) -> list[Path]:
    """Return the directories of a run's launches; none where there is no record."""
    from trainmark.results.record import RECORD_FILE

    if (run / RECORD_FILE).exists():
        return [run]
    found = (path.parent for path in run.glob(f"r*/{RECORD_FILE}"))
    repeats = [path for path in found if path.name[1:].isdecimal()]
    return sorted(repeats, key=lambda path: int(path.name[1:]))


def command(
    run: Annotated[
        Path | None, typer.Argument(help="Run directory, record.json, or a plan's folder.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the record as JSON.")] = False,
    no_verify: Annotated[
        bool, typer.Option("--no-verify", help="Do not hold records against their evidence.")
    ] = False,
) -> None:
    """Print the table of a run, or of each run of a plan."""
    asked = run or newest_run()
    reader = Reader(verify=not no_verify)
    runs = [[(path, reader.read(path)) for path in paths] for paths in find_runs(asked)]
    if as_json:
        documents = [record.model_dump(mode="json") for found in runs for _, record in found]
        say_json(documents if len(documents) > 1 else documents[0])
    else:
        for found in runs:
            single = found[0][0] == asked  # one launch of a series has no summary
            print_tables(found, repeated=not single and found[0][1].plan.repeat_count > 1)
    reader.end()
