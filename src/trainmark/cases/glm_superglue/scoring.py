"""From log-probabilities of targets to scores of candidates, a loss and right answers.

Owns how candidates of a sample compete. A candidate's score is the sum of the
log-probabilities of its tokens. Tensors only: knows neither model nor files.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional as F  # noqa: N812 - the field's name for it

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from .data.examples import ChoiceBatch


def _tensors(*arrays: NDArray[Any]) -> list[Tensor]:
    return [torch.from_numpy(item) for item in arrays]


@dataclass(frozen=True, slots=True)
class Sequences:
    """Sequences, and whose log-probabilities make up a score.

    Args:
        inputs: ids, positions, block positions (N, S), separators (N,), target rows and
            target ids (K,): what the model takes.
        target_owner: number of each target's sequence (K,).
    """

    inputs: tuple[Tensor, ...]
    target_owner: Tensor

    @classmethod
    def of(cls, batch: ChoiceBatch) -> Sequences:
        """Return the sequences of ``batch`` on the host."""
        *inputs, target_owner = _tensors(
            batch.ids, batch.positions, batch.block_positions, batch.separators,
            batch.target_rows, batch.target_ids, batch.target_owner,
        )  # fmt: skip
        return cls(tuple(inputs), target_owner)

    def scores(self, log_probs: Tensor) -> Tensor:
        """Return the score of each sequence (N,), the sum over its targets' of (K,)."""
        empty = log_probs.new_zeros(len(self.inputs[0]))
        return empty.index_add(0, self.target_owner, log_probs)


@dataclass(frozen=True, slots=True)
class Places:
    """Where the scores of N sequences stand in a table of B samples and C candidates.

    Args:
        owner, slot: sample and candidate of each sequence (N,).
        samples, max_choices: B and C.
    """

    owner: Tensor
    slot: Tensor
    samples: int
    max_choices: int

    @classmethod
    def of(cls, batch: ChoiceBatch) -> Places:
        """Return the places of ``batch`` on the host."""
        owner, slot = _tensors(batch.owner, batch.slot)
        return cls(owner, slot, batch.samples, batch.max_choices)

    def table(self, scores: Tensor) -> Tensor:
        """Return ``scores`` (N,) as (B, C), minus infinity where there is no candidate."""
        empty = scores.new_full((self.samples, self.max_choices), -torch.inf)
        return empty.index_put((self.owner, self.slot), scores)

    def loss_sum(self, scores: Tensor) -> Tensor:
        """Return the sum over samples of the cross-entropy of candidate 0, the right one."""
        first = torch.zeros(self.samples, dtype=torch.long, device=scores.device)
        return F.cross_entropy(self.table(scores), first, reduction="sum")

    def count_right(self, scores: Tensor, correct: Tensor) -> Tensor:
        """Return how many samples' best candidate is ``correct``, bool (N,); an int scalar."""
        best = self.table(scores).argmax(1, keepdim=True)
        right = self.table(correct.float())  # a place without a candidate is never the best
        return (right.gather(1, best) > 0).sum()
