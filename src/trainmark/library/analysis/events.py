"""Logs whose lines are JSON events: MLPerf logging and PerfLog.

Owns which events give speeds, times, samples and the loss. Must not know options or
formulas.
"""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from trainmark.library.analysis.distribution import Distribution
from trainmark.library.analysis.extract import Evidence

if TYPE_CHECKING:
    from trainmark.library.analysis.source import Block


class EventReader(Evidence, ABC):
    """Speeds as logged, or seconds and the samples done in them; the first ``skip`` left out.

    ``speeds`` are of the whole job. ``seconds`` and ``samples`` grow together, one pair an
    interval; if the log counts no samples, ``samples`` stays empty and is not used.
    """

    marker: bytes

    def __init__(self, skip: int) -> None:
        super().__init__()
        self.speeds, self.seconds, self.samples = (Distribution(skip) for _ in range(3))
        self.loss: float | None = None
        self.failed = False
        self.missing = ""  # the first key that an event lacked
        self.notes: list[str] = []

    def feed(self, block: Block) -> None:
        """Take all events of ``block``."""
        data = block.data
        at = data.find(self.marker)
        while at >= 0:
            self.matched += 1
            end = data.find(b"\n", at)
            text = data[at + len(self.marker) : None if end < 0 else end]
            try:
                event, _ = _DECODER.raw_decode(text.decode("utf-8", "replace").lstrip())
                self._event(event, block, at)
            except KeyError as error:
                self.missing = self.missing or str(error.args[0])
                self.not_found(block, at)
            except (ValueError, TypeError, AttributeError, OverflowError, RecursionError):
                self.not_found(block, at)
            at = data.find(self.marker, end) if end >= 0 else -1

    @abstractmethod
    def _event(self, event: dict[str, Any], block: Block, at: int) -> None:
        """Take one event, which stands at byte ``at`` of ``block``."""

    def _interval(self, seconds: float, samples: float | None, block: Block, at: int) -> None:
        if _finite(seconds) < 0 or not math.isfinite(samples or 0.0):
            raise ValueError
        self.found(block, at, f"{seconds:g} s", used=self.seconds.uses())
        self.seconds.add([seconds])
        if samples is not None:
            self.samples.add([samples])


class MLLogReader(EventReader):
    """MLPerf logging: ``tracked_stats`` speeds, else blocks, else epochs."""

    marker = b":::MLLOG"

    def __init__(self, skip: int) -> None:
        super().__init__(skip)
        self._open: dict[str, tuple[float, float | None]] = {}
        self._train_samples: float | None = None
        self._unit_of_time = ""

    def _event(self, event: dict[str, Any], block: Block, at: int) -> None:
        key, value = event["key"], event.get("value")
        time_s = _finite(event["time_ms"]) / 1000
        metadata = event.get("metadata") or {}
        if key == "tracked_stats" and isinstance(value, dict):
            if "throughput" in value:
                speed = _finite(value["throughput"])
                if not self.speeds.seen:
                    self.first = None  # speeds take the place of intervals
                self.found(block, at, f"{speed:g}", used=self.speeds.uses())
                self.speeds.add([speed])
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
        elif key in {"block_start", "epoch_start"}:
            self._open[key[:5]] = time_s, _optional(metadata.get("samples_count"))
        elif key in {"block_stop", "epoch_stop"} and key[:5] in self._open:
            self._close(key[:5], time_s, metadata, block, at)

    def _close(
        self, what: str, time_s: float, metadata: dict[str, Any], block: Block, at: int
    ) -> None:
        """End a block or epoch. Whichever of the two ends first is measured throughout."""
        self._unit_of_time = self._unit_of_time or what
        start_s, first = self._open.pop(what)
        if what != self._unit_of_time:
            return
        last = _optional(metadata.get("samples_count"))
        samples = last - first if last is not None and first is not None else None
        if samples is None and what == "epoch":
            samples = self._train_samples
        self._interval(time_s - start_s, samples, block, at)


class PerfLogReader(EventReader):
    """PerfLog: from one STEP_END to the next, of one rank, evaluations left out.

    Between two ends lie data loading and every step whose events were not printed, so time
    and ``num_trained_samples`` always cover the same work.
    """

    marker = b"[PerfLog]"

    def __init__(self, skip: int) -> None:
        super().__init__(skip)
        self._rank: object = None
        self._last: tuple[float, float | None] | None = None
        self._other_ranks = False

    def _event(self, event: dict[str, Any], block: Block, at: int) -> None:
        name, value = event["event"], event.get("value") or {}
        if name not in {"STEP_BEGIN", "STEP_END", "EVALUATE"}:
            return
        rank = event["metadata"].get("rank", 0)
        self._rank = rank if self._rank is None else self._rank
        if rank != self._rank:
            if not self._other_ranks:
                self.notes.append(f"steps of rank {self._rank} only; other ranks print theirs too")
            self._other_ranks = True
            return
        time_s = _finite(event["metadata"]["time_ms"]) / 1000
        if name == "EVALUATE":
            self._last = None
        elif name == "STEP_BEGIN":
            if self._last is None:  # the first step, or the first after an evaluation
                self._last = time_s, 0.0 if not self.seconds.seen else self._trained
        else:
            self._step_end(time_s, value, block, at)

    _trained: float | None = None

    def _step_end(self, time_s: float, value: dict[str, Any], block: Block, at: int) -> None:
        trained = _optional(value.get("num_trained_samples"))
        if self._last is not None:
            start_s, before = self._last
            known = trained is not None and before is not None
            samples = trained - before if known else None  # type: ignore[operator]
            self._interval(time_s - start_s, samples, block, at)
        self._last, self._trained = (time_s, trained), trained
        if value.get("loss") is not None:
            self.loss = float(value["loss"])


READERS: dict[str, type[MLLogReader] | type[PerfLogReader]] = {
    "mllog": MLLogReader,
    "perflog": PerfLogReader,
}
_DECODER = json.JSONDecoder()


def _finite(value: Any) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError
    return number


def _optional(value: Any) -> float | None:
    return None if value is None else _finite(value)
