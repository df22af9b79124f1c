"""Collectives of the device: gloo on the host's view of its tensors.

Torch dispatches a collective on its tensors' device, as it does any operation. A card's library
queues it in the device's stream; gloo exchanges it on threads of the host, which wait for the
result where torch asks for it.
"""

from __future__ import annotations

import warnings
from functools import partial
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from trainmark_stand_in.operations import Operations

_NAMES = (
    "allreduce_",
    "allreduce_coalesced_",
    "allgather_",
    "_allgather_base_",
    "allgather_coalesced_",
    "allgather_into_tensor_coalesced_",
    "alltoall_",
    "alltoall_base_",
    "barrier",
    "broadcast_",
    "gather_",
    "reduce_",
    "reduce_scatter_",
    "_reduce_scatter_base_",
    "reduce_scatter_tensor_coalesced_",
    "scatter_",
    "send",
    "recv_",
)


def register(operations: Operations) -> list[torch.library.Library]:
    """Make torch call gloo for the device; it does as long as the result is alive.

    ``_NAMES`` has torch's collectives, such as ``allreduce_``. ``operations.run`` runs one on the
    host's view of the device's tensors. PrivateUse1 is torch's name for the simulated device.
    """
    library = torch.library.Library("c10d", "IMPL")
    with warnings.catch_warnings():
        # Torch warns that its own kernels are replaced. They would hand the device's tensors to
        # gloo, which refuses them.
        warnings.filterwarnings("ignore", "Warning only once for all operators")
        for name in _NAMES:
            run = partial(operations.run, getattr(torch.ops.c10d, name).default)
            library.impl(name, run, "PrivateUse1", allow_override=True)
    return [library]
