"""Tell which trained parameters received gradients that were not all zero.

A parameter may change without learning anything: weight decay alone moves it. Owns the looks
at gradients, each just before an optimizer takes its step, for the first steps of a run only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.tensor import DTensor
from torch.optim.optimizer import register_optimizer_step_pre_hook

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor


class GradientWatch:
    """Watch the gradients of ``tensors`` in the first ``looks`` steps of any optimizer.

    Nothing is copied to the host before ``found`` is called. A tensor that no optimizer holds
    (a table that is updated within the backward pass) is never looked at.
    """

    def __init__(self, tensors: Mapping[str, Tensor], *, looks: int) -> None:
        self._names = {id(x): name for name, x in tensors.items()}
        self._kept = tensors  # an id is a name only while its tensor lives
        self._looks = looks
        self._seen: dict[str, Tensor] = {}
        self._handle = register_optimizer_step_pre_hook(self._look)

    @property
    def finished(self) -> bool:
        """Tell whether all looks were taken."""
        return self._looks == 0

    def close(self) -> None:
        """Look no more."""
        self._handle.remove()

    @torch.no_grad()
    def _look(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if self.finished:
            return
        looked = False
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                name, gradient = self._names.get(id(parameter)), parameter.grad
                if name is None or gradient is None:
                    continue
                some = _local(gradient).any()
                before = self._seen.get(name)
                self._seen[name] = some if before is None else before | some
                looked = True
        self._looks -= looked

    def found(self) -> dict[str, bool]:
        """Return whether any gradient of a parameter was not zero, by name, of those seen.

        Synchronises with the device.
        """
        if not self._seen:
            return {}
        flags = torch.stack(list(self._seen.values())).tolist()
        return dict(zip(self._seen, flags, strict=True))

    def is_whole(self, name: str) -> bool:
        """Tell whether this rank holds all of a parameter; a part may rightly see no gradient."""
        return not isinstance(self._kept[name], DTensor)


def _local(gradient: Tensor) -> Tensor:
    """Return the values of a gradient that this rank holds."""
    local = gradient.to_local() if isinstance(gradient, DTensor) else gradient
    return local._values() if local.is_sparse else local
