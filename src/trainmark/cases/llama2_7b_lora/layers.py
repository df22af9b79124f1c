"""Parts of a frozen Llama with adapters that keep less for the backward pass.

A frozen weight needs no gradient, so its product need not keep its input, and what can be
recomputed by one pass over memory is: casts to 16 bits, the dropped-out input of an adapter,
the normalised input of a norm, the activation between gate and up. Same numbers as the
library's parts up to rounding; each is the library's own where it is compiled.
"""

from __future__ import annotations

from typing import Any

import torch
from peft.tuners.lora import Linear as LoraLinear
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the field's name for it
from transformers.models.llama.modeling_llama import LlamaMLP, LlamaRMSNorm

from trainmark.training.dropout import kept_elements, new_seed
from trainmark.training.linear_cross_entropy import product_dtype

_GATED_AT_ONCE = 1 << 20  # numbers of a block on a CPU; elsewhere launches would cost more
ADAPTER = "default"  # what peft calls the only adapter of a model


class _FrozenProduct(torch.autograd.Function):
    """x @ weight.T in ``dtype``; keeps the weight as it is held, not its cast."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, dtype: torch.dtype) -> Tensor:
        ctx.save_for_backward(weight)
        ctx.dtype = x.dtype
        return F.linear(x.to(dtype), weight.to(dtype))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (weight,) = ctx.saved_tensors
        (grad,) = grads
        return (grad @ weight.to(grad.dtype)).to(ctx.dtype), None, None


class _AdaptedProduct(torch.autograd.Function):
    """x @ weight.T + scaling * dropout(x) @ a.T @ b.T; keeps x, draws what stayed again."""

    @staticmethod
    def forward(  # noqa: PLR0917 - autograd passes by position
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        a: Tensor,
        b: Tensor,
        scaling: float,
        dropout: tuple[float, int],
        dtype: torch.dtype,
    ) -> Tensor:
        rows = x.to(dtype).flatten(0, -2)  # (N, input)
        kept, factor = _kept(rows, *dropout)
        ctx.scaling, ctx.dropout = scaling * factor, dropout
        inner = (rows if kept is None else rows * kept) @ a.to(dtype).t()  # (N, rank)
        out = rows @ weight.to(dtype).t()
        out.addmm_(inner, b.to(dtype).t(), alpha=ctx.scaling)
        ctx.save_for_backward(rows, weight, a, b, inner)
        ctx.x = x.shape, x.dtype
        return out.view(*x.shape[:-1], -1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        rows, weight, a, b, inner = ctx.saved_tensors
        grad = grads[0].flatten(0, -2)
        kept, _ = _kept(rows, *ctx.dropout)
        d_inner = (grad @ b.to(grad.dtype)).mul_(ctx.scaling)
        d_a = (d_inner.t() @ (rows if kept is None else rows * kept)).to(a.dtype)
        d_b = (grad.t() @ inner).to(b.dtype).mul_(ctx.scaling)
        if not ctx.needs_input_grad[0]:
            return None, None, d_a, d_b, None, None, None
        through = d_inner @ a.to(grad.dtype)
        if kept is not None:
            through.mul_(kept)
        d_x = through.addmm_(grad, weight.to(grad.dtype))
        shape, dtype = ctx.x
        return d_x.view(shape).to(dtype), None, d_a, d_b, None, None, None


def _kept(rows: Tensor, p: float, seed: int) -> tuple[Tensor | None, float]:
    return kept_elements(rows, p, seed) if p > 0.0 else (None, 1.0)


class _Norm(torch.autograd.Function):
    """x / rms(x) * weight over the last dimension; keeps x and one number a row."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        square = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32).square_()
        scale = square.div_(x.size(-1)).add_(eps).rsqrt_()  # (..., 1), float32
        ctx.save_for_backward(x, weight, scale)
        normal: Tensor = (x * scale).to(x.dtype)
        return normal.mul_(weight.to(x.dtype))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, scale = ctx.saved_tensors
        normal = x * scale
        grad = (grads[0] * weight).to(normal.dtype)
        along = torch.linalg.vecdot(grad, normal).div_(x.size(-1)).unsqueeze(-1)
        return grad.sub_(normal.mul_(along)).mul_(scale).to(x.dtype), None, None


