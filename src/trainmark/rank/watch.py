"""Watch one step of training: the FLOPs of its matmuls, and the precision that they run in."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

if TYPE_CHECKING:
    from collections.abc import Callable

_aten = torch.ops.aten


def _count_addmm(_total: Any, left: Any, right: Any, **_: Any) -> int:
    return int(2 * left.shape[0] * left.shape[1] * right.shape[1])


def _count_attention(query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
    """Return the FLOPs of scores and their product with the values, over all pairs of positions.

    Several heads of the query may share one of keys and values, which torch 2.11 does not count.
    """
    batch, heads, queries, width = query.shape
    return int(2 * batch * heads * queries * key.shape[2] * (width + value.shape[3]))


def _count_attention_backward(
    _gradient: Any, query: Any, key: Any, value: Any, *_: Any, **__: Any
) -> int:
    """Return the FLOPs of the scores again and of the gradients of scores, values, keys, query."""
    batch, heads, queries, width = query.shape
    return int(2 * batch * heads * queries * key.shape[2] * (3 * width + 2 * value.shape[3]))


# Kernels of torch's attention by the operations that run them. The last keeps the scores as a
# tensor, and this is their softmax.
_ATTENTION = {
    "_scaled_dot_product_flash_attention": "flash",
    "_scaled_dot_product_flash_attention_for_cpu": "flash",
    "_scaled_dot_product_efficient_attention": "efficient",
    "_scaled_dot_product_cudnn_attention": "cudnn",
    "_scaled_dot_product_fused_attention_overrideable": "vendor",
    "_safe_softmax": "math",
}


_FUSED = [name for name in _ATTENTION if name.startswith("_scaled") and hasattr(_aten, name)]
_FORMULAS: dict[Any, Callable[..., int]] = {
    **flop_registry,  # which does not know these, or counts them in fewer cases
    _aten.addmm_: _count_addmm,
    **{getattr(_aten, name): _count_attention for name in _FUSED},
    **{getattr(_aten, f"{name}_backward"): _count_attention_backward for name in _FUSED},
}


class StepWatch(TorchDispatchMode):
    """Count FLOPs by the type of their operands, and note the flags that each matmul sees.

    ``attention`` holds the kernels of torch's attention that ran, by name.

    Args:
        flags: returns the flags of precision in force.
    """

    def __init__(self, flags: Callable[[], dict[str, Any]]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._flags = flags
        self.flops: Counter[str] = Counter()
        self.seen: dict[str, set[Any]] = {}
        self.attention: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(x, FakeTensor) for x in types):
            return func(*args, **(kwargs or {}))  # shapes of shards, not work
        if any(x.__torch_dispatch__ != torch.Tensor.__torch_dispatch__ for x in types):
            # A shard: what it computes on its local tensors comes here again.
            return NotImplemented
        out = func(*args, **(kwargs or {}))
        operation = getattr(func, "overloadpacket", None)
        attention = _ATTENTION.get(getattr(operation, "__name__", ""))
        if attention is not None:
            self.attention.add(attention)
        formula = _FORMULAS.get(operation)
        if formula is not None:
            dtype = next(x.dtype for x in args if isinstance(x, torch.Tensor))
            self.flops[str(dtype).removeprefix("torch.")] += formula(
                *args, **(kwargs or {}), out_val=out
            )
            for name, value in self._flags().items():
                self.seen.setdefault(name, set()).add(value)
        return out

    def changed(self, flags: dict[str, Any], precision: str) -> list[str]:
        """Return in what the step's matmuls differ from the ``flags`` that were set.

        Autocast leaves some in float32, and the backward pass has none: their type tells it.
        """
        changes = [
            f"{name}: {flags[name]} -> {other} (in a step)"
            for name, values in self.seen.items()
            for other in values
            if name != "autocast" and other != flags[name]
        ]
        low = {"bf16": "bfloat16", "fp16": "float16"}.get(precision)
        lowered = sorted({"bfloat16", "float16"} & self.flops.keys())
        if self.flops and lowered != ([low] if low else []):
            was, now = low or "float32", ", ".join(lowered) or "float32"
            changes.append(f"matmuls: {was} -> {now} (in a step)")
        return changes
