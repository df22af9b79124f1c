"""The storages of tensors that exist while a step runs."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter


class LiveTensors(TorchDispatchMode):
    """Adds up the storages that exist, as operations make them and the last user leaves them."""

    def __init__(self) -> None:
        super().__init__()
        # Bytes of each storage that exists, by its address ``_cdata``.
        self.sizes: dict[int, int] = {}
        self.peak = 0  # bytes, since ``restart``

    def restart(self) -> None:
        """Forget the peak so far."""
        self.peak = sum(self.sizes.values())

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for item in tree_iter(result):
            if isinstance(item, torch.Tensor):
                storage = item.untyped_storage()
                key = storage._cdata
                if key not in self.sizes:
                    self.sizes[key] = storage.nbytes()
                    self.peak = max(self.peak, sum(self.sizes.values()))
                    # Forget its size when the storage is freed: torch keeps the Python object of a
                    # storage for as long as the storage exists.
                    weakref.finalize(storage, self.sizes.pop, key, None)
        return result
