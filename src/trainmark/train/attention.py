"""Keep attention kernels of a device's libraries from running where they would not suit a job."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainmark.protocols import Device


def fit_attention(device: Device, *, dropout: float = 0.0, shapes_vary: bool = False) -> None:
    """Choose among the device's kernels those that suit a job's attention, until the next call.

    Args:
        dropout: probability of dropping an attention weight, in training.
        shapes_vary: between steps: a kernel that is prepared for one shape would be prepared in
            a measured window, again and again.
    """
    fit = getattr(device, "fit_attention", None)
    if fit is not None:
        fit(dropout=dropout, shapes_vary=shapes_vary)


@contextmanager
def varying_shapes(device: Device, *, dropout: float = 0.0) -> Iterator[None]:
    """Have attention suit varying shapes within, and ``dropout`` of the job again afterwards."""
    fit_attention(device, shapes_vary=True)
    try:
        yield
    finally:
        fit_attention(device, dropout=dropout)
