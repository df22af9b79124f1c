"""Check that a job's steps never make the host wait for the device.

Inside a window the host only hands out work. Where it reads a result back, it waits until the
device has finished everything before; the device then idles while the host prepares the next
work. Owns which operations wait; must not know cases and vendors.
"""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainmark.protocols import Device

_aten = torch.ops.aten
# The value or the shape of these results is needed by the host before it goes on.
_READING = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
# Tagged too, though only a mask among the indices gives a shape that depends on values.
_INDEXING = {_aten.index, _aten.index_put, _aten.index_put_, _aten._index_put_impl_}
_COPYING = {_aten._to_copy, _aten.copy_}
# On a CPU no operation is dispatched where a tensor is read in place.
_METHODS = {Tensor.cpu, Tensor.numpy, Tensor.tolist, Tensor.__array__}


class SynchronizedError(RuntimeError):
    """The host would have waited for the device."""


class _Dispatched(TorchDispatchMode):
    """Raise for each operation on tensors of ``torch_type`` whose result the host waits for."""

    def __init__(self, torch_type: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._torch_type = torch_type

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        kwargs = kwargs or {}
        if self._waits(func, args, kwargs):
            raise SynchronizedError(str(func))
        return func(*args, **kwargs)

    def _waits(self, operation: Any, args: Any, kwargs: dict[str, Any]) -> bool:
        tensors = [item for item in tree_leaves((args, kwargs)) if isinstance(item, Tensor)]
        places = {item.device.type for item in tensors}
        packet = operation.overloadpacket
        if packet in _COPYING:
            if kwargs.get("device") is not None:
                places.add(torch.device(kwargs["device"]).type)
            at_once = not (kwargs.get("non_blocking") or (len(args) > 2 and args[2]))
            return len(places) > 1 and self._torch_type in places and at_once
        if self._torch_type not in places:
            return False
        if packet in _INDEXING:
            return any(item.dtype in (torch.bool, torch.uint8) for item in tree_leaves(args[1]))
        if packet is _aten.repeat_interleave and kwargs.get("output_size") is not None:
            return False
        return not _READING.isdisjoint(operation.tags)


class _Called(TorchFunctionMode):
    """Raise for each method of a tensor of ``torch_type`` that hands its values to the host."""

    def __init__(self, torch_type: str) -> None:
        super().__init__()
        self._torch_type = torch_type

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        if func in _METHODS and args[0].device.type == self._torch_type:
            raise SynchronizedError(f"Tensor.{func.__name__}")
        return func(*args, **(kwargs or {}))


@contextmanager
def no_synchronization(device: Device) -> Iterator[None]:
    """Raise an error where the work inside would make the host wait for ``device``.

    Operations are judged by their names and arguments, on a CPU too, so that a job can be
    checked without an accelerator. There it must use the kernels of an accelerator,
    ``kernels=library``. A device that can tell for itself does so as well.

    Raises:
        SynchronizedError: it names the operation.
    """
    own = getattr(device, "forbid_synchronization", nullcontext)()
    with own, _Dispatched(device.torch_type), _Called(device.torch_type):
        yield
