"""What a job trains or scores: rows by number, laid out in batches.

Every case's data has this one contract; rows of token ids of unequal length are stored as
``Ragged``. Numpy only.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, Protocol, Self

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from trainmark.protocols import Counts


class Split(Protocol):
    """One split of a data set. Rows are samples, numbered from 0."""

    def __len__(self) -> int:
        """Return the number of rows."""

    def batch(self, rows: NDArray[np.int64]) -> tuple[Any, Counts]:
        """Return arrays of ``rows``, tokens and labels, on the host, and what they hold.

        Arrays stand in tuples or dataclasses and become tensors as they are; ``Counts`` has
        samples, sequences, and tokens with and without padding.
        """


@dataclass(frozen=True, slots=True)
class Ragged:
    """Rows of unequal length one after another.

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

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Values of each row."""
        return np.diff(self.starts)

    def row(self, number: int) -> NDArray[Any]:
        """Return one row without a copy."""
        return self.values[self.starts[number] : self.starts[number + 1]]


def starts_of(lengths: NDArray[Any]) -> NDArray[np.int64]:
    """Return where rows of these lengths begin, and where the last one ends."""
    return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int64)
