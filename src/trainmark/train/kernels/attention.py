"""Attention with torch's kernels, and a kernel with dropout for float32 on a CPU.

Torch's fused CPU kernel does not support dropout and falls back to separate operations.
This one computes the same result with fewer passes over the scores: its backward pass needs
neither the mask nor the probabilities before dropout again, and most masked scores are never
computed. It draws its own masks: torch draws one Bernoulli number after another on one thread.
Equal to the library's in eval mode.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_QUERIES = 128  # of a block: small ones skip more masked scores, large ones suit the matmuls
_SCORES = 1 << 16  # of a head in a block of rows that differ in their prefix: fit a cache
_LEVELS = 1 << 16  # of a random number that decides one element
_WORDS_AT_ONCE = 1 << 16  # half a MiB: this temporary buffer stays in the L2 cache


def keep_mask(shape: torch.Size, p: float) -> tuple[Tensor, float]:
    """Return zeros and ones, float32 of ``shape``, and the factor 1 / P(one).

    P(zero) is ``p`` rounded to a multiple of 2**-16 (0.1 gives 0.1000061); the factor is
    the exact inverse of the rounded probability, so the expectation is unchanged. Each 64-bit
    random integer decides four elements.
    """
    mask = torch.empty(shape)
    dropped = round(p * _LEVELS)
    words = torch.empty(min(_WORDS_AT_ONCE, (mask.numel() + 3) // 4), dtype=torch.int64)
    for block in mask.view(-1).split(4 * _WORDS_AT_ONCE):
        drawn = words[: (len(block) + 3) // 4]
        drawn.random_(-(2**63), None)
        bits = drawn.view(torch.int16)[: len(block)]
        torch.ge(bits, dropped - _LEVELS // 2, out=block)
    return mask, _LEVELS / (_LEVELS - dropped)


@dataclass(frozen=True, slots=True)
class _Block:
    """Queries ``first`` to ``last`` of some rows against the keys before ``keys``.

    ``hidden`` is true where a score is masked, over the last of these keys; it broadcasts to
    (rows, H, queries, its keys).
    """

    rows: slice
    first: int
    last: int
    keys: int
    hidden: Tensor | None = None


def _causal(rows: slice, start: int, length: int) -> Iterator[_Block]:
    """Yield blocks of the queries from ``start`` on, each with the keys up to its end only."""
    for first in range(start, length, _QUERIES):
        last = min(first + _QUERIES, length)
        ahead = torch.ones(last - first, last - first, dtype=torch.bool).triu_(1)
        yield _Block(rows, first, last, last, ahead)


class Prefix:
    """Prefix attention: all tokens attend to a row's first tokens, the rest is causal.

    Args:
        separators: (B,) number of these first tokens.
        length: tokens in a row.
    """

    def __init__(self, separators: Tensor, length: int) -> None:
        place = torch.arange(length, device=separators.device)
        seen = (place <= place[:, None]) | (place < separators[:, None, None])
        self.separators = separators
        self.mask = seen[:, None]  # (B, 1, T, T), computed on the device once for all layers

    @cached_property
    def blocks(self) -> list[_Block]:
        """Yield a few rows at a time: the prefix as one block, then causal blocks."""
        length = self.mask.size(-1)
        step = max(1, _SCORES // length**2)
        found: list[_Block] = []
        for first, part in enumerate(self.separators.split(step)):
            rows = slice(first * step, first * step + len(part))
            low, high = (min(int(x), length) for x in part.aminmax())
            end = high if length - high >= _QUERIES else length  # no block for a short rest
            if end > 0:
                hidden = ~self.mask[rows, :, :end, low:end] if low < end else None
                found.append(_Block(rows, 0, end, end, hidden))
            found += _causal(rows, end, length)
        return found


class _Attention(torch.autograd.Function):
    """Return dropout(softmax(q k^T * scaling + bias)) v, block by block.

    With probabilities P, those after dropout D = P * keep, g the gradient of the output times
    1/P(keep), the gradient of the scores is D * (g v^T) - P * rowsum(grad * out).

    P and D are stored in one tensor: the probabilities, negated where they were not dropped.
    ``blocks`` cover every query of every row once.
    """

    @staticmethod
    def forward(  # noqa: PLR0917 - autograd passes by position
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        p: float,
        scaling: float,
        blocks: Sequence[_Block],
    ) -> Tensor:
        b, h, t, d = query.shape
        q, k, v = (x.contiguous().view(b * h, t, d) for x in (query * scaling, key, value))
        out = torch.empty_like(q)
        saved, scale = [], 1.0
        for block in blocks:
            heads, asking, keys = _cut(block, h)
            scores = torch.bmm(q[heads, asking], k[heads, keys].transpose(1, 2))
            by_row = scores.view(-1, h, *scores.shape[1:])  # (rows, H, queries, keys)
            if block.hidden is not None:
                by_row[..., -block.hidden.size(-1) :].masked_fill_(block.hidden, -torch.inf)
            signed = kept = torch.softmax(scores, -1, out=scores)
            if p > 0.0:
                mask, scale = keep_mask(scores.shape, p)
                kept = mask.mul_(scores)
                signed = scores.sub_(kept, alpha=2)  # negative where not dropped
            out[heads, asking] = torch.bmm(kept, v[heads, keys])
            saved.append(signed)
        # Not contiguous(), which returns its input for one head: see linear_cross_entropy.py.
        mixed = out.mul_(scale).view(b, h, t, d).transpose(1, 2)
        mixed = mixed.clone(memory_format=torch.contiguous_format)  # (B, T, H, D)
        ctx.save_for_backward(q, k, v, mixed, *saved)
        ctx.scale, ctx.scaling, ctx.blocks, ctx.drops = scale, scaling, blocks, p > 0.0
        return mixed

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, mixed, *saved = ctx.saved_tensors
        b, t, h, d = grads[0].shape
        grad = grads[0].transpose(1, 2).reshape(b * h, t, d)
        row = (grads[0] * mixed).sum(-1).transpose(1, 2).reshape(b * h, t, 1)
        grad = grad * ctx.scale
        d_query, d_key, d_value = torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v)
        for signed, block in zip(saved, ctx.blocks, strict=True):
            heads, asking, keys = _cut(block, h)
            g = grad[heads, asking]
            kept = signed.clamp(max=0.0).neg_() if ctx.drops else signed
            d_value[heads, keys] += torch.bmm(kept.transpose(1, 2), g)
            d_scores = torch.bmm(g, v[heads, keys].transpose(1, 2)).mul_(kept)
            probabilities = torch.abs(signed, out=kept) if ctx.drops else signed
            d_scores.addcmul_(probabilities, row[heads, asking], value=-1)
            d_query[heads, asking] = torch.bmm(d_scores, k[heads, keys])
            d_key[heads, keys] += torch.bmm(d_scores.transpose(1, 2), q[heads, asking])
        d_query.mul_(ctx.scaling)
        inputs = (x.view(b, h, t, d) for x in (d_query, d_key, d_value))
        return *inputs, None, None, None


def _cut(block: _Block, heads: int) -> tuple[slice, slice, slice]:
    """Return the slices of a block in (B * H, T, D): its rows' heads, its queries, its keys."""
    rows = slice(block.rows.start * heads, block.rows.stop * heads)
    return rows, slice(block.first, block.last), slice(0, block.keys)


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    is_causal: bool = False,
    prefix: Prefix | None = None,
    dropout: float,
) -> Tensor:
    """Return scaled dot-product attention of float32 tensors on a CPU.

    Without dropout the library's fused kernel computes it, which is faster.

    Args:
        query, key, value: (B, H, T, D); so is the result.
        is_causal, prefix: which keys each query attends to; one of the two.
        dropout: probability of dropping an attention weight; 0 outside training.
    """
    if dropout == 0.0:
        return library_attention(
            query, key, value, is_causal=is_causal, prefix=prefix, dropout=dropout
        )
    scaling, rows, length = query.size(-1) ** -0.5, slice(0, query.size(0)), query.size(2)
    blocks = prefix.blocks if prefix else list(_causal(rows, 0, length))
    mixed: Tensor = _Attention.apply(query, key, value, dropout, scaling, blocks)  # type: ignore[no-untyped-call]
    return mixed.transpose(1, 2)


def library_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    is_causal: bool = False,
    prefix: Prefix | None = None,
    dropout: float,
) -> Tensor:
    """Return the same as ``attention``, with torch's operation, in any type on any device."""
    mask = None if prefix is None else prefix.mask
    return nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, dropout_p=dropout, is_causal=is_causal
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
        attention_mask: boolean, true where a key takes part; it broadcasts to (B, H, T, T).
        dropout: probability of dropping an attention weight; 0 outside training.
        scaling: factor on the scores; none: 1 / sqrt(D).
    """
    del module
    factor = query.size(-1) ** -0.5 if scaling is None else scaling
    hidden = None if attention_mask is None else ~attention_mask
    block = _Block(slice(0, query.size(0)), 0, query.size(2), query.size(2), hidden)
    return _Attention.apply(query, key, value, dropout, factor, [block]), None  # type: ignore[no-untyped-call]
