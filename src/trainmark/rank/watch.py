"""Watch one training step: count the FLOPs of its matmuls, and note their precision."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from trainmark.recipe import AUTOCAST

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_aten = torch.ops.aten


# The functions below get the arguments of the operation whose FLOPs they count.


def _count_addmm(_summand: Any, left: Any, right: Any, **_: Any) -> int:
    """Return the FLOPs of the product of ``left`` (M, K) and ``right`` (K, N).

    As in torch's formulas, adding ``_summand`` to the product does not count.
    """
    rows, inner = left.shape
    columns = right.shape[1]
    # Each term of the product is a multiplication and an addition: 2 FLOPs.
    return int(2 * rows * inner * columns)


def _count_attention(query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
    """Return the FLOPs of attention's scores and of their product with the values.

    All pairs of a query and a key count, also those that a mask hides. Several heads of queries may
    share a head of keys and values. This is why torch's own formula is not used: that of torch 2.11
    raises an error for them.

    Args:
        query, key, value: (B, heads, positions, width).
    """
    batch, heads, num_queries, key_width = query.shape
    num_keys = key.shape[2]
    value_width = value.shape[3]
    num_pairs = batch * heads * num_queries * num_keys
    # For each pair, the score is a sum over the width of the key. Then each element of the value is
    # multiplied by the score and added. A multiplication and an addition are 2 FLOPs.
    return int(2 * num_pairs * (key_width + value_width))


def _count_attention_backward(
    _gradient: Any, query: Any, key: Any, value: Any, *_: Any, **__: Any
) -> int:
    """Return the FLOPs of the five matmuls of attention's backward pass.

    Args:
        query, key, value: (B, heads, positions, width).
    """
    batch, heads, num_queries, key_width = query.shape
    num_keys = key.shape[2]
    value_width = value.shape[3]
    num_pairs = batch * heads * num_queries * num_keys
    # For each pair of a query and a key, a matmul has a multiplication and an addition (2 FLOPs)
    # for each element of a row. The row is as wide as a key in three matmuls: the scores, which
    # are computed again, and the gradients of queries and keys. It is as wide as a value in two:
    # the gradients of scores and values.
    return int(2 * num_pairs * (3 * key_width + 2 * value_width))


# The kernel of torch's attention, by the name of the operation that runs it. The last operation is
# the softmax of the kernel that keeps all scores as a tensor.
_ATTENTION_KERNELS = {
    "_scaled_dot_product_flash_attention": "flash",
    "_scaled_dot_product_flash_attention_for_cpu": "flash",
    "_scaled_dot_product_efficient_attention": "efficient",
    "_scaled_dot_product_cudnn_attention": "cudnn",
    "_scaled_dot_product_fused_attention_overrideable": "vendor",
    "_safe_softmax": "math",
}


# The registry of torch lacks the operations below, or counts them in fewer cases.
_FORMULAS: dict[Any, Callable[..., int]] = {**flop_registry, _aten.addmm_: _count_addmm}
for _name in _ATTENTION_KERNELS:
    # ``_safe_softmax`` is no matmul; some versions of torch lack an operation.
    if _name.startswith("_scaled") and hasattr(_aten, _name):
        _FORMULAS[getattr(_aten, _name)] = _count_attention
        _FORMULAS[getattr(_aten, f"{_name}_backward")] = _count_attention_backward


class StepWatch(TorchDispatchMode):
    """Count FLOPs by the type of their operands, and note the precision flags of each matmul.

    Args:
        flags: returns the current flags of precision.

    Attributes:
        flops: FLOPs by the type of the operands.
        flag_values: values of each flag during matmuls.
        attention: names of the attention kernels that ran.
    """

    def __init__(self, flags: Callable[[], dict[str, Any]]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._flags = flags  # returns the current flags of precision
        self.flops: Counter[str] = Counter()  # by the type of the operands
        self.flag_values: dict[str, set[Any]] = {}  # of each flag, its values during matmuls
        self.attention: set[str] = set()  # names of the attention kernels that ran

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation, and count it if it is a matmul; torch calls this for each operation."""
        if any(issubclass(x, FakeTensor) for x in types):
            # Fake tensors have no data: torch only computes the shape of a DTensor's result.
            return func(*args, **(kwargs or {}))
        if any(x.__torch_dispatch__ != torch.Tensor.__torch_dispatch__ for x in types):
            # A DTensor: its operations on local tensors call this method again.
            return NotImplemented
        out = func(*args, **(kwargs or {}))
        operation = getattr(func, "overloadpacket", None)
        kernel = _ATTENTION_KERNELS.get(getattr(operation, "__name__", ""))
        if kernel is not None:
            self.attention.add(kernel)
        formula = _FORMULAS.get(operation)
        if formula is not None:
            operands = [item for item in args if isinstance(item, torch.Tensor)]
            dtype_name = str(operands[0].dtype).removeprefix("torch.")  # that of all operands
            # Formulas of torch take an operation's arguments and, as ``out_val``, its result.
            self.flops[dtype_name] += formula(*args, **(kwargs or {}), out_val=out)
            # Torch's flags of precision, such as that of TF32, as they are during this operation.
            for name, value in self._flags().items():
                self.flag_values.setdefault(name, set()).add(value)
        return out

    def list_changes(self, flags: Mapping[str, Any], precision: str) -> list[str]:
        """Return how the matmuls of the step differ from the ``flags`` that were set.

        The flag of autocast is not compared, because autocast leaves some matmuls in float32 and is
        off in the backward pass. The types of the operands are compared instead.

        Args:
            flags: values of torch's precision flags after the precision was set, by name.
            precision: the recipe's, such as ``bf16``.
        """
        changes = [
            f"{name}: {flags[name]} -> {value} (in a step)"
            for name, values in self.flag_values.items()
            for value in values
            if name != "autocast" and value != flags[name]
        ]
        # The 16-bit type that operands of matmuls should have is that of autocast. With fp8 it is
        # bfloat16, for the layers that do not compute in fp8.
        autocast = AUTOCAST.get(precision)  # None: this precision has no autocast
        expected_types: list[str] = []
        if autocast == "bf16":
            expected_types = ["bfloat16"]
        elif autocast == "fp16":
            expected_types = ["float16"]
        # Those that they had: the keys of ``flops`` are the types that occurred in the step.
        actual_types = sorted({"bfloat16", "float16"} & self.flops.keys())
        if self.flops and actual_types != expected_types:  # no FLOPs: no matmul was watched
            expected_text = ", ".join(expected_types) or "float32"
            actual_text = ", ".join(actual_types) or "float32"
            changes.append(f"matmuls: {expected_text} -> {actual_text} (in a step)")
        return changes
