"""One optimizer step out of micro-batches, the same for every job.

Owns accumulation, the weight of a sample, autocast and loss scaling. A sample weighs one
over the samples of the whole step on all ranks, so that short, uneven and accumulated
steps give the gradient of the mean loss exactly.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, cast

import torch
from torch.nn.parallel import DistributedDataParallel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch import Tensor, nn

    from trainmark.protocols import Batch, JobContext
    from trainmark.spec import Precision

AUTOCAST_DTYPES: dict[str, torch.dtype] = {"bf16": torch.bfloat16, "fp16": torch.float16}


def distribute(model: Any, *, world_size: int, torch_type: str) -> nn.Module:
    """Return ``model``, compiled or not, with gradients averaged over ranks.

    One rank gets ``model`` itself.
    """
    if world_size == 1:
        return cast("nn.Module", model)
    device_ids = [torch.cuda.current_device()] if torch_type == "cuda" else None
    return DistributedDataParallel(model, device_ids=device_ids, gradient_as_bucket_view=True)


def add_over_ranks(*values: int, world_size: int, device: torch.device) -> list[int]:
    """Return the exact sums of whole numbers over all ranks.

    Raises:
        TypeError: a value is no whole number; it would be cut without a word.
    """
    if not all(isinstance(value, int) for value in values):
        raise TypeError(f"{values} are not whole numbers: use add_floats_over_ranks")
    return [int(total) for total in _all_reduce(values, torch.int64, world_size, device)]


def add_floats_over_ranks(*values: float, world_size: int, device: torch.device) -> list[float]:
    """Return the sums of numbers over all ranks, added in float64."""
    return [float(total) for total in _all_reduce(values, torch.float64, world_size, device)]


def _all_reduce(
    values: Sequence[float], dtype: torch.dtype, world_size: int, device: torch.device
) -> list[float]:
    if world_size == 1:
        return list(values)
    total = torch.tensor(values, dtype=dtype, device=device)
    torch.distributed.all_reduce(total)
    sums: list[float] = total.tolist()
    return sums


class Stepper:
    """Take optimizer steps.

    Args:
        model: the module as distributed over ranks.
        loss_sum: called with a batch under autocast; returns the SUM of the losses of the
            batch's samples, a scalar tensor.
        schedule_lr: called with the number of finished steps before each step; returns
            the learning rate as a multiple of the optimizer's initial one.
        max_grad_norm: clip the global gradient norm; none: no clipping.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        loss_sum: Callable[[Any], Tensor],
        *,
        precision: Precision,
        torch_type: str,
        world_size: int,
        schedule_lr: Callable[[int], float] = lambda _: 1.0,
        max_grad_norm: float | None = None,
    ) -> None:
        self.model = model
        self.optimizer = optimizer
        self.steps = 0
        self._loss_sum = loss_sum
        self._precision = precision
        self._torch_type = torch_type
        self._world_size = world_size
        self._schedule_lr = schedule_lr
        self._base_lrs = [group["lr"] for group in optimizer.param_groups]
        self._max_grad_norm = max_grad_norm
        self._scaler = torch.amp.GradScaler(torch_type, enabled=precision == "fp16")
        self._one = torch.ones((), device=next(model.parameters()).device)
        self._skipped = torch.zeros_like(self._one)

    @classmethod
    def of(
        cls,
        context: JobContext,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        loss_sum: Callable[[Any], Tensor],
        **more: Any,
    ) -> Stepper:
        """Return a stepper that compiles and distributes ``model`` as ``context`` asks."""
        recipe, torch_type = context.recipe, context.device.torch_type
        compiled = cast("nn.Module", torch.compile(model)) if recipe.compile else model
        return cls(
            distribute(compiled, world_size=context.world_size, torch_type=torch_type),
            optimizer,
            loss_sum,
            precision=recipe.precision,
            torch_type=torch_type,
            world_size=context.world_size,
            **more,
        )

    def skipped_steps(self) -> int:
        """Return how many steps the loss scaler dropped. Synchronises: call after the loop."""
        return int(self._skipped.item())

    def autocast(self) -> AbstractContextManager[Any]:
        """Return the context a forward pass runs in; one block a forward, never longer."""
        dtype = AUTOCAST_DTYPES.get(self._precision)
        if dtype is None:
            return nullcontext()
        return torch.autocast(self._torch_type, dtype=dtype)

    def step(self, batches: Iterator[Batch]) -> Tensor | None:
        """Take one step; see ``Job.step``."""
        total: Tensor | None = None
        samples = 0
        for batch in batches:
            loss_sum = self._backward(batch)
            total = loss_sum if total is None else total + loss_sum
            samples += batch.counts.samples
            if batch.closes_step:
                break
        if total is None:
            return None
        self._update()
        return total / max(samples, 1)

    def _backward(self, batch: Batch) -> Tensor:
        reduce_now = batch.closes_step or not isinstance(self.model, DistributedDataParallel)
        with nullcontext() if reduce_now else self.model.no_sync():  # type: ignore[operator]
            with self.autocast():
                loss_sum = self._loss_sum(batch)
            # DDP divides by the world size; undo it, then weigh by the step's samples.
            weight = self._world_size / batch.step_samples if batch.counts.samples else 0.0
            self._scaler.scale(loss_sum * weight).backward()
        return loss_sum.detach() * (1.0 if batch.counts.samples else 0.0)

    def _update(self) -> None:
        factor = self._schedule_lr(self.steps)
        for group, base in zip(self.optimizer.param_groups, self._base_lrs, strict=True):
            group["lr"] = base * factor
        if self._max_grad_norm is not None:
            self._scaler.unscale_(self.optimizer)
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self._max_grad_norm)
        scale_before = self._scaler.scale(self._one)
        self._scaler.step(self.optimizer)
        self._scaler.update()
        if self._scaler.is_enabled():
            # A lowered scale is how the scaler tells of a skipped step; kept on the device.
            self._skipped += self._scaler.scale(self._one) < scale_before
        self.optimizer.zero_grad(set_to_none=True)
        self.steps += 1
