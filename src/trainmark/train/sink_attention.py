"""Causal attention with a learned sink for each head and a sliding window, by torch's kernels.

A sink is an additional score in each softmax, without a value: the weights then sum to less than 1.
Torch's fused attention has no argument for it. Here the sink is the score of an additional position
before all others: in an additional dimension its key is 1 and all other keys are 0, and its value
is 0.

With a sliding window, only the blocks of scores that the window touches are computed: each block of
queries, as long as the window, attends to its own keys and to those of the block before.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

NAME = "fused_with_sinks"  # under which ``transformers`` knows this attention
_WIDTH_MULTIPLE = 8  # accelerators' kernels require such widths of heads


def register_attention() -> str:
    """Add attention with sinks to ``transformers``.

    Returns:
        The name by which a model's configuration selects it, as ``attn_implementation``.
    """
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, compute_attention)
    return NAME


def compute_attention(
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
    """Compute causal attention with sinks, with the arguments that ``transformers`` passes.

    A sink is an additional score in each softmax, without a value. B is the number of sequences, T
    of positions, H of heads, K of heads of keys, W the width of a head.

    Args:
        module: not used.
        attention_mask: not used; the mask is causal, within ``sliding_window``.
        query: (B, H, T, W).
        key, value: (B, K, T, W); K divides H, and H / K heads share a key.
        scaling: factor of the scores of positions, but not of the sinks' scores.
        s_aux: the score of each head's sink, (H,).
        sliding_window: number of positions that a query attends to, with its own; None: its own and
            all before it.

    Returns:
        (B, T, H, W), and None in place of the attention weights.
    """
    del module, attention_mask
    attended = compute_sink_attention(
        query, key, value, s_aux, scaling=scaling, window=sliding_window
    )
    return attended.transpose(1, 2).contiguous(), None


def compute_sink_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    sinks: Tensor,
    *,
    scaling: float,
    window: int | None = None,
) -> Tensor:
    """Return causal attention with sinks.

    A sink is an additional score in each softmax, without a value. Here it is the score of an
    additional position. B is the number of sequences, T of positions, H of heads, K of heads of
    keys, W the width of a head.

    Args:
        query: (B, H, T, W).
        key, value: (B, K, T, W); K divides H, and H / K heads share a key.
        sinks: the score of each head's sink, (H,).
        scaling: factor of the scores of positions, but not of the sinks' scores.
        window: number of positions that a query attends to, with its own; None: its own and all
            before it.

    Returns:
        (B, H, T, W).
    """
    width = query.size(-1)
    length = query.size(2)
    num_added_dims = 1  # for the sink
    if query.device.type != "cpu":
        # Accelerators' kernels need a width that is a multiple of ``_WIDTH_MULTIPLE``, so the head
        # also gets dimensions of zeros up to the next multiple.
        num_added_dims = _WIDTH_MULTIPLE - width % _WIDTH_MULTIPLE
    # The query's coordinate in the additional dimension. Attention multiplies it by the sink's key,
    # which is 1 there, and by the scaling: the result is the sink's score.
    sink_scores = (sinks / scaling).to(query.dtype)[:, None, None].expand(*query.shape[:-1], 1)
    query = pad(torch.cat([query, sink_scores], -1), (0, num_added_dims - 1))
    # Keys of positions are 0 in the additional dimensions, so their scores stay as they are.
    key = pad(key, (0, num_added_dims))
    value = pad(value, (0, num_added_dims))
    # 1 in the dimension after those of the head, else 0.
    sink_key = pad(key.new_ones(1), (width, num_added_dims - 1))
    if window is None or window >= length:
        attended = _attend_to_all(query, key, value, sink_key, scaling)
    else:
        attended = _attend_to_window(query, key, value, sink_key, scaling=scaling, window=window)
    return attended[..., :length, :width]  # without added positions and dimensions


def _prepend_sink(key: Tensor, value: Tensor, sink_key: Tensor) -> tuple[Tensor, Tensor]:
    """Return keys and values with the sink as a position before the first one.

    The sink's value is 0: the sink takes a share of the softmax, but adds nothing to the result.

    Args:
        key, value: (…, positions, width).
        sink_key: (width,).
    """
    sink_keys = sink_key.expand_as(key[..., :1, :])
    values = pad(value, (0, 0, 1, 0))
    return torch.cat([sink_keys, key], -2), values


def _attend_to_all(
    query: Tensor, key: Tensor, value: Tensor, sink_key: Tensor, scaling: float
) -> Tensor:
    """Return attention of each query to the sink and all positions up to its own, (B, H, T, W).

    Args:
        query: (B, H, T, W).
        key, value: (B, K, T, W), K heads for the H of ``query``.
        sink_key: the key of the sink, (W,).
        scaling: factor of the products of queries and keys.
    """
    key, value = _prepend_sink(key, value, sink_key)
    attended = scaled_dot_product_attention(
        pad(query, (0, 0, 1, 0)),  # a query for the sink's position, as the causal mask needs
        key,
        value,
        is_causal=True,
        scale=scaling,
        enable_gqa=query.size(1) != key.size(1),
    )
    return attended[..., 1:, :]  # without the result for the sink's position


def _attend_to_window(
    query: Tensor, key: Tensor, value: Tensor, sink_key: Tensor, *, scaling: float, window: int
) -> Tensor:
    """Return attention of each query to the sink and to the ``window`` positions up to its own.

    Args:
        query: (B, H, T, W).
        key, value: (B, K, T, W), K heads for the H of ``query``.
        sink_key: the key of the sink, (W,).
        scaling: factor of the products of queries and keys.

    Returns:
        (B, H, positions, W), with the T positions first and then those that fill the last block.
    """
    batch, heads, length, width = query.shape
    blocks = -(-length // window)  # rounded up
    num_padding = blocks * window - length  # positions after all queries, to which none attends
    query = pad(query, (0, 0, 0, num_padding)).unflatten(2, (blocks, window))
    heads_per_key = heads // key.size(1)

    def cut_into_blocks(keys_or_values: Tensor) -> Tensor:
        """Return each block together with the block before it, (B, H, blocks, 2 window, W)."""
        # Zeros before the first block, to which no query attends; see ``_make_window_mask``.
        padded = pad(keys_or_values, (0, 0, window, num_padding))
        # Pieces of two blocks that overlap by one block.
        pairs_of_blocks = padded.unfold(2, 2 * window, window).transpose(-1, -2)
        return pairs_of_blocks.repeat_interleave(heads_per_key, 1)

    key, value = _prepend_sink(cut_into_blocks(key), cut_into_blocks(value), sink_key)
    # Blocks become samples: (B blocks, H, positions, W).
    allowed = _make_window_mask(blocks, window, query.device)
    query = query.transpose(1, 2).flatten(0, 1)
    key = key.transpose(1, 2).flatten(0, 1)
    value = value.transpose(1, 2).flatten(0, 1)
    mask = allowed.repeat(batch, 1, 1)[:, None]  # (B blocks, 1, window, 1 + 2 window)
    attended = scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scaling)
    by_block: Tensor = attended.unflatten(0, (batch, blocks)).transpose(1, 2)
    # Positions of the padding are still there; the caller removes them.
    return by_block.reshape(batch, heads, -1, width)


def _make_window_mask(blocks: int, window: int, device: torch.device) -> Tensor:
    """Return a mask that is true if a query attends to a key, (blocks, window, 1 + 2 window).

    The last two dimensions are the queries of a block, and the keys: first the sink, then those of
    the block before, then those of the block itself.
    """
    # Positions within a block and the block before it: queries are in the second half.
    query_positions = torch.arange(window, device=device)[:, None] + window
    key_positions = torch.arange(2 * window, device=device)
    is_not_after = key_positions <= query_positions
    is_in_window = key_positions > query_positions - window
    allowed = (is_not_after & is_in_window).expand(blocks, -1, -1).clone()
    allowed[0, :, :window] = False  # there is no block before the first
    return pad(allowed, (1, 0), value=True)  # every query attends to the sink
