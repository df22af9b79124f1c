"""Read PerfLog and MLPerf logs, a row each run, whatever their length.

The totals that a program prints at its end come before its step lines, of which public programs
print every thousandth.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainmark.errors import DataError
from trainmark.library.analysis.events import MARKS, EventValues
from trainmark.library.analysis.log import blocks, lines
from trainmark.library.importers.cells import WORDS, columns
from trainmark.library.importers.table import row
from trainmark.spec import message

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainmark.library.importers.table import Page
    from trainmark.record.rows import Row, Unread

_KEY = ("model", "framework", "vendor", "nnodes", "nproc", "repeat")  # joined by colons
_STARTS = re.compile("INIT_START|init_start|run_start")
_FORMS = {"perflog": "perflog", "mllog": "mlperf"}


class _Run:
    """One run in a log: its steps, and what it tells beside them by column."""

    def __init__(self, mark: str, rank: object = None) -> None:
        self.steps = EventValues(keyword=MARKS[mark], rank=rank)
        self.form = _FORMS[mark]
        self.told: dict[str, Any] = {}
        self.place = (0, "")
        self.over = False
        self._start_s: float | None = None

    def feed(self, number: int, line: str) -> None:
        """Take the event of a line."""
        if (event := self.steps.feed(number, line)) is None:
            return
        name, value = event.get("event") or event.get("key"), event.get("value")
        if isinstance(value, dict) and "case" in value:
            self.told.setdefault("case", value["case"])
        if name == "run_start":
            self._start_s = float(event["time_ms"]) / 1000
        elif name in {"FINISHED", "run_stop"}:
            self.told |= value if isinstance(value, dict) else {}
            self.over, self.place = True, (number, line)
            if self._start_s is not None:
                self.told["train_time"] = float(event["time_ms"]) / 1000 - self._start_s
        elif name in WORDS["mlperf"]:
            self.told[WORDS["mlperf"][name]] = value


def read(path: Path, page: Page) -> Iterator[Row | Unread]:
    """Yield the row of each run in a log, and what of it cannot be read.

    Runs follow each other where one that has ended is followed by the first event of the next.
    """
    runs: dict[str, _Run] = {}
    try:
        for number, line in lines(blocks(str(path)), *MARKS.values()):
            mark = next(name for name, text in MARKS.items() if text in line)
            run = runs.setdefault(mark, _Run(mark))
            if run.over and _STARTS.search(line):
                yield from _row(run, page)
                run = runs[mark] = _Run(mark, run.steps.rank)
                run.place = number, line
            run.feed(number, line)
    except DataError as error:
        yield page.unread(0, "file", message("file_unreadable", why=error.what))
        return
    for run in runs.values():
        yield from _row(run, page)
    if not runs:
        yield page.unread(0, "file", message("log_without_events"))


def _row(run: _Run, page: Page) -> Iterator[Row | Unread]:
    steps, told = run.steps, {_text(key): value for key, value in run.told.items()}
    page = replace(page, form=run.form)
    if steps.malformed:
        why = message("events_malformed", count=steps.malformed)
        yield page.unread(steps.malformed_at, "row", why, steps.first_malformed)
    parts = str(told.pop("case", "")).split(":")
    configuration = ":".join(parts) or Path(page.file).name
    if len(parts) == len(_KEY):
        told |= dict(zip(_KEY, parts, strict=True))
        if parts[2] not in WORDS["vendors"]:
            told["device"] = told.pop("vendor")
    if "throughput(ips)_raw" in told:  # the other is of the planned steps, not of samples trained
        told = {key: value for key, value in told.items() if not key.endswith("_per_second")}
    names = {column.name for column in columns([*told], unknown="ignored")}
    if "p_train" not in names:
        told |= _measured(steps)
    if "final_loss" not in names and steps.loss is not None:
        told["last_loss"] = steps.loss
    known = columns(["configuration", *told], unknown="ignored")
    notes = [message("run_not_converged")] if told.get("converged") is False else []
    notes += [message("run_not_successful")] if steps.failed else []
    printed = [_text(value) for value in (configuration, *told.values())]
    line, raw = run.place
    page = replace(page, notes=tuple(notes))
    if any(column.is_figure for column in known):
        yield from row(printed, known, page, line, table=0, raw=raw)
    else:
        yield page.unread(0, "file", message("log_without_figures", events=steps.events))


def _text(value: object) -> str:
    """Return a value as text; JSON can hold half surrogates, which no text has."""
    return str(value).encode("utf-8", "replace").decode()


def _measured(steps: EventValues) -> dict[str, float]:
    """Return the speed of the step lines: as logged, else all samples over all seconds."""
    values, batches = steps.values, steps.batches
    if steps.reads == "speed":
        return {"p_train": sum(values) / len(values)}
    if sum(values) > 0 and len(batches) == len(values):
        return {"p_train": sum(batches) / sum(values)}
    return {}
