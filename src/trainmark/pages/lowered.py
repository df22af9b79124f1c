"""Steps of a run during which the clocks of a device were lowered."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

import numpy as np

from trainmark.protocols import SET_LIMITS
from trainmark.rank.events import EventFile
from trainmark.record.shapes import read_event
from trainmark.record.telemetry.summary import NS_PER_S

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from numpy.typing import NDArray

    from trainmark.record.telemetry.summary import Readings

STRETCHES = 400  # of steps, in which a single one marks the whole stretch


def beyond_limits(readings: Readings) -> list[str]:
    """Return for each number of reasons those beyond set limits."""
    return [", ".join(word for word in words if word not in SET_LIMITS)
            for words in readings.reasons]  # fmt: skip


def lowered_steps(
    events: Path, start_ns: int, devices: Iterable[Readings]
) -> tuple[tuple[int, int], ...]:
    """Return first and last of each stretch of steps, from 1, with the clocks of a device lowered.

    A reading holds for the time that is nearer to it than to any other.

    Args:
        events: of one rank, which takes every step.
        start_ns: from which the readings count, on that rank's clock.

    Raises:
        OSError: an unreadable file.
    """
    spans: list[NDArray[np.float64]] = []
    for one in devices:
        times = one.columns["time_s"]
        reasons = [number for number, said in enumerate(beyond_limits(one)) if said]
        here = np.isin(one.columns["throttling"], reasons)
        edges = np.concatenate((times[:1], (times[1:] + times[:-1]) / 2, times[-1:]))
        spans += [np.stack((edges[:-1], edges[1:]))[:, here]] if here.any() else []
    if not spans:
        return ()
    from_s, to_s = np.concatenate(spans, axis=1)
    begins_s, ends_s = _steps_s(events, start_ns)
    if not len(ends_s):
        return ()
    first, end = np.searchsorted(ends_s, from_s, side="right"), np.searchsorted(begins_s, to_s)
    changes = np.zeros(len(ends_s) + 1, np.int64)
    np.add.at(changes, first[first < end], 1)
    np.add.at(changes, end[first < end], -1)
    size = max(1, -(-len(ends_s) // STRETCHES))
    lowered = np.add.reduceat(changes.cumsum()[:-1] > 0, np.arange(0, len(ends_s), size)) > 0
    turns = np.flatnonzero(np.diff(lowered.astype(np.int8), prepend=0, append=0)).tolist()
    return tuple(
        (begin * size + 1, min(stop * size, len(ends_s)))
        for begin, stop in zip(turns[::2], turns[1::2], strict=True)
    )


def _steps_s(events: Path, start_ns: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return when each step began and ended; in a window they follow each other."""
    begins, ends = array("d"), array("d")
    for event in EventFile(events, read_event):
        if event["event"] == "window":
            at_ns = event["start_ns"] - start_ns
            for spent_ns in event["step_ns"]:
                begins.append(at_ns / NS_PER_S)
                at_ns += spent_ns
                ends.append(at_ns / NS_PER_S)
    return np.array(begins), np.array(ends)
