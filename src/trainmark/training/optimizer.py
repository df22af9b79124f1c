"""What recipes of transformers share in their optimizers: decay groups and the warm-up.

Owns which parameters decay and how a learning rate begins. Knows no model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn


def decay_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Return AdamW's two groups: matrices and tables decay, biases and norms do not."""
    parameters = list(model.parameters())
    return [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]


def warmup_factor(finished_steps: int, warmup_steps: int) -> float:
    """Return the next step's share of the peak learning rate: it rises linearly to 1."""
    return min(1.0, (finished_steps + 1) / max(warmup_steps, 1))


def decay_progress(finished_steps: int, warmup_steps: int, decay_steps: int) -> float:
    """Return how far the next step is from the warm-up's end to ``decay_steps``, 0 to 1."""
    done = (finished_steps - warmup_steps) / max(decay_steps - warmup_steps, 1)
    return min(1.0, max(0.0, done))
