"""GELU and the linear layer behind it, keeping what came in only.

Between the two layers of a feed-forward part stand the widest activations of a block. The
plain pair keeps them before and after the GELU; here the second is made again in the
backward pass, which costs one pass over it beside two products.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the field's name for it


def gelu_linear(wide: Tensor, layer: nn.Linear) -> Tensor:
    """Return ``layer(gelu(wide))`` with GELU's tanh form.

    Under autocast, and on devices whose products leave no time for it, as the plain pair.

    Args:
        wide: (..., in_features).
        layer: has a bias.
    """
    plain = wide.device.type == "cpu" and not torch.is_autocast_enabled("cpu")
    if not plain or torch.compiler.is_compiling():
        return layer(F.gelu(wide, approximate="tanh"))  # type: ignore[no-any-return]
    flat: Tensor = _GeluLinear.apply(wide.flatten(0, -2), layer.weight, layer.bias)  # type: ignore[no-untyped-call]
    return flat.view(*wide.shape[:-1], -1)


class _GeluLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, wide: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(wide, weight)
        return F.linear(F.gelu(wide, approximate="tanh"), weight, bias)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        wide, weight = ctx.saved_tensors
        grad = grads[0]
        d_weight = grad.t() @ F.gelu(wide, approximate="tanh")
        d_wide = torch.ops.aten.gelu_backward(grad @ weight, wide, approximate="tanh")
        return d_wide, d_weight, grad.sum(0)
