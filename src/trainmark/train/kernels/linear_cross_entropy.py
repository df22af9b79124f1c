"""The cross-entropy of a linear head, computed in blocks to save memory.

With a large vocabulary the scores (logits) are the largest tensor of a language model. Here
the scores of one block of rows at a time are computed and turned into their own gradient in
place, from which the gradients of the inputs follow directly; the backward pass only scales
them. No matmul is done twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.tensor import DTensor, Replicate

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

# Rows x vocabulary scores in memory at a time: large enough that reading the weight once a
# block costs little compared with the matmuls, small enough to need little memory.
SCORES_AT_ONCE = 1 << 26
_ROWS_MULTIPLE = 256  # other row counts take a BLAS up to 1.5 times as long
# A probability of 1/50,000 is below fp16's smallest normal number; four times that is not, and
# the sum over a thousand rows of one token is still below fp16's largest number.
_FP16_BOOST = 4.0


def library_cross_entropy_sum(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    *,
    classes: int | None = None,
    scores_at_once: int = 0,
    ignored: int = -100,
) -> Tensor:
    """Return the same as ``linear_cross_entropy_sum``, computed with torch's operations.

    All scores are in memory at once, on each rank also those of a weight sharded over ranks.
    """
    del scores_at_once
    if isinstance(weight, DTensor):
        # The gradient of the hidden states sums those of all ranks' classes.
        hidden = DTensor.from_local(hidden, weight.device_mesh, [Replicate()])
    scores = nn.functional.linear(hidden, weight)
    if isinstance(scores, DTensor):
        scores = scores.full_tensor()
    real = scores[:, :classes].float()
    return nn.functional.cross_entropy(real, targets, reduction="sum", ignore_index=ignored)


def linear_cross_entropy_sum(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    *,
    classes: int | None = None,
    scores_at_once: int = SCORES_AT_ONCE,
    ignored: int | None = None,
) -> Tensor:
    """Return ``cross_entropy(hidden @ weight.T, targets, reduction="sum")`` in float32.

    Under autocast the matmuls are in its dtype, the softmax and all sums in float32.

    Args:
        hidden: (N, D), the same on every rank that shares the weight.
        weight: (V, D); a DTensor is cut by rows over the ranks of its mesh.
        targets: (N,), int64, in [0, classes).
        classes: rows of the whole weight that are classes; the rows after them are padding with
            probability 0. None: all rows.
        scores_at_once: scores in memory at a time.
        ignored: a target with this value, which is not a class, adds nothing to the loss.
    """
    group, first_class = None, 0
    if isinstance(weight, DTensor):
        group = weight.device_mesh.get_group()
        weight = weight.to_local()
        first_class = dist.get_rank(group) * weight.size(0)
    real = weight.size(0)
    if classes is not None:
        real = min(max(classes - first_class, 0), real)
    rows = max(1, scores_at_once // weight.size(0))
    if rows > _ROWS_MULTIPLE:
        rows -= rows % _ROWS_MULTIPLE
    device_type, dtype = hidden.device.type, hidden.dtype
    if torch.is_autocast_enabled(device_type):
        dtype = torch.get_autocast_dtype(device_type)
    with torch.autocast(device_type, enabled=False):
        loss: Tensor = _LinearCrossEntropy.apply(
            hidden, weight, targets, group, real, rows, dtype, first_class, ignored
        )  # type: ignore[no-untyped-call]
    return loss


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(  # noqa: PLR0917 - autograd passes by position
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        targets: Tensor,
        group: ProcessGroup | None,
        real: int,
        rows: int,
        dtype: torch.dtype,
        first_class: int,
        ignored: int | None,
    ) -> Tensor:
        trains, wants_weight = any(ctx.needs_input_grad[:2]), ctx.needs_input_grad[1]
        boost = _FP16_BOOST if dtype is torch.float16 else 1.0
        inputs, matrix = hidden.to(dtype), weight.to(dtype)
        loss = torch.zeros((), device=hidden.device)
        d_hidden = torch.empty_like(hidden) if trains else None
        d_weight = torch.zeros_like(weight, dtype=torch.float32) if wants_weight else None
        for first in range(0, len(targets), rows):
            block = slice(first, first + rows)
            scores = (inputs[block] @ matrix.t()).float()  # (rows, V)
            scores[:, real:] = -torch.inf
            counts = None if ignored is None else targets[block] != ignored
            # Not in place. Compiled by torch 2.11, forward returns its temporary tensors too;
            # a result that is one of them would get no gradient, as autograd uses the last.
            loss = loss + _to_gradient(scores, targets[block] - first_class, group, counts)
            if d_hidden is None:
                continue
            gradient = scores.mul_(boost).to(dtype) if boost != 1.0 else scores.to(dtype)
            d_hidden[block] = gradient @ matrix
            if d_weight is not None:
                if gradient.dtype == d_weight.dtype:
                    torch.addmm(d_weight, gradient.t(), inputs[block], out=d_weight)
                else:
                    d_weight += gradient.t() @ inputs[block]
            del scores, gradient  # free them before the next block is allocated
        if d_hidden is not None and group is not None:
            dist.all_reduce(d_hidden, group=group)
        ctx.gradients = d_hidden, d_weight
        ctx.boost = boost
        return loss

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        scale = grads[0] / ctx.boost
        d_hidden, d_weight = (None if x is None else x.mul_(scale) for x in ctx.gradients)
        ctx.gradients = None
        return d_hidden, d_weight, *[None] * 7


def _to_gradient(
    scores: Tensor, targets: Tensor, group: ProcessGroup | None, counts: Tensor | None
) -> Tensor:
    """Turn ``scores`` (rows, V) into softmax minus one-hot, in place; return the sum of losses.

    ``targets`` count from this rank's first class; rows outside ``counts`` become zero.
    """
    weight = torch.ones_like(scores[:, 0]) if counts is None else counts.to(scores.dtype)
    if group is not None:
        here = (targets >= 0) & (targets < scores.size(1))
    else:  # an invalid target must fail below, not count as class 0
        here = torch.ones_like(targets, dtype=torch.bool) if counts is None else counts
    index = targets.where(here, 0)[:, None]
    if group is not None:
        losses = _share_softmax(scores, index, here, group)
    else:
        torch.log_softmax(scores, -1, out=scores)
        losses = -scores.gather(1, index).squeeze(1)
        scores.exp_()
    if counts is not None:
        scores.mul_(weight[:, None])
    scores.scatter_add_(1, index, -(weight * here)[:, None])
    return torch.sum(losses * weight)


def _share_softmax(scores: Tensor, index: Tensor, here: Tensor, group: ProcessGroup) -> Tensor:
    """Turn ``scores`` into softmax over all ranks' classes, in place; return the losses.

    Args:
        index: (rows, 1), this rank's class of each target where it is ``here``.
    """
    highest = scores.amax(-1, keepdim=True)
    dist.all_reduce(highest, dist.ReduceOp.MAX, group=group)
    scores.sub_(highest)
    chosen = scores.gather(1, index).squeeze(1).where(here, 0.0)
    both = torch.stack([chosen, scores.exp_().sum(-1)])
    dist.all_reduce(both, group=group)
    chosen, total = both
    scores.div_(total[:, None])
    return cast("Tensor", total.log() - chosen)
