"""Time the embedding stage of a step apart from the rest of it.

Owns where the stage begins and ends, whatever engine looks rows up: the forward pass of
the tables, and their backward pass with the update in it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from .figures import EMBEDDING_PART

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from torch import Tensor

    Part = Callable[[str], AbstractContextManager[Any]]


def look_up(tables: Any, ids: Tensor, in_part: Part) -> Tensor:
    """Return ``tables(ids)``, with both of its passes put down to the embedding stage.

    Args:
        tables: a module with its update inside its backward pass; see ``FusedTables``.
        in_part: enters a part of the step by name.
    """
    if not torch.is_grad_enabled():
        with in_part(EMBEDDING_PART):
            found: Tensor = tables(ids)
        return found
    anchor = torch.zeros((), device=ids.device, requires_grad=True)
    timed: Tensor = _Timed.apply(anchor, tables, ids, in_part)  # type: ignore[no-untyped-call]
    return timed


class _Timed(Function):
    """The tables' own passes, each run whole within this node's."""

    @staticmethod
    def forward(ctx: Any, _anchor: Tensor, tables: Any, ids: Tensor, in_part: Part) -> Tensor:
        with in_part(EMBEDDING_PART), torch.enable_grad():
            found: Tensor = tables(ids)
        ctx.found, ctx.in_part = found, in_part
        # Unlike a detached one, this alias may be written to before the backward pass: an
        # exchange blanks the rows of other ranks in it, whose gradients it blanks as well.
        return found.data

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        with ctx.in_part(EMBEDDING_PART):
            ctx.found.backward(grads[0])
        del ctx.found
        return grads[0].new_zeros(()), None, None, None
