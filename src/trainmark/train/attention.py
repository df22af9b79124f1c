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
        dropout: probability of dropping an attention weight in training.
        shapes_vary: shapes differ between steps. A kernel that is compiled for each shape would
            then be compiled again and again in measured windows.
    """
    fit = getattr(device, "fit_attention", None)  # a vendor's device may have no choice
    if fit is not None:
        fit(dropout=dropout, shapes_vary=shapes_vary)


@contextmanager
def choose_kernels_for_varying_shapes(device: Device, *, dropout: float = 0.0) -> Iterator[None]:
    """Choose kernels for varying shapes in the block, and for the job's ``dropout`` after it."""
    choose_attention_kernels(device, shapes_vary=True)  # no dropout: the block evaluates
    try:
        yield
    finally:
        choose_attention_kernels(device, dropout=dropout)
