"""Rows of token ids without padding, and batches made of them.

Owns the form of the data in memory on every rank: one flat array of ids, so that SST-2 takes
a few megabytes instead of hundreds. Numpy only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from trainmark.data.split import Ragged, starts_of
from trainmark.protocols import Counts

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRows:
    """One split; see ``trainmark.data.split.Split``.

    Args:
        ids: token ids of all rows, without padding.
        labels: 0 or 1, int64 (rows,).
        seq_length: tokens that a batch is padded to.
        pad_token_id: what it is padded with.
        truncated: rows that the tokenizer cut to the sequence length.
    """

    ids: Ragged
    labels: NDArray[np.int64]
    seq_length: int
    pad_token_id: int
    truncated: int = 0

    def __len__(self) -> int:
        return len(self.labels)

    def batch(
        self, rows: NDArray[np.int64]
    ) -> tuple[tuple[NDArray[np.int64], NDArray[np.bool_], NDArray[np.int64]], Counts]:
        """Return ids and mask, both (B, T), and labels (B,)."""
        ids, mask = padded(
            self.ids, rows, seq_length=self.seq_length, pad_token_id=self.pad_token_id
        )
        counts = Counts(len(rows), len(rows), int(mask.sum()), ids.size)
        return (ids, mask, self.labels[rows]), counts


def padded(
    ids: Ragged, rows: NDArray[np.int64], *, seq_length: int, pad_token_id: int
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return ids and mask of ``rows``, both (len(rows), seq_length)."""
    first = ids.starts[rows][:, None]
    columns = np.arange(seq_length)
    mask = columns < ids.starts[rows + 1][:, None] - first
    out = np.full((len(rows), seq_length), pad_token_id, np.int64)
    out[mask] = ids.values[(first + columns)[mask]]
    return out, mask


def ragged(tokens: NDArray[np.integer], lengths: NDArray[np.int64]) -> Ragged:
    """Return rows of ``lengths`` tokens, which follow one another in ``tokens``."""
    return Ragged(tokens.astype(np.int32), starts_of(lengths))
