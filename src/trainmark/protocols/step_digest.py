"""What a training step computed, bit by bit."""

from __future__ import annotations

import msgspec


class StepDigest(msgspec.Struct, frozen=True, kw_only=True):
    """What one rank computed in a training step, bit by bit, in the order of its computation.

    The last digest of a pass has the state after its last step alone: weights and optimizer.

    Args:
        weights: sum of the bits of each parameter with which the step was computed, by name.
        loss: all digits of the loss of this rank's samples.
        gradients: sum of the bits of each parameter's gradient before it is reduced over ranks, by
            name, in the order in which the backward pass computed them.
    """

    weights: dict[str, int]
    loss: str
    gradients: dict[str, int]
