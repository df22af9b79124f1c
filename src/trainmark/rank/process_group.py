"""Join the ranks of a run, each bound to its own device."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from trainmark.protocols import Device

_MAX_TIMEOUT_S = 30 * 86_400.0


def join_ranks(backend: str, device: Device, *, timeout_s: float | None = None) -> None:
    """Make the process group of all ranks, at the address that the environment names.

    Collectives are bound to the rank's device. Otherwise torch would guess a device from the global
    rank: with two ranks on each node and eight visible devices, rank 2 (local rank 0) would take
    memory on device 2.

    Args:
        timeout_s: timeout of a collective; None: torch's default.
    """
    import torch

    timeout = None
    if timeout_s is not None:
        # Above about 292 years a timeout overflows in nanoseconds and collectives hang at once.
        timeout = timedelta(seconds=min(timeout_s, _MAX_TIMEOUT_S))
    torch.distributed.init_process_group(
        backend, timeout=timeout, device_id=find_collective_device(device)
    )


def find_collective_device(device: Device) -> torch.device | None:
    """Return the device to which collectives are bound; None if torch cannot bind to it.

    Torch cannot bind to a CPU, nor to a device that ``torch.accelerator`` does not count.
    """
    import torch

    place: torch.device = device.place(torch.empty(0)).device
    known = torch.accelerator.current_accelerator()
    if known is None or known.type != place.type or place.index is None:
        return None
    return place if place.index < torch.accelerator.device_count() else None
