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


def _addmm_(_total: Any, left: Any, right: Any, **_: Any) -> int:
    return int(2 * left.shape[0] * left.shape[1] * right.shape[1])


_FORMULAS: dict[Any, Callable[..., int]] = {
    **flop_registry,  # which does not know these
    _aten.addmm_: _addmm_,
    _aten._scaled_dot_product_flash_attention_for_cpu: flop_registry[
        _aten._scaled_dot_product_flash_attention
    ],
    _aten._scaled_dot_product_flash_attention_for_cpu_backward: flop_registry[
        _aten._scaled_dot_product_flash_attention_backward
    ],
}


class StepWatch(TorchDispatchMode):
    """Count FLOPs by the type of their operands, and note the flags that each matmul sees.

    Args:
        flags: returns the flags of precision in force.
    """

    def __init__(self, flags: Callable[[], dict[str, Any]]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._flags = flags
        self.flops: Counter[str] = Counter()
        self.seen: dict[str, set[Any]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(x, FakeTensor) for x in types):
            return func(*args, **(kwargs or {}))  # shapes of shards, not work
        if any(x.__torch_dispatch__ != torch.Tensor.__torch_dispatch__ for x in types):
            # A shard: what it computes on its local tensors comes here again.
            return NotImplemented
        out = func(*args, **(kwargs or {}))
        formula = _FORMULAS.get(getattr(func, "overloadpacket", None))
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
        found = [
            f"{name}: {flags[name]} -> {other} (in a step)"
            for name, values in self.seen.items()
            for other in values
            if name != "autocast" and other != flags[name]
        ]
        low = {"bf16": "bfloat16", "fp16": "float16"}.get(precision)
        lowered = sorted({"bfloat16", "float16"} & self.flops.keys())
        if self.flops and lowered != ([low] if low else []):
            was, now = low or "float32", ", ".join(lowered) or "float32"
            found.append(f"matmuls: {was} -> {now} (in a step)")
        return found
