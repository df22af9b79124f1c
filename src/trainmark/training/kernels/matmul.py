"""Products of activations with a weight: in which type, and which of the two goes first.

On a CPU in float32 the BLAS is a tenth faster where the tall matrix, which is the weight,
is the first of the two. The result then lies by columns. That suits what follows element
by element; elsewhere it is turned on its way out of a buffer that stays.

In 16 bits a processor without units for them multiplies number by number, fast only along
the rows of both: the way back goes over a turned copy of the weight there.
"""

from __future__ import annotations

import math
import threading

import torch
from torch import Tensor


def product_dtype(x: Tensor) -> torch.dtype:
    """Return the type in which a product with ``x`` is computed: autocast's, or its own."""
    device_type = x.device.type
    if torch.is_autocast_enabled(device_type):
        return torch.get_autocast_dtype(device_type)
    return x.dtype


def product(x: Tensor, weight: Tensor, *, any_order: bool = False) -> Tensor:
    """Return ``x @ weight.T``, by rows or, with ``any_order``, as it comes.

    Args:
        x: (N, I).
        weight: (O, I), cast to x's type where it has another.
    """
    weight = weight.to(x.dtype)
    if not _weight_first(x):
        return x @ weight.t()
    return _product_of(weight, x.t(), any_order=any_order)


def product_back(grad: Tensor, weight: Tensor, *, any_order: bool = False) -> Tensor:
    """Return ``grad @ weight``, the gradient of x in ``product``.

    Args:
        grad: (N, O).
        weight: (O, I), cast to grad's type where it has another.
    """
    if not _weight_first(grad):
        return grad @ _second(weight, grad)
    return _product_of(weight.to(grad.dtype).t(), grad.t(), any_order=any_order)


def add_product_back(total: Tensor, grad: Tensor, weight: Tensor) -> Tensor:
    """Add ``product_back(grad, weight)`` to ``total``, (N, I), in place; return it."""
    if not _weight_first(grad):
        return total.addmm_(grad, _second(weight, grad))
    return total.add_(_in_passing(weight.to(grad.dtype).t(), grad.t()).t())


def lies_by_columns(x: Tensor) -> bool:
    """Tell whether neighbours of a column are neighbours in memory."""
    return x.stride(-1) != 1


def passing(shape: torch.Size | tuple[int, ...], like: Tensor) -> Tensor:
    """Return memory for a result that is used up before anything else asks for some.

    In float32 on a host it is the same each time: pages touched anew cost more there than
    what is computed into them. Elsewhere the device's allocator does this, and a compiler
    plans memory itself: what a graph left here would belong to it for ever.
    """
    keeps = like.device.type == "cpu" and like.dtype == torch.float32
    if not keeps or torch.compiler.is_compiling():
        return torch.empty(shape, dtype=like.dtype, device=like.device)
    numbers = math.prod(shape)
    if _buffer.numbers.numel() < numbers:
        # Not as the first caller's contexts would have it: all later callers use it too.
        with torch.inference_mode(False):
            _buffer.numbers = torch.empty(numbers, dtype=like.dtype, device=like.device)
    return _buffer.numbers[:numbers].view(shape)


class _Buffer(threading.local):
    """A thread's passing results."""

    def __init__(self) -> None:
        self.numbers = torch.empty(0, dtype=torch.float32, device="cpu")


_buffer = _Buffer()


def _weight_first(x: Tensor) -> bool:
    return x.device.type == "cpu" and x.dtype == torch.float32


def _second(weight: Tensor, grad: Tensor) -> Tensor:
    """Return ``weight`` in the type of ``grad``, lying as the device likes it behind it."""
    if grad.device.type == "cpu" and _lacks_units(grad.dtype):
        turned = torch.empty(weight.shape[::-1], dtype=grad.dtype)
        return turned.copy_(weight.t()).t()
    return weight.to(grad.dtype)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _lacks_units(dtype: torch.dtype) -> bool:
    """Tell whether this processor has no products of ``dtype``, as the library sees it."""
    if dtype is torch.bfloat16:
        return not torch.ops.mkldnn._is_mkldnn_bf16_supported()
    if dtype is torch.float16:
        return not torch.ops.mkldnn._is_mkldnn_fp16_supported()
    return False


def _product_of(left: Tensor, right: Tensor, *, any_order: bool) -> Tensor:
    """Return ``(left @ right).T``."""
    if any_order:
        return (left @ right).t()
    # Not contiguous(), which gives passing memory itself where either side has one row.
    return _in_passing(left, right).t().clone(memory_format=torch.contiguous_format)


def _in_passing(left: Tensor, right: Tensor) -> Tensor:
    out = passing((left.size(0), right.size(1)), left)
    return torch.mm(left, right, out=out)
