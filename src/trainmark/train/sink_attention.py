"""Causal attention with a learned sink for each head and a sliding window, by torch's kernels.

A sink is a further score in each softmax, with no value: weights then add up to less than 1.
Torch's fused attention has no such argument. Here it is the score of a further position before all
others, whose key, in a further dimension, is 1 where all other keys are 0, and whose value is 0.

Of a sliding window only the blocks that it touches are computed: each block of queries, as long as
the window, attends to its own keys and to those of the block before.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

NAME = "fused_with_sinks"  # among the attentions of ``transformers``
_ALIGNED = 8  # widths of heads that accelerators' kernels take are multiples of it


def register() -> str:
    """Add this attention to those of ``transformers``; return its name for a configuration."""
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, attention_forward)
    return NAME


def attention_forward(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float,
    s_aux: Tensor,
    sliding_window: int | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Compute attention as ``transformers`` calls it; the mask is always the causal one."""
    del module, attention_mask
    attended = sink_attention(query, key, value, s_aux, scaling=scaling, window=sliding_window)
    return attended.transpose(1, 2).contiguous(), None


def sink_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    sinks: Tensor,
    *,
    scaling: float,
    window: int | None = None,
) -> Tensor:
    """Return causal attention over ``window`` positions, the own one included; None: over all.

    Args:
        query: (B, H, T, W).
        key, value: (B, K, T, W); K divides H.
        sinks: the score of each head's sink, (H,).

    Returns:
        (B, H, T, W).
    """
    width, length = query.size(-1), query.size(2)
    more = 1 if query.device.type == "cpu" else _ALIGNED
    sink_scores = (sinks / scaling).to(query.dtype)[:, None, None].expand(*query.shape[:-1], 1)
    query = pad(torch.cat([query, sink_scores], -1), (0, more - 1))
    key, value = pad(key, (0, more)), pad(value, (0, more))
    sink_key = pad(key.new_ones(1), (width, more - 1))
    if window is None or window >= length:
        attended = _attend_to_all(query, key, value, sink_key, scaling)
    else:
        attended = _attend_to_window(query, key, value, sink_key, scaling=scaling, window=window)
    return attended[..., :length, :width]


def _with_sink(key: Tensor, value: Tensor, sink_key: Tensor) -> tuple[Tensor, Tensor]:
    """Return keys and values with the sink before the first position."""
    first = sink_key.expand_as(key[..., :1, :])
    return torch.cat([first, key], -2), pad(value, (0, 0, 1, 0))


def _attend_to_all(
    query: Tensor, key: Tensor, value: Tensor, sink_key: Tensor, scaling: float
) -> Tensor:
    """Return causal attention (B, H, T, W); a query before the first makes scores a square."""
    key, value = _with_sink(key, value, sink_key)
    attended = scaled_dot_product_attention(
        pad(query, (0, 0, 1, 0)),
        key,
        value,
        is_causal=True,
        scale=scaling,
        enable_gqa=query.size(1) != key.size(1),
    )
    return attended[..., 1:, :]


def _attend_to_window(
    query: Tensor, key: Tensor, value: Tensor, sink_key: Tensor, *, scaling: float, window: int
) -> Tensor:
    """Return attention (B, H, at least T, W) over the last ``window`` positions of each query."""
    batch, heads, length, width = query.shape
    blocks = -(-length // window)
    missing = blocks * window - length  # later than all queries: none attends to them
    query = pad(query, (0, 0, 0, missing)).unflatten(2, (blocks, window))
    shared = heads // key.size(1)
    key, value = (
        pad(x, (0, 0, window, missing))
        .unfold(2, 2 * window, window)
        .transpose(-1, -2)
        .repeat_interleave(shared, 1)
        for x in (key, value)
    )  # (B, H, blocks, 2 window, W)
    key, value = _with_sink(key, value, sink_key)
    allowed = _window_mask(blocks, window, query.device)
    query, key, value = (x.transpose(1, 2).flatten(0, 1) for x in (query, key, value))
    attended = scaled_dot_product_attention(
        query, key, value, attn_mask=allowed.repeat(batch, 1, 1)[:, None], scale=scaling
    )  # (B blocks, H, window, W)
    whole: Tensor = attended.unflatten(0, (batch, blocks)).transpose(1, 2)
    return whole.reshape(batch, heads, -1, width)


def _window_mask(blocks: int, window: int, device: torch.device) -> Tensor:
    """Return which keys a query attends to, (blocks, window, 1 + 2 window): the sink is first."""
    query = torch.arange(window, device=device)[:, None] + window
    key = torch.arange(2 * window, device=device)
    allowed = ((key <= query) & (key > query - window)).expand(blocks, -1, -1).clone()
    allowed[0, :, :window] = False  # no block before the first
    return pad(allowed, (1, 0), value=True)
