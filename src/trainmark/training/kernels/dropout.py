"""Dropout whose masks a CPU draws in a fraction of the time.

On a CPU torch draws one Bernoulli number after another on one thread. Here each 64-bit
random word decides four elements, and the comparison uses all threads. Same probability
to 2**-16 and the exact expectation; another stream of the same seeded generator.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

_LEVELS = 1 << 16
_WORDS_AT_ONCE = 1 << 16  # half a MiB: what passes stays in the cache


def keep_mask(shape: torch.Size, p: float) -> tuple[Tensor, float]:
    """Return zeros and ones, float32 of ``shape``, and the factor 1 / P(one).

    P(zero) is ``p`` rounded to a multiple of 2**-16 (0.1 gives 0.1000061); the factor is
    the exact inverse of the probability that is drawn, so the expectation is kept.
    """
    mask = torch.empty(shape)
    return mask, _draw(mask, p)


def kept_elements(like: Tensor, p: float, seed: int) -> tuple[Tensor, float]:
    """Return which elements of ``like`` are kept, bool of its shape, and 1 / P(kept).

    The same seed gives the same again: a mask need not be kept until the backward pass.
    """
    kept = torch.empty(like.shape, dtype=torch.bool, device=like.device)
    generator = torch.Generator(like.device).manual_seed(seed)
    if like.device.type == "cpu":
        return kept, _draw(kept, p, generator)
    return kept.bernoulli_(1.0 - p, generator=generator), 1.0 / (1.0 - p)


def new_seed() -> int:
    """Return a seed for ``kept_elements`` from the host's generator; no device waits for it."""
    return int(torch.randint(2**62, ()))


def _draw(mask: Tensor, p: float, generator: torch.Generator | None = None) -> float:
    """Fill ``mask`` on the host with zeros and ones; return 1 / P(one)."""
    dropped = round(p * _LEVELS)
    words = torch.empty(min(_WORDS_AT_ONCE, (mask.numel() + 3) // 4), dtype=torch.int64)
    for part in mask.view(-1).split(4 * _WORDS_AT_ONCE):
        drawn = words[: (len(part) + 3) // 4]
        drawn.random_(-(2**63), None, generator=generator)
        bits = drawn.view(torch.int16)[: len(part)]
        torch.ge(bits, dropped - _LEVELS // 2, out=part)
    return _LEVELS / (_LEVELS - dropped)


class FastDropout(nn.Dropout):
    """``nn.Dropout`` with the cheaper mask where it applies: float32 on a CPU, not compiled."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - the parent's name
        """Return ``input`` with elements dropped in training."""
        plain_cpu = input.device.type == "cpu" and input.dtype == torch.float32
        drops = self.training and 0.0 < self.p < 1.0
        if not (drops and plain_cpu) or torch.compiler.is_compiling():
            return super().forward(input)
        mask, scale = keep_mask(input.shape, self.p)
        return input * mask.mul_(scale)


def use_fast_dropout(model: nn.Module) -> None:
    """Give every plain dropout layer of ``model`` the cheaper mask; names stay."""
    for module in model.modules():
        if type(module) is nn.Dropout:
            module.__class__ = FastDropout
