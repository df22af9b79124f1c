"""Read PerfLog and MLPerf logs, a row for each run, whatever their length.

The totals that a program prints at its end come before its step lines, of which public programs
print every thousandth.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from trainmark.errors import DataError
from trainmark.published.importers.event_runs import FORMS, read_runs
from trainmark.published.importers.table import TableLine
from trainmark.published.importers.table import read as read_table
from trainmark.published.importers.vocabulary import WORDS
from trainmark.published.log import numbered_lines
from trainmark.record.work import Row
from trainmark.spec import message

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainmark.published.importers.event_runs import EventRun
    from trainmark.published.importers.table import Page
    from trainmark.record.work import Unread
    from trainmark.spec import Message

_KEY = ("model", "framework", "vendor", "nnodes", "nproc", "repeat")  # joined by colons


def read(path: Path, page: Page) -> Iterator[Row | Unread]:
    """Yield the row of each run in a log, and what of it cannot be read."""
    count = 0
    try:
        for run in read_runs(numbered_lines(str(path))):
            count += 1
            yield from _entries(run, page)
    except DataError as error:
        yield page.unread(0, "file", message("file_unreadable", why=error.what))
        return
    if not count:
        yield page.unread(0, "file", message("log_without_events"))


def _entries(run: EventRun, page: Page) -> Iterator[Row | Unread]:
    """Yield the row of a run, and what of it cannot be read; an aborted run is always named."""
    if run.malformed:
        number, text = run.malformed[0]
        why = message("events_malformed", count=len(run.malformed))
        yield page.unread(number, "row", why, text)
    entries = list(_row(run, page))
    if run.is_aborted and not any(isinstance(entry, Row) for entry in entries):
        yield page.unread(run.line, "row", message("run_aborted"), run.raw)
    else:
        yield from entries


def _row(run: EventRun, page: Page) -> Iterator[Row | Unread]:
    columns = describe_run(run, Path(page.file).name)
    configuration = columns.pop("configuration")
    figures = WORDS["columns"]["figure"]
    if run.speed is not None and columns.keys().isdisjoint(figures["p_train"]):
        columns["p_train"] = str(run.speed)
    if run.loss is not None and columns.keys().isdisjoint(figures["final_loss"]):
        columns["last_loss"] = str(run.loss)
    head = TableLine(0, ["configuration", *columns], "")
    line = TableLine(run.line, [configuration, *columns.values()], run.raw)
    page = replace(page, form=FORMS[run.mark], notes=tuple(notes_on(run, columns)))
    yield from read_table(head, [line], page)


def describe_run(run: EventRun, file_name: str) -> dict[str, str]:
    """Return what a run says, by column; a case key is split into its parts.

    Args:
        file_name: the configuration of a run that names no case.
    """
    columns = {key: str(value) for key, value in run.facts.items()}
    configuration = columns.pop("case", file_name)
    parts = configuration.split(":")
    if len(parts) == len(_KEY):
        columns |= dict(zip(_KEY, parts, strict=True))
        if parts[2] not in WORDS["names"]["vendors"]:
            columns["device"] = columns.pop("vendor")
    if "throughput(ips)_raw" in columns:
        # Figures that end in this are of the planned steps, not of the samples that were trained.
        columns = {key: value for key, value in columns.items() if not key.endswith("_per_second")}
    return columns | {"configuration": configuration}


def world_size(columns: dict[str, str]) -> int | None:
    """Return the devices of a run; None: it does not say."""
    counts = [columns.get("nnodes", ""), columns.get("nproc", "")]
    return int(counts[0]) * int(counts[1]) if all(map(str.isdecimal, counts)) else None


def speed_of_training(run: EventRun) -> float | None:
    """Return the samples a second without evaluations: as totalled by the program, else counted."""
    total = run.facts.get("throughput(ips)_no_eval")
    return float(total) if isinstance(total, int | float) else run.speed


def notes_on(run: EventRun, columns: dict[str, str]) -> Iterator[Message]:
    """Yield that a run did not succeed, where its log contradicts itself, what it says once.

    What cannot be checked is named of a run that succeeded: of the others no figure counts.
    """
    if columns.get("converged") == "False":
        yield message("run_not_converged")
    if run.has_failed:
        yield message("run_not_successful")
    if run.is_aborted:
        yield message("run_aborted")
    devices = world_size(columns)
    yield from run.find_contradictions(devices)
    has_succeeded = not (run.has_failed or run.is_aborted)
    if FORMS[run.mark] == "mlperf" and run.speed is not None and has_succeeded:
        unchecked = run.name_unchecked(devices)
        if unchecked:
            yield message("log_not_checkable", what=", ".join(unchecked))
