"""Mean, extremes and percentiles of any number of values in bounded memory."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_right
from collections import Counter
from itertools import accumulate
from struct import Struct

EXACT_LIMIT = 1 << 20
_DROPPED_BITS = 44  # of 52: buckets 1/256 of their lower edge wide
RELATIVE_ERROR = 1 / 512
_BITS, _DOUBLE = Struct("<Q"), Struct("<d")


class Distribution:
    """Values after the first ``skip``.

    Percentiles are exact up to ``EXACT_LIMIT`` values. Beyond, values are counted in
    buckets named by sign, exponent and the first eight bits of the fraction; a percentile
    is then the middle of its bucket, within ``RELATIVE_ERROR`` of a value of that rank.
    """

    def __init__(self, skip: int = 0) -> None:
        self.seen = self.count = 0
        self.minimum, self.maximum = math.inf, -math.inf
        self._skip = skip
        self._total = 0.0
        self._values = array("d")
        self._buckets: Counter[int] = Counter()

    @property
    def exact(self) -> bool:
        """Whether percentiles are exact."""
        return not self._buckets

    @property
    def mean(self) -> float:
        """The mean of the values, of which there must be some."""
        return self._total / self.count

    def add(self, value: float) -> None:
        """Take the next value, which is finite."""
        self.seen += 1
        if self.seen <= self._skip:
            return
        self.count += 1
        self._total += value
        self.minimum = min(self.minimum, value)
        self.maximum = max(self.maximum, value)
        self._values.append(value)
        if len(self._values) > EXACT_LIMIT:
            self._flush()

    def percentiles(self, *shares: float) -> list[float]:
        """Return for each share (0 to 1) the value below which so many of the values lie."""
        places = [share * (self.count - 1) for share in shares]
        if self._buckets:
            self._flush()
            middles = sorted((_middle(bucket), count) for bucket, count in self._buckets.items())
            passed = list(accumulate(count for _, count in middles))
            found = (middles[bisect_right(passed, place)][0] for place in places)
            return [min(max(middle, self.minimum), self.maximum) for middle in found]
        ordered = sorted(self._values)
        ends = ((ordered[math.floor(x)], ordered[math.ceil(x)], x % 1) for x in places)
        return [low + (high - low) * share for low, high, share in ends]

    def _flush(self) -> None:
        """Count the buffered values in buckets."""
        bits = memoryview(self._values).cast("B").cast("Q")
        self._buckets.update(one >> _DROPPED_BITS for one in bits)
        bits.release()
        self._values = array("d")


def _middle(bucket: int) -> float:
    """Return the value half way through a bucket."""
    bits = bucket << _DROPPED_BITS | 1 << (_DROPPED_BITS - 1)
    return float(_DOUBLE.unpack(_BITS.pack(bits))[0])
