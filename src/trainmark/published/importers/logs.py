"""Read PerfLog and MLPerf logs of any length, a row for each run.

The totals that a program prints at its end take precedence over its step lines, because public
programs print only every thousandth step.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from trainmark.errors import DataError
from trainmark.published.importers.event_runs import read_runs
from trainmark.published.importers.page import TableLine
from trainmark.published.importers.table import read_table
from trainmark.published.importers.vocabulary import WORDS
from trainmark.published.log import read_numbered_lines
from trainmark.record.work import Row
from trainmark.spec import message

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainmark.published.importers.event_runs import EventRun
    from trainmark.published.importers.page import Page
    from trainmark.record.work import Unread
    from trainmark.spec import Message

TOTAL_SPEED = "throughput(ips)_no_eval"  # samples a second, by the event that ends a run
_CASE_KEY_PARTS = ("model", "framework", "vendor", "nnodes", "nproc", "repeat")  # between colons


def read_log(path: Path, page: Page) -> Iterator[Row | Unread]:
    """Yield the row of each run in a log, and what of it cannot be read.

    A log may hold several runs of a program, one after the other.

    Args:
        page: the file's name and what its rows share; it makes the entries for unread parts.
    """
    has_runs = False
    try:
        for run in read_runs(read_numbered_lines(str(path))):
            has_runs = True
            yield from _read_run(run, page)
    except DataError as error:
        yield page.make_unread_file(message("file_unreadable", why=error.what))
        return
    if not has_runs:
        yield page.make_unread_file(message("log_without_events"))


def _read_run(run: EventRun, page: Page) -> Iterator[Row | Unread]:
    """Yield the row of a run, and what of it cannot be read; an aborted run is always listed.

    Args:
        page: the file's name and what its rows share; it makes the entries for unread parts.
    """
    if run.malformed:
        number, text = run.malformed[0]  # the first line that cannot be read
        why = message("events_malformed", count=len(run.malformed))
        yield page.make_unread(number, "row", why, text)
    entries = list(_read_run_row(run, page))
    if run.is_aborted and not any(isinstance(entry, Row) for entry in entries):
        # That it was aborted explains more than that it has no figures.
        yield page.make_unread(run.line, "row", message("run_aborted"), run.raw)
    else:
        yield from entries


def _read_run_row(run: EventRun, page: Page) -> Iterator[Row | Unread]:
    """Yield the row of a run: its facts are the cells of a table, and their names the headers.

    The speed and the loss of the steps' events are added unless the program printed those of the
    whole run, ``p_train`` (samples a second without evaluations) and ``final_loss``.

    Args:
        page: the file's name and what its rows share.
    """
    columns = describe_run(run, Path(page.file).name)
    configuration = columns.pop("configuration")  # it becomes the first column
    # All headers that mean a figure, by its name: programs print the totals under any of them.
    headers_of_figures = WORDS["columns"]["figure"]
    if run.speed is not None and columns.keys().isdisjoint(headers_of_figures["p_train"]):
        columns["p_train"] = str(run.speed)
    if run.loss is not None and columns.keys().isdisjoint(headers_of_figures["final_loss"]):
        # That of the last step; ``final_loss`` is a mean over several steps.
        columns["last_loss"] = str(run.loss)
    # 0: the file has no line of headers.
    head = TableLine(number=0, cells=["configuration", *columns], raw="")
    line = TableLine(run.line, [configuration, *columns.values()], run.raw)
    page = replace(page, form=run.form, notes=tuple(list_notes(run, columns)))
    yield from read_table(head, [line], page)


def describe_run(run: EventRun, file_name: str) -> dict[str, str]:
    """Return the facts of a run by the header of their column.

    A case key such as ``gpt:pytorch:nvidia:1:8:1`` is split into its parts: model, framework,
    vendor, number of nodes, devices of each, and number of the repetition.

    Args:
        file_name: the configuration of a run that names no case.
    """
    columns = {name: str(value) for name, value in run.facts.items()}
    configuration = columns.pop("case", file_name)
    parts = configuration.split(":")
    if len(parts) == len(_CASE_KEY_PARTS):
        columns |= dict(zip(_CASE_KEY_PARTS, parts, strict=True))
        # Some programs put a device in the place of the vendor.
        if columns["vendor"] not in WORDS["names"]["vendors"]:
            columns["device"] = columns.pop("vendor")
    # FlagPerf's programs print this figure: the samples that were trained, divided by the time.
    # Their figures `training_…_per_second` are less exact: the number of steps times the global
    # batch size, divided by the time.
    if "throughput(ips)_raw" in columns:
        for name in list(columns):
            if name.endswith("_per_second"):
                del columns[name]
    columns["configuration"] = configuration
    return columns


def read_world_size(columns: dict[str, str]) -> int | None:
    """Return the number of devices of a run on all its nodes; None: not known.

    Args:
        columns: the facts of the run, as ``describe_run`` returns them.
    """
    nnodes = columns.get("nnodes", "")
    nproc = columns.get("nproc", "")
    if not nnodes.isdecimal() or not nproc.isdecimal():
        return None
    return int(nnodes) * int(nproc)


def get_training_speed(run: EventRun) -> float | None:
    """Return the samples a second in the time without evaluations; None: not known.

    It is the speed that the program printed at the end of the run, else ``run.speed``: that of the
    events before the end, by their speeds or by their samples and times.
    """
    printed_speed = run.facts.get(TOTAL_SPEED)
    return float(printed_speed) if isinstance(printed_speed, int | float) else run.speed


def list_notes(run: EventRun, columns: dict[str, str]) -> Iterator[Message]:
    """Yield notes on a run: that it failed, its log's contradictions, and what is not checkable.

    What the log states only once is not checkable: nothing can contradict it. It is listed only for
    a run of an MLPerf log that succeeded and has a speed. The settings and speeds with which
    counts are compared are events of MLPerf logs, so nothing in PerfLog is checkable. Of a run that
    failed, the failure is noted instead.

    Args:
        columns: the facts of the run, as ``describe_run`` returns them.
    """
    if columns.get("converged") == "False":  # all facts are texts
        yield message("run_not_converged")
    if run.has_failed:
        yield message("run_not_successful")
    if run.is_aborted:
        yield message("run_aborted")
    devices = read_world_size(columns)
    yield from run.find_contradictions(devices)
    has_succeeded = not (run.has_failed or run.is_aborted)
    if run.form == "mlperf" and run.speed is not None and has_succeeded:
        unchecked = run.list_unchecked(devices)
        if unchecked:
            yield message("log_not_checkable", what=", ".join(unchecked))
