"""How a model is parallelized over ranks: data parallel replicas and tensor parallel shards.

Owns which rank trains which share of the data, which ranks share one replica, and when
gradients are averaged over replicas. Tensor parallel ranks are neighbours: rank =
data_rank x tensor_size + tensor_rank. Also what torch's compiler did in this process, from its own
counters, for which torch has no public interface.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch.distributed.device_mesh import DeviceMesh

    from trainmark.protocols import JobContext
    from trainmark.recipe import Recipe


@dataclass(frozen=True, slots=True)
class Ranks:
    """The rank's coordinates. ``mesh`` has the dimensions ``data`` and ``tensor``."""

    data_rank: int = 0
    data_size: int = 1
    tensor_rank: int = 0
    tensor_size: int = 1
    mesh: DeviceMesh | None = None

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
        return cls(data_rank, data_size, tensor_rank, tensor_parallel, mesh)

    @property
    def counts_here(self) -> bool:
        """Tell whether this rank reports counts: one of the ranks that share a replica does."""
        return self.tensor_rank == 0


class Replicas:
    """Average gradients over the replicas of a model; this base class has one replica.

    Args:
        module: what to call for a forward pass.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def micro_batch(self, *, last: bool) -> AbstractContextManager[Any]:
        """Return the context of one forward and backward pass of a step."""
        del last
        return nullcontext()

    def finish(self) -> None:
        """Complete the step's averaged gradients in the parameters' ``grad``."""


class _Overlapped(Replicas):
    """DDP: averages during the backward pass."""

    def micro_batch(self, *, last: bool) -> AbstractContextManager[Any]:
        module = cast("DistributedDataParallel", self.module)
        return nullcontext() if last else module.no_sync()


class _Sharded(Replicas):
    """FSDP2: every rank holds a shard of the parameters; averages during the backward pass."""

    def micro_batch(self, *, last: bool) -> AbstractContextManager[Any]:
        self.module.set_requires_gradient_sync(last)  # type: ignore[operator]
        return nullcontext()


class _AtTheEnd(Replicas):
    """Averages after the step's last backward pass, because DDP does not support DTensors."""

    def __init__(self, module: nn.Module, ranks: Ranks) -> None:
        super().__init__(module)
        assert ranks.mesh is not None
        self._group = ranks.mesh["data"].get_group()
        self._size = ranks.data_size

    def finish(self) -> None:
        grads = [p.grad for p in self.module.parameters() if p.grad is not None]
        local = [g.to_local() if isinstance(g, DTensor) else g for g in grads]
        work = [dist.all_reduce(x, group=self._group, async_op=True) for x in local]
        for handle in work:
            assert handle is not None
            handle.wait()
        torch._foreach_div_(local, self._size)


def _compiled(model: nn.Module, compiled: bool | str) -> nn.Module:
    if not compiled:
        return model
    return cast("nn.Module", torch.compile(model, mode=compiled if compiled is not True else None))


def parallelize(
    model: nn.Module,
    ranks: Ranks,
    *,
    compiled: bool | str = False,
    shards: Iterable[nn.Module] | None = None,
) -> Replicas:
    """Parallelize ``model`` over the replicas of ``ranks``.

    Args:
        model: already sharded over the tensor parallel ranks.
        compiled: call it through ``torch.compile``; a text is the compiler's mode. It is compiled
            inside DDP, which torch then splits where DDP's buckets end, so that a bucket is
            reduced while the backward pass goes on (``DDPOptimizer``), as in the other order.
        shards: shard the model with FSDP2, each of these modules as its own unit; None: every
            replica is whole.
    """
    if shards is not None and ranks.mesh is not None:
        from torch.distributed.fsdp import fully_shard

        for module in shards:
            fully_shard(module, mesh=ranks.mesh["data"])
        fully_shard(model, mesh=ranks.mesh["data"])
        return _Sharded(_compiled(model, compiled))
    called = _compiled(model, compiled)
    if ranks.data_size == 1:
        return Replicas(called)
    if ranks.tensor_size > 1:
        return _AtTheEnd(called, ranks)
    return _Overlapped(DistributedDataParallel(called, gradient_as_bucket_view=True))


def counting(recipe: Recipe) -> Callable[[], int | None]:
    """Return what counts the compiled graphs of a run; without compiling it imports no compiler."""
    return graphs_compiled if recipe.compile else lambda: None


def graphs_compiled() -> int | None:
    """Return how many graphs were compiled so far, each recompilation counted; None: unknown."""
    from torch._dynamo.utils import counters

    # None yet is unknown too: a version that counts under another name would be 0 forever.
    return counters["stats"].get("unique_graphs")


def compiler_facts(recipe: Recipe) -> dict[str, Any] | None:
    """Return the counts of the whole process, named as in ``record.Compilation``.

    None where they are unknown and for a recipe that compiles nothing.
    """
    graphs = graphs_compiled() if recipe.compile else None
    if graphs is None:
        return None
    from torch._dynamo.utils import counters

    inductor = counters["inductor"]
    return {
        "graphs": graphs,
        "graph_breaks": sum(counters["graph_break"].values()),
        "cache_hits": inductor.get("fxgraph_cache_hit", 0),
        "cache_misses": inductor.get("fxgraph_cache_miss", 0),
    }
