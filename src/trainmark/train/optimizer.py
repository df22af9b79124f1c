"""What stands around an optimizer: weight-decay groups, learning rates and the loss scale of fp16.

Owns which parameters decay, how the learning rate rises, and when the loss scale doubles, when it
halves and which steps it drops. The scale's state is on the device, so no step synchronises to
detect an overflow. Must not know models.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from torch import Tensor, nn


def decay_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Return AdamW's two groups: matrices and tables with weight decay, biases and norms without.

    The first group holds the parameters with at least two dimensions.
    """
    parameters = list(model.parameters())
    return [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]


def warmup_factor(finished_steps: int, warmup_steps: float) -> float:
    """Return the next step's fraction of the peak learning rate: from 0, linearly to 1.

    As Megatron-LM's scheduler and GLM's ``AnnealingLR``, whose first step has the rate 0.
    """
    return min(1.0, finished_steps / warmup_steps) if warmup_steps else 1.0


def decay_progress(finished_steps: int, warmup_steps: float, decay_steps: int) -> float:
    """Return the progress of the next step from the warm-up's end to ``decay_steps``, 0 to 1."""
    done = (finished_steps - warmup_steps) / max(decay_steps - warmup_steps, 1)
    return min(1.0, max(0.0, done))


class LossScaler(torch.amp.GradScaler):
    """Scale losses, drop the steps whose gradients overflow, and adapt the scale.

    The scale doubles after ``window`` steps in a row without an overflow. Of the overflows
    since it last doubled, or since the start, the first ``hysteresis - 1`` leave it as it is
    and each later one halves it. A hysteresis of 1 is the library's ``GradScaler``; 2 is the
    ``delayed_shift=2`` of Megatron-LM's ``DynamicLossScaler``.

    Args:
        enabled: whether losses are scaled; if not, no step is dropped.
        start: the first step's scale.
    """

    def __init__(
        self, torch_type: str, device: torch.device, *, enabled: bool, window: int,
        hysteresis: int, start: float,
    ) -> None:  # fmt: skip
        super().__init__(torch_type, init_scale=start, growth_interval=window, enabled=enabled)
        self._hysteresis = hysteresis
        self._one = torch.ones((), device=device)
        self._skipped = torch.zeros_like(self._one)
        self._until_halved = torch.full_like(self._one, hysteresis)

    def current(self) -> Tensor:
        """Return the scale as a tensor on the device."""
        return self.scale(self._one)

    def skipped_steps(self) -> int:
        """Return how many steps were dropped. Synchronises: call after the loop."""
        return int(self._skipped.item())

    def state(self) -> Tensor:
        """Return scale, steps since it changed and overflows left, for ``load``. Synchronises."""
        found = self.state_dict() if self.is_enabled() else {"scale": 1.0, "_growth_tracker": 0}
        numbers = [found["scale"], found["_growth_tracker"], self._until_halved.item()]
        return torch.tensor(numbers, dtype=torch.float64)

    def load(self, state: Tensor) -> None:
        """Take over what ``state`` returned."""
        if self.is_enabled():
            scale, growth, left = state.tolist()
            self.load_state_dict(
                self.state_dict() | {"scale": scale, "_growth_tracker": int(growth)}
            )
            self._until_halved.fill_(left)

    def step_or_skip(self, optimizer: torch.optim.Optimizer) -> Tensor | None:
        """Step ``optimizer`` unless a gradient overflowed, then adapt the scale.

        Returns a tensor on the device, 1 where the step was dropped, else 0; None where
        losses are not scaled.
        """
        if not self.is_enabled():
            optimizer.step()
            return None
        before = self.current()
        self.step(optimizer)
        self.update()
        after = self.current()
        # The library lowers the scale after an overflow; comparing it does not synchronise.
        dropped = (after < before).to(self._one.dtype)
        self._skipped += dropped
        if self._hysteresis > 1:  # the scale stays until the hysteresis is used up
            spared = (dropped > 0) & (self._until_halved > 1)
            self.update(torch.where(spared, before, after))
            left = (self._until_halved - dropped).clamp(min=1)
            self._until_halved = torch.where(after > before, self._hysteresis, left)
        return dropped
