"""The job that pre-trains a language model on indexed tokens: replicas, batches, validation loss.

A case adds its model, learning rates, optimizer and FLOPs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from trainmark.protocols import Batch, Counts, Evaluation, Progress
from trainmark.train.evaluation import EvaluationSum, scored_rows
from trainmark.train.parallel import Ranks, parallelize
from trainmark.train.parameters import trained
from trainmark.train.read_ahead import read_ahead
from trainmark.train.shards import Sharding, evaluation_batches, training_batches
from trainmark.train.step_memory import ATTENTION_SHARE, compute_next_token_flops
from trainmark.train.stepper import Stepper, make_decay_groups

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from trainmark.data.sampling import Splits
    from trainmark.protocols import JobContext


class NextTokenJob:
    """Train on sequences of ``seq_length`` tokens, each followed by its target; see ``Job``.

    Args:
        data: samples to train and to score.
        ranks: with a mesh if ``recipe.fsdp`` or ``recipe.tensor_parallel`` needs one.
        model: called with ids and targets, both (B, T); returns the SUM of the losses in nats. It
            is already cut over the ranks of a replica.
        materialize: initializes a model on the meta device, in place. With FSDP it is called after
            the model was sharded, so that no rank ever holds more than its shards. None: the model
            has its weights.
        blocks: modules that FSDP shards one by one.
        experts: modules with only this rank's share of a layer's experts; see ``parallelize``.
        adam_eps: added to the root of AdamW's second moment.
        schedule_lr: called with the number of finished steps before each step; returns the learning
            rate as a multiple of the recipe's.
        compiled: compile the model with ``torch.compile``; see ``parallelize``.
        stepper_options: further keywords of ``Stepper``, such as those of the loss scale.
    """

    def __init__(
        self,
        context: JobContext,
        data: Splits,
        *,
        ranks: Ranks,
        model: nn.Module,
        materialize: Callable[[torch.device], None] | None = None,
        blocks: Iterable[nn.Module],  # units that FSDP shards
        experts: Iterable[nn.Module] = (),  # have only this rank's share of a layer's experts
        adam_eps: float = 1e-8,
        # From the number of finished steps to a factor of the recipe's learning rate.
        schedule_lr: Callable[[int], float],
        compiled: bool,
        **stepper_options: Any,  # further keywords of ``Stepper``, such as those of the loss scale
    ) -> None:
        recipe = context.recipe
        self.context = context
        self.data = data
        self.recipe = recipe
        self.ranks = ranks
        self.model = model
        self.num_parameters = sum(item.numel() for item in model.parameters())
        # ``model``, perhaps wrapped, so that its gradients are averaged over the ranks.
        parallel_model = self._parallelize_model(
            materialize, blocks=blocks, experts=experts, compiled=compiled
        )
        self.sharding = Sharding.of(context, num_rows=len(data.train), ranks=ranks)
        self.steps_per_epoch = self.sharding.steps_per_epoch
        self.stepper = Stepper(
            context,
            parallel_model,
            _build_optimizer(model, recipe, eps=adam_eps),
            self._compute_loss_sum,
            ranks=ranks,
            schedule_lr=schedule_lr,
            max_grad_norm=recipe.max_grad_norm,
            **stepper_options,
        )
        # Methods that every job must have; here the stepper's.
        self.step = self.stepper.step
        self.check = self.stepper.check
        self.updates = self.stepper.updates
        self._begin = Progress()  # where training begins: at 0, or at a checkpoint

    def _parallelize_model(
        self,
        materialize: Callable[[torch.device], None] | None,
        *,
        blocks: Iterable[nn.Module],
        experts: Iterable[nn.Module],
        compiled: bool,
    ) -> nn.Module:
        """Give the model its weights and parallelize it; return the module to call.

        Args:
            materialize: gives values to the weights of a model on the meta device, in place; None:
                the model has its weights.
            blocks: modules that FSDP shards one by one.
            experts: modules with only this rank's share of a layer's experts.
            compiled: compile the model with ``torch.compile``.
        """
        device = torch.device(self.context.device.torch_type)
        uses_fsdp = self.recipe.fsdp
        is_sharded = uses_fsdp and self.ranks.mesh is not None  # a single rank has no mesh
        if materialize is not None and not is_sharded:
            materialize(device)
        parallel_model = parallelize(
            self.model,
            self.ranks,
            compiled=compiled,
            shards=blocks if uses_fsdp else None,
            experts=experts,
        )
        # A sharded model gets its weights only now, so that no rank ever holds a whole model.
        if materialize is not None and is_sharded:
            materialize(device)
        return parallel_model

    def resume_from(self, begin: Progress, scale: Tensor) -> None:
        """Continue the order of the data, the learning rates and the loss scale of a checkpoint.

        ``Checkpoints.load``, which calls this, loads the model and the optimizer itself.

        Args:
            begin: progress at the checkpoint.
            scale: state of the loss scaler.
        """
        self._begin = begin
        self.stepper.steps = begin.steps
        self.stepper.scaler.load(scale)

    def batches(self, epoch: int) -> Iterator[Batch]:
        """Yield this rank's micro-batches of an epoch, on the host.

        Steps that were trained before the checkpoint from which the job continues are left out.
        """
        index = self.data.train.build_epoch(epoch)
        # The epoch in which the checkpoint was made is continued after its last step.
        first_step = self._begin.steps_of_epoch if epoch == self._begin.epoch else 0
        return training_batches(
            index,
            self.sharding,
            epoch,
            order=index.sample_order,
            # Of the ranks that share a replica and its samples, one counts these.
            counted=self.ranks.counts_here,
            first_step=first_step,
        )

    def _compute_loss_sum(self, batch: Batch) -> Tensor:
        """Return the sum over samples of each sample's mean loss per token."""
        ids: Tensor = batch.tensors  # (B, T + 1)
        total: Tensor = self.stepper.model(ids[:, :-1], ids[:, 1:])  # over all tokens
        # Every sample has ``seq_length`` tokens.
        sum_of_means: Tensor = total / self.recipe.seq_length
        return sum_of_means

    def trained_parameters(self) -> Mapping[str, Tensor]:
        """Return the parameters; see ``Job.trained_parameters``."""
        return trained(self.model)

    @torch.no_grad()
    def evaluate(self) -> Evaluation:
        """Return the mean loss per token over all validation samples, in nats.

        Every rank takes the same number of forward passes, because each pass of a sharded model
        involves all ranks.
        """
        index = self.data.validation.build_unshuffled_epoch()
        ranks = self.ranks
        host_batches = evaluation_batches(
            index,
            size=self.recipe.micro_batch_size,
            rank=ranks.data_rank,
            world_size=ranks.data_size,
        )
        evaluation_sum = EvaluationSum()
        self.model.eval()
        depth = self.recipe.read_ahead_batches
        for ids, rows in read_ahead(scored_rows(host_batches), self.context.device, depth=depth):
            # Not ``stepper.model``, which may be compiled, and wrapped for the backward pass. Both
            # have the same weights; if FSDP shards them, it has prepared ``model`` itself for it.
            with self.stepper.autocast():
                loss = self.model(ids[:, :-1], ids[:, 1:])
            # ``rows.count`` is 0 if this rank has no rows left: the batch is then a filler, for the
            # forward pass alone. If ranks share a replica, one of them adds the loss for all.
            if rows.count and ranks.counts_here:
                num_tokens = rows.count * self.recipe.seq_length
                evaluation_sum.add(rows, total=loss, weight=num_tokens)
        self.model.train()
        evaluation = evaluation_sum.mean(
            world_size=self.context.world_size, device=self.stepper.device
        )
        num_scored = evaluation.samples
        num_samples = len(index)
        assert num_scored == num_samples, (
            f"{num_scored} of {num_samples} validation samples were scored"
        )
        return evaluation

    def flops_per_token(self) -> tuple[float, float]:
        """Return the model FLOPs of training a token, and the part of causal attention in them."""
        return compute_next_token_flops(self.recipe)

    def model_flops(self, counts: Counts) -> float:
        """Return the FLOPs of ``counts``: PaLM, appendix B, 6 N + 12 L D T a token.

        N is the number of weights in matrices, with those of the head, L that of layers, D the
        hidden size and T the length of a sample.
        """
        per_token, _attention_flops = self.flops_per_token()
        return per_token * counts.tokens_padded  # all tokens, with those of the padding

    def facts(self) -> Mapping[str, Any]:
        """Return the facts of the job for the record, such as its size and parallelism."""
        ranks = self.ranks
        flops, attention_flops = self.flops_per_token()  # the second is a part of the first
        return {
            ATTENTION_SHARE: attention_flops / flops,
            "parameters": self.num_parameters,
            "trainable_parameters": self.num_parameters,  # training changes all
            "flops_formula": "palm-appendix-b",
            "parallel": {
                "data": ranks.data_size,
                "tensor": ranks.tensor_size,
                "fsdp": self.recipe.fsdp and ranks.mesh is not None,  # a single rank has no mesh
            },
            "skipped_steps": self.stepper.skipped_steps(),  # whose fp16 gradients overflowed
        }


def _build_optimizer(model: nn.Module, recipe: Any, *, eps: float) -> torch.optim.AdamW:
    """Return AdamW with the settings of a recipe; only matrices and embedding tables decay."""
    return torch.optim.AdamW(
        make_decay_groups(model, recipe.weight_decay),
        lr=recipe.learning_rate,
        betas=(0.9, recipe.adam_beta2),
        eps=eps,
        fused=True,
    )
