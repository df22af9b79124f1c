"""Join the ranks of a run, each bound to its own device."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from trainmark.protocols import Device

_LONGEST_TIMEOUT_S = 30 * 86_400.0


def join_ranks(backend: str, device: Device, *, timeout_s: float | None = None) -> None:
    """Make the process group of all ranks, at the address that the environment names.

    Collectives are bound to the rank's open device. Torch would otherwise guess one from the
    global rank: with two ranks a node and eight devices visible, rank 2 (local 0) would take
    memory on device 2.

    Args:
        timeout_s: of a collective; None: torch's default.
    """
    import torch

    timeout = None
    if timeout_s is not None:
        # Above about 292 years a timeout overflows in nanoseconds and collectives hang at once.
        timeout = timedelta(seconds=min(timeout_s, _LONGEST_TIMEOUT_S))
    torch.distributed.init_process_group(
        backend, timeout=timeout, device_id=collective_device(device)
    )


def collective_device(device: Device) -> torch.device | None:
    """Return the device that collectives are bound to; None where torch cannot bind to it.

    It cannot bind to a CPU, nor to a device that ``torch.accelerator`` does not count.
    """
    import torch

    place: torch.device = device.place(torch.empty(0)).device
    known = torch.accelerator.current_accelerator()
    if known is None or known.type != place.type or place.index is None:
        return None
    return place if place.index < torch.accelerator.device_count() else None
