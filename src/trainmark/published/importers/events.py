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
        named_values: the values of that object by their names; empty: the value is no object.
        metadata: the other fields of the event, such as its time.
    """

    line: int
    text: str
    name: str
    value: Any
    named_values: dict[str, Any]
    metadata: dict[str, Any]

    @property
    def time_s(self) -> float:
        """Time of the event in seconds, on the clock by which the program stamps its events.

        Raises:
            LookupError: the event has no time.
            ValueError, TypeError: its time is not a number.
        """
        return float(self.metadata["time_ms"]) / 1000

    @property
    def samples(self) -> float:
        """Samples trained until this event; NaN: it does not say."""
        # PerfLog has the number in the value of the event, MLPerf logging in the metadata.
        count = self.named_values.get("num_trained_samples", self.metadata.get("samples_count"))
        return math.nan if count is None else float(count)


def parse_event(number: int, line: str, mark: str) -> Event:
    """Return the event of a line: the JSON object behind the mark ``[PerfLog]`` or ``:::MLLOG``.

    Args:
        number: of the line in the log, from 1.
        line: its text.
        mark: text before the object.

    Raises:
        LookupError, ValueError, TypeError, AttributeError: the text behind the mark is not a JSON
            object, or the object does not name the event.
    """
    document = from_json(line.partition(mark)[2])
    # Programs write the time and other facts into the metadata or beside it.
    metadata = (document.get("metadata") or {}) | document
    value = document.get("value")
    named_values = value if isinstance(value, dict) else {}  # empty: a number, a text or none
    name = document.get("event") or document["key"]  # in PerfLog, or in MLPerf logging
    return Event(
        line=number,
        text=line.rstrip("\r\n"),
        name=name,
        value=value,
        named_values=named_values,
        metadata=metadata,
    )


def find_time_s(event: Event) -> float | None:
    """Return the time of an event in seconds; None: the event has none, or it is not a number."""
    try:
        return event.time_s
    except MALFORMED:
        return None
