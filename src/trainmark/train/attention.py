"""Choose attention kernels of a device that suit a job."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainmark.protocols import Device


def choose_attention_kernels(
    device: Device, *, dropout: float = 0.0, shapes_vary: bool = False
) -> None:
    """Choose the device's attention kernels that suit a job, until the next call.

    Args:
        dropout: probability of dropping an attention weight in training. A kernel that would round
            it to another probability does not suit.
        shapes_vary: shapes differ between steps. A kernel that is compiled for each shape would
            then be compiled again and again in measured windows.
    """
    fit_attention = getattr(device, "fit_attention", None)
    if fit_attention is not None:  # else the device has no kernels to choose from
        fit_attention(dropout=dropout, shapes_vary=shapes_vary)


@contextmanager
def choose_kernels_for_varying_shapes(device: Device, *, dropout: float = 0.0) -> Iterator[None]:
    """Choose attention kernels for an evaluation in the block, and for training after it.

    Shapes vary in the evaluation and are constant in training.

    Args:
        dropout: probability of dropping an attention weight in training.
    """
    choose_attention_kernels(device, shapes_vary=True)  # an evaluation has no dropout
    try:
        yield
    finally:
        choose_attention_kernels(device, dropout=dropout)
