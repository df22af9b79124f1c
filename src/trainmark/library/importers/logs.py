"""Read PerfLog and MLPerf logs, a row each run, whatever their length.

The totals that a program prints at its end come before its step lines, of which public programs
print every thousandth.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainmark.errors import DataError
from trainmark.library.analysis import lines
from trainmark.library.analysis.events import EventReader, MLLogReader, PerfLogReader, parse
from trainmark.library.importers.cells import WORDS, columns
from trainmark.library.importers.table import row
from trainmark.spec import message

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainmark.library.analysis.lines import Line
    from trainmark.library.importers.table import Page
    from trainmark.record.rows import Row, Unread

_KEY = ("model", "framework", "vendor", "nnodes", "nproc", "repeat")  # joined by colons
_STARTS = ("INIT_START", "run_start")
_READERS: dict[str, type[EventReader]] = {"perflog": PerfLogReader, "mlperf": MLLogReader}


class _Run:
    """One run in a log: its steps, and what it tells beside them by column."""

    def __init__(self, form: str, place: tuple[int, str] = (0, "")) -> None:
        self.form = form
        self.steps = _READERS[form]()
        self.told: dict[str, Any] = {}
        self.place = place
        self._start_s: float | None = None
        self._started: set[object] = set()  # ranks
        self._ended: set[object] = set()

    def is_over(self, event: Any) -> bool:
        """Tell whether an event is of the next run: its rank starts again or has ended."""
        rank = _rank(event)
        return rank in self._ended or (_name(event) in _STARTS and rank in self._started)

    def feed(self, line: Line, event: Any) -> None:
        """Take the event of a line."""
        malformed = self.steps.malformed
        self.steps.take(line, event)
        if self.steps.malformed > malformed:
            return
        name, value, place = _name(event), event.get("value"), (line.number, line.text.rstrip("\n"))
        if isinstance(value, dict) and "case" in value:
            self.told.setdefault("case", value["case"])
        if name in _STARTS:
            self._started.add(_rank(event))
            self._start_s = float(event.get("time_ms") or 0) / 1000
        elif name == "FINISHED" and isinstance(value, dict):
            self.told |= value
            self._ended.add(_rank(event))
            self.place = place
        elif name == "run_stop":
            self.place = place
            if self._start_s is not None:
                self.told["train_time"] = float(event["time_ms"]) / 1000 - self._start_s
        elif name in WORDS["mlperf"]:
            self.told[WORDS["mlperf"][name]] = value


def _name(event: Any) -> Any:
    return (event.get("event") or event.get("key")) if isinstance(event, dict) else None


def _rank(event: Any) -> Any:
    metadata = event.get("metadata") if isinstance(event, dict) else None
    rank = metadata.get("rank", 0) if isinstance(metadata, dict) else 0
    return rank if isinstance(rank, int) else str(rank)


def read(path: Path, page: Page) -> Iterator[Row | Unread]:
    """Yield the row of each run in a log, and what of it cannot be read."""
    runs: dict[str, _Run] = {}
    try:
        for line in lines.read(str(path)):
            for form, reader in _READERS.items():
                if reader.keyword in line.text:
                    event = parse(line, reader.keyword)
                    if form in runs and runs[form].is_over(event):
                        yield from _row(runs[form], page)
                        runs[form] = _Run(form, (line.number, line.text.rstrip("\n")))
                    runs.setdefault(form, _Run(form)).feed(line, event)
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
    if (bad := steps.first_malformed) is not None:
        why = message("events_malformed", count=steps.malformed)
        yield page.unread(bad.number, "row", why, bad.text.rstrip("\n"))
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
        yield page.unread(0, "file", message("log_without_figures", events=steps.matched))


def _text(value: object) -> str:
    """Return a value as text; JSON can hold half surrogates, which no text has."""
    return str(value).encode("utf-8", "replace").decode()


def _measured(steps: EventReader) -> dict[str, float]:
    """Return the speed of the step lines: as logged, else all samples over all seconds."""
    if steps.reads == "speed":
        return {"p_train": steps.values.mean}
    if steps.batches.count and steps.values.mean > 0:
        return {"p_train": steps.batches.mean / steps.values.mean}
    return {}
