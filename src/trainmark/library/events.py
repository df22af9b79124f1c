"""Logs whose lines are JSON events: MLPerf logging and PerfLog.

Owns which events give speeds, times, samples and the loss, for ``analyze`` and ``import``.
"""

from __future__ import annotations

import json
from array import array
from dataclasses import dataclass, field
from typing import Any

from trainmark.library.log import Values

MARKS = {"mllog": ":::MLLOG", "perflog": "[PerfLog]"}
_DECODER = json.JSONDecoder(parse_constant=lambda _: None)  # NaN is no number
_Moment = tuple[float, float | None]  # seconds, and samples trained until then


@dataclass(kw_only=True)
class EventValues(Values):
    """Speeds of the whole job as logged, else seconds of intervals and the samples done in them.

    MLPerf logging has the speeds of ``tracked_stats``, else blocks, else epochs. PerfLog has what
    lies between one STEP_END and the next of one rank, evaluations left out: data loading and
    every step whose events were not printed, so that time and samples cover the same work.

    Args:
        rank: whose events count; None: of the first event.
    """

    reads: str = "step_time"
    whole_job: bool = True
    rank: object = None
    _open: dict[str, _Moment] = field(default_factory=dict)
    _measured: str = ""  # what ends first: blocks or epochs
    _train_samples: float | None = None
    _trained: float | None = 0.0

    def feed(self, number: int, line: str) -> dict[str, Any] | None:
        """Take the event of a line and return it; None: malformed, or of another rank."""
        try:
            text = line.partition(self.keyword)[2].lstrip()
            event: dict[str, Any] = _DECODER.raw_decode(text)[0]
            rank = (event.get("metadata") or {}).get("rank", 0)
            self.rank = rank if self.rank is None else self.rank
            if rank != self.rank:
                return None
            value = self._perflog(event) if "event" in event else self._mllog(event)
        except (LookupError, ValueError, TypeError, AttributeError, RecursionError):
            self.take(number, line)
            return None
        if value is not None:
            self.take(number, line, value)
        return event

    def _interval(self, start: _Moment, end: _Moment) -> float | None:
        if self.reads == "speed":
            return None
        if (seconds := end[0] - start[0]) < 0:
            raise ValueError
        if start[1] is not None and end[1] is not None:
            self.batches.append(end[1] - start[1])
        return seconds

    def _mllog(self, event: dict[str, Any]) -> float | None:
        key, time_s = event["key"], float(event["time_ms"]) / 1000
        value: Any = event.get("value")
        metadata = event.get("metadata") or {}
        samples = _optional(metadata.get("samples_count"))
        what, _, edge = key.partition("_")
        if key == "tracked_stats":
            self.loss = _optional(value.get("loss", self.loss))
            if "throughput" in value and self.reads != "speed":  # intervals before are left out
                self.reads, self.values, self.batches = "speed", array("d"), array("d")
            return _optional(value.get("throughput"))
        if key == "train_loss":
            self.loss = _optional(value)
        elif key == "train_samples":
            self._train_samples = float(value)
        elif key == "run_stop":
            status = metadata.get("status", "success")
            self.failed = status != "success"
            self.notes.append(f"run_stop says {status}")
        elif what in {"block", "epoch"} and edge == "start":
            self._open[what] = time_s, samples
        elif edge == "stop" and what in self._open:
            start_s, first = self._open.pop(what)
            if what == "epoch" and None in {first, samples}:
                first, samples = 0.0, self._train_samples
            self._measured = self._measured or what
            if what == self._measured:
                return self._interval((start_s, first), (time_s, samples))
        return None

    def _perflog(self, event: dict[str, Any]) -> float | None:
        name, value, seconds = event["event"], event.get("value") or {}, None
        if name == "EVALUATE":
            self._open.clear()
        elif name in {"STEP_BEGIN", "STEP_END"}:
            time_s = float(event["metadata"]["time_ms"]) / 1000
            if name == "STEP_BEGIN":  # the first step, or the first after an evaluation
                self._open.setdefault("step", (time_s, self._trained))
                return None
            end = time_s, _optional(value.get("num_trained_samples"))
            if "step" in self._open:
                seconds = self._interval(self._open["step"], end)
            self._open["step"], self._trained = end, end[1]
            self.loss = _optional(value.get("loss", self.loss))
        return seconds


def _optional(value: Any) -> float | None:
    return None if value is None else float(value)