class _GatedUp(torch.autograd.Function):
    """silu(gate) * up; keeps the two, and turns them into their gradients in place.

    Whoever gives them must not need them again, nor their product's gradient: products with
    frozen weights do not. Block by block, so that what passes is small beside them.
    """

    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        ctx.save_for_backward(gate, up)
        return F.silu(gate).mul_(up)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        gate, up = ctx.saved_tensors
        grad = grads[0].contiguous()
        parts = [x.flatten(0, -2) for x in (gate, up, grad)]
        rows = len(parts[0])
        if gate.device.type == "cpu":
            rows = max(1, _GATED_AT_ONCE // gate.size(-1))
        blocks = (part.split(rows) for part in parts)
        for a_gate, an_up, a_grad in zip(*blocks, strict=True):
            an_up.mul_(a_grad)
            a_grad.mul_(F.silu(a_gate))  # of up
            torch.ops.aten.silu_backward.grad_input(an_up, a_gate, grad_input=an_up)
        return up, grad


class FrozenLinear(nn.Linear):
    """A linear layer without bias whose weight is not trained."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - the parent's name
        """Return ``input @ weight.T``."""
        if torch.compiler.is_compiling():
            return super().forward(input)
        return _apply(_FrozenProduct, input, self.weight, product_dtype(input))


class AdaptedLinear(LoraLinear):
    """peft's linear layer with one low-rank adapter on a frozen weight."""

    def forward(self, x: Tensor, *args: Any, **named: Any) -> Tensor:
        """Return the frozen product plus the adapter's part."""
        plain = not (args or named or self.disable_adapters or self.merged)
        if not plain or torch.compiler.is_compiling():
            return super().forward(x, *args, **named)
        dropout = self.lora_dropout[ADAPTER]
        p = dropout.p if self.training and isinstance(dropout, nn.Dropout) else 0.0
        return _apply(
            _AdaptedProduct, x, self.base_layer.weight, self.lora_A[ADAPTER].weight,
            self.lora_B[ADAPTER].weight, self.scaling[ADAPTER], (p, new_seed() if p else 0),
            product_dtype(x),
        )  # fmt: skip


class LeanNorm(LlamaRMSNorm):  # type: ignore[misc]
    """The library's norm over the root mean square, its weight not trained."""

    def forward(self, hidden_states: Tensor) -> Tensor:
        """Return the normalised states times the weight."""
        if torch.compiler.is_compiling():
            return super().forward(hidden_states)  # type: ignore[no-any-return]
        return _apply(_Norm, hidden_states, self.weight, self.variance_epsilon)


class LeanMlp(LlamaMLP):  # type: ignore[misc]
    """The library's gated feed-forward layer."""

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, S, hidden) to the same."""
        if torch.compiler.is_compiling():
            return super().forward(x)  # type: ignore[no-any-return]
        wide = _apply(_GatedUp, self.gate_proj(x), self.up_proj(x))
        return self.down_proj(wide)  # type: ignore[no-any-return]


def _apply(function: type[torch.autograd.Function], *inputs: Any) -> Tensor:
    result: Tensor = function.apply(*inputs)
    return result


_LEANER: dict[type[nn.Module], type[nn.Module]] = {
    nn.Linear: FrozenLinear,
    LoraLinear: AdaptedLinear,
    LlamaRMSNorm: LeanNorm,
    LlamaMLP: LeanMlp,
}


def use_lean_parts(layers: nn.Module) -> None:
    """Give the frozen parts in ``layers`` these forward passes; names and weights stay."""
    for module in layers.modules():
        leaner = _LEANER.get(type(module))
        trained = any(item.requires_grad for item in module.parameters(recurse=False))
        if leaner is not None and not trained:
            module.__class__ = leaner
