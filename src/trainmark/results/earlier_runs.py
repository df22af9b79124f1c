"""The results with which runs are compared by default: published ones, and the runs before them."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING

from trainmark.errors import RecordError
from trainmark.published.importers.reference_rows import read_published
from trainmark.record.record import RECORD_FILE, read_record

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from trainmark.record.record import Record
    from trainmark.record.work import Result

_MAX_EARLIER_RUNS = 5  # that a run is compared with by default
_MAX_FOLDERS_READ = 40  # in the search for earlier runs


def find_default_comparisons(records: Sequence[Record], folder: Path | None) -> list[Result]:
    """Return what runs are compared with by default: published rows of their cases, earlier runs.

    The earlier runs are those of the first record's case in the folders beside its own.

    Args:
        records: of the runs.
        folder: of the run of the first record; None: earlier runs are not looked for.
    """
    rows = read_published(record.plan.case for record in records)
    earlier = [] if folder is None else _read_earlier_launches(records[0], folder)
    return [*rows, *earlier]


def _read_earlier_launches(record: Record, folder: Path) -> list[Record]:
    """Return the launches of the newest earlier runs of a record's case in the same store.

    Args:
        record: of a launch, which is compared with the earlier ones.
        folder: of this launch, or of its run if that has several launches. The store is the folder
            that contains the folders of all runs.
    """
    run_folder = folder.resolve()
    if re.fullmatch(r"r\d+", run_folder.name):  # of one launch: a run with several has r1, r2 …
        run_folder = run_folder.parent
    # A copy of the run has the same start time, so the folder's name decides which is earlier.
    order = (record.started, run_folder.name)
    launches: list[Record] = []
    num_runs = 0
    for name, run_launches in read_newest_runs(run_folder.parent):
        if name == run_folder.name:
            continue
        earlier = [
            launch
            for launch in run_launches
            if launch.plan.case == record.plan.case and (launch.started, name) < order
        ]
        if earlier:
            launches += earlier
            num_runs += 1
        if num_runs == _MAX_EARLIER_RUNS:
            break
    return launches


def read_newest_runs(store: Path) -> Iterator[tuple[str, list[Record]]]:
    """Yield each run in a store: the name of its folder and the records of its launches.

    The run written last comes first. Only the first ``_MAX_FOLDERS_READ`` are read; a record that
    cannot be read is left out.

    Args:
        store: the folder that contains the folders of runs.
    """
    if not store.is_dir():
        return
    newest_first = []
    for run in store.iterdir():
        # The record of a single launch is in the run's folder, those of several in r1, r2 …
        files = sorted([*run.glob(RECORD_FILE), *run.glob(f"r*/{RECORD_FILE}")])
        if files:
            written_ns = max(file.stat().st_mtime_ns for file in files)
            newest_first.append((written_ns, run.name, files))
    newest_first.sort(reverse=True)
    for _, name, files in newest_first[:_MAX_FOLDERS_READ]:
        launches = []
        for file in files:
            with suppress(RecordError):  # the record of another run may be damaged
                launches.append(read_record(file))
        yield name, launches
