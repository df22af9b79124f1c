"""Documents packed end to end into rows of one length, no token lost or repeated.

Owns where a document ends in a row and which tokens a model is to predict. Numpy only;
must not know texts or tokenizers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from trainmark.protocols import Counts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

IGNORED = -100  # a label without loss; torch's default ``ignore_index``


@dataclass(frozen=True, slots=True)
class Packed:
    """One split; all arrays are (rows, seq_length) unless stated otherwise.

    See ``trainmark.data.split.Split``.

    Args:
        ids: tokens, int64; the last row is filled up with the padding id.
        labels: int64; the token at the same place where a model must predict it from
            those before it in the row, else ``IGNORED``. The first column is ignored: no token
            precedes it.
        documents: int32; number of the document in its row, from 0. Padding has the number
            after the last document's.
        tokens: real tokens of each row, int64 (rows,).
        targets: labels of each row other than ``IGNORED``, int64 (rows,).
        num_documents: documents packed.
        separate: a token attends to its own document only.
    """

    ids: NDArray[np.int64]
    labels: NDArray[np.int64]
    documents: NDArray[np.int32]
    tokens: NDArray[np.int64]
    targets: NDArray[np.int64]
    num_documents: int
    separate: bool = False

    def __len__(self) -> int:
        return len(self.ids)

    def batch(self, rows: NDArray[np.int64]) -> tuple[tuple[Any, Any, Any], Counts]:
        """Return ids, labels and, where documents are separate, documents: (B, T)."""
        ids = self.ids[rows]
        documents = self.documents[rows] if self.separate else None
        counts = Counts(len(rows), len(rows), int(self.tokens[rows].sum()), ids.size)
        return (ids, self.labels[rows], documents), counts


def pack(
    documents: Sequence[Sequence[int] | NDArray[Any]],
    *,
    seq_length: int,
    pad_id: int,
    separate: bool = False,
    drop_short: bool = False,
) -> Packed:
    """Concatenate documents and cut them into rows of ``seq_length`` tokens.

    Args:
        pad_id: fills the last row up.
        separate: a document's first token is not to be predicted from the document before
            it. The model must then restrict attention to one of ``documents``.
        drop_short: drop a last row that is not full; the result has no rows if all tokens
            together do not fill one.
    """
    assert len(documents) > 0
    lengths = np.fromiter((len(item) for item in documents), np.int64, len(documents))
    assert lengths.min() > 0
    total = int(lengths.sum())
    rows = total // seq_length if drop_short else -(-total // seq_length)
    size, held = rows * seq_length, min(total, rows * seq_length)
    ids = np.full(size, pad_id, np.int64)
    ids[:held] = np.concatenate([np.asarray(item, np.int64) for item in documents])[:held]
    numbers = np.full(size, len(lengths), np.int64)
    numbers[:held] = np.repeat(np.arange(len(lengths)), lengths)[:held]
    return _rows(
        ids.reshape(rows, seq_length), numbers.reshape(rows, seq_length), len(lengths), separate
    )


def _rows(
    ids: NDArray[np.int64], numbers: NDArray[np.int64], num_documents: int, separate: bool
) -> Packed:
    """Return packed rows; ``numbers`` counts documents over all rows, padding comes last."""
    real = numbers < num_documents
    counts = real.copy()
    counts[:, 0] = False
    if separate:
        counts[:, 1:] &= numbers[:, 1:] == numbers[:, :-1]
    return Packed(
        ids=ids,
        labels=np.where(counts, ids, IGNORED),
        documents=(numbers - numbers[:, :1]).astype(np.int32),
        tokens=real.sum(1, dtype=np.int64),
        targets=counts.sum(1, dtype=np.int64),
        num_documents=num_documents,
        separate=separate,
    )
