"""Parallelize a model over ranks: data parallel replicas and tensor parallel shards.

Decides which rank trains which share of the data, which ranks share a replica or the experts of a
replica, and when gradients are averaged over replicas. Tensor parallel ranks are neighbours: rank =
data_rank x tensor_size + tensor_rank. Ranks that share experts are neighbours too, but each of them
trains its own share of the data.

Also counts the graphs that torch's compiler made in this process, from counters for which torch has
no public interface.
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
    """The coordinates of a rank.

    Attributes:
        data_rank: number of this rank's share of the data, of ``data_size`` shares.
        tensor_rank: number of this rank among the ``tensor_size`` ranks that share a replica.
        mesh: has the dimensions ``data`` and ``tensor`` or, if ranks share experts, ``replica`` and
            ``expert``.
        data_mesh: the mesh of the ranks that train different samples.
        expert_size: number of ranks that share the experts of a layer.
    """

    data_rank: int = 0
    data_size: int = 1
    tensor_rank: int = 0
    tensor_size: int = 1
    mesh: DeviceMesh | None = None
    data_mesh: DeviceMesh | None = None
    expert_size: int = 1

    @classmethod
    def from_context(
        cls, context: JobContext, *, tensor_parallel: int = 1, with_mesh: bool = False
    ) -> Ranks:
        """Return the rank's coordinates if ``tensor_parallel`` ranks share a replica.

        Args:
            with_mesh: make a mesh even if each rank has a whole replica, as FSDP needs it.
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
        return cls(
            data_rank=data_rank,
            data_size=data_size,
            tensor_rank=tensor_rank,
            tensor_size=tensor_parallel,
            mesh=mesh,
            data_mesh=None if mesh is None else mesh["data"],
        )

    @classmethod
    def from_expert_groups(cls, context: JobContext, expert_parallel: int) -> Ranks:
        """Return the rank's coordinates if ``expert_parallel`` ranks share a layer's experts."""
        from torch.distributed.device_mesh import init_device_mesh

        replicas = context.world_size // expert_parallel
        assert replicas * expert_parallel == context.world_size, "checked when planning"
        mesh = init_device_mesh(
            context.device.torch_type,
            (replicas, expert_parallel),
            mesh_dim_names=("replica", "expert"),
        )
        return cls(
            data_rank=context.rank,
            data_size=context.world_size,
            mesh=mesh,
            data_mesh=mesh._flatten("data"),  # all ranks, each of which trains different samples
            expert_size=expert_parallel,
        )

    @property
    def counts_here(self) -> bool:
        """Tell whether this rank counts samples.

        One of the ranks that share a replica does, because all of them train the same samples.
        """
        return self.tensor_rank == 0


def open_micro_batch(module: nn.Module, *, last: bool) -> AbstractContextManager[Any]:
    """Return the context for a forward and backward pass of a module from ``parallelize``.

    DDP averages gradients only during the last backward pass of a step, because every rank holds
    whole gradients. FSDP2 averages them in every backward pass, so that a rank keeps only shards.

    Args:
        last: it is the last pass of the step.
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
    """Prepare ``model`` for training over ranks; return the module to call for a forward pass.

    If there are several replicas, the backward pass averages gradients over them. Buffers are not
    exchanged: they must be equal on all ranks and stay so.

    Args:
        model: already sharded over the tensor parallel ranks.
        compiled: compile the model with ``torch.compile`` inside of DDP. Torch splits the graph
            where DDP's buckets end (``DDPOptimizer``), so that a bucket is reduced while the
            backward pass continues.
        shards: shard the model with FSDP2, each of these modules as a unit; None: every replica is
            whole.
        experts: modules of which each rank of the mesh's dimension ``expert`` already holds its
            share; they are sharded only over ``replica``. They need ``shards``.
    """
    is_sharded = False
    if shards is not None and ranks.mesh is not None:
        is_sharded = True
        _shard_model(model, ranks, ranks.mesh, shards, list(experts))
    module = cast("nn.Module", torch.compile(model)) if compiled else model
    if is_sharded or ranks.data_size == 1:
        return module
    assert ranks.tensor_size == 1, "checked when planning: DDP does not support DTensors"
    # By default DDP sends all buffers in every forward pass; those of our models are constant.
    return DistributedDataParallel(module, gradient_as_bucket_view=True, broadcast_buffers=False)


def _shard_model(
    model: nn.Module,
    ranks: Ranks,
    mesh: DeviceMesh,
    shards: Iterable[nn.Module],
    experts: list[nn.Module],
) -> None:
    """Shard a model with FSDP2, in place.

    Args:
        mesh: has the dimension ``replica`` if there are ``experts``.
        shards: modules that are sharded as a unit each, over all ranks that train different data.
        experts: modules of which each rank already holds its share of the experts.
    """
    from torch.distributed.fsdp import fully_shard

    ignored_parameters: set[nn.Parameter] = set()
    if experts and mesh["replica"].size() > 1:
        # Ranks that hold the same experts cut these along the second dimension, ``Shard(1)``. By
        # default FSDP cuts along the first, that of the experts, but a rank may hold fewer experts
        # than there are replicas.
        for module in experts:
            fully_shard(module, mesh=mesh["replica"], shard_placement_fn=lambda _: Shard(1))
    else:  # there are no experts, or no other rank holds the same ones: they stay as they are
        for module in experts:
            ignored_parameters.update(module.parameters())
    # The model comes last: it then shards only the parameters that no unit has sharded before.
    for module in [*shards, model]:
        fully_shard(module, mesh=ranks.data_mesh, ignored_params=ignored_parameters)


def count_compiled_graphs() -> int | None:
    """Return the number of graphs compiled so far, with recompilations; None: unknown."""
    from torch._dynamo.utils import counters

    # Before the first graph the number is unknown, not 0: a version of torch that uses another name
    # for the counter would otherwise report 0 forever.
    return counters["stats"].get("unique_graphs")
