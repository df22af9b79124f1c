"""Note some of the rows that a rank trains, to find rows that are trained twice or evaluated."""

from __future__ import annotations

from typing import TYPE_CHECKING
from zlib import crc32

from torch import contiguous_format, uint8

from trainmark.train.evaluation import compute_row_keys, count_rows
from trainmark.train.read_ahead import map_tensors

if TYPE_CHECKING:
    from torch import Tensor

    from trainmark.protocols import Batch

MAX_ROWS = 256  # of a rank whose digests are noted
MAX_TRAINED_KEYS = 4 * MAX_ROWS  # of rows of training, with which evaluations are compared
_KEYS_PER_BATCH = 4


class TrainedRows:
    """Notes about some of the rows that a rank trains in the first epoch.

    They grow while batches are read, which may happen in another thread.

    Attributes:
        digests: digest of the first row of each batch, up to ``MAX_ROWS``. By these the checks of a
            record find rows that come more than once.
        keys: keys (see ``evaluation.compute_row_keys``) of the first rows of each batch, up to
            about ``MAX_TRAINED_KEYS``, by which evaluations are searched for trained rows. Equal
            rows have equal keys.
    """

    def __init__(self) -> None:
        self.digests: list[int] = []
        self.keys: list[int] = []

    def note_batch(self, batch: Batch) -> None:
        """Note rows of a batch, whose tensors are on the host.

        Nothing is noted of batches that count no samples, because they repeat rows without a fault:
        they hold a filler row, or another rank counts the samples of the same rows.
        """
        samples = batch.counts.samples
        if not samples:
            return
        if len(self.digests) < MAX_ROWS:
            self.digests.append(_compute_row_digest(batch))
        if len(self.keys) < MAX_TRAINED_KEYS:
            # ``identity`` has a row for each sample if ``tensors`` do not.
            tensors = batch.tensors if batch.identity is None else batch.identity
            # Without one row for each sample, the keys would not be those of samples.
            if count_rows(tensors) == samples:
                self.keys += compute_row_keys(tensors, min(samples, _KEYS_PER_BATCH)).tolist()


def _compute_row_digest(batch: Batch) -> int:
    """Return a digest of the first row of a batch."""
    digest = 0  # the crc32 of nothing

    def add_to_digest(tensor: Tensor) -> Tensor:
        """Add the tensor's first row to the digest; return the tensor unchanged."""
        nonlocal digest
        first_row = tensor[:1] if tensor.dim() else tensor.reshape(1)
        # A copy, because a tensor with one row may count as contiguous with any stride, which
        # ``view`` refuses.
        dense = first_row.clone(memory_format=contiguous_format)
        digest = crc32(dense.flatten().view(uint8).numpy().tobytes(), digest)
        return tensor

    map_tensors(batch.tensors, add_to_digest)  # called for its effect on ``digest``
    return digest
