"""The loss scale of fp16 steps: when it doubles, when it halves, and which steps it drops.

Owns the rule of the scale. All of its state is on the device, so no step synchronises to
detect an overflow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor


class LossScaler:
    """Scale losses, drop the steps whose gradients overflow, and adapt the scale.

    The scale doubles after ``window`` steps in a row without an overflow. Of the overflows
    since it last doubled, or since the start, the first ``hysteresis - 1`` leave it as it is
    and each later one halves it. A hysteresis of 1 is ``torch.amp.GradScaler``; 2 is the
    ``delayed_shift=2`` of Megatron-LM's ``DynamicLossScaler``.

    Args:
        enabled: whether losses are scaled; if not, no step is dropped.
    """

    def __init__(
        self, torch_type: str, device: torch.device, *, enabled: bool, window: int, hysteresis: int
    ) -> None:
        self.enabled = enabled
        self._scaler = torch.amp.GradScaler(torch_type, growth_interval=window, enabled=enabled)
        self._hysteresis = hysteresis
        self._one = torch.ones((), device=device)
        self._skipped = torch.zeros_like(self._one)
        self._until_halved = torch.full_like(self._one, hysteresis)

    def scale(self, loss: Tensor) -> Tensor:
        """Return ``loss`` times the scale."""
        return self._scaler.scale(loss)

    def unscale(self, optimizer: torch.optim.Optimizer) -> None:
        """Divide the optimizer's gradients by the scale, so that they can be clipped."""
        self._scaler.unscale_(optimizer)

    def current(self) -> Tensor:
        """Return the scale as a tensor on the device."""
        return self._scaler.scale(self._one)

    def value(self) -> float:
        """Return the scale. Synchronises: not within a window."""
        return self._scaler.get_scale()

    def skipped_steps(self) -> int:
        """Return how many steps were dropped. Synchronises: call after the loop."""
        return int(self._skipped.item())

    def step(self, optimizer: torch.optim.Optimizer) -> Tensor | None:
        """Step ``optimizer`` unless a gradient overflowed, then adapt the scale.

        Returns a tensor on the device, 1 where the step was dropped, else 0; None where
        losses are not scaled.
        """
        if not self.enabled:
            optimizer.step()
            return None
        before = self.current()
        self._scaler.step(optimizer)
        self._scaler.update()
        after = self.current()
        # The library lowers the scale after an overflow; comparing it does not synchronise.
        dropped = (after < before).to(self._one.dtype)
        self._skipped += dropped
        if self._hysteresis > 1:
            self._spare(dropped, before, after)
        return dropped

    def _spare(self, dropped: Tensor, before: Tensor, after: Tensor) -> None:
        """Restore the scale that an overflow lowered before the hysteresis is used up."""
        spared = (dropped > 0) & (self._until_halved > 1)
        self._scaler.update(torch.where(spared, before, after))
        left = (self._until_halved - dropped).clamp(min=1)
        self._until_halved = torch.where(after > before, self._hysteresis, left)
