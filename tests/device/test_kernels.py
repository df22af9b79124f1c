"""Kernels chosen by ``kernels=own`` give the results of PyTorch."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import torch

from trainmark.recipe import Recipe
from trainmark.train.kernels import LIBRARY, choose_kernels
from trainmark.train.stepper import AUTOCAST_DTYPES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from trainmark.protocols import Device

ROWS, WIDTH = 96, 64  # tokens, and the size of their hidden states
# A softmax over more than 2048 classes is another kernel than over fewer.
CLASSES, PADDED = 4990, 5000  # the last rows of the weight belong to no class
IGNORED = -100  # the target of tokens without a loss
# Of the relative error in the Frobenius norm: sums in another order, and rounded factors.
BOUNDS = {"fp32": 1e-5, "bf16": 2e-2}


def compute_loss_and_gradients(
    device: Device,
    precision: str,
    factors: Sequence[Tensor],
    loss_of: Callable[..., Tensor],
) -> list[Tensor]:
    """Return a loss and the gradients of its factors, on the host in 64 bits.

    The loss comes first, then the gradients in the order of ``factors``.

    Args:
        device: where they are computed.
        precision: "fp32", or a precision of 16 bits, which autocast then uses; ``AUTOCAST_DTYPES``
            has torch's type of each of these.
        factors: tensors on the host, of which ``loss_of`` is a function.
        loss_of: computes the loss from the factors on the device.
    """
    placed = [device.place(x.clone()).detach().requires_grad_() for x in factors]
    dtype = AUTOCAST_DTYPES.get(precision)
    with torch.autocast(device.torch_type, dtype=dtype, enabled=dtype is not None):
        loss = loss_of(*placed)
    loss.backward()
    grads = [x.grad for x in placed]
    return [x.detach().double().cpu() for x in (loss, *grads) if x is not None]


def assert_close(actual: Sequence[Tensor], expected: Sequence[Tensor], precision: str) -> None:
    """Compare each tensor by its relative error in the Frobenius norm.

    ``BOUNDS`` has the largest allowed error of each precision.
    """
    errors = [float((a - b).norm() / b.norm()) for a, b in zip(actual, expected, strict=True)]
    # Not by the maximum, which could overlook an error that is not a number.
    assert all(error <= BOUNDS[precision] for error in errors), errors


@pytest.mark.parametrize("precision", BOUNDS)
def test_cross_entropy_kernel_equals_the_plain_loss(device: Device, precision: str) -> None:
    """The kernel of this project gives the loss and the gradients that PyTorch gives.

    ``BOUNDS`` has the allowed relative error by precision (fp32: 1e-5, bf16: 2e-2), ``LIBRARY`` the
    kernels of PyTorch. There are 96 tokens (``ROWS``) with hidden states of 64 numbers (``WIDTH``),
    and 4990 classes (``CLASSES``), padded to the 5000 rows of the weight (``PADDED``). ``IGNORED``,
    -100, is the target of a token without a loss.
    """
    device.set_precision("fp32")  # no TF32; autocast rounds to the parametrized precision
    kernel_choice = choose_kernels(replace(Recipe(), kernels="own"), device.torch_type)
    generator = torch.Generator().manual_seed(3)
    hidden = torch.randn(ROWS, WIDTH, generator=generator)
    # Its last rows, those beyond ``CLASSES``, belong to no class. Divided by the square root of
    # ``WIDTH``, so that scores have unit variance.
    weight = torch.randn(PADDED, WIDTH, generator=generator) / WIDTH**0.5
    targets = torch.randint(CLASSES, (ROWS,), generator=generator)
    targets[::7] = IGNORED  # tokens without a loss
    placed_targets = device.place(targets)
    actual, expected = (
        compute_loss_and_gradients(
            device,
            precision,
            (hidden, weight),
            # Scores of 40 of the tokens at once: of the 96 (``ROWS``), the last part has only 16.
            lambda h, w, kernels=kernels: kernels.cross_entropy(
                h, w, placed_targets, classes=CLASSES, ignored=IGNORED, scores_at_once=40 * PADDED
            ),
        )
        for kernels in (kernel_choice, LIBRARY)
    )
    assert_close(actual, expected, precision)
