"""How a model is parallelized over ranks: data parallel replicas and tensor parallel shards.

Owns which rank trains which share of the data, which ranks share one replica or the experts of one,
and when gradients are averaged over replicas. Tensor parallel ranks are neighbours: rank =
data_rank x tensor_size + tensor_rank. So are ranks that share experts, each of which trains a share
of the data of its own. Also how many graphs torch's compiler made in this process,
from its own counters, for which torch has no public interface.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn
from torch.distributed.tensor import Shard
from torch.nn.parallel import DistributedDataParallel

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch.distributed.device_mesh import DeviceMesh

    from trainmark.protocols import JobContext


@dataclass(frozen=True, slots=True)
class Ranks:
    """The rank's coordinates.

    ``mesh`` has the dimensions ``data`` and ``tensor``, or, if ``expert_size`` ranks share experts,
    ``replica`` and ``expert``; ``data_mesh`` is that of the ranks that train samples of their own.
    """

    data_rank: int = 0
    data_size: int = 1
    tensor_rank: int = 0
    tensor_size: int = 1
    mesh: DeviceMesh | None = None
    data_mesh: DeviceMesh | None = None
    expert_size: int = 1

    @classmethod
    def of(cls, context: JobContext, *, tensor_parallel: int = 1, with_mesh: bool = False) -> Ranks:
        """Return the rank's coordinates; ``tensor_parallel`` ranks share one replica.

        ``with_mesh`` also makes a mesh for whole replicas, which FSDP needs.
        """
        data_size = context.world_size // tensor_parallel
        assert data_size * tensor_parallel == context.world_size, "checked when planning"
        data_rank, tensor_rank = divmod(context.rank, tensor_parallel)
        mesh = None
        if context.world_size > 1 and (with_mesh or tensor_parallel > 1):
            from torch.distributed.device_mesh import init_device_mesh

            mesh = init_device_mesh(
                context.device.torch_type,
                (data_size, tensor_parallel),
                mesh_dim_names=("data", "tensor"),
            )
        data_mesh = None if mesh is None else mesh["data"]
        return cls(data_rank, data_size, tensor_rank, tensor_parallel, mesh, data_mesh)

    @classmethod
    def sharing_experts(cls, context: JobContext, expert_parallel: int) -> Ranks:
        """Return the rank's coordinates; ``expert_parallel`` neighbours share a layer's experts."""
        from torch.distributed.device_mesh import init_device_mesh

        replicas = context.world_size // expert_parallel
        assert replicas * expert_parallel == context.world_size, "checked when planning"
        mesh = init_device_mesh(
            context.device.torch_type,
            (replicas, expert_parallel),
            mesh_dim_names=("replica", "expert"),
        )
        return cls(
            context.rank,
            context.world_size,
            mesh=mesh,
            data_mesh=mesh._flatten("data"),
            expert_size=expert_parallel,
        )

    @property
    def counts_here(self) -> bool:
        """Tell whether this rank reports counts: one of the ranks that share a replica does."""
        return self.tensor_rank == 0


def micro_batch(module: nn.Module, *, last: bool) -> AbstractContextManager[Any]:
    """Return the context of a forward and backward pass of what ``parallelize`` returned.

    DDP averages gradients during the ``last`` backward pass of a step: every rank holds whole
    gradients anyway. FSDP2 averages them in every backward pass, and so keeps only a rank's shards.
    """
    if isinstance(module, DistributedDataParallel) and not last:
        return module.no_sync()
    return nullcontext()


def parallelize(
    model: nn.Module,
    ranks: Ranks,
    *,
    compiled: bool = False,
    shards: Iterable[nn.Module] | None = None,
    experts: Iterable[nn.Module] = (),
) -> nn.Module:
    """Return what to call for a forward pass of ``model`` over the replicas of ``ranks``.

    Buffers are not exchanged: they must be equal on all ranks and stay so.

    Args:
        model: already sharded over the tensor parallel ranks.
        compiled: call it through ``torch.compile``, inside DDP, which torch then splits where
            DDP's buckets end, so that a bucket is reduced while the backward pass goes on
            (``DDPOptimizer``), as in the other order.
        shards: shard the model with FSDP2, each of these modules as its own unit; None: every
            replica is whole.
        experts: modules of which each rank of the mesh's ``expert`` holds its share already; they
            are sharded over ``replica`` alone.
    """
    sharded = shards is not None and ranks.mesh is not None
    if shards is not None and ranks.mesh is not None:
        from torch.distributed.fsdp import fully_shard

        shared = list(experts)
        held = {parameter for module in shared for parameter in module.parameters()}
        if shared and ranks.mesh["replica"].size() > 1:
            for module in shared:  # by columns: there may be fewer experts than replicas
                fully_shard(
                    module, mesh=ranks.mesh["replica"], shard_placement_fn=lambda _: Shard(1)
                )
            held = set()
        for module in [*shards, model]:
            fully_shard(module, mesh=ranks.data_mesh, ignored_params=held)
    called = cast("nn.Module", torch.compile(model)) if compiled else model
    if sharded or ranks.data_size == 1:
        return called
    assert ranks.tensor_size == 1, "checked when planning: DDP does not support DTensors"
    # By default DDP sends every buffer at every forward pass: those of our models are constants.
    return DistributedDataParallel(called, gradient_as_bucket_view=True, broadcast_buffers=False)


def graphs_compiled() -> int | None:
    """Return how many graphs were compiled so far, each recompilation counted; None: unknown."""
    from torch._dynamo.utils import counters

    # None yet is unknown too: a version that counts under another name would be 0 forever.
    return counters["stats"].get("unique_graphs")
