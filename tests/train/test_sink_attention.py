"""Attention with sinks equals the library's, for all and for windowed layers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers.models.gpt_oss.modeling_gpt_oss import eager_attention_forward

from trainmark.train import sink_attention
from trainmark.train.sink_attention import compute_sink_attention


@pytest.mark.parametrize(
    ("length", "window"), [(12, None), (12, 12), (12, 4), (13, 4), (12, 5), (12, 1), (3, 8)]
)
def test_results_and_gradients_equal_those_of_transformers(length: int, window: int | None) -> None:
    generator = torch.Generator().manual_seed(1)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()

    # ``length`` is that of the 2 sequences, in tokens; a token sees the last ``window`` ones up to
    # itself, None: all. A sink is a further score in a head's softmax, which has no value. Heads
    # have 8 numbers; 0.3 is any scale.
    # Queries of 4 heads, keys and values of 2, and a sink for each head of the queries.
    inputs = [draw(2, 4, length, 8), draw(2, 2, length, 8), draw(2, 2, length, 8), draw(4)]
    positions = torch.arange(length)
    behind = positions[:, None] - positions  # how far a key is behind its query
    allowed = (behind >= 0) & (behind < (window or length))
    mask = torch.zeros(length, length, dtype=torch.float64).masked_fill(~allowed, -torch.inf)
    module = torch.nn.Module()  # has what the library's function reads of its attention layer
    module.sinks, module.num_key_value_groups = inputs[3], 2
    expected, _ = eager_attention_forward(module, *inputs[:3], mask, scaling=0.3)
    result = compute_sink_attention(*inputs, scaling=0.3, window=window)
    torch.testing.assert_close(result.transpose(1, 2), expected)
    # Random weights, so that no part of a gradient cancels out in the sum.
    weights = torch.randn(expected.shape, generator=generator, dtype=torch.float64)
    library_gradients = torch.autograd.grad((expected * weights).sum(), inputs)
    our_gradients = torch.autograd.grad((result.transpose(1, 2) * weights).sum(), inputs)
    torch.testing.assert_close(our_gradients, library_gradients)


@pytest.mark.parametrize("head_width", [8, 12])
@pytest.mark.parametrize("window", [None, 4])
def test_kernels_of_accelerators_get_a_width_that_is_a_multiple_of_8(
    monkeypatch: pytest.MonkeyPatch, head_width: int, window: int | None
) -> None:
    # The meta device stands for an accelerator: any device but the CPU does.
    kernel_widths = []

    def attend(query: torch.Tensor, *args: Any, **options: Any) -> torch.Tensor:
        kernel_widths.append(query.size(-1))
        return scaled_dot_product_attention(query, *args, **options)

    monkeypatch.setattr(sink_attention, "scaled_dot_product_attention", attend)
    # Of 2 sequences of 12 tokens, with 4 heads and a sink for each; 0.3 is any scale.
    query, key, value = torch.empty(3, 2, 4, 12, head_width, device="meta")
    result = compute_sink_attention(
        query, key, value, torch.empty(4, device="meta"), scaling=0.3, window=window
    )
    assert result.shape == query.shape
    assert kernel_widths == [16]  # the first multiple of 8 with room for the sink's dimension
