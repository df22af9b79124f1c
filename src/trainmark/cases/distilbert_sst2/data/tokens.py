"""Rows of token ids without padding, and batches made of them.

Owns the form of the data in memory on every rank: one flat array of ids, so that SST-2 takes
a few megabytes instead of hundreds. Numpy only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class TokenRows:
    """One split.

    Args:
        tokens: ids of all rows one after another, without padding, int32 (total,).
        starts: where each row begins in ``tokens``, int64 (rows + 1,).
        labels: 0 or 1, int64 (rows,).
        truncated: rows that the tokenizer cut to the sequence length.
    """

    tokens: NDArray[np.int32]
    starts: NDArray[np.int64]
    labels: NDArray[np.int64]
    truncated: int = 0

    @classmethod
    def of(
        cls, tokens: Any, lengths: Sequence[int] | NDArray[Any], labels: Any, truncated: int = 0
    ) -> Self:
        """Build from flat tokens and the rows' lengths."""
        starts = np.zeros(len(lengths) + 1, np.int64)
        np.cumsum(lengths, out=starts[1:])
        assert starts[-1] == len(tokens)
        return cls(np.asarray(tokens, np.int32), starts, np.asarray(labels, np.int64), truncated)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return all by name as arrays, as ``of_arrays`` takes them."""
        return {name: np.asarray(getattr(self, name)) for name in self.__slots__}

    @classmethod
    def of_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Self:
        """Build from what ``arrays`` returned."""
        held = {name: arrays[name] for name in ("tokens", "starts", "labels")}
        return cls(**held, truncated=int(arrays["truncated"]))

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each row, padding left out."""
        return np.diff(self.starts)

    def padded(
        self, rows: NDArray[np.int64], *, seq_length: int, pad_token_id: int
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Return ids and mask of ``rows``, both (len(rows), seq_length)."""
        first = self.starts[rows][:, None]
        columns = np.arange(seq_length)
        mask = columns < self.starts[rows + 1][:, None] - first
        ids = np.full((len(rows), seq_length), pad_token_id, np.int64)
        ids[mask] = self.tokens[(first + columns)[mask]]
        return ids, mask
