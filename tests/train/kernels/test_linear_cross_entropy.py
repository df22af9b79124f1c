"""The block-wise loss equals the plain one, in every dtype it is used with."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trainmark.train.kernels.linear_cross_entropy import (
    _LinearCrossEntropy,
    linear_cross_entropy_sum,
)


def make_inputs(rows: int, classes: int, *, scale: float = 1.0) -> tuple[torch.Tensor, ...]:
    """Return hidden states (rows, 8), times ``scale``, weights (classes, 8) and targets (rows,)."""
    torch.manual_seed(rows * 1000 + classes)
    hidden = (scale * torch.randn(rows, 8)).requires_grad_()
    weight = torch.randn(classes, 8).requires_grad_()
    return hidden, weight, torch.randint(0, classes, (rows,))


@settings(max_examples=30, deadline=None)
@given(rows=st.integers(1, 30), classes=st.integers(1, 40), at_once=st.integers(1, 2000))
def test_kernel_equals_the_plain_loss(rows: int, classes: int, at_once: int) -> None:
    # The kernel computes the scores (rows x classes) in pieces, whose size ``scores_at_once``
    # limits; the plain loss has them all at once.
    hidden, weight, targets = make_inputs(rows=rows, classes=classes)
    loss = linear_cross_entropy_sum(hidden, weight, targets, scores_at_once=at_once)
    # 0.5: a gradient from above that is not 1.
    gradients = torch.autograd.grad(loss * 0.5, (hidden, weight))
    plain = torch.nn.functional.cross_entropy(hidden @ weight.t(), targets, reduction="sum")
    expected = torch.autograd.grad(plain * 0.5, (hidden, weight))
    torch.testing.assert_close(loss, plain, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(gradients, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_multiplies_in_its_dtype_and_adds_in_float32(dtype: torch.dtype) -> None:
    # With 50 scores at once each row is a block, so that the loss and the weight's gradient are
    # sums of 2,000 blocks. Added in ``dtype`` instead, they would differ by 1.6% and more.
    hidden, weight, targets = make_inputs(rows=2000, classes=50)
    with torch.autocast("cpu", dtype=dtype):
        loss = linear_cross_entropy_sum(hidden, weight, targets, scores_at_once=50)
    assert loss.dtype == torch.float32
    gradients = torch.autograd.grad(loss, (hidden, weight))
    assert [item.dtype for item in gradients] == [torch.float32] * 2
    plain = torch.nn.functional.cross_entropy(hidden @ weight.t(), targets, reduction="sum")
    expected = torch.autograd.grad(plain, (hidden, weight))
    for actual, plain_value in zip((loss, *gradients), (plain, *expected), strict=True):
        difference = (actual - plain_value).norm() / plain_value.norm()
        # ``eps`` is twice the error of rounding one number, relative; the measured differences are
        # at most half of it. 0 would be a multiplication in float32.
        assert 0 < difference < torch.finfo(dtype).eps


def test_padding_classes_are_ignored() -> None:
    # ``make_inputs`` returns hidden states of width 8, weights of the 12 classes, and targets.
    hidden, weight, targets = make_inputs(rows=9, classes=12)
    # 4 more classes, with weights large enough to change the loss if they counted.
    padded = torch.cat([weight, 10 * torch.randn(4, 8)]).detach().requires_grad_()
    loss = linear_cross_entropy_sum(hidden, padded, targets, classes=12)
    expected_loss = torch.nn.functional.cross_entropy(hidden @ weight.t(), targets, reduction="sum")
    torch.testing.assert_close(loss, expected_loss)
    gradients = torch.autograd.grad(loss, (hidden, padded))
    plain = torch.autograd.grad(expected_loss, (hidden, weight))
    torch.testing.assert_close(gradients[0], plain[0], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(gradients[1][:12], plain[1], rtol=1e-5, atol=1e-5)
    assert not gradients[1][12:].any()


def test_ignored_targets_add_nothing_to_loss_or_gradients() -> None:
    # -100 is the number that marks a target as one to ignore; here those of rows 0 and 4.
    hidden, weight, targets = make_inputs(rows=9, classes=11)
    targets[[0, 4]] = -100
    plain = torch.nn.functional.cross_entropy(
        hidden @ weight.t(), targets, reduction="sum", ignore_index=-100
    )
    expected = torch.autograd.grad(plain, (hidden, weight))
    # 33 scores at once are three rows of 11 classes, so there are several pieces.
    loss = linear_cross_entropy_sum(hidden, weight, targets, ignored=-100, scores_at_once=33)
    torch.testing.assert_close(loss, plain)
    for gradient, expected_gradient in zip(
        torch.autograd.grad(loss, (hidden, weight)), expected, strict=True
    ):
        torch.testing.assert_close(gradient, expected_gradient)
    # A weight that is not trained does not change the gradient of the other input.
    frozen = linear_cross_entropy_sum(hidden, weight.detach(), targets, ignored=-100)
    (frozen_gradient,) = torch.autograd.grad(frozen, hidden)
    torch.testing.assert_close(frozen_gradient, expected[0])


@pytest.mark.parametrize("is_sharded", [False, True])
def test_ignored_target_may_be_the_number_of_a_padding_row(
    is_sharded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Classes 0 to 5, and two rows of padding, 6 and 7. Rows 0 and 4 are ignored, by the target 7.
    hidden, weight, targets = make_inputs(rows=9, classes=8)
    targets %= 6
    targets[[0, 4]] = 7
    is_counted = targets != 7
    plain = torch.nn.functional.cross_entropy(
        hidden[is_counted] @ weight[:6].t(), targets[is_counted], reduction="sum"
    )
    expected = torch.autograd.grad(plain, (hidden, weight))
    # A group of one rank, whose sums over ranks are the numbers themselves.
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda *_args, **_options: None)
    group: Any = object() if is_sharded else None
    # After the tensors: the ranks that share the classes, the number of classes without padding,
    # the rows whose scores are computed at once, the type in which they are multiplied, the number
    # of this rank's first class, and the target that is ignored.
    loss = _LinearCrossEntropy.apply(  # type: ignore[no-untyped-call]
        hidden, weight, targets, group, 6, 4, torch.float32, 0, 7
    )
    torch.testing.assert_close(loss, plain)
    torch.testing.assert_close(torch.autograd.grad(loss, (hidden, weight)), expected)


@pytest.mark.parametrize("ignored", [None, -100])
@pytest.mark.parametrize("target", [-1, 11])
@pytest.mark.parametrize("rows", [1, 9])
def test_a_target_that_is_no_class_is_an_error(rows: int, target: int, ignored: int | None) -> None:
    # Classes are 0 to 10. ``ignored``: the target that does not count, if there is one. 33 scores
    # at once are three rows, so that 9 rows are scored in three blocks, and 1 row in one.
    hidden, weight, targets = make_inputs(rows=rows, classes=11)
    targets[-1] = target
    with pytest.raises((IndexError, RuntimeError), match="out of bounds"):
        linear_cross_entropy_sum(hidden, weight, targets, ignored=ignored, scores_at_once=33)
