"""Mean, extremes and percentiles of any number of values in bounded memory.

Owns the statistics of a stream. Must not know what the values are.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter
from itertools import accumulate, repeat
from operator import rshift
from struct import Struct

EXACT_LIMIT = 1 << 16
_DROPPED_BITS = 44  # of 52: buckets 1/256 of their lower edge wide
RELATIVE_ERROR = 1 / 512
_BITS, _DOUBLE = Struct("<Q"), Struct("<d")


class Spread:
    """Values after the first ``skip``.

    Percentiles are exact up to ``EXACT_LIMIT`` values. Beyond, values are counted in
    buckets named by sign, exponent and the first eight bits of the fraction; a percentile
    is then the middle of its bucket, within ``RELATIVE_ERROR`` of a value of that rank.
    """

    def __init__(self, skip: int = 0) -> None:
        self.count = 0
        self.skipped = 0
        self.minimum = math.inf
        self.maximum = -math.inf
        self._skip = skip
        self._total = 0.0
        self._kept = array("d")
        self._buckets: Counter[int] = Counter()

    @property
    def seen(self) -> int:
        """Values with the skipped ones."""
        return self.count + self.skipped

    @property
    def exact(self) -> bool:
        """Whether percentiles are exact."""
        return self.count <= EXACT_LIMIT

    @property
    def mean(self) -> float:
        """The mean of the values, of which there must be some."""
        return self._total / self.count

    def add(self, values: list[float]) -> None:
        """Take finite ``values`` in the order of the log."""
        if self.skipped < self._skip:
            skipped = min(self._skip - self.skipped, len(values))
            self.skipped += skipped
            values = values[skipped:]
        if not values:
            return
        self.count += len(values)
        self._total = math.fsum([self._total, *values])
        self.minimum = min(self.minimum, *values)
        self.maximum = max(self.maximum, *values)
        self._kept.extend(values)
        if len(self._kept) > EXACT_LIMIT:
            # The loop over the values runs in C: views, shift and count are built-ins.
            bits = memoryview(self._kept).cast("B").cast("Q")
            self._buckets.update(map(rshift, bits, repeat(_DROPPED_BITS)))
            bits.release()
            self._kept = array("d")

    def percentile(self, share: float) -> float:
        """Return the value below which ``share`` (0 to 1) of the values lie."""
        place = share * (self.count - 1)
        if not self._buckets:
            ordered = sorted(self._kept)
            low = math.floor(place)
            high = min(low + 1, self.count - 1)
            return ordered[low] + (ordered[high] - ordered[low]) * (place - low)
        counts = self._buckets.copy()
        for value in self._kept:
            counts[_BITS.unpack(_DOUBLE.pack(value))[0] >> _DROPPED_BITS] += 1
        middles = sorted((_middle(bucket), count) for bucket, count in counts.items())
        passed = accumulate(count for _, count in middles)
        middle = next(
            value for (value, _), upto in zip(middles, passed, strict=True) if upto > place
        )
        return min(max(middle, self.minimum), self.maximum)


def _middle(bucket: int) -> float:
    """Return the value half way through a bucket."""
    bits = bucket << _DROPPED_BITS | 1 << (_DROPPED_BITS - 1)
    return float(_DOUBLE.unpack(_BITS.pack(bits))[0])
