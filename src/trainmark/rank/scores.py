"""Summarize the rows that a rank scored in an evaluation, in numbers that can be summed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from trainmark.events.schema import KEY_DIGEST_MODULUS, Scored, drop_non_finite

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainmark.protocols import RankScores


def summarize_scores(scores: RankScores, trained: Sequence[int]) -> Scored:
    """Return the field ``scores`` of the event ``evaluate``.

    Args:
        scores: the rows that this rank scored: their number, keys of the first of them, and the
            sums of scores and weights. Equal rows have equal keys.
        trained: keys of some rows that this rank trained.
    """
    keys = np.asarray(scores.keys, np.uint64)
    trained_keys = np.unique(np.array(trained, np.uint64))
    # A sum is the same in whichever order rows come, and can be added up over ranks. numpy adds
    # modulo 2 ** 64; the remainder below is the same, because its modulus divides 2 ** 64.
    sum_of_keys = int(keys.sum(dtype=np.uint64))
    return Scored(
        rows=scores.rows,
        keys=len(keys),
        digest=sum_of_keys % KEY_DIGEST_MODULUS,  # fits into a signed integer of 64 bits
        distinct=len(np.unique(keys)),  # fewer than ``keys``: a row was scored twice
        # Of the noted rows of training, the number, and how many of them were scored as well.
        known=len(trained_keys),
        trained=int(np.isin(trained_keys, keys).sum()),
        # The sum of all ranks' ``total``, divided by that of ``weight``, is the mean of the scores.
        # None: the quality is not a mean of scores.
        total=None if scores.total is None else drop_non_finite(scores.total),
        weight=None if scores.weight is None else drop_non_finite(scores.weight),
        # Which result of the evaluation must equal this mean: the detail of this name, such as the
        # loss from which a perplexity follows; empty: the quality itself.
        of=scores.of,
    )
