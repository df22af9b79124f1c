"""Attention with dropout for float32 on a CPU, under the name ``cpu_dropout``.

The library's fused CPU kernel refuses dropout and falls back to separate operations. This
one keeps the same mathematics with fewer passes over the scores: its backward needs
neither the mask nor the undropped product again. Equal to the library's in eval mode.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from trainmark.training.dropout import keep_mask

if TYPE_CHECKING:
    from transformers import PreTrainedModel

NAME = "cpu_dropout"


class _Attention(torch.autograd.Function):
    """Return dropout(softmax(q k^T * scaling + bias)) v.

    With probabilities P, the kept ones D = P * keep, g the gradient of the output times
    1/P(keep), the gradient of the scores is D * (g v^T) - P * rowsum(grad * out).
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
    ) -> Tensor:
        b, h, t, d = query.shape
        q, k, v = (x.contiguous().view(b * h, t, d) for x in (query * scaling, key, value))
        scores = torch.bmm(q, k.transpose(1, 2))  # (B*H, T, T)
        if bias is not None:
            scores.view(b, h, t, t).add_(bias)
        probabilities = torch.softmax(scores, -1)
        kept, scale = probabilities, 1.0
        if p > 0.0:
            mask, scale = keep_mask(probabilities.shape, p)
            kept = mask.mul_(probabilities)
        out = torch.bmm(kept, v).mul_(scale)
        ctx.save_for_backward(q, k, v, probabilities, kept, out)
        ctx.scale, ctx.scaling = scale, scaling
        return out.view(b, h, t, d).transpose(1, 2).contiguous()  # (B, T, H, D)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, probabilities, kept, out = ctx.saved_tensors
        b, t, h, d = grads[0].shape
        grad = grads[0].transpose(1, 2).reshape(b * h, t, d)
        row = (grad * out).sum(-1, keepdim=True)
        grad = grad * ctx.scale
        d_value = torch.bmm(kept.transpose(1, 2), grad)
        d_scores = torch.bmm(grad, v.transpose(1, 2)).mul_(kept)
        d_scores.addcmul_(probabilities, row, value=-1)
        d_query = torch.bmm(d_scores, k).mul_(ctx.scaling)
        d_key = torch.bmm(d_scores.transpose(1, 2), q)
        return *(x.view(b, h, t, d) for x in (d_query, d_key, d_value)), None, None, None


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
    return _Attention.apply(query, key, value, bias, dropout, factor), None  # type: ignore[no-untyped-call]


def use_cpu_attention(model: PreTrainedModel) -> None:
    """Register this attention with the library and have ``model`` use it."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import eager_mask

    AttentionInterface.register(NAME, attention_forward)
    AttentionMaskInterface.register(NAME, eager_mask)
    model.set_attn_implementation(NAME)
