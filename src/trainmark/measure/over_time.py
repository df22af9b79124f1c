"""Means over time and differences of counters, from readings taken now and then in an interval.

Keeps a few numbers for each quantity, however many readings there are. Knows nothing of devices.
"""

from __future__ import annotations

from collections import defaultdict
from math import inf
from typing import TYPE_CHECKING

from trainmark.spec import Message, message

if TYPE_CHECKING:
    from collections.abc import Mapping

    Interval = tuple[int, int]  # start and end in nanoseconds; the end is later

NS_PER_S = 1e9
# Share of an interval: what lies between the readings around its edges is interpolated.
MOST_UNSEEN = 0.1
_MOST_NAMES = 64  # reasons for lowered clocks in a run; monitors know about a dozen


class Weighted:
    """Values over an interval; each moment has those of the reading nearest to it.

    A reading has values by name, of which ``""`` has extremes too.
    """

    def __init__(self, interval: Interval) -> None:
        self._start_ns, self._end_ns = interval
        self._since_ns = 0.0  # times are from the interval's start
        self._last_ns = 0
        self._last: Mapping[str, float] = {}
        self._sums: dict[str, float] = defaultdict(float)
        self.readings = 0
        self.gap_ns = 0  # longest time without a reading, up to the interval's edges
        self.lowest, self.highest = inf, -inf

    def add(self, t_ns: int, values: Mapping[str, float]) -> None:
        """Take a reading; one outside of the interval, or not after the last, changes nothing."""
        after_ns = t_ns - self._start_ns
        early = after_ns <= self._last_ns if self.readings else after_ns < 0
        if early or t_ns > self._end_ns:
            return
        if self.readings:
            self._weigh((self._last_ns + after_ns) / 2)
        self.gap_ns = max(self.gap_ns, after_ns - self._last_ns)
        self._last_ns, self._last = after_ns, values
        self.readings += 1
        if "" in values:
            self.lowest, self.highest = min(self.lowest, values[""]), max(self.highest, values[""])

    def _weigh(self, until_ns: float) -> None:
        for name, value in self._last.items():
            if name in self._sums or len(self._sums) <= _MOST_NAMES:
                self._sums[name] += value * (until_ns - self._since_ns)
        self._since_ns = until_ns

    def means(self) -> dict[str, float]:
        """Return the mean of each name, 0 where a reading lacks it; ask after the last reading."""
        length_ns = self._end_ns - self._start_ns
        if self.readings == 0:
            return {}
        self._weigh(length_ns)
        self.gap_ns = max(self.gap_ns, length_ns - self._last_ns)
        return {name: total / length_ns for name, total in self._sums.items()}


class CounterDifference:
    """How far a counter rose in an interval; at each edge on a line between two readings.

    Args:
        between_ns: between the readings around the edges, where the counter is interpolated.
    """

    def __init__(self, interval: Interval) -> None:
        self._edges = interval
        self._at: dict[int, float] = {}
        self._last: tuple[int, float] | None = None
        self._fell = False
        self.between_ns = 0

    def add(self, t_ns: int, value: float) -> None:
        """Take a reading; one not after the last changes nothing."""
        last_ns, last = self._last or (t_ns, value)
        if t_ns <= last_ns and self._last is not None:
            return
        self._last = (t_ns, value)
        start_ns, end_ns = self._edges
        if value < last and last_ns < end_ns and t_ns > start_ns:
            self._fell = True
        for edge in self._edges:
            if edge in self._at or not last_ns <= edge <= t_ns:
                continue
            share = (edge - last_ns) / (t_ns - last_ns) if edge > last_ns else 0.0
            self._at[edge] = last + share * (value - last)
            if edge not in (last_ns, t_ns):
                self.between_ns += t_ns - last_ns

    def difference(self) -> tuple[float | None, Message | None]:
        """Return by how much the counter rose; None and why if it is not known."""
        start_ns, end_ns = self._edges
        if self._last is None:
            return None, message("counter_untold")
        if self._fell:
            return None, message("counter_fell")
        if len(self._at) < len(self._edges):
            return None, message("counter_not_around")
        between_s, length_s = self.between_ns / NS_PER_S, (end_ns - start_ns) / NS_PER_S
        if between_s > MOST_UNSEEN * length_s:
            return None, message("counter_read_seldom", between_s=between_s, interval_s=length_s)
        rose = self._at[end_ns] - self._at[start_ns]
        return (rose, None) if rose > 0 else (None, message("counter_still"))
