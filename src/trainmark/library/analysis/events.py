"""Logs whose lines are JSON events: MLPerf logging and PerfLog.

Owns which events give speeds, times, samples and the loss, for ``analyze`` and ``import``.
"""

from __future__ import annotations

import json
import math
from abc import abstractmethod
from typing import TYPE_CHECKING, Any

from trainmark.library.analysis.distribution import Distribution
from trainmark.library.analysis.readers import Reader

if TYPE_CHECKING:
    from trainmark.library.analysis.lines import Line

_DECODER = json.JSONDecoder()


def parse(line: Line, marker: str) -> Any:
    """Return the JSON value behind ``marker`` in a line; None: there is none."""
    try:
        return _DECODER.raw_decode(line.text.partition(marker)[2].lstrip())[0]
    except (ValueError, RecursionError):
        return None


class EventReader(Reader):
    """Speeds of the whole job as logged, else seconds of intervals and the samples done in them."""

    reads = "step_time"
    _counts_samples = True

    def feed(self, line: Line) -> None:
        """Take the event of a line, if it has one."""
        if self.keyword in line.text:
            self.take(line, parse(line, self.keyword))

    def take(self, line: Line, event: Any) -> None:
        """Take the event of a line; what is none is counted as malformed."""
        try:
            self._take(event)
        except (LookupError, ValueError, TypeError, AttributeError, ArithmeticError):
            self.count(line, malformed=True)
        else:
            self.count(line, malformed=False)

    @abstractmethod
    def _take(self, event: dict[str, Any]) -> None:
        """Take one event; raise one of the errors that ``take`` counts if it is malformed."""

    def _speed(self, value: Any) -> None:
        speed = _finite(value)
        if self.reads != "speed":  # intervals before it are left out
            self.reads, self.whole_job, self.first = "speed", True, None
            self.values, self.batches = Distribution(self.skip), Distribution()
        self.values.add(speed)

    def _interval(self, seconds: float, samples: float | None) -> None:
        if seconds < 0:
            raise ValueError
        if self.reads == "speed":
            return
        self.values.add(seconds)
        self._counts_samples = self._counts_samples and samples is not None
        if self._counts_samples and samples is not None:
            self.batches.add(samples)
        else:
            self.batches = Distribution()


class MLLogReader(EventReader):
    """MLPerf logging: ``tracked_stats`` speeds, else blocks, else epochs."""

    keyword = ":::MLLOG"

    def __init__(self, skip: int = 0) -> None:
        super().__init__(skip)
        self._open: dict[str, tuple[float, float | None]] = {}
        self._train_samples: float | None = None
        self._unit_of_time = ""

    def _take(self, event: dict[str, Any]) -> None:
        key, value, time_s = event["key"], event.get("value"), _finite(event["time_ms"]) / 1000
        metadata = event.get("metadata") or {}
        what, _, edge = key.partition("_")
        if key == "tracked_stats" and isinstance(value, dict):
            if "throughput" in value:
                self._speed(value["throughput"])
            if value.get("loss") is not None:
                self.loss = float(value["loss"])
        elif key == "train_loss" and value is not None:
            self.loss = float(value)
        elif key == "train_samples":
            self._train_samples = _finite(value)
        elif key == "run_stop":
            status = metadata.get("status", "success")
            self.failed = status != "success"
            self.notes.append(f"run_stop says {status}")
        elif what in {"block", "epoch"} and edge == "start":
            self._open[what] = time_s, _optional(metadata.get("samples_count"))
        elif edge == "stop" and what in self._open:
            start_s, first = self._open.pop(what)
            self._unit_of_time = self._unit_of_time or what  # what ends first is measured
            if what == self._unit_of_time:
                last = _optional(metadata.get("samples_count"))
                samples = self._train_samples if what == "epoch" else None
                if last is not None and first is not None:
                    samples = last - first
                self._interval(time_s - start_s, samples)


class PerfLogReader(EventReader):
    """PerfLog: from one STEP_END to the next, of one rank, evaluations left out.

    Between two ends lie data loading and every step whose events were not printed, so time
    and ``num_trained_samples`` always cover the same work.
    """

    keyword = "[PerfLog]"

    def __init__(self, skip: int = 0) -> None:
        super().__init__(skip)
        self._rank: object = None
        self._trained: float | None = 0.0
        self._last: tuple[float, float | None] | None = None

    def _take(self, event: dict[str, Any]) -> None:
        name, value = event["event"], event.get("value") or {}
        if name not in {"STEP_BEGIN", "STEP_END", "EVALUATE"}:
            return
        rank = event["metadata"].get("rank", 0)
        self._rank = rank if self._rank is None else self._rank
        if rank != self._rank:
            note = f"steps of rank {self._rank} only; other ranks print theirs too"
            self.notes += [note] if note not in self.notes else []
            return
        time_s = _finite(event["metadata"]["time_ms"]) / 1000
        if name == "EVALUATE":
            self._last = None
        elif name == "STEP_BEGIN":  # the first step, or the first after an evaluation
            self._last = self._last or (time_s, self._trained)
        else:
            trained = _optional(value.get("num_trained_samples"))
            if self._last is not None:
                start_s, before = self._last
                known = trained is not None and before is not None
                self._interval(time_s - start_s, trained - before if known else None)  # type: ignore[operator]
            self._last, self._trained = (time_s, trained), trained
            if value.get("loss") is not None:
                self.loss = float(value["loss"])


READERS: dict[str, type[EventReader]] = {"mllog": MLLogReader, "perflog": PerfLogReader}


def _finite(value: Any) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError
    return number


def _optional(value: Any) -> float | None:
    return None if value is None else _finite(value)
