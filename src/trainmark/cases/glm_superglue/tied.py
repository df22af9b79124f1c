"""A token table that sequences are looked up in and that target tokens are scored with.

Plainly the look-up and the head each make a gradient as large as the table, and their sum
is a third. Here the head's waits as its two factors, a row for each target, until the
look-up's is there, and is multiplied straight onto it. What waits is hidden from a
compiler, which would have to know that one backward pass follows the other.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from trainmark.training.kernels.linear_cross_entropy import add_product


class Head:
    """The head of one forward pass; made by ``TiedEmbedding.look_up``."""

    def __init__(self, table: Tensor) -> None:
        self.table = table
        self.waiting: list[tuple[Tensor, Tensor]] = []  # gradients of scores, what was scored

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def log_probs(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """Return the log-probability, float32 (K,), of each target over the whole vocabulary.

        Under autocast the products are in its dtype, the softmax in float32.

        Args:
            hidden: (K, D), made from what was looked up: its gradient passes through there.
            targets: (K,), int64.
        """
        device_type, dtype = hidden.device.type, hidden.dtype
        if torch.is_autocast_enabled(device_type):
            dtype = torch.get_autocast_dtype(device_type)
        with torch.autocast(device_type, enabled=False):
            found: Tensor = _Score.apply(hidden, self.table, targets, dtype, self.waiting)  # type: ignore[no-untyped-call]
        return found


class TiedEmbedding(nn.Embedding):
    """An embedding whose table is the head as well."""

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def look_up(self, ids: Tensor) -> tuple[Tensor, Head]:
        """Return the rows of ``ids`` and the head for what is made of them."""
        head = Head(self.weight)
        return _LookUp.apply(self.weight, ids, head.waiting), head  # type: ignore[no-untyped-call]


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
            add_product(total, *ctx.waiting.pop())
        return total, None, None


class _Score(torch.autograd.Function):
    @staticmethod
    def forward(  # noqa: PLR0917 - autograd passes by position
        ctx: Any, hidden: Tensor, table: Tensor, targets: Tensor, dtype: torch.dtype,
        waiting: list[Any],
    ) -> Tensor:  # fmt: skip
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
