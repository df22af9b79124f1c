"""What is done to the blocks of a transformer before ranks share its replicas.

Owns how tensor parallelism cuts a model over neighbouring ranks, and which activations are computed
again in the backward pass. Must not know models: a case names its modules.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import (
    DTensor,
    Placement,
    Replicate,
    Shard,
    distribute_tensor,
)
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    parallelize_module,
)
from torch.utils.checkpoint import (
    SAC_IGNORED_OPS,
    checkpoint,
    create_selective_checkpoint_contexts,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch.distributed.device_mesh import DeviceMesh

WHOLE = Replicate()
_KEPT = (  # by selective recomputation: what is expensive to compute again
    torch.ops.aten.mm.default,
    torch.ops.aten._scaled_mm.default,
    torch.ops.aten._scaled_dot_product_flash_attention.default,
    torch.ops.aten._scaled_dot_product_efficient_attention.default,
    torch.ops.aten._scaled_dot_product_cudnn_attention.default,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
)
# Marks for profilers. FSDP2 sets others when a block is computed again, which torch 2.15 refuses as
# another computation.
_MARKS = (
    torch.ops.profiler._record_function_enter_new.default,
    torch.ops.profiler._record_function_exit._RecordFunction,
)


class Replicated(ParallelStyle):
    """Hold a module's parameters as DTensors that are the same on every rank of the mesh.

    It takes plain tensors, this rank's part by ``given``, and returns its part by ``made``.
    """

    def __init__(self, given: Placement = WHOLE, made: Placement = WHOLE) -> None:
        super().__init__()
        self._given, self._made = given, made

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        for name, parameter in list(module.named_parameters(recurse=False)):
            same = nn.Parameter(distribute_tensor(parameter.data, device_mesh, [WHOLE]))
            module.register_parameter(name, same)

        def enter(_module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[DTensor, ...]:
            return tuple(
                DTensor.from_local(x, device_mesh, [self._given], run_check=False) for x in inputs
            )

        def leave(_module: nn.Module, _inputs: Any, output: DTensor) -> Tensor:
            return output.redistribute(placements=[self._made]).to_local()

        module.register_forward_pre_hook(enter)
        module.register_forward_hook(leave)
        return module


def cut(
    model: nn.Module,
    mesh: DeviceMesh,
    *,
    table: str,
    norms: Iterable[str],
    last_norm: str,
    columns: Iterable[str],
    rows: Iterable[str],
    sequence: Iterable[tuple[str, str | None]] = (),
) -> None:
    """Cut ``model`` over the ranks of a one-dimensional mesh, in place.

    Every parameter becomes a DTensor of ``mesh``: optimizer, clipping and loss scaling cannot mix
    them with plain tensors.

    Args:
        table: the token table, cut by rows.
        norms: what is the same on every rank; ``last_norm`` is the one before the head.
        columns, rows: linear layers whose outputs, or inputs, are cut.
        sequence: modules that need all positions, and the name of their argument where they are
            not called by position. Between them each rank holds its part of the sequence
            (sequence parallelism); without any, all of it.
    """
    wanted = list(sequence)
    held: Placement = Shard(1) if wanted else WHOLE
    plan: dict[str, ParallelStyle] = {
        table: RowwiseParallel(input_layouts=WHOLE, output_layouts=held),
        last_norm: Replicated(held, WHOLE),
    }
    plan |= {name: Replicated(held, held) for name in norms}
    plan |= {name: ColwiseParallel() for name in columns}
    plan |= {name: RowwiseParallel(output_layouts=held) for name in rows}
    for name, argument in wanted:
        plan[name] = (
            PrepareModuleInput(input_layouts=held, desired_input_layouts=WHOLE)
            if argument is None
            else PrepareModuleInput(
                input_kwarg_layouts={argument: held}, desired_input_kwarg_layouts={argument: WHOLE}
            )
        )
    parallelize_module(model, mesh, plan)


def recompute(blocks: Iterable[nn.Module], *, keep_matmuls: bool = False) -> None:
    """Compute each block's activations again in the backward pass, in place.

    Args:
        keep_matmuls: save the results of matmuls and attention; else only a block's input.
    """
    options: dict[str, Any] = {}
    if keep_matmuls:
        SAC_IGNORED_OPS.update(_MARKS)
        options["context_fn"] = partial(create_selective_checkpoint_contexts, list(_KEPT))
    for block in blocks:
        block.forward = _recomputed(block.forward, options)


def _recomputed(forward: Callable[..., Any], options: dict[str, Any]) -> Callable[..., Any]:
    """Return a function of this file: torch compiles none whose first frame is its own."""

    def run(*args: Any, **named: Any) -> Any:
        return checkpoint(forward, *args, use_reentrant=False, **options, **named)

    return run
