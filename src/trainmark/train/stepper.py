"""Take one optimizer step from micro-batches, in the same way for every job.

Does gradient accumulation, the weighting of samples, autocast, weight decay, the schedule of the
learning rate, and the loss scaling of fp16, whose state is on the device, so that no step
synchronises to detect an overflow. The weight of a sample is one over the samples of the whole step
on all ranks, so that short, uneven and accumulated steps give exactly the gradient of the mean
loss.
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import torch
from torch.distributed.tensor import DTensor

from trainmark.errors import DivergedError
from trainmark.recipe import AUTOCAST
from trainmark.train.parallel import Ranks, open_micro_batch, parallelize

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor, nn
    from torch.distributed.device_mesh import DeviceMesh

    from trainmark.protocols import Batch, JobContext

Number = TypeVar("Number", int, float)
_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
AUTOCAST_DTYPES = {precision: _DTYPES[name] for precision, name in AUTOCAST.items()}
LOSS_SCALE_FLOOR = 1.0  # a run whose gradients overflow even at this scale is stopped


def add_over_ranks(*values: Number, world_size: int, device: torch.device) -> list[Number]:
    """Return the sums of numbers over all ranks: exact for integers, else in float64."""
    if world_size == 1:
        return list(values)
    are_integers = all(isinstance(value, int) for value in values)
    dtype = torch.int64 if are_integers else torch.float64
    total = torch.tensor(values, dtype=dtype, device=device)
    torch.distributed.all_reduce(total)
    sums: list[Number] = total.tolist()
    return sums


def make_decay_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Return AdamW's groups: matrices and tables with weight decay, biases and norms without.

    A matrix has at least two dimensions; a tensor with the biases of several experts is no matrix.
    No group has parameters of different meshes, which a fused optimizer cannot update together.
    """
    parameters_of_group: dict[tuple[Any, bool], list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        decays = parameter.dim() >= 2 and not name.endswith("bias")
        group = (get_mesh(parameter), decays)
        parameters_of_group.setdefault(group, []).append(parameter)
    return [
        {"params": parameters, "weight_decay": weight_decay if decays else 0.0}
        for (_mesh, decays), parameters in parameters_of_group.items()
    ]


def get_mesh(tensor: Tensor) -> DeviceMesh | None:
    """Return the mesh of a sharded tensor; None: it is a plain tensor."""
    return tensor.device_mesh if isinstance(tensor, DTensor) else None


@torch.no_grad()
def clip_gradients(model: nn.Module, max_norm: float) -> None:
    """Scale gradients down to a norm of ``max_norm``, if the norm of all together is larger.

    Parameters may be sharded over different meshes of devices, or over none.
    """
    by_mesh: dict[DeviceMesh | None, list[nn.Parameter]] = {}
    for parameter in model.parameters():
        if parameter.grad is not None:
            by_mesh.setdefault(get_mesh(parameter), []).append(parameter)
    if len(by_mesh) <= 1:  # no parameter has a gradient, or torch can combine all gradients
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        return
    # Torch cannot combine tensors of different meshes. So take the norm of each mesh first, then
    # the norm of these norms.
    norms = []
    for parameters in by_mesh.values():
        norm = torch.nn.utils.get_total_norm([x.grad for x in parameters if x.grad is not None])
        norms.append(norm.full_tensor() if isinstance(norm, DTensor) else norm)
    total = torch.stack(norms).norm()
    for parameters in by_mesh.values():
        torch.nn.utils.clip_grads_with_norm_(parameters, max_norm, total)


def compute_warmup_factor(finished_steps: int, warmup_steps: float) -> float:
    """Return the next step's fraction of the peak learning rate: linearly from 0 to 1.

    The first step has the rate 0, as in Megatron-LM's scheduler and GLM's ``AnnealingLR``.

    Args:
        warmup_steps: may be fractional: some recipes give it as a fraction of all steps.
    """
    return min(1.0, finished_steps / warmup_steps) if warmup_steps else 1.0


def compute_decay_progress(finished_steps: int, warmup_steps: float, decay_steps: int) -> float:
    """Return how much of the learning rate's decay is done at the next step, from 0 to 1.

    The decay starts after ``warmup_steps`` and ends after ``decay_steps``, both counted from the
    first step of training. Before its start the result is 0, after its end 1.

    Args:
        warmup_steps: may be fractional: some recipes give it as a fraction of ``decay_steps``.
    """
    num_decaying_steps = max(decay_steps - warmup_steps, 1)  # at least 1: it is a divisor
    progress = (finished_steps - warmup_steps) / num_decaying_steps
    return min(1.0, max(0.0, progress))


def compute_cosine_factor(progress: float, lowest: float) -> float:
    """Return the fraction of the peak rate: a cosine from 1 to ``lowest`` at ``progress`` 1."""
    return lowest + (1 - lowest) * (1 + math.cos(math.pi * progress)) / 2


class LossScaler(torch.amp.GradScaler):
    """Scale losses, drop the steps whose gradients overflow, and adapt the scale.

    The scale doubles after ``window`` steps in a row without an overflow. Of the overflows since it
    last doubled, the first ``hysteresis - 1`` leave the scale as it is, and each later one halves
    it; all of these steps are dropped. With a hysteresis of 1 this is torch's ``GradScaler``; 2 is
    the ``delayed_shift=2`` of Megatron-LM's ``DynamicLossScaler``.

    Args:
        device_type: as in ``torch.device``.
        device: where the scaler keeps its own tensors.
        enabled: whether losses are scaled; if not, no step is dropped.
        window, hysteresis: see above.
        start: scale of the first step.

    Attributes:
        skipped: number of steps that were dropped, on the device.
    """

    def __init__(
        self,
        device_type: str,
        device: torch.device,
        *,
        enabled: bool,
        window: int,
        hysteresis: int,
        start: float,
    ) -> None:
        super().__init__(device_type, init_scale=start, growth_interval=window, enabled=enabled)
        # The scale doubles after ``window`` steps in a row without an overflow (torch's growth
        # interval). Of the overflows since it last doubled, the first ``hysteresis - 1`` leave the
        # scale as it is, and each later one halves it.
        self._hysteresis = hysteresis
        self._one = torch.ones((), device=device)  # gives the tensors below their type and device
        self.skipped = torch.zeros_like(self._one)  # number of steps dropped because of an overflow
        # How many overflows it takes from now on to halve the scale; 1: the next one halves it.
        self._until_halved = torch.full_like(self._one, hysteresis)

    def compute_scale(self) -> Tensor:
        """Return the scale as a tensor on the device; ``get_scale`` would synchronise."""
        return self.scale(self._one)

    def skipped_steps(self) -> int:
        """Return how many steps were dropped. Synchronises: call after the loop."""
        return int(self.skipped.item())

    def read_state(self) -> Tensor:
        """Return the state for ``load``; synchronises with the device.

        Returns:
            The scale, the steps since it changed, and the overflows until it is halved, (3,).
        """
        # Torch counts the steps since the scale changed as ``_growth_tracker``. Without scaling its
        # state is empty.
        state = self.state_dict() if self.is_enabled() else {"scale": 1.0, "_growth_tracker": 0}
        numbers = [state["scale"], state["_growth_tracker"], self._until_halved.item()]
        return torch.tensor(numbers, dtype=torch.float64)

    def load(self, state: Tensor) -> None:
        """Set the state that ``read_state`` returned; if losses are not scaled, there is none."""
        if self.is_enabled():
            scale, steps_since_change, until_halved = state.tolist()
            # In torch's own state, ``_growth_tracker`` counts the steps since the scale changed.
            self.load_state_dict(
                self.state_dict() | {"scale": scale, "_growth_tracker": int(steps_since_change)}
            )
            self._until_halved.fill_(until_halved)

    def step_or_skip(self, optimizer: torch.optim.Optimizer) -> Tensor | None:
        """Step ``optimizer`` unless a gradient overflowed, then adapt the scale.

        Returns:
            A tensor on the device: 1 if the step was dropped, else 0. None: losses are not scaled.
        """
        if not self.is_enabled():
            optimizer.step()
            return None
        old_scale = self.compute_scale()  # a tensor of its own, which ``update`` does not change
        self.step(optimizer)  # does nothing if a gradient overflowed
        self.update()
        new_scale = self.compute_scale()
        # ``update`` halves the scale after an overflow; comparing it does not synchronise.
        dropped = (new_scale < old_scale).to(self._one.dtype)
        self.skipped += dropped
        # With a hysteresis, the first overflows drop their step, but must not halve the scale:
        # ``_until_halved`` counts down to the overflow that does.
        if self._hysteresis > 1:
            keeps_scale = (dropped > 0) & (self._until_halved > 1)
            # Given a scale, ``update`` only sets it: the step was counted by the call above.
            self.update(torch.where(keeps_scale, old_scale, new_scale))
            until_halved = (self._until_halved - dropped).clamp(min=1)
            has_doubled = new_scale > old_scale
            self._until_halved = torch.where(has_doubled, self._hysteresis, until_halved)
        return dropped


class StepperCounts(NamedTuple):
    """The counts of a ``Stepper``, and its loss scale; all tensors but ``scale`` on the device.

    Attributes:
        steps: all steps.
        steps_with_lr: steps with a learning rate above 0; others change no parameter.
        skipped: steps that the loss scaler dropped.
        skipped_with_lr: those of them with a learning rate above 0.
        scale: state of the loss scaler, see ``LossScaler.read_state``.
    """

    steps: int
    steps_with_lr: int
    skipped: Tensor
    skipped_with_lr: Tensor
    scale: Tensor


class Stepper:
    """Take optimizer steps as the recipe of ``context`` says.

    Seeds torch: replicas have the same initial weights but different dropout masks, and ranks
    that share one replica must have the same masks.

    Args:
        loss_sum: called with a batch under autocast; returns the SUM of the losses of the batch's
            samples, a scalar tensor.
        ranks: the ranks over which the job has already parallelized ``model``; None: each rank
            gets a whole replica.
        schedule_lr: called with the number of finished steps before each step; returns the learning
            rate as a multiple of the optimizer's initial rate.
        max_grad_norm: clip the global gradient norm; None: no clipping.
        loss_scale_window: steps without overflow after which fp16's loss scale doubles.
        loss_scale_hysteresis: which overflow, counted since the scale last doubled, is the first
            that halves it; each later one halves it too. See ``LossScaler``.
        loss_scale_start: scale of the first step; the default is that of torch's ``GradScaler``.
    """

    def __init__(
        self,
        context: JobContext,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        loss_sum: Callable[[Any], Tensor],
        *,
        ranks: Ranks | None = None,
        schedule_lr: Callable[[int], float] = lambda _: 1.0,
        max_grad_norm: float | None = None,
        loss_scale_window: int = 2000,
        loss_scale_hysteresis: int = 1,
        loss_scale_start: float = 2.0**16,
    ) -> None:
        recipe = context.recipe
        device = context.device
        if ranks is None:  # else the job has parallelized the model itself
            ranks = Ranks.from_context(context)
            model = parallelize(model, ranks, compiled=recipe.compile)
        # Ranks of one replica need the same dropout masks, so the seed depends on the replica. A
        # large prime keeps it apart from the seeds of other recipes.
        torch.manual_seed(recipe.seed + 1_000_003 * ranks.data_rank)
        self.model = model
        self.optimizer = optimizer
        self.steps = 0
        self.device = next(model.parameters()).device  # torch's; ``context.device`` is Trainmark's
        self._compute_loss_sum = loss_sum
        # Returns, for a number of finished steps, the factor of the optimizer's initial rates.
        self._schedule_lr = schedule_lr
        self._torch_type = device.torch_type  # type of a ``torch.device``, such as ``cpu``
        self._precision = recipe.precision
        self._data_size = ranks.data_size  # shares into which the samples are split
        self._base_lrs = [group["lr"] for group in optimizer.param_groups]
        self._max_grad_norm = max_grad_norm  # None: gradients are not clipped
        self.scaler = LossScaler(
            device.torch_type,
            self.device,
            enabled=recipe.precision == "fp16",
            window=loss_scale_window,
            hysteresis=loss_scale_hysteresis,
            start=loss_scale_start,
        )
        # Steps with a learning rate above 0, and those of them that the scaler dropped. The
        # difference is the number of steps that should change parameters; ``updates`` returns it.
        self._steps_with_lr = 0
        self._skipped_with_lr = torch.zeros((), device=self.device)

    def check(self) -> None:
        """Stop the run if the loss scale has fallen below its minimum.

        Synchronises, so it is called only between two windows of steps.

        Raises:
            DivergedError: gradients overflow even at the smallest scale.
        """
        if not self.scaler.is_enabled():  # losses are scaled only in fp16
            return
        scale = self.scaler.get_scale()
        if scale < LOSS_SCALE_FLOOR:
            raise DivergedError(
                "loss_scale_at_floor", scale=scale, step=self.steps, floor=LOSS_SCALE_FLOOR
            )

    def loss_scale(self) -> float | Tensor:
        """Return the factor on the next step's gradients; a tensor on the device."""
        return self.scaler.compute_scale() if self.scaler.is_enabled() else 1.0

    def skipped_steps(self) -> int:
        """Return how many steps the loss scaler dropped. Synchronises: call after the loop."""
        return self.scaler.skipped_steps()

    def updates(self) -> int:
        """Return how many steps should have changed parameters; see ``Job.updates``."""
        return self._steps_with_lr - int(self._skipped_with_lr.item())

    def read_counts(self) -> StepperCounts:
        """Return the counts and the loss scale so far, for ``set_counts``. Synchronises."""
        return StepperCounts(
            steps=self.steps,
            steps_with_lr=self._steps_with_lr,
            skipped=self.scaler.skipped.clone(),
            skipped_with_lr=self._skipped_with_lr.clone(),
            scale=self.scaler.read_state(),
        )

    def set_counts(self, counts: StepperCounts) -> None:
        """Restore the counts and the loss scaler's state that ``read_counts`` returned earlier."""
        self.steps = counts.steps
        self._steps_with_lr = counts.steps_with_lr
        self.scaler.skipped.copy_(counts.skipped)
        self._skipped_with_lr.copy_(counts.skipped_with_lr)
        self.scaler.load(counts.scale)  # the scale, and what decides its next change

    def autocast(self) -> AbstractContextManager[Any]:
        """Return the autocast context for one forward pass; use a new one for each."""
        dtype = AUTOCAST_DTYPES.get(self._precision)
        if dtype is None:  # fp32 or TF32: nothing is cast
            return nullcontext()
        return torch.autocast(self._torch_type, dtype=dtype)

    def step(self, batches: Iterator[Batch]) -> Tensor | None:
        """Take one optimizer step; return the mean loss of this rank's samples, on the device.

        Takes batches up to the one that closes the step. None: there was no batch left.
        """
        total: Tensor | None = None
        samples = 0
        for batch in batches:
            loss_sum = self._backward(batch)
            total = loss_sum if total is None else total + loss_sum
            samples += batch.samples_trained
            if batch.closes_step:
                break
        if total is None:
            return None
        self._update()
        return total / max(samples, 1)  # a rank may have no sample in a short step: 0, not 0 / 0

    def _backward(self, batch: Batch) -> Tensor:
        """Do the forward and backward pass of a micro-batch; return the sum of its losses.

        A batch without samples takes part in the passes with the weight 0; its sum is 0.
        """
        samples = batch.samples_trained
        # DDP averages gradients over replicas only in the step's last pass, FSDP2 in each pass.
        with open_micro_batch(self.model, last=batch.closes_step):
            with self.autocast():
                loss_sum = self._compute_loss_sum(batch)
            # Gradients are averaged over replicas: undo that, then divide by the step's samples.
            weight = self._data_size / batch.step_samples if samples else 0.0
            self.scaler.scale(loss_sum * weight).backward()
        return loss_sum.detach() * (1.0 if samples else 0.0)

    def _update(self) -> None:
        """Update the parameters by the accumulated gradients."""
        lr_factor = self._schedule_lr(self.steps)
        for group, base_lr in zip(self.optimizer.param_groups, self._base_lrs, strict=True):
            group["lr"] = base_lr * lr_factor
        if self._max_grad_norm is not None:
            # The norm to clip is that of the gradients without the loss scale.
            self.scaler.unscale_(self.optimizer)
            clip_gradients(self.model, self._max_grad_norm)
        # A tensor on the device: 1 if the step was dropped because a gradient overflowed, else 0.
        # None: losses are not scaled, so that no step is dropped.
        skipped = self.scaler.step_or_skip(self.optimizer)
        # A step whose learning rate is 0 changes no parameter. ``updates`` counts only the steps
        # that should change parameters.
        if lr_factor > 0:
            self._steps_with_lr += 1
            if skipped is not None:
                self._skipped_with_lr += skipped
        self.optimizer.zero_grad(set_to_none=True)
        self.steps += 1
