"""Join the ranks of a run, each bound to its own device, and leave them."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

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
        backend: of torch, one for all kinds of device, as in ``nccl``, or by kind of device, as in
            ``cpu:gloo,cuda:nccl``.
        timeout_s: timeout of a collective; None: torch's default.
    """
    import torch

    timeout = None
    if timeout_s is not None:
        # Above about 292 years a timeout overflows in nanoseconds and collectives hang at once.
        timeout = timedelta(seconds=min(timeout_s, _MAX_TIMEOUT_S))
    bound_device = find_collective_device(backend, device)  # None: not bound to a device
    torch.distributed.init_process_group(backend, timeout=timeout, device_id=bound_device)
    group: Any = torch.distributed.group.WORLD
    # ``init_device_mesh`` splits a group that is bound to a device, even if its backend cannot be
    # split, which fails. If the group is not bound, it makes new groups instead. In torch 2.13 a
    # barrier of such a group uses the current device, which the vendor has set to the rank's.
    if bound_device is not None and not group._get_backend(bound_device).supports_splitting:
        group.bound_device_id = None


def leave_ranks() -> None:
    """Shut down the collectives of all ranks; the process must end by ``os._exit`` soon after.

    Groups of gloo are not destroyed, and ``os._exit`` ends the process without their destructors.
    The destructor of such a group waits for its threads while it holds Python's global lock (GIL),
    and a thread that frees the tensors of a collective waits for that lock: a deadlock, seen with
    torch 2.7.1.
    """
    import torch

    # One backend, ``gloo``, or one for each kind of device, ``cpu:gloo,cuda:nccl``. Groups with
    # another backend are destroyed, because it must be shut down; the deadlock was seen only in
    # processes whose collectives all use gloo.
    backends = torch.distributed.get_backend().split(",")
    if all(backend.endswith("gloo") for backend in backends):
        return
    torch.distributed.destroy_process_group()


def find_collective_device(backend: str, device: Device) -> torch.device | None:
    """Return the device to which collectives are bound; None if they cannot be bound.

    Torch cannot bind to a CPU, to a device that ``torch.accelerator`` does not count, or to one
    that gloo serves: torch 2.13 fails to split such a group, because gloo's options have no copy.

    Args:
        backend: of torch, one for all kinds of device, as in ``nccl``, or by kind of device, as in
            ``cpu:gloo,cuda:nccl``.
    """
    import torch

    torch_device: torch.device = device.place(torch.empty(0)).device
    accelerator = torch.accelerator.current_accelerator()
    if accelerator is None or accelerator.type != torch_device.type or torch_device.index is None:
        return None
    if backend == "gloo" or f"{torch_device.type}:gloo" in backend.split(","):
        return None
    is_counted = torch_device.index < torch.accelerator.device_count()
    return torch_device if is_counted else None
