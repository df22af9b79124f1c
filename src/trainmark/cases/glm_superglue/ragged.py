"""Rows of unequal length in one flat array.

Owns nothing but the arithmetic. Numpy only.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, Self

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Ragged:
    """Rows one after another.

    Args:
        values: all rows' values (total,).
        starts: where each row begins in ``values``, int64 (rows + 1,).
    """

    values: NDArray[Any]
    starts: NDArray[np.int64]

    @classmethod
    def of(cls, rows: Sequence[Sequence[int]]) -> Self:
        """Build from rows, int32."""
        lengths = np.fromiter(map(len, rows), np.int64, len(rows))
        values = np.fromiter(chain.from_iterable(rows), np.int32, int(lengths.sum()))
        return cls(values, starts_of(lengths))

    @classmethod
    def joined(cls, parts: Sequence[Ragged]) -> Self:
        """Return the rows of all parts in order."""
        values = np.concatenate([part.values for part in parts])
        return cls(values, starts_of(np.concatenate([part.lengths for part in parts])))

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Values of each row."""
        return np.diff(self.starts)

    def row(self, number: int) -> NDArray[Any]:
        """Return one row without a copy."""
        return self.values[self.starts[number] : self.starts[number + 1]]


def starts_of(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return where rows of these lengths begin, and where the last one ends."""
    starts = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=starts[1:])
    return starts
