"""Optimizer settings that several cases share: weight-decay groups and learning-rate warm-up.

Owns which parameters decay and how the learning rate rises. Must not know models.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn


def decay_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Return AdamW's two groups: matrices and tables with weight decay, biases and norms without.

    The first group holds the parameters with at least two dimensions.
    """
    parameters = list(model.parameters())
    return [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]


def warmup_factor(finished_steps: int, warmup_steps: int) -> float:
    """Return the next step's fraction of the peak learning rate, which rises linearly to 1."""
    return min(1.0, (finished_steps + 1) / max(warmup_steps, 1))


def decay_progress(finished_steps: int, warmup_steps: int, decay_steps: int) -> float:
    """Return the progress of the next step from the warm-up's end to ``decay_steps``, 0 to 1."""
    done = (finished_steps - warmup_steps) / max(decay_steps - warmup_steps, 1)
    return min(1.0, max(0.0, done))
