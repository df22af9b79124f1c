"""One event of a log: ``[PerfLog] {…}`` or ``:::MLLOG {…}``."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from pydantic_core import from_json

END_EVENTS = {"FINISHED", "run_stop"}  # names of the events that end a run
# Reading an event raises one of these if it lacks something, or if a value has another type than it
# should.
MALFORMED = (LookupError, ValueError, TypeError, AttributeError)


class Event(NamedTuple):
    """One event.

    Args:
        line: number of its line in the log, from 1.
        text: the whole line.
        value: what the event states: a number, a text, or an object of several values.
        totals: the value if that is an object, else empty.
        metadata: the other fields of the event, such as its time.
    """

    line: int
    text: str
    name: str
    value: Any
    totals: dict[str, Any]
    metadata: dict[str, Any]

    @property
    def time_s(self) -> float:
        """Seconds since the clock's origin.

        Raises:
            LookupError: the event has no time.
        """
        return float(self.metadata["time_ms"]) / 1000

    @property
    def samples(self) -> float:
        """Samples trained until this event; NaN: it does not say."""
        # In PerfLog among the totals, in MLPerf logging among the metadata.
        count = self.totals.get("num_trained_samples", self.metadata.get("samples_count"))
        return math.nan if count is None else float(count)


def parse_event(number: int, line: str, mark: str) -> Event:
    """Return the event behind a mark; raises one of ``MALFORMED``.

    Args:
        number: of the line in the log.
        mark: text before the event in the line.
    """
    document = from_json(line.partition(mark)[2])
    # Programs write the time and other facts into the metadata or beside it.
    metadata = (document.get("metadata") or {}) | document
    value = document.get("value")
    totals = value if isinstance(value, dict) else {}
    name = document.get("event") or document["key"]  # in PerfLog, or in MLPerf logging
    return Event(number, line.rstrip("\r\n"), name, value, totals, metadata)


def find_time_s(event: Event) -> float | None:
    """Return the seconds of an event; None: it does not say."""
    try:
        return event.time_s
    except MALFORMED:
        return None
