"""Read PerfLog and MLPerf logs, a row each run, whatever their length.

The totals that a program prints at its end come before its step lines, of which public programs
print every thousandth.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainmark.errors import DataError
from trainmark.library.importers.cells import WORDS
from trainmark.library.importers.table import Line
from trainmark.library.importers.table import read as read_table
from trainmark.library.log import MARKS, EventValues, lines
from trainmark.spec import message

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainmark.library.importers.table import Page
    from trainmark.record.work import Row, Unread

_KEY = ("model", "framework", "vendor", "nnodes", "nproc", "repeat")  # joined by colons
_STARTS = re.compile("INIT_START|init_start|run_start")
_FORMS = {"perflog": "perflog", "mllog": "mlperf"}


@dataclass
class _Run:
    """One run in a log: its steps, and what it tells beside them by column."""

    steps: EventValues
    told: dict[str, Any] = field(default_factory=dict)
    line: int = 0
    raw: str = ""
    over: bool = False
    start_s: float | None = None

    def feed(self, number: int, line: str) -> None:
        """Take the event of a line."""
        if (event := self.steps.feed(number, line)) is None:
            return
        name, value = event.get("event") or event.get("key"), event.get("value")
        totals = value if isinstance(value, dict) else {}
        if "case" in totals:
            self.told.setdefault("case", totals["case"])
        if name == "run_start":
            self.start_s = float(event["time_ms"]) / 1000
        elif name in {"FINISHED", "run_stop"}:
            self.told |= totals
            self.over, self.line, self.raw = True, number, line.rstrip("\n")
            if self.start_s is not None:
                self.told["train_time"] = float(event["time_ms"]) / 1000 - self.start_s
        elif name in WORDS["mlperf"]:
            self.told[WORDS["mlperf"][name]] = value


def read(path: Path, page: Page) -> Iterator[Row | Unread]:
    """Yield the row of each run in a log, and what of it cannot be read.

    Runs follow each other where one that has ended is followed by the first event of the next.
    """
    runs: dict[str, _Run] = {}
    try:
        for number, line in enumerate(lines(str(path)), 1):
            for form, mark in MARKS.items():
                if mark not in line:
                    continue
                run = runs.setdefault(form, _Run(EventValues(keyword=mark)))
                if run.over and _STARTS.search(line):
                    yield from _row(run, replace(page, form=_FORMS[form]))
                    steps = EventValues(keyword=mark, rank=run.steps.rank)
                    run = runs[form] = _Run(steps, line=number, raw=line.rstrip("\n"))
                run.feed(number, line)
    except DataError as error:
        yield page.unread(0, "file", message("file_unreadable", why=error.what))
        return
    for form, run in runs.items():
        yield from _row(run, replace(page, form=_FORMS[form]))
    if not runs:
        yield page.unread(0, "file", message("log_without_events"))


def _row(run: _Run, page: Page) -> Iterator[Row | Unread]:
    steps, told = run.steps, {_text(key): _text(value) for key, value in run.told.items()}
    if steps.malformed:
        why = message("events_malformed", count=steps.malformed)
        yield page.unread(steps.malformed_at, "row", why, steps.first_malformed)
    configuration = told.pop("case", Path(page.file).name)
    parts = configuration.split(":")
    if len(parts) == len(_KEY):
        told |= dict(zip(_KEY, parts, strict=True))
        if parts[2] not in WORDS["vendors"]:
            told["device"] = told.pop("vendor")
    if "throughput(ips)_raw" in told:  # the other is of the planned steps, not of samples trained
        told = {key: value for key, value in told.items() if not key.endswith("_per_second")}
    speed, named = _speed(steps), WORDS["columns"]["figure"]
    if speed is not None and told.keys().isdisjoint(named["p_train"]):
        told["p_train"] = str(speed)
    if steps.loss is not None and told.keys().isdisjoint(named["final_loss"]):
        told["last_loss"] = str(steps.loss)
    notes = [message("run_not_converged")] * (told.get("converged") == "False")
    notes += [message("run_not_successful")] * steps.failed
    head = Line(0, ["configuration", *told], "")
    line = Line(run.line, [configuration, *told.values()], run.raw)
    yield from read_table(head, [line], replace(page, notes=tuple(notes)))


def _text(value: object) -> str:
    """Return a value as text; JSON can hold half surrogates, which no text has."""
    return str(value).encode("utf-8", "replace").decode()


def _speed(steps: EventValues) -> float | None:
    """Return the speed of the step lines: as logged, else all samples over all seconds."""
    values, batches = steps.values, steps.batches
    if steps.reads == "speed" and values:
        return sum(values) / len(values)
    if sum(values) > 0 and len(batches) == len(values):
        return sum(batches) / sum(values)
    return None
