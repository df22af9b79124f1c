"""Attention by the fastest kernel, and one of our own with dropout for float32 on a CPU.

The library's fused CPU kernel refuses dropout and falls back to separate operations. This
one keeps the same mathematics with fewer passes over the scores: its backward needs
neither the mask nor the undropped product again, and causal attention skips what it
would mask. Equal to the library's in eval mode; registered with it as ``cpu_dropout``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from trainmark.training.dropout import keep_mask

if TYPE_CHECKING:
    from transformers import PreTrainedModel

NAME = "cpu_dropout"
_QUERIES = 128  # of a block: small saves more of the masked half, large feeds the products


class _Attention(torch.autograd.Function):
    """Return dropout(softmax(q k^T * scaling + bias)) v, causal or not.

    With probabilities P, the kept ones D = P * keep, g the gradient of the output times
    1/P(keep), the gradient of the scores is D * (g v^T) - P * rowsum(grad * out).

    Causal attention goes by blocks of queries, each against the keys up to its end only.
    """

    @staticmethod
    def forward(  # noqa: PLR0917 - autograd passes by position
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        bias: Tensor | None,
        p: float,
        scaling: float,
        is_causal: bool,
    ) -> Tensor:
        b, h, t, d = query.shape
        q, k, v = (x.contiguous().view(b * h, t, d) for x in (query * scaling, key, value))
        out = torch.empty_like(q)
        spans = _spans(t, is_causal)
        saved, scale = [], 1.0
        for first, last, keys in spans:
            scores = torch.bmm(q[:, first:last], k[:, :keys].transpose(1, 2))  # (B*H, ., keys)
            if bias is not None:
                scores.view(b, h, last - first, keys).add_(bias)
            if is_causal:
                ahead = torch.ones(last - first, last - first, dtype=torch.bool).triu_(1)
                scores[:, :, first:].masked_fill_(ahead, -torch.inf)
            probabilities = torch.softmax(scores, -1)
            kept = probabilities
            if p > 0.0:
                mask, scale = keep_mask(probabilities.shape, p)
                kept = mask.mul_(probabilities)
            out[:, first:last] = torch.bmm(kept, v[:, :keys])
            saved += [probabilities, kept]
        out.mul_(scale)
        ctx.save_for_backward(q, k, v, out, *saved)
        ctx.scale, ctx.scaling, ctx.spans = scale, scaling, spans
        return out.view(b, h, t, d).transpose(1, 2).contiguous()  # (B, T, H, D)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, *saved = ctx.saved_tensors
        b, t, h, d = grads[0].shape
        grad = grads[0].transpose(1, 2).reshape(b * h, t, d)
        row = (grad * out).sum(-1, keepdim=True)
        grad = grad * ctx.scale
        d_query, d_key, d_value = torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v)
        for place, (first, last, keys) in enumerate(ctx.spans):
            probabilities, kept = saved[2 * place : 2 * place + 2]
            g = grad[:, first:last]
            d_value[:, :keys] += torch.bmm(kept.transpose(1, 2), g)
            d_scores = torch.bmm(g, v[:, :keys].transpose(1, 2)).mul_(kept)
            d_scores.addcmul_(probabilities, row[:, first:last], value=-1)
            d_query[:, first:last] = torch.bmm(d_scores, k[:, :keys])
            d_key[:, :keys] += torch.bmm(d_scores.transpose(1, 2), q[:, first:last])
        d_query.mul_(ctx.scaling)
        inputs = (x.view(b, h, t, d) for x in (d_query, d_key, d_value))
        return *inputs, None, None, None, None


def _spans(length: int, is_causal: bool) -> list[tuple[int, int, int]]:
    """Return first and last query and the number of keys of each block."""
    if not is_causal:
        return [(0, length, length)]
    lasts = [min(first + _QUERIES, length) for first in range(0, length, _QUERIES)]
    return [(first, last, last) for first, last in zip([0, *lasts], lasts, strict=False)]


class Prefix:
    """Causal attention with a prefix that every token of its row sees, row by row.

    Args:
        separators: (B,): how many tokens are such a prefix; at most ``length``.
        length: tokens in a row.
    """

    def __init__(self, separators: Tensor, length: int) -> None:
        place = torch.arange(length, device=separators.device)
        seen = (place <= place[:, None]) | (place < separators[:, None, None])
        self.mask = seen[:, None]  # (B, 1, T, T), made on the device, the same for all layers


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    is_causal: bool = False,
    prefix: Prefix | None = None,
    dropout: float,
) -> Tensor:
    """Return scaled dot-product attention by the fastest kernel at hand.

    That is the library's, but for float32 with dropout on a CPU.

    Args:
        query, key, value: (B, H, T, D); so is the result.
        is_causal, prefix: who sees whom; at most one of the two.
        dropout: probability of dropping an attention weight; 0 outside training.
    """
    if prefix is not None:
        return nn.functional.scaled_dot_product_attention(
            query, key, value, attn_mask=prefix.mask, dropout_p=dropout
        )
    plain_cpu = query.device.type == "cpu" and query.dtype == torch.float32
    if plain_cpu and dropout > 0.0:
        scaling = query.size(-1) ** -0.5
        mixed: Tensor = _Attention.apply(query, key, value, None, dropout, scaling, is_causal)  # type: ignore[no-untyped-call]
        return mixed.transpose(1, 2)
    return nn.functional.scaled_dot_product_attention(
        query, key, value, dropout_p=dropout, is_causal=is_causal
    )


def attention_forward(  # noqa: PLR0917 - the registry passes by position
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **_kwargs: Any,
) -> tuple[Tensor, None]:
    """Compute attention as the library's registry calls it.

    Args:
        module: the layer; not used.
        query, key, value: (B, H, T, D), float32.
        attention_mask: true or 0 where a key takes part: boolean, or added to the scores;
            anything that broadcasts to (B, H, T, T).
        dropout: probability of dropping an attention weight; 0 outside training.
        scaling: factor on the scores; none: 1 / sqrt(D).
    """
    del module
    bias = attention_mask
    if bias is not None and bias.dtype == torch.bool:
        lowest = torch.finfo(query.dtype).min
        bias = torch.zeros(bias.shape, dtype=query.dtype).masked_fill_(~bias, lowest)
    factor = query.size(-1) ** -0.5 if scaling is None else scaling
    return _Attention.apply(query, key, value, bias, dropout, factor, False), None  # type: ignore[no-untyped-call]


def use_cpu_attention(model: PreTrainedModel) -> None:
    """Register this attention with the library and have ``model`` use it."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import eager_mask

    AttentionInterface.register(NAME, attention_forward)
    AttentionMaskInterface.register(NAME, eager_mask)
    model.set_attn_implementation(NAME)
