"""Compute the cross-entropy of a linear head in blocks, to save memory.

With a large vocabulary the scores (logits) are the largest tensor of a language model. Here the
scores of one block of rows at a time are computed and converted to their own gradient in place. The
gradients of the inputs follow directly from it; the backward pass only scales them. No matmul is
done twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.tensor import DTensor, Replicate

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

# Scores (rows x vocabulary) in memory at a time: enough that reading the weight once in each block
# costs little compared with the matmuls, but few enough to need little memory.
SCORES_AT_ONCE = 1 << 26
_ROWS_MULTIPLE = 256  # with other row counts a BLAS takes up to 1.5 times as long
# Gradients in fp16 are multiplied by this. A probability of 1/50,000 is below fp16's smallest
# normal number, four times that is not, and the sum over 1,000 rows is below its largest number.
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
    """Return ``cross_entropy(hidden @ weight.T, targets, reduction="sum")`` in float32.

    Computed with torch's operations, all scores (N, V) in memory at once; if the weight is sharded
    over ranks, on every rank.

    Args:
        hidden: (N, D), the same on every rank that shares the weight.
        weight: (V, D); a DTensor is sharded by rows over the ranks of its mesh.
        targets: (N,), int64, in [0, classes).
        classes: rows of the whole weight that are classes; the rows after them are padding. None:
            all rows.
        scores_at_once: not used; only ``linear_cross_entropy_sum`` computes scores in blocks.
        ignored: rows whose target has this value add nothing to the loss. No class is -100.
    """
    del scores_at_once
    if isinstance(weight, DTensor):
        # Torch multiplies a DTensor only by another one, so the hidden states become a DTensor,
        # whole on each rank. Each rank's classes give them a gradient; torch adds these gradients
        # up over the ranks in the backward pass.
        hidden = DTensor.from_local(hidden, weight.device_mesh, [Replicate()])
    scores = nn.functional.linear(hidden, weight)
    if isinstance(scores, DTensor):
        scores = scores.full_tensor()
    class_scores = scores[:, :classes].float()
    return nn.functional.cross_entropy(class_scores, targets, reduction="sum", ignore_index=ignored)


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
        weight: (V, D); a DTensor is sharded by rows over the ranks of its mesh, evenly: cases pad
            the vocabulary or refuse one that the number of ranks does not divide.
        targets: (N,), int64, in [0, classes).
        classes: rows of the whole weight that are classes; the rows after them are padding with
            probability 0. None: all rows.
        scores_at_once: maximum number of scores in memory.
        ignored: rows whose target has this value add nothing to the loss; it is not a class.
    """
    group = None  # of ranks that share the classes
    first_class = 0  # of this rank
    if isinstance(weight, DTensor):
        group = weight.device_mesh.get_group()
        weight = weight.to_local()
        first_class = dist.get_rank(group) * weight.size(0)
    num_classes = weight.size(0)  # of this rank, without padding
    if classes is not None:
        num_classes = min(max(classes - first_class, 0), num_classes)
    block_rows = max(1, scores_at_once // weight.size(0))
    # A matmul is faster if its number of rows is a multiple of this.
    if block_rows > _ROWS_MULTIPLE:
        block_rows -= block_rows % _ROWS_MULTIPLE  # rounded down
    device_type = hidden.device.type
    dtype = hidden.dtype
    if torch.is_autocast_enabled(device_type):
        dtype = torch.get_autocast_dtype(device_type)
    with torch.autocast(device_type, enabled=False):  # types are converted explicitly
        loss: Tensor = _LinearCrossEntropy.apply(
            hidden, weight, targets, group, num_classes, block_rows, dtype, first_class, ignored
        )  # type: ignore[no-untyped-call]
    return loss


class _LinearCrossEntropy(torch.autograd.Function):
    """The loss of ``linear_cross_entropy_sum``, whose gradients the forward pass computes.

    Arguments, besides those of ``linear_cross_entropy_sum``: ``group``, ranks that share the
    classes; ``num_classes``, rows of this rank's weight that are classes; ``block_rows``, rows of
    ``hidden`` in a block; ``dtype``, of the matmuls; ``first_class``, of this rank.
    """

    @staticmethod
    def forward(  # noqa: PLR0917 - autograd passes by position
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        targets: Tensor,
        group: ProcessGroup | None,
        num_classes: int,
        block_rows: int,
        dtype: torch.dtype,
        first_class: int,
        ignored: int | None,
    ) -> Tensor:
        """Return the sum of losses; keep the gradients of ``hidden`` and ``weight`` in ``ctx``.

        The gradients are computed here, so that the scores need not be kept for ``backward``.

        Args:
            hidden: (N, D).
            weight: this rank's rows of the whole weight, (V, D).
            targets: (N,), as numbers among the classes of all ranks.
            group: ranks that share the classes; None: this rank has all of them.
            num_classes: rows of this rank's ``weight`` that are classes; the others are padding.
            block_rows: rows of ``hidden`` whose scores are computed at once.
            dtype: of the matmuls.
            first_class: number of this rank's first class.
            ignored: target of the rows that add nothing to the loss; None: all rows count.
        """
        # The gradient of ``hidden`` is computed if either input needs one: in training, the hidden
        # states need one in any case.
        needs_any_gradient = any(ctx.needs_input_grad[:2])  # of ``hidden`` or ``weight``
        needs_weight_gradient = ctx.needs_input_grad[1]
        # A factor that keeps small gradients above fp16's smallest numbers, undone in ``backward``.
        boost = _FP16_BOOST if dtype is torch.float16 else 1.0
        inputs = hidden.to(dtype)
        matrix = weight.to(dtype)
        loss = torch.zeros((), device=hidden.device)
        d_hidden = torch.empty_like(hidden) if needs_any_gradient else None
        d_weight = None
        if needs_weight_gradient:
            d_weight = torch.zeros_like(weight, dtype=torch.float32)
        for first in range(0, len(targets), block_rows):
            block = slice(first, first + block_rows)
            scores = (inputs[block] @ matrix.t()).float()  # (block_rows, V)
            scores[:, num_classes:] = -torch.inf  # rows of the weight that are padding: no classes
            is_counted = None if ignored is None else targets[block] != ignored
            local_targets = targets[block] - first_class
            # Not ``loss +=``. If ``torch.compile`` of torch 2.11 compiles this method, the compiled
            # method returns every tensor that was made here, besides the result. If the result were
            # one of these tensors, it would be returned twice, and autograd would give the gradient
            # to the other of the two: all gradients of the model would be 0.
            loss = loss + _convert_to_gradient(scores, local_targets, group, is_counted)
            # From here on ``scores`` are the gradient of the loss with respect to the scores.
            if d_hidden is None:  # no gradient is needed, only the loss
                continue
            gradient = scores.mul_(boost).to(dtype) if boost != 1.0 else scores.to(dtype)
            d_hidden[block] = gradient @ matrix
            if d_weight is not None:
                _add_product(d_weight, gradient.t(), inputs[block])
            del scores, gradient  # free them before the next block is allocated
        if d_hidden is not None and group is not None:
            dist.all_reduce(d_hidden, group=group)  # add the parts from all ranks' classes
        ctx.gradients = d_hidden, d_weight
        ctx.boost = boost
        return loss

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Scale the gradients that ``forward`` computed by the gradient of the loss."""
        # The gradient of the loss, without the factor that keeps fp16 gradients from underflow.
        scale = grads[0] / ctx.boost
        d_hidden, d_weight = ctx.gradients
        if d_hidden is not None:
            d_hidden.mul_(scale)
        if d_weight is not None:
            d_weight.mul_(scale)
        ctx.gradients = None  # the caller alone holds them now, and can free them
        return d_hidden, d_weight, *[None] * 7  # the other arguments have no gradient


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """Add ``left @ right`` to ``total`` in place; ``total`` may have another type."""
    if left.dtype == total.dtype:  # ``addmm`` does not mix types
        torch.addmm(total, left, right, out=total)
    else:
        total += left @ right


def _convert_to_gradient(
    scores: Tensor, targets: Tensor, group: ProcessGroup | None, is_counted: Tensor | None
) -> Tensor:
    """Convert scores to their gradient in place: softmax minus one-hot; return the sum of losses.

    Args:
        scores: (rows, V).
        targets: (rows,), relative to this rank's first class.
        group: ranks that share the classes; None: this rank has all of them.
        is_counted: whether each row counts, (rows,); the gradient of other rows is 0. None: all
            count.
    """
    # 1 for each row that counts, 0 for others.
    row_weights = (
        torch.ones_like(scores[:, 0]) if is_counted is None else is_counted.to(scores.dtype)
    )
    # Whether the target of each row is a class of this rank, by which ``scores`` can be indexed.
    if group is not None:
        is_local = (targets >= 0) & (targets < scores.size(1))
        if is_counted is not None:
            # The target of another row may be the number of a padding row of the weight. The score
            # of padding is -inf, and a loss of infinity times the row's weight, 0, were NaN.
            is_local &= is_counted
    elif is_counted is not None:
        is_local = is_counted  # the target of any other row is no class
    else:  # all: an invalid target must fail in ``gather``, not count as class 0
        is_local = torch.ones_like(targets, dtype=torch.bool)
    # A target that is not local has no score here. Class 0 stands in for it, as ``gather`` needs an
    # index; what is read there is multiplied by 0 or replaced by it.
    index = targets.where(is_local, 0)[:, None]
    if group is not None:
        losses = _compute_shared_softmax(scores, index, is_local, group)
    else:
        torch.log_softmax(scores, -1, out=scores)
        losses = -scores.gather(1, index).squeeze(1)
        scores.exp_()
    # ``scores`` are now the softmax. Subtract 1 from it at each target of this rank.
    if is_counted is not None:
        scores.mul_(row_weights[:, None])
    scores.scatter_add_(1, index, -(row_weights * is_local)[:, None])
    return torch.sum(losses * row_weights)


def _compute_shared_softmax(
    scores: Tensor, index: Tensor, is_local: Tensor, group: ProcessGroup
) -> Tensor:
    """Convert scores to the softmax over all ranks' classes, in place; return the losses (rows,).

    Args:
        index: this rank's class of each target, (rows, 1); 0 if the target is not local.
        is_local: whether each target is a class of this rank, (rows,).
    """
    # Subtract the largest score of all ranks, so that no exponential overflows.
    max_scores = scores.amax(-1, keepdim=True)
    dist.all_reduce(max_scores, dist.ReduceOp.MAX, group=group)
    scores.sub_(max_scores)
    # One rank has the score of a target, and the others add 0 to it.
    target_scores = scores.gather(1, index).squeeze(1).where(is_local, 0.0)
    sums = torch.stack([target_scores, scores.exp_().sum(-1)])
    dist.all_reduce(sums, group=group)
    target_scores, total = sums
    scores.div_(total[:, None])
    return cast("Tensor", total.log() - target_scores)
