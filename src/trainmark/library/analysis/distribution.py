"""Mean, extremes and percentiles of any number of values in bounded memory.

Owns the statistics of a stream. Must not know what the values are.
"""

from __future__ import annotations

import math
import sys
from array import array
from bisect import bisect_right
from collections import Counter
from itertools import accumulate, repeat
from operator import rshift
from struct import Struct

from trainmark.errors import DataError

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
        self.count = 0
        self.skipped = 0
        self.minimum = math.inf
        self.maximum = -math.inf
        self.minimum_number = self.maximum_number = 0  # from 1, in the log, skipped ones counted
        self._skip = skip
        self._total = 0.0
        self._kept = array("d")
        self._buckets: Counter[int] = Counter()

    @property
    def seen(self) -> int:
        """Values with the skipped ones."""
        return self.count + self.skipped

    def uses(self, ahead: int = 0) -> bool:
        """Tell whether the value after ``ahead`` more counts, not being skipped."""
        return self.seen + ahead >= self._skip

    @property
    def exact(self) -> bool:
        """Whether percentiles are exact."""
        return self.count <= EXACT_LIMIT

    @property
    def mean(self) -> float:
        """The mean of the values, of which there must be some."""
        return self._total / self.count

    def add(self, values: list[float]) -> None:
        """Take finite ``values`` in the order of the log.

        Raises:
            DataError: for a sum that no float holds.
        """
        if self.skipped < self._skip:
            skipped = min(self._skip - self.skipped, len(values))
            self.skipped += skipped
            values = values[skipped:]
        if not values:
            return
        seen = self.seen
        self.count += len(values)
        try:
            self._total = math.fsum([self._total, *values])
        except OverflowError as error:
            remedy = "check which number is read: --keyword and --position"
            what = f"the sum of the values overflows; one value is {max(values, key=abs):g}"
            raise DataError(
                what, rule=f"at most {sys.float_info.max:.2g}", remedy=remedy
            ) from error
        low, high = min(values), max(values)
        if low < self.minimum:
            self.minimum, self.minimum_number = low, seen + values.index(low) + 1
        if high > self.maximum:
            self.maximum, self.maximum_number = high, seen + values.index(high) + 1
        self._kept.extend(values)
        if len(self._kept) > EXACT_LIMIT:
            self._flush()

    def percentiles(self, *shares: float) -> list[float]:
        """Return for each share (0 to 1) the value below which so many of the values lie."""
        places = [share * (self.count - 1) for share in shares]
        return self._in_buckets(places) if self._buckets else self._exactly(places)

    def _exactly(self, places: list[float]) -> list[float]:
        ordered = array("d", sorted(self._kept))
        found = []
        for place in places:
            low = math.floor(place)
            high = min(low + 1, self.count - 1)
            share = place - low
            step = ordered[high] - ordered[low]
            between = ordered[low] * (1 - share) + ordered[high] * share  # where step overflows
            found.append(ordered[low] + step * share if math.isfinite(step) else between)
        return found

    def _in_buckets(self, places: list[float]) -> list[float]:
        self._flush()
        middles = sorted((_middle(bucket), count) for bucket, count in self._buckets.items())
        passed = list(accumulate(count for _, count in middles))
        found = (middles[bisect_right(passed, place)][0] for place in places)
        return [min(max(middle, self.minimum), self.maximum) for middle in found]

    def _flush(self) -> None:
        """Count the buffered values in buckets; the loop over them runs in C."""
        bits = memoryview(self._kept).cast("B").cast("Q")
        self._buckets.update(map(rshift, bits, repeat(_DROPPED_BITS)))
        bits.release()
        self._kept = array("d")


def _middle(bucket: int) -> float:
    """Return the value half way through a bucket."""
    bits = bucket << _DROPPED_BITS | 1 << (_DROPPED_BITS - 1)
    return float(_DOUBLE.unpack(_BITS.pack(bits))[0])
