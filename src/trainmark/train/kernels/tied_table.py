"""A table that tokens are looked up in and that target tokens are scored with.

Plainly the look-up and the head each make a gradient as large as the table, and their sum
is a third. Here the head's waits as its two factors, a row for each target, until the
look-up's is there, and is multiplied straight onto it. What waits is hidden from a
compiler, which would have to know that one backward pass follows the other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from trainmark.train.kernels.linear_cross_entropy import add_matmul

LogProbs: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""From hidden states (K, D), made of what was looked up, and targets (K,) to the
log-probability, float32 (K,), of each target over the whole vocabulary."""


def library_look_up(table: Tensor, ids: Tensor) -> tuple[Tensor, LogProbs]:
    """Return what ``look_up`` does, by torch's operations."""

    def log_probs(hidden: Tensor, targets: Tensor) -> Tensor:
        scores = nn.functional.linear(hidden, table)  # (K, V)
        chances = torch.log_softmax(scores.float(), -1)
        return chances.gather(1, targets[:, None]).squeeze(1)

    return nn.functional.embedding(ids, table), log_probs


@torch.compiler.disable  # type: ignore[untyped-decorator]
def look_up(table: Tensor, ids: Tensor) -> tuple[Tensor, LogProbs]:
    """Return the rows of ``ids``, (..., D), and the head for what is made of them.

    Under autocast the head's products are in its dtype, its softmax in float32.

    Args:
        table: (V, D).
        ids: int64, of any shape.
    """
    waiting: list[tuple[Tensor, Tensor]] = []  # gradients of scores, what was scored

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def log_probs(hidden: Tensor, targets: Tensor) -> Tensor:
        device_type, dtype = hidden.device.type, hidden.dtype
        if torch.is_autocast_enabled(device_type):
            dtype = torch.get_autocast_dtype(device_type)
        with torch.autocast(device_type, enabled=False):
            found: Tensor = _Score.apply(hidden, table, targets, dtype, waiting)  # type: ignore[no-untyped-call]
        return found

    return _LookUp.apply(table, ids, waiting), log_probs  # type: ignore[no-untyped-call]


class _LookUp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, table: Tensor, ids: Tensor, waiting: list[Any]) -> Tensor:
        ctx.save_for_backward(ids)
        ctx.rows, ctx.waiting = len(table), waiting
        return nn.functional.embedding(ids, table)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (ids,) = ctx.saved_tensors
        total = torch.ops.aten.embedding_dense_backward(grads[0], ids, ctx.rows, -1, False)
        while ctx.waiting:
            add_matmul(total, *ctx.waiting.pop())
        return total, None, None


class _Score(torch.autograd.Function):
    @staticmethod
    def forward(  # noqa: PLR0917 - autograd passes by position
        ctx: Any,
        hidden: Tensor,
        table: Tensor,
        targets: Tensor,
        dtype: torch.dtype,
        waiting: list[Any],
    ) -> Tensor:
        inputs, matrix = hidden.to(dtype), table.to(dtype)
        chances = torch.log_softmax((inputs @ matrix.t()).float(), -1)  # (K, V)
        ctx.save_for_backward(inputs, matrix, chances, targets)
        ctx.dtype, ctx.waiting = hidden.dtype, waiting
        return chances.gather(1, targets[:, None]).squeeze(1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        inputs, matrix, chances, targets = ctx.saved_tensors
        grad = grads[0][:, None]
        scores = (chances.exp() * -grad).scatter_add_(1, targets[:, None], grad)
        scores = scores.to(inputs.dtype)
        ctx.waiting.append((scores, inputs))  # the table's own gradient is the look-up's
        return (scores @ matrix).to(ctx.dtype), None, None, None, None
