"""Which tensors training changes.

Owns what a job names as trained: the parameters themselves, not copies, so that whoever
holds them sees them change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor, nn


def trained(module: nn.Module) -> dict[str, Tensor]:
    """Return the parameters of ``module`` that have a gradient, by name; DTensors as they are."""
    return {name: item for name, item in module.named_parameters() if item.requires_grad}
