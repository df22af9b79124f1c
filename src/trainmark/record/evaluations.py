"""Add up over ranks what an evaluation scored.

Owns how far the qualities of ranks may differ, and from which number of scored training rows on an
evaluation counts as one of training rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isclose
from typing import TYPE_CHECKING

from trainmark.events.schema import KEY_DIGEST_MODULUS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainmark.events.schema import Scored

_QUALITY_TOLERANCE = 1e-5  # relative: ranks may add up in float32
_ABSOLUTE_TOLERANCE = 1e-9  # of qualities near 0
MIN_WEIGHT = 0.9  # of a row; if means of batches are averaged, a row weighs far less
# Part of the noted training rows that an evaluation of training rows only would score: one that
# scored so many counts as an evaluation of training rows.
MIN_TRAINED_SHARE = 0.5
MIN_TRAINED_ROWS = 3  # fewer rows may be in both splits of the data


@dataclass(frozen=True, slots=True)
class CombinedScores:
    """What all ranks scored in one evaluation.

    Args:
        of_ranks: what each rank scored: how many rows, the sums of their scores and weights, and
            counts of their keys, which are hashes by which equal rows are found.
    """

    of_ranks: Sequence[Scored]

    @property
    def rows(self) -> int:
        """Number of rows that ranks scored."""
        return sum(scores.rows for scores in self.of_ranks)

    @property
    def digest(self) -> str:
        """Digest of the keys of the scored rows, 16 hexadecimal digits.

        It is a sum, so that it does not depend on which rank scored which row.
        """
        digest = sum(scores.digest for scores in self.of_ranks) % KEY_DIGEST_MODULUS
        return f"{digest:016x}"

    @property
    def keys(self) -> int:
        """Number of scored rows that have a key, a hash by which equal rows are found.

        A rank may report keys of only the first rows that it scores.
        """
        return sum(scores.keys for scores in self.of_ranks)

    @property
    def distinct(self) -> int:
        """Number of different keys of the rows that a rank scored, added up over ranks.

        A key that two ranks scored counts twice.
        """
        return sum(scores.distinct for scores in self.of_ranks)

    @property
    def noted_rows(self) -> int:
        """Number of training rows that ranks had noted while they trained, added up over ranks.

        A rank notes a row by its key, a hash by which equal rows are found.
        """
        # ``known``: number of training rows that the rank had noted.
        return sum(scores.known for scores in self.of_ranks)

    @property
    def trained_rows(self) -> int:
        """Number of scored rows that the same rank had noted as training rows."""
        return sum(scores.trained for scores in self.of_ranks)

    @property
    def detail_name(self) -> str:
        """Name of the figure of the evaluation that must be the mean of the scores.

        An evaluation has a value, the quality, and details: further figures by name, such as the
        loss from which a perplexity follows. Empty: the value must be the mean.
        """
        return self.of_ranks[0].of  # the same on all ranks

    @property
    def weight(self) -> float | None:
        """Sum of the weights of all scored rows; None: the quality is not a mean of scores."""
        weights = [scores.weight for scores in self.of_ranks if scores.weight is not None]
        return sum(weights) if weights else None

    @property
    def mean(self) -> float | None:
        """Weighted mean of the scores of all rows.

        Each rank has the total of its scores and that of their weights. None: the quality is not a
        mean, so that ranks have no totals, or nothing was scored.
        """
        weight = self.weight
        totals = [scores.total for scores in self.of_ranks if scores.total is not None]
        return sum(totals) / weight if totals and weight else None

    def compute_expected_noted_rows(self, train_samples: int) -> float:
        """Return how many noted rows an evaluation of training rows would score on average.

        While it trains, a rank notes some of the training rows. If it drew the rows that it scores
        at random from all training rows, it would score on average this many of the noted ones: the
        number of rows that it scores times the part of the training rows that it noted.

        Args:
            train_samples: number of training rows.
        """
        # ``known``: number of training rows that the rank had noted.
        return sum(scores.known * scores.rows / train_samples for scores in self.of_ranks)


def combine_scores(of_ranks: Sequence[Scored | None]) -> CombinedScores | None:
    """Return what all ranks scored in an evaluation.

    Args:
        of_ranks: what each rank reports; None: it reports nothing.

    Returns:
        None if any rank reports nothing: what the others scored is not the whole evaluation.
    """
    reported = [scores for scores in of_ranks if scores is not None]
    if not reported or len(reported) < len(of_ranks):
        return None
    return CombinedScores(reported)


def is_same_quality(first: float | None, other: float | None) -> bool:
    """Tell whether two values of a quality are equal up to rounding; None is equal only to None."""
    if first is None or other is None:
        return first is other
    return isclose(first, other, rel_tol=_QUALITY_TOLERANCE, abs_tol=_ABSOLUTE_TOLERANCE)
