"""Read PerfLog and MLPerf logs, a row each run, whatever their length.

The totals that a program prints at its end come before its step lines, of which public programs
print every thousandth. How events are found is ``analysis.events``'.
"""

from __future__ import annotations

from abc import ABC
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainmark.errors import DataError
from trainmark.library.analysis.events import EventReader, MLLogReader, PerfLogReader
from trainmark.library.analysis.source import blocks
from trainmark.library.importers.cells import WORDS, columns
from trainmark.library.importers.table import row
from trainmark.spec import message

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainmark.library.analysis.source import Block
    from trainmark.library.importers.table import Page
    from trainmark.record.rows import Row, Unread

_KEY = ("model", "framework", "vendor", "nnodes", "nproc", "repeat")  # joined by colons


class _Log(EventReader, ABC):
    """What a log says beside its steps, by column, and the line that ends it."""

    def __init__(self) -> None:
        super().__init__(skip=0)
        self.said: dict[str, Any] = {}
        self.place = 0, ""
        self.earlier: list[_Log] = []  # runs in the same file, each as it ended
        self.started: set[object] = set()  # ranks
        self.ended: set[object] = set()

    def _mark(self, event: dict[str, Any], *, starts: bool, block: Block, at: int) -> object:
        """Return the rank of an event; one that starts again, or goes on after its end, is new."""
        rank = (event.get("metadata") or {}).get("rank", 0)
        if rank in self.ended or (starts and rank in self.started):
            earlier = [*self.earlier, copy(self)]
            self.__dict__.clear()
            type(self).__init__(self)
            self.earlier, self.matched = earlier, 1
            self.place = block.line_number(at), block.line(at)
        self.started |= {rank} if starts else set()
        return rank


class _PerfLog(_Log, PerfLogReader):
    """PerfLog with the totals of FINISHED and the case of the first event that names it."""

    def _event(self, event: dict[str, Any], block: Block, at: int) -> None:
        value, starts = event.get("value"), event["event"] == "INIT_START"
        rank = self._mark(event, starts=starts, block=block, at=at)
        if isinstance(value, dict) and "case" in value:
            self.said.setdefault("case", value["case"])
        if event["event"] == "FINISHED" and isinstance(value, dict):
            self.said |= value
            self.ended.add(rank)
            self.place = block.line_number(at), block.line(at)
        super()._event(event, block, at)


class _MLLog(_Log, MLLogReader):
    """MLPerf's log with the time from ``run_start`` to ``run_stop`` and what it says of itself."""

    _start_ms: float | None = None

    def _event(self, event: dict[str, Any], block: Block, at: int) -> None:
        key = event["key"]
        self._mark(event, starts=key == "run_start", block=block, at=at)
        if key == "run_start":
            self._start_ms = event["time_ms"]
        elif key == "run_stop":
            self.place = block.line_number(at), block.line(at)
            if self._start_ms is not None:
                self.said["train_time"] = (event["time_ms"] - self._start_ms) / 1000
        elif key in WORDS["mlperf"]:
            self.said[WORDS["mlperf"][key]] = event.get("value")
        super()._event(event, block, at)


def read(path: Path, page: Page) -> Iterator[Row | Unread]:
    """Yield the row of each run in a log, and what of it cannot be read."""
    readers: dict[str, _Log] = {"perflog": _PerfLog(), "mlperf": _MLLog()}
    try:
        for block in blocks(str(path)):
            for form, reader in readers.items():
                reader.feed(block)
                while reader.earlier:  # memory does not grow with their number
                    yield from _row(reader.earlier.pop(0), replace(page, form=form))
    except DataError as error:
        yield page.unread(0, "file", message("file_unreadable", why=error.what))
        return
    for form, reader in readers.items():
        if reader.matched:
            yield from _row(reader, replace(page, form=form))
    if not any(reader.matched for reader in readers.values()):
        yield page.unread(0, "file", message("log_without_events"))


def _row(reader: _Log, page: Page) -> Iterator[Row | Unread]:
    if (bad := reader.first_malformed) is not None:
        why = message("events_malformed", count=reader.malformed)
        yield page.unread(bad.number, "row", why, bad.text)
    said = {_text(key): value for key, value in reader.said.items()}
    parts = str(said.pop("case", "")).split(":")
    configuration = ":".join(parts) or Path(page.file).name
    if len(parts) == len(_KEY):
        said |= dict(zip(_KEY, parts, strict=True))
        if parts[2] not in WORDS["vendors"]:
            said["device"] = said.pop("vendor")
    if "throughput(ips)_raw" in said:  # the other is of the planned steps, not of samples trained
        said = {key: value for key, value in said.items() if not key.endswith("_per_second")}
    known = columns(["configuration", *said], unknown="ignored")
    names = {column.name for column in known}
    measured = {} if "p_train" in names else _measured(reader)
    if "final_loss" not in names and reader.loss is not None:
        measured["last_loss"] = reader.loss
    known += columns(list(measured), unknown="ignored")
    notes = [message("run_not_converged")] if said.get("converged") is False else []
    notes += [message("run_not_successful")] if reader.failed else []
    values = (configuration, *said.values(), *measured.values())
    printed = [_text(value) for value in values]
    line, raw = reader.place
    page = replace(page, notes=tuple(notes))
    if any(column.is_figure for column in known):
        yield from row(printed, known, page, line, table=0, raw=raw)
    else:
        yield page.unread(0, "file", message("log_without_figures", events=reader.matched))


def _text(value: object) -> str:
    """Return a value as text; JSON can hold half surrogates, which no text has."""
    return str(value).encode("utf-8", "replace").decode()


def _measured(reader: _Log) -> dict[str, float]:
    """Return the speed of the step lines: as logged, else all samples over all seconds."""
    speeds, seconds, samples = reader.speeds, reader.seconds, reader.samples
    if speeds.count:
        return {"p_train": speeds.mean}
    if samples.count and samples.count == seconds.count and seconds.mean > 0:
        return {"p_train": samples.mean / seconds.mean}
    return {}
