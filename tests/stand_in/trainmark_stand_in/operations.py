"""Operations: each runs at once on the host's view of its tensors and is charged to the device.

Owns what torch calls for the device, and which operations wait for it as a card's do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from trainmark_stand_in.memory import Memory, view_on_device
from trainmark_stand_in.vendor import NAME

if TYPE_CHECKING:
    from collections.abc import Callable

    from trainmark_stand_in.timeline import Timeline

_HOST = torch.device("cpu")
# Their result's value or shape is needed by the host, so they wait for the device.
_WAITING_TAGS = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
# Tagged too, but only a mask among the indices makes the shape depend on values.
_INDEXING = {"aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_"}


def map_values(change: Callable[[Any], Any], value: Any) -> Any:
    """Return the arguments or results of a call, with ``change`` applied to each value.

    Lists, tuples and dicts are kept, and what they hold is changed.
    """
    if isinstance(value, list | tuple):
        return type(value)([map_values(change, item) for item in value])
    if isinstance(value, dict):
        return {name: map_values(change, item) for name, item in value.items()}
    return change(value)


class Operations:
    """What torch calls for tensors of the device."""

    def __init__(self, memory: Memory, timeline: Timeline) -> None:
        self.memory, self.timeline = memory, timeline

    def register(self) -> list[torch.library.Library]:
        """Make torch call this object; it does as long as the result is alive."""
        # PrivateUse1 is torch's name for the simulated device. "_": the rules of this library are
        # for the operations of all namespaces; ``aten`` is that of torch's own.
        any_namespace = torch.library.Library("_", "IMPL")
        any_namespace.fallback(self.run, "PrivateUse1")  # for all operations but those below
        aten = torch.library.Library("aten", "IMPL")
        aten.impl("_copy_from", self.copy, "PrivateUse1")
        aten.impl("resize_", self.resize, "PrivateUse1")
        return [any_namespace, aten]

    def run(self, operation: Any, *args: Any, **kwargs: Any) -> Any:
        """Run any operation on the host, in the device's time and memory.

        The operation is queued in the device's timeline, and waits for it if it returns a value to
        the host. Results that share memory with an argument still do.
        """
        tensor_pairs: list[tuple[Tensor, Tensor]] = []  # on the device, and its host's view

        def enter(value: Any) -> Any:
            """Return what the host's operation gets for an argument."""
            if isinstance(value, Tensor) and value.device.type == NAME:
                # An empty tensor may be one that the operation gives its size.
                empty = value.numel() == 0
                host = torch.empty_like(value, device=_HOST) if empty else self.host_of(value)
                tensor_pairs.append((value, host))
                return host
            return _HOST if isinstance(value, torch.device) and value.type == NAME else value

        # ``map_values`` calls ``enter`` for each argument, also for those in lists.
        host_args, host_kwargs = map_values(enter, args), map_values(enter, kwargs)
        self.timeline.queue()
        if _is_waiting(operation, host_args):
            self.timeline.synchronize(operation.name())
        result = operation(*host_args, **host_kwargs)
        for tensor, host in tensor_pairs:
            if tensor.shape != host.shape:  # the operation gave an empty tensor its size
                tensor.data = self.memory.adopt(host)
        return map_values(lambda value: self._leave(value, tensor_pairs), result)

    def _leave(self, value: Any, tensor_pairs: list[tuple[Tensor, Tensor]]) -> Any:
        """Return the device's tensor for a result of the host: an argument, its view, or new.

        Args:
            tensor_pairs: tensors of the call so far, each on the device and as the host sees it.
        """
        if not isinstance(value, Tensor):
            return value
        for tensor, host in tensor_pairs:
            if value is host:
                return tensor
        address = value.untyped_storage().data_ptr()
        for tensor, host in tensor_pairs:
            # 0: an empty storage, which shares no memory.
            if address and address == host.untyped_storage().data_ptr():
                return view_on_device(tensor, value)
        tensor = self.memory.adopt(value)
        tensor_pairs.append((tensor, value))  # another result may share its memory
        return tensor

    def host_of(self, value: Any) -> Any:
        """Return the host's view of a device tensor; anything else as it is."""
        on_device = isinstance(value, Tensor) and value.device.type == NAME
        return self.memory.host_tensor(value) if on_device else value

    def copy(self, source: Tensor, target: Tensor, non_blocking: bool = False) -> Tensor:
        """Copy between tensors of which at least one is on the device.

        To the host it waits, as a copy to pageable memory does; from the host unless it is
        ``non_blocking``.
        """
        # The values are copied at once; the time is queued on the device's clock.
        to_host = target.device.type != NAME
        self.host_of(target).copy_(self.host_of(source))
        self.timeline.queue()
        if to_host or (source.device.type != NAME and not non_blocking):
            self.timeline.synchronize("a copy " + ("to" if to_host else "from") + " the host")
        return target

    def resize(self, tensor: Tensor, size: Any, *, memory_format: Any = None) -> Tensor:
        """Give a tensor another size; what it held is kept where the sizes overlap."""
        resized = torch.empty(size, dtype=tensor.dtype)
        num_kept = min(resized.numel(), tensor.numel())
        # ``resized`` is contiguous, so ``flatten`` returns a view of it.
        resized.flatten()[:num_kept] = self.host_of(tensor).flatten()[:num_kept]
        tensor.data = self.memory.adopt(resized)
        return tensor


def _is_waiting(operation: Any, args: tuple[Any, ...]) -> bool:
    """Return whether the host needs values that the operation reads on the device.

    ``_WAITING_TAGS`` are torch's tags of operations whose result, or its shape, depends on values.
    ``_INDEXING`` has the names of those that take indices, such as ``aten::index``: they have a tag
    even where the indices are numbers, which decide no shape.
    """
    if _WAITING_TAGS.isdisjoint(operation.tags):
        return False
    if operation.name().partition(".")[0] in _INDEXING:
        indices = args[1]  # one for each dimension; None: all of it
        # Masks: the number of elements that they select depends on their values.
        return any(x is not None and x.dtype in (torch.bool, torch.uint8) for x in indices)
    return True
