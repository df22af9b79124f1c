"""The area under the ROC curve, exactly: no thresholds, no bins.

Owns the count and how scores of several ranks come together for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch import distributed as dist

from trainmark.errors import DataError, DivergedError

if TYPE_CHECKING:
    from numpy.typing import NDArray


def roc_auc(scores: NDArray[Any], labels: NDArray[Any]) -> float:
    """Return how often a positive row scores above a negative one; equal scores count half.

    Args:
        scores: (rows,), any real numbers; only their order matters.
        labels: (rows,), 1 for positive rows, 0 for negative ones.

    Raises:
        DivergedError: a score is not a number, so that there is no order.
        DataError: all labels are the same, so that no pair can be compared.
    """
    if np.isnan(scores).any():
        found = int(np.isnan(scores).sum())
        raise DivergedError("dlrm_criteo.scores_not_finite", found=found, scores=len(scores))
    positive = np.sort(scores[labels == 1])
    negative = np.sort(scores[labels != 1])
    pairs = len(positive) * len(negative)
    if pairs == 0:
        raise DataError(
            f"all {len(scores)} test labels are alike", where="the test split's labels",
            rule="the AUC compares clicked rows with others",
            remedy="give a test split with both labels",
        )  # fmt: skip
    below = np.searchsorted(negative, positive, side="left").sum(dtype=np.int64)
    not_above = np.searchsorted(negative, positive, side="right").sum(dtype=np.int64)
    return (int(below) + int(not_above)) / (2 * pairs)


def gather(scores: Tensor, labels: Tensor, *, world_size: int) -> tuple[Tensor, Tensor]:
    """Return the scores and labels of all ranks, both (rows,), on every rank.

    Ranks may hold different numbers of rows, none included.
    """
    if world_size == 1:
        return scores, labels
    sizes = [torch.zeros(1, dtype=torch.int64, device=scores.device) for _ in range(world_size)]
    dist.all_gather(sizes, torch.tensor([len(scores)], device=scores.device))
    rows = [int(size) for size in sizes]
    # Collectives want the same shape on every rank: pad to the longest.
    mine = scores.new_zeros(2, max(rows))
    mine[0, : len(scores)], mine[1, : len(labels)] = scores, labels
    parts = [torch.empty_like(mine) for _ in range(world_size)]
    dist.all_gather(parts, mine)
    whole = torch.cat([part[:, :size] for part, size in zip(parts, rows, strict=True)], 1)
    return whole[0], whole[1]
