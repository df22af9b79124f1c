"""Prepare the blocks of a transformer: tensor parallelism and recomputed activations.

Knows no model: a case names its modules.
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

WHOLE = Replicate()  # the same whole tensor on every rank
_SAVED_OPERATIONS = (  # expensive ones, whose results selective recomputation saves
    torch.ops.aten.mm.default,
    torch.ops.aten._scaled_mm.default,
    torch.ops.aten._scaled_dot_product_flash_attention.default,
    torch.ops.aten._scaled_dot_product_efficient_attention.default,
    torch.ops.aten._scaled_dot_product_cudnn_attention.default,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
)
# Marks for profilers. FSDP2 sets different marks when a block is recomputed; torch 2.15 would
# refuse that as a different computation.
_PROFILER_MARKS = (
    torch.ops.profiler._record_function_enter_new.default,
    torch.ops.profiler._record_function_exit._RecordFunction,
)


class Replicated(ParallelStyle):
    """Hold a module's parameters as DTensors that are the same on every rank of the mesh.

    Args:
        inputs: placement of the module's inputs, which are plain tensors with this rank's part.
        outputs: placement of its output, likewise.
    """

    def __init__(self, inputs: Placement = WHOLE, outputs: Placement = WHOLE) -> None:
        super().__init__()
        # How the module's inputs and its output are distributed over ranks: whole on each, or cut.
        self._input_placement = inputs
        self._output_placement = outputs

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        """Convert the module in place; ``parallelize_module`` calls this."""
        for name, parameter in list(module.named_parameters(recurse=False)):
            replicated = nn.Parameter(distribute_tensor(parameter.data, device_mesh, [WHOLE]))
            module.register_parameter(name, replicated)

        def enter(_module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[DTensor, ...]:
            """Make DTensors of the inputs, because the module's parameters are DTensors."""
            return tuple(
                DTensor.from_local(x, device_mesh, [self._input_placement], run_check=False)
                for x in inputs
            )

        def leave(_module: nn.Module, _inputs: Any, output: DTensor) -> Tensor:
            """Return this rank's part of the output as a plain tensor."""
            return output.redistribute(placements=[self._output_placement]).to_local()

        module.register_forward_pre_hook(enter)
        module.register_forward_hook(leave)
        return module


def cut_model(
    model: nn.Module,
    mesh: DeviceMesh,
    *,
    table: str,
    norms: Iterable[str],
    last_norm: str,
    columns: Iterable[str],
    rows: Iterable[str],
    whole_sequence_inputs: Iterable[tuple[str, str | None]] = (),
) -> None:
    """Cut ``model`` over the ranks of a one-dimensional mesh, in place.

    Every parameter becomes a DTensor of ``mesh``: optimizer, clipping and loss scaling cannot mix
    them with plain tensors.

    All arguments but the first two are names of modules; ``*`` in a name stands for the number of
    any block.

    Args:
        table: the token table, cut by rows.
        norms: norms, and other modules that are whole on every rank.
        last_norm: the norm before the head, also whole.
        columns: linear layers whose outputs are cut; the head is one if it is to be cut. Their
            inputs must be whole: the stream itself, the output of ``last_norm``, or inside of a
            module of ``whole_sequence_inputs``.
        rows: linear layers whose inputs are cut.
        whole_sequence_inputs: modules that need all positions, each with the keyword of its input,
            or None if the input is positional. Between these modules each rank holds its part of
            the sequence (sequence parallelism); if there are none, it holds all of it.
    """
    modules_and_keywords = list(whole_sequence_inputs)
    # Of the residual stream (B, T, D): cut by positions, or whole on each rank.
    stream: Placement = Shard(1) if modules_and_keywords else WHOLE
    plan: dict[str, ParallelStyle] = {
        table: RowwiseParallel(input_layouts=WHOLE, output_layouts=stream),
        last_norm: Replicated(inputs=stream, outputs=WHOLE),  # the head needs all positions
    }
    plan |= {name: Replicated(inputs=stream, outputs=stream) for name in norms}
    plan |= {name: ColwiseParallel() for name in columns}
    plan |= {name: RowwiseParallel(output_layouts=stream) for name in rows}
    for name, keyword in modules_and_keywords:
        if keyword is None:
            plan[name] = PrepareModuleInput(input_layouts=stream, desired_input_layouts=WHOLE)
        else:
            plan[name] = PrepareModuleInput(
                input_kwarg_layouts={keyword: stream},
                desired_input_kwarg_layouts={keyword: WHOLE},
            )
    parallelize_module(model, mesh, plan)


def recompute_blocks(blocks: Iterable[nn.Module], *, keep_matmuls: bool = False) -> None:
    """Make blocks recompute their activations in the backward pass, in place.

    Args:
        keep_matmuls: save the results of matmuls and attention; else only each block's input.
    """
    options: dict[str, Any] = {}
    if keep_matmuls:
        # FSDP2 sets other profiler marks when a block is recomputed than in the forward pass. Torch
        # would refuse that as another computation, so it must ignore these marks. The set of
        # ignored operations is torch's own: it holds for the whole process.
        SAC_IGNORED_OPS.update(_PROFILER_MARKS)
        options["context_fn"] = partial(
            create_selective_checkpoint_contexts, list(_SAVED_OPERATIONS)
        )
    for block in blocks:
        block.forward = _wrap_recomputed(block.forward, options)


def _wrap_recomputed(forward: Callable[..., Any], options: dict[str, Any]) -> Callable[..., Any]:
    """Return a function that computes ``forward`` with recomputation in the backward pass.

    The returned function is defined in this file, so that ``torch.compile`` compiles it: torch
    does not compile functions that its own files define, such as ``checkpoint``.

    Args:
        options: further keywords of ``torch.utils.checkpoint.checkpoint``.
    """

    def run(*args: Any, **kwargs: Any) -> Any:
        return checkpoint(forward, *args, use_reentrant=False, **options, **kwargs)

    return run
