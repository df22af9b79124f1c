"""Read PerfLog and MLPerf logs, a row each run, whatever their length.

The totals that a program prints at its end come before its step lines, of which public programs
print every thousandth.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic_core import from_json

from trainmark.errors import DataError
from trainmark.library.importers.table import Line
from trainmark.library.importers.table import read as read_table
from trainmark.library.importers.vocabulary import WORDS
from trainmark.library.log import lines
from trainmark.spec import message

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainmark.library.importers.table import Page
    from trainmark.record.work import Row, Unread

_KEY = ("model", "framework", "vendor", "nnodes", "nproc", "repeat")  # joined by colons
_STARTS = re.compile("INIT_START|init_start|run_start")
_FORMS = {"[PerfLog]": "perflog", ":::MLLOG": "mlperf"}  # by the mark before an event


@dataclass
class _Run:
    """One run in a log: its speed, and what it tells beside it by column.

    MLPerf logging has speeds in ``tracked_stats``, else blocks. PerfLog has what lies between one
    STEP_END and the next, evaluations left out: data loading and every step whose events were not
    printed, so that time and samples cover the same work.

    Args:
        rank: whose events count; None: of the first event.
        since: seconds, and samples trained until then, at which the open interval began.
        seconds: of all intervals; ``samples``: trained in them, NaN: the log does not tell.
    """

    mark: str
    rank: object = None
    line: int = 0
    raw: str = ""
    told: dict[str, Any] = field(default_factory=dict)
    over: bool = False
    failed: bool = False
    start_s: float | None = None
    since: tuple[float, float] | None = None
    trained: float = 0.0
    seconds: float = 0.0
    samples: float = 0.0
    speeds: list[float] = field(default_factory=list)
    loss: object = None
    malformed: list[tuple[int, str]] = field(default_factory=list)

    def feed(self, number: int, line: str) -> None:
        """Take the event of a line, unless it is of another rank."""
        try:
            event = from_json(line.partition(self.mark)[2])
            metadata = event.get("metadata") or {}
            rank = metadata.get("rank", 0)
            self.rank = rank if self.rank is None else self.rank
            if rank == self.rank:
                self._take(metadata | event, number, line)
        except (LookupError, ValueError, TypeError, AttributeError):
            self.malformed.append((number, line.strip()))

    def _take(self, event: dict[str, Any], number: int, line: str) -> None:
        name, value = event.get("event") or event["key"], event.get("value")
        totals = value if isinstance(value, dict) else {}
        samples = totals.get("num_trained_samples", event.get("samples_count"))
        samples = math.nan if samples is None else float(samples)
        if name in {"STEP_END", "tracked_stats"}:
            self.loss = totals.get("loss", self.loss)
        if "case" in totals:
            self.told.setdefault("case", totals["case"])
        if name in {"STEP_BEGIN", "block_start"}:  # of steps the first, or first after EVALUATE
            first = samples if name == "block_start" else self.trained
            self.since = self.since or (_seconds(event), first)
        elif name in {"STEP_END", "block_stop"}:
            end = _seconds(event), samples
            begun = self.since or end
            if end < begun:
                raise ValueError
            self.seconds += end[0] - begun[0]
            self.samples += end[1] - begun[1]
            self.since, self.trained = end if name == "STEP_END" else None, samples
        elif name == "EVALUATE":
            self.since = None
        elif name == "tracked_stats" and "throughput" in totals:
            self.speeds.append(float(totals["throughput"]))
        elif name == "train_loss":
            self.loss = value
        elif name == "run_start":
            self.start_s = _seconds(event)
        elif name in {"FINISHED", "run_stop"}:
            self.told |= totals
            self.over, self.line, self.raw = True, number, line.rstrip("\n")
            self.failed = event.get("status", "success") != "success"
            if self.start_s is not None:
                self.told["train_time"] = _seconds(event) - self.start_s
        elif name in WORDS["mlperf"]:
            self.told[WORDS["mlperf"][name]] = value

    @property
    def speed(self) -> float | None:
        """The mean speed as logged, else all samples over all seconds; None: it does not tell."""
        if self.speeds:
            return sum(self.speeds) / len(self.speeds)
        told = self.seconds > 0 and not math.isnan(self.samples)
        return self.samples / self.seconds if told else None


def _seconds(event: dict[str, Any]) -> float:
    return float(event["time_ms"]) / 1000


def read(path: Path, page: Page) -> Iterator[Row | Unread]:
    """Yield the row of each run in a log, and what of it cannot be read.

    Runs follow each other where one that has ended is followed by the first event of the next.
    """
    runs: dict[str, _Run] = {}
    try:
        for number, line in enumerate(lines(str(path)), 1):
            for mark in _FORMS:
                if mark not in line:
                    continue
                run = runs.setdefault(mark, _Run(mark))
                if run.over and _STARTS.search(line):
                    yield from _row(run, page)
                    run = runs[mark] = _Run(mark, run.rank, number, line.rstrip("\n"))
                run.feed(number, line)
    except DataError as error:
        yield page.unread(0, "file", message("file_unreadable", why=error.what))
        return
    for run in runs.values():
        yield from _row(run, page)
    if not runs:
        yield page.unread(0, "file", message("log_without_events"))


def _row(run: _Run, page: Page) -> Iterator[Row | Unread]:
    told = {key: str(value) for key, value in run.told.items()}
    if run.malformed:
        why = message("events_malformed", count=len(run.malformed))
        yield page.unread(run.malformed[0][0], "row", why, run.malformed[0][1])
    configuration = told.pop("case", Path(page.file).name)
    parts = configuration.split(":")
    if len(parts) == len(_KEY):
        told |= dict(zip(_KEY, parts, strict=True))
        if parts[2] not in WORDS["names"]["vendors"]:
            told["device"] = told.pop("vendor")
    if "throughput(ips)_raw" in told:  # the other is of the planned steps, not of samples trained
        told = {key: value for key, value in told.items() if not key.endswith("_per_second")}
    named = WORDS["columns"]["figure"]
    if run.speed is not None and told.keys().isdisjoint(named["p_train"]):
        told["p_train"] = str(run.speed)
    if run.loss is not None and told.keys().isdisjoint(named["final_loss"]):
        told["last_loss"] = str(run.loss)
    notes = [message("run_not_converged")] * (told.get("converged") == "False")
    notes += [message("run_not_successful")] * run.failed
    head = Line(0, ["configuration", *told], "")
    line = Line(run.line, [configuration, *told.values()], run.raw)
    page = replace(page, form=_FORMS[run.mark], notes=tuple(notes))
    yield from read_table(head, [line], page)
