"""Parts of a frozen Llama with adapters that keep less for the backward pass.

A frozen weight needs no gradient, so its product need not keep its input, and what can be
recomputed by one pass over memory is: casts to 16 bits, the dropped-out input of an adapter,
the normalised input of a norm, the activation between gate and up. What is done element by
element is done in place or in blocks. Same numbers as the library's parts up to rounding;
each is the library's own where it is compiled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from peft.tuners.lora import Linear as LoraLinear
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the field's name for it
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.models.llama.modeling_llama import LlamaAttention, LlamaMLP, LlamaRMSNorm

from trainmark.training.kernels.dropout import kept_elements, new_seed
from trainmark.training.kernels.matmul import (
    add_product_back,
    lies_by_columns,
    passing,
    product,
    product_back,
    product_dtype,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

Angles = tuple[Tensor, Tensor]  # cosine and sine of each position, (B or 1, S, width of a head)
_AT_ONCE = 1 << 18  # numbers of a block on a CPU; elsewhere launches would cost more
ADAPTER = "default"  # what peft calls the only adapter of a model


class _FrozenProduct(torch.autograd.Function):
    """x @ weight.T in ``dtype``; keeps the weight as it is held, not its cast."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, dtype: torch.dtype, any_order: bool) -> Tensor:
        rows = x.flatten(0, -2)  # (N, input)
        ctx.save_for_backward(weight)
        ctx.x, ctx.any_order = (x.shape, x.dtype), lies_by_columns(rows)
        out = product(rows.to(dtype), weight, any_order=any_order)
        return _shaped(out, x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (weight,) = ctx.saved_tensors
        grad = grads[0].flatten(0, -2)
        shape, dtype = ctx.x
        d_x = product_back(grad, weight, any_order=ctx.any_order)
        return d_x.view(shape).to(dtype), None, None, None


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
        any_order: bool,
    ) -> Tensor:
        rows = x.to(dtype).flatten(0, -2)  # (N, input)
        kept, factor = _kept(rows, *dropout)
        ctx.scaling, ctx.dropout = scaling * factor, dropout
        inner = _only(kept, rows) @ a.to(dtype).t()  # (N, rank)
        out = product(rows, weight, any_order=any_order)
        out.addmm_(inner, b.to(dtype).t(), alpha=ctx.scaling)
        ctx.save_for_backward(rows, weight, a, b, inner)
        ctx.x = x.shape, x.dtype
        return _shaped(out, x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        rows, weight, a, b, inner = ctx.saved_tensors
        grad = grads[0].flatten(0, -2)
        kept, _ = _kept(rows, *ctx.dropout)
        d_inner = (grad @ b.to(grad.dtype)).mul_(ctx.scaling)
        d_a = (d_inner.t() @ _only(kept, rows)).to(a.dtype)
        d_b = (grad.t() @ inner).to(b.dtype).mul_(ctx.scaling)
        if not ctx.needs_input_grad[0]:
            return None, None, d_a, d_b, None, None, None, None
        through = d_inner @ a.to(grad.dtype)
        if kept is not None:
            through.mul_(kept)
        d_x = add_product_back(through, grad, weight)
        shape, dtype = ctx.x
        return d_x.view(shape).to(dtype), None, d_a, d_b, None, None, None, None


def _shaped(out: Tensor, x: Tensor) -> Tensor:
    """Return ``out``, (N, width), as (..., width) like x; no view, so that it may be turned."""
    shaped: Tensor = torch.ops.aten._unsafe_view(out, [*x.shape[:-1], out.size(-1)])
    return shaped


def _kept(rows: Tensor, p: float, seed: int) -> tuple[Tensor | None, float]:
    return kept_elements(rows, p, seed) if p > 0.0 else (None, 1.0)


def _only(kept: Tensor | None, rows: Tensor) -> Tensor:
    """Return ``rows`` with zeros where not ``kept``, for one product right away."""
    return rows if kept is None else torch.mul(rows, kept, out=passing(rows.shape, rows))


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
        d_x = torch.empty_like(x, memory_format=torch.contiguous_format)
        for a_grad, an_x, a_scale, out in _blocks(grads[0], x, scale, d_x):
            normal = an_x * a_scale
            grad = (a_grad * weight).to(normal.dtype)
            along = torch.linalg.vecdot(grad, normal).div_(x.size(-1)).unsqueeze(-1)
            torch.mul(grad.sub_(normal.mul_(along)), a_scale, out=out)
        return d_x, None, None


def _blocks(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Yield some rows of each (..., columns), on a CPU so few that they stay in its cache."""
    first = tensors[0]
    rows = first.numel() // first.size(-1)
    if first.device.type == "cpu":
        rows = max(1, _AT_ONCE // first.size(-1))
    parts = (x.flatten(0, -2).split(rows) for x in tensors)
    return zip(*parts, strict=True)


class _Turned(torch.autograd.Function):
    """Each pair of (B, S, heads x width), half a width apart, turned by its angle, in place.

    Whoever gives x must not need it again, nor whoever gives the gradient: a product with a
    frozen weight and attention do not.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        ctx.mark_dirty(x)
        return _turn(x, cos, sin)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        cos, sin = ctx.saved_tensors
        return _turn(grads[0].contiguous(), cos, -sin), None, None


def _turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn (B, S, heads x width) in place.

    Args:
        cos, sin: (B or 1, S, width); the two halves of a width are alike.
    """
    half = cos.size(-1) // 2
    cos, sin = (y[..., :half].expand(*x.shape[:2], -1).float() for y in (cos, sin))
    for rows, *angles in _blocks(x.view(-1, x.size(-1)), cos, sin):  # a view or an error
        first, second = rows.unflatten(-1, (-1, 2, half)).unbind(-2)  # (rows, heads, half)
        a_cos, a_sin = (angle[:, None] for angle in angles)
        crossed = first * a_sin  # in float32, whatever x is
        if x.dtype == torch.float32:
            first.mul_(a_cos).addcmul_(second, a_sin, value=-1)
            second.mul_(a_cos).add_(crossed)
        else:  # rounded once, not after each step
            first.copy_(first * a_cos - second * a_sin)
            second.copy_(second * a_cos + crossed)
    return x


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
        parts = [x.flatten(0, -2) for x in (gate, up, grads[0])]
        if parts[2].stride() != parts[0].stride():
            parts[2] = torch.empty_like(parts[0]).copy_(parts[2])
        grad = parts[2].view(gate.shape)
        if lies_by_columns(parts[0]):
            parts = [x.t() for x in parts]
        for a_gate, an_up, a_grad in _blocks(*parts):
            an_up.mul_(a_grad)
            a_grad.mul_(F.silu(a_gate))  # of up
            torch.ops.aten.silu_backward.grad_input(an_up, a_gate, grad_input=an_up)
        return up, grad


class FrozenLinear(nn.Linear):
    """A linear layer without bias whose weight is not trained."""

    def forward(self, input: Tensor, *, any_order: bool = False) -> Tensor:  # noqa: A002
        """Return ``input @ weight.T``, by rows or, with ``any_order``, as it comes."""
        if torch.compiler.is_compiling():
            return super().forward(input)
        return _apply(_FrozenProduct, input, self.weight, product_dtype(input), any_order)


class AdaptedLinear(LoraLinear):
    """peft's linear layer with one low-rank adapter on a frozen weight."""

    def forward(self, x: Tensor, *, any_order: bool = False) -> Tensor:
        """Return the frozen product plus the adapter's part; see ``FrozenLinear``."""
        if torch.compiler.is_compiling():
            return super().forward(x)
        if self.disable_adapters and self.merged:
            self.unmerge()  # as peft does: what is merged is not disabled
        if self.disable_adapters or self.merged:
            return self.base_layer(x, any_order=any_order)  # type: ignore[no-any-return]
        dropout = self.lora_dropout[ADAPTER]
        p = dropout.p if self.training and isinstance(dropout, nn.Dropout) else 0.0
        return _apply(
            _AdaptedProduct, x, self.base_layer.weight, self.lora_A[ADAPTER].weight,
            self.lora_B[ADAPTER].weight, self.scaling[ADAPTER], (p, new_seed() if p else 0),
            product_dtype(x), any_order,
        )  # fmt: skip


class LeanAttention(LlamaAttention):  # type: ignore[misc]
    """The library's attention; queries and keys are turned where they were computed."""

    def forward(
        self,
        hidden_states: Tensor,
        position_embeddings: Angles,
        attention_mask: Tensor | None = None,
        past_key_values: Any = None,
        **named: Any,
    ) -> tuple[Tensor, Any]:
        """Map (B, S, hidden) to the same; the second is the library's, none."""
        if torch.compiler.is_compiling():
            found: tuple[Tensor, Any] = super().forward(
                hidden_states, position_embeddings, attention_mask, past_key_values, **named
            )
            return found
        query = self._heads(_apply(_Turned, self.q_proj(hidden_states), *position_embeddings))
        key = self._heads(_apply(_Turned, self.k_proj(hidden_states), *position_embeddings))
        value = self._heads(self.v_proj(hidden_states))
        if past_key_values is not None:
            key, value = past_key_values.update(key, value, self.layer_idx)
        mixed, weights = sdpa_attention_forward(
            self, query, key, value, attention_mask, dropout=0.0, scaling=self.scaling, **named
        )
        return self.o_proj(mixed.flatten(-2)), weights

    def _heads(self, x: Tensor) -> Tensor:
        """Return (B, heads, S, width) of (B, S, heads x width)."""
        heads: Tensor = x.unflatten(-1, (-1, self.head_dim))
        return heads.transpose(1, 2)


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
        gate, up = (part(x, any_order=True) for part in (self.gate_proj, self.up_proj))
        wide = _apply(_GatedUp, gate, up)
        return self.down_proj(wide)  # type: ignore[no-any-return]


def _apply(function: type[torch.autograd.Function], *inputs: Any) -> Tensor:
    result: Tensor = function.apply(*inputs)
    return result


_LEANER: dict[type[nn.Module], type[nn.Module]] = {
    nn.Linear: FrozenLinear,
    LoraLinear: AdaptedLinear,
    LlamaRMSNorm: LeanNorm,
    LlamaMLP: LeanMlp,
    LlamaAttention: LeanAttention,
}


def use_lean_parts(layers: nn.Module) -> None:
    """Give the frozen parts in ``layers`` these forward passes; names and weights stay."""
    for module in layers.modules():
        leaner = _LEANER.get(type(module))
        trained = any(item.requires_grad for item in module.parameters(recurse=False))
        if leaner is not None and not trained:
            module.__class__ = leaner
