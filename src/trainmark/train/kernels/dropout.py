"""Dropout with faster random masks on a CPU.

On a CPU torch draws one Bernoulli number after another on one thread. Here each 64-bit
random integer decides four elements, and the comparison uses all threads. The probability
is the same to 2**-16 and the expectation is exact; the masks differ for the same seed.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

_LEVELS = 1 << 16
_WORDS_AT_ONCE = 1 << 16  # half a MiB: this temporary buffer stays in the L2 cache


def keep_mask(shape: torch.Size, p: float) -> tuple[Tensor, float]:
    """Return zeros and ones, float32 of ``shape``, and the factor 1 / P(one).

    P(zero) is ``p`` rounded to a multiple of 2**-16 (0.1 gives 0.1000061); the factor is
    the exact inverse of the rounded probability, so the expectation is unchanged.
    """
    mask = torch.empty(shape)
    dropped = round(p * _LEVELS)
    words = torch.empty(min(_WORDS_AT_ONCE, (mask.numel() + 3) // 4), dtype=torch.int64)
    for block in mask.view(-1).split(4 * _WORDS_AT_ONCE):
        drawn = words[: (len(block) + 3) // 4]
        drawn.random_(-(2**63), None)
        bits = drawn.view(torch.int16)[: len(block)]
        torch.ge(bits, dropped - _LEVELS // 2, out=block)
    return mask, _LEVELS / (_LEVELS - dropped)


class FastDropout(nn.Dropout):
    """``nn.Dropout`` with the faster mask, for float32 on a CPU."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - the parent's name
        """Return ``input`` with elements dropped in training."""
        if not self.training or self.p in (0.0, 1.0):
            return super().forward(input)
        mask, scale = keep_mask(input.shape, self.p)
        return input * mask.mul_(scale)
