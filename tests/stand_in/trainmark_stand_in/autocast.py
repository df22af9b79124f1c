"""Autocast for the device: torch has no rules of its own for PrivateUse1.

The operations are those of torch's list for CUDA that take tensors alone or are used by models:
https://docs.pytorch.org/docs/stable/amp.html#cuda-op-specific-behavior
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from trainmark_stand_in.operations import map_values
from trainmark_stand_in.vendor import NAME

# Computed in 16 bits.
_IN_16_BITS = (
    "linear",
    "matmul",
    "mm",
    "mv",
    "addmm",
    "addmv",
    "addr",
    "bmm",
    "baddbmm",
    "addbmm",
    "prelu",
    "conv1d",
    "conv2d",
    "conv3d",
    "scaled_dot_product_attention",
)
_FP32 = (
    "softmax.int",
    "log_softmax.int",
    "layer_norm",
    "nll_loss",
    "cross_entropy_loss",
    "mse_loss",
    "binary_cross_entropy_with_logits",
    "exp",
    "log",
    "rsqrt",
    "pow.Tensor_Scalar",
    "cumsum",
    "prod",
    "sum",
    "sum.dim_IntList",
    "softplus",
    "norm.Scalar",
)
# Computed in the widest type of their arguments.
_WIDEST = ("cat", "stack", "index_put", "addcmul", "addcdiv", "dot", "scatter_add")
_AUTOCAST = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)


def _cast_arguments(value: Any, dtype: torch.dtype) -> Any:
    """Return the arguments with the device's tensors in ``dtype``.

    As torch's autocast does, leave tensors of whole numbers and of 64 bits as they are.
    """

    def cast(item: Any) -> Any:
        eligible = isinstance(item, Tensor) and item.device.type == NAME
        if eligible and item.is_floating_point() and item.dtype != torch.float64:
            return item.to(dtype)
        return item

    return map_values(cast, value)


def _choose_16_bits(args: Any) -> torch.dtype:
    """Return the type of 16 bits that autocast was given."""
    return torch.get_autocast_dtype(NAME)


def _choose_fp32(args: Any) -> torch.dtype:
    return torch.float32


def _choose_widest(args: Any) -> torch.dtype:
    """Return fp32 if a tensor among the arguments has it, else autocast's type of 16 bits."""
    dtypes: set[torch.dtype] = set()

    def note_dtype(item: Any) -> None:
        if isinstance(item, Tensor):
            dtypes.add(item.dtype)

    map_values(note_dtype, args)  # visits all arguments, also those in lists; its result is unused
    return torch.float32 if torch.float32 in dtypes else torch.get_autocast_dtype(NAME)


def register() -> list[torch.library.Library]:
    """Add the rules by which autocast chooses a type; they hold as long as the result is alive.

    Torch calls the simulated device PrivateUse1, and its autocast AutocastPrivateUse1 (as a set of
    keys: ``_AUTOCAST``). The three tuples have the names of the operations of ``aten`` that are
    computed in 16 bits, in fp32, and in the widest type of their arguments.
    """
    # "_": rules of this library are for the operations of all namespaces.
    any_namespace, aten = torch.library.Library("_", "IMPL"), torch.library.Library("aten", "IMPL")
    # All other operations run as they are.
    any_namespace.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
    for names, choose_dtype in (
        (_IN_16_BITS, _choose_16_bits),
        (_FP32, _choose_fp32),
        (_WIDEST, _choose_widest),
    ):
        for name in names:
            packet, _, overload = name.partition(".")
            operation = getattr(getattr(torch.ops.aten, packet), overload or "default")

            # Defaults keep the values of this turn of the loop; a closure would see the last ones.
            def run(
                *args: Any,
                wrapped_operation: Any = operation,
                choose_dtype: Any = choose_dtype,
                **more: Any,
            ) -> Any:
                dtype = choose_dtype((args, more))
                # Autocast is off inside: otherwise the operation and the casts would call ``run``.
                with torch._C._ExcludeDispatchKeyGuard(_AUTOCAST):
                    cast_args, cast_more = _cast_arguments((args, more), dtype)
                    return wrapped_operation(*cast_args, **cast_more)

            aten.impl(name, run, "AutocastPrivateUse1")
    return [any_namespace, aten]
