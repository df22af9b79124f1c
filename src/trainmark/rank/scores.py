"""Summarize the rows that a rank scored in an evaluation, in numbers that can be summed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from trainmark.events.schema import Scored, drop_non_finite

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainmark.protocols import RankScores

_MODULUS = 1 << 62  # of digests; see ``events.schema.Scored``


def summarize_scores(scores: RankScores, trained: Sequence[int]) -> Scored:
    """Return the field ``scores`` of the event ``evaluate``.

    Args:
        scores: the rows that this rank scored.
        trained: keys of some rows that this rank trained.
    """
    keys = np.asarray(scores.keys, np.uint64)
    trained_keys = np.unique(np.array(trained, np.uint64))
    return Scored(
        rows=scores.rows,
        keys=len(keys),
        # A sum, so that it is the same in whichever order rows come and on whichever rank.
        digest=int(keys.sum(dtype=np.uint64)) % _MODULUS,
        distinct=len(np.unique(keys)),  # fewer than ``keys``: a row was scored twice
        # Of the noted rows of training, the number, and how many of them were scored as well.
        known=len(trained_keys),
        trained=int(np.isin(trained_keys, keys).sum()),
        total=None if scores.total is None else drop_non_finite(scores.total),
        weight=None if scores.weight is None else drop_non_finite(scores.weight),
        of=scores.of,  # which figure the mean is, see ``RankScores``
    )
