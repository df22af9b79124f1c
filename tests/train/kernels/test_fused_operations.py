"""Which operations a recipe gets; the CPU's attention is the library's mathematics."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from trainmark.recipe import Recipe
from trainmark.train.kernels import choose
from trainmark.train.kernels.attention import Prefix, attention, attention_forward, keep_mask


def draws(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(*shape, generator=generator) for _ in range(3)]


def test_the_share_kept_is_that_probability():
    torch.manual_seed(1)
    mask, scale = keep_mask(torch.Size([1000, 1001]), 0.1)
    kept = 1 / scale
    error = (kept * (1 - kept) / mask.numel()) ** 0.5
    assert set(mask.unique().tolist()) == {0.0, 1.0}
    assert abs(mask.mean().item() - kept) < 5 * error
    # Neighbours share a random word, and must not share a fate.
    pairs = (mask.flatten()[:-1] * mask.flatten()[1:]).mean().item()
    assert abs(pairs - kept**2) < 5 * (kept**2 * (1 - kept**2) / mask.numel()) ** 0.5


@pytest.mark.parametrize("masked", [False, True])
def test_attention_equals_the_library_function(masked):
    q, k, v = (item.requires_grad_() for item in draws(2, 3, 7, 5))
    keep = torch.ones(2, 1, 1, 7, dtype=torch.bool)
    keep[1, ..., 4:] = False
    mask = keep if masked else None
    ours, weights = attention_forward(nn.Module(), q, k, v, mask)
    assert weights is None
    wanted = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2)
    torch.testing.assert_close(ours, wanted, rtol=0, atol=1e-6)
    seed = torch.randn(ours.shape, generator=torch.Generator().manual_seed(9))
    found = torch.autograd.grad(ours, (q, k, v), seed)
    expected = torch.autograd.grad(wanted, (q, k, v), seed)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-6)


def test_the_gradient_with_dropout_is_that_of_the_function_drawn():
    """Against the same mathematics written out, with the very mask that was drawn."""
    q, k, v = (item.requires_grad_() for item in draws(2, 2, 6, 4, seed=5))
    torch.manual_seed(11)
    ours, _ = attention_forward(nn.Module(), q, k, v, None, dropout=0.3, scaling=0.5)
    torch.manual_seed(11)
    keep, scale = keep_mask(torch.Size([4, 6, 6]), 0.3)
    scores = torch.softmax(0.5 * q @ k.transpose(-1, -2), -1)
    wanted = ((scores * keep.view(2, 2, 6, 6) * scale) @ v).transpose(1, 2)
    torch.testing.assert_close(ours, wanted, rtol=0, atol=1e-6)
    seed = torch.randn(ours.shape, generator=torch.Generator().manual_seed(13))
    found = torch.autograd.grad(ours, (q, k, v), seed)
    expected = torch.autograd.grad(wanted, (q, k, v), seed)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-6)


@pytest.mark.parametrize("length", [1, 127, 128, 300])
def test_causal_attention_equals_the_librarys(length: int) -> None:
    torch.manual_seed(2)
    q, k, v = (torch.randn(2, 3, length, 8, requires_grad=True) for _ in range(3))
    grad = torch.randn(2, 3, length, 8)
    ours = attention(q, k, v, is_causal=True, dropout=1e-9)  # too small to drop anything
    theirs = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
    found = torch.autograd.grad(ours, (q, k, v), grad)
    wanted = torch.autograd.grad(theirs, (q, k, v), grad)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("length", "separators"),
    [(1, [0, 1]), (40, [0, 17, 40]), (300, [0, 1, 150, 299, 300]), (300, [20, 21]), (260, [130])],
)
def test_attention_with_a_prefix_equals_the_librarys(length: int, separators: list[int]) -> None:
    """Rows that differ in their prefix, in one block of queries and in several."""
    torch.manual_seed(2)
    q, k, v = (torch.randn(len(separators), 3, length, 8, requires_grad=True) for _ in range(3))
    grad = torch.randn_like(q)
    prefix = Prefix(torch.tensor(separators), length)
    seen = torch.ones(len(separators), 1, length, length, dtype=torch.bool).tril()
    for row, separator in enumerate(separators):
        seen[row, :, :, :separator] = True
    assert torch.equal(prefix.mask, seen)
    ours = attention(q, k, v, prefix=prefix, dropout=1e-9)  # too small to drop anything
    theirs = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=seen)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
    found = torch.autograd.grad(ours, (q, k, v), grad)
    wanted = torch.autograd.grad(theirs, (q, k, v), grad)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


TASKS = ("attention", "cross_entropy")


@pytest.mark.parametrize(
    ("fields", "torch_type", "own"),
    [
        ({}, "cpu", TASKS),
        ({}, "cuda", ()),
        ({"kernels": "library"}, "cpu", ()),
        ({"kernels": "own"}, "cuda", ("cross_entropy",)),
        ({"precision": "bf16"}, "cpu", ("cross_entropy",)),
        ({"compile": True}, "cpu", ("cross_entropy",)),
    ],
)
def test_recipe_and_device_decide(
    fields: dict[str, Any], torch_type: str, own: tuple[str, ...]
) -> None:
    found = choose(Recipe(**fields), torch_type)
    assert found.used(*TASKS) == {task: "own" if task in own else "library" for task in TASKS}
