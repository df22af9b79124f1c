"""The torch side of GPT-OSS: its model over ranks, optimizer, learning rates and routing."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from trainmark.data import c4_pairs
from trainmark.train.attention import choose_attention_kernels
from trainmark.train.causal_model import materialize_weights
from trainmark.train.experts import EXCHANGE_PART, Dispatcher
from trainmark.train.kernels import choose_kernels
from trainmark.train.next_token import NextTokenJob
from trainmark.train.parallel import Ranks
from trainmark.train.routing import RoutingMeter
from trainmark.train.stepper import (
    AUTOCAST_DTYPES,
    compute_cosine_factor,
    compute_decay_progress,
    compute_warmup_factor,
)

from .case import INIT_STD
from .model import build_model, list_routed_layers

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torch import Tensor

    from trainmark.data.sampling import Splits
    from trainmark.protocols import Batch, JobContext

    from .case import GptOssRecipe


def load_data(context: JobContext) -> Splits:
    """Return training and validation samples over the mapped tokens."""
    return c4_pairs.load(context.data_dir, context.recipe)


def compute_lr_factor(recipe: GptOssRecipe, finished_steps: int) -> float:
    """Return the next step's learning rate divided by the peak: rise from 0, then cosine.

    As in Megatron-LM's scheduler, the first step has a learning rate of 0.
    """
    warmup_steps = recipe.lr_warmup_steps
    if finished_steps < warmup_steps:
        return compute_warmup_factor(finished_steps, warmup_steps)
    progress = compute_decay_progress(finished_steps, warmup_steps, recipe.lr_decay_steps)
    return compute_cosine_factor(progress, recipe.min_lr_fraction)


class GptOssJob(NextTokenJob):
    """The training of GPT-OSS on one rank; see ``trainmark.protocols.Job`` for the methods."""

    def __init__(self, context: JobContext, data: Splits) -> None:
        recipe: GptOssRecipe = context.recipe
        if recipe.expert_parallel > 1:
            ranks = Ranks.from_expert_groups(context, recipe.expert_parallel)
        else:
            # Even without FSDP2 a mesh is needed, to sum the counts of routed tokens over ranks.
            ranks = Ranks.from_context(context, with_mesh=True)
        # None: every rank has all experts.
        expert_mesh = ranks.mesh["expert"] if ranks.mesh and ranks.expert_size > 1 else None
        dispatcher = Dispatcher(
            recipe.num_experts,
            mesh=expert_mesh,
            # Returns a context manager that times an exchange of tokens, as a part of the step.
            timed=lambda: context.stages.stage(EXCHANGE_PART, context.device),
        )
        self.kernels = choose_kernels(recipe, context.device.torch_type)
        choose_attention_kernels(context.device)
        model = build_model(recipe, self.kernels, dispatcher)
        layers = list_routed_layers(model)
        if expert_mesh is not None:  # before the weights get memory, in ``super().__init__``
            for layer in layers:
                layer.experts.share(expert_mesh)  # each rank keeps only its own
        super().__init__(
            context,
            data,
            ranks=ranks,
            model=model,
            # The model has no memory for its weights yet: called when it is sharded over ranks.
            materialize=partial(materialize_weights, model, seed=recipe.seed, std=INIT_STD),
            blocks=model.blocks,
            # Each rank already has only its own experts, so they are sharded only over the ranks
            # that have the same ones. Without an expert mesh they are sharded as all weights.
            experts=[layer.experts for layer in layers] if expert_mesh is not None else (),
            adam_eps=recipe.adam_eps,
            compiled=False,  # ``build_model`` compiles what can be compiled
            schedule_lr=lambda steps: compute_lr_factor(recipe, steps),
        )
        self.meter = RoutingMeter(
            [layer.experts for layer in layers],
            num_experts=recipe.num_experts,
            top_k=recipe.top_k,
            ranks=ranks,
            device=self.stepper.device,
            is_forced=recipe.routing == "balanced",  # then the router does not choose the experts
        )
        for layer in layers:
            layer.meter = self.meter
        # Override those of NextTokenJob, which are attributes.
        self.step = self._take_step
        self.check = self._check

    def _take_step(self, batches: Iterator[Batch]) -> Tensor | None:
        """Take one step and close its count of routed tokens; see ``Job.step``."""
        loss = self.stepper.step(batches)
        if loss is not None:  # None: ``batches`` had ended, so there was no step
            self.meter.end_step()
        return loss

    def _compute_loss_sum(self, batch: Batch) -> Tensor:
        """Return the sum of the losses of a batch, and count how its tokens are routed."""
        tokens = batch.counts.tokens_padded
        # A rank without samples in the last step gets a batch that trains none. Its ``counts`` are
        # 0, but its tokens are routed too, so the meter must know their number. A row has one token
        # more than the model reads: the last one is only a target.
        filler_tokens = 0 if batch.samples_trained else batch.tensors[:, 1:].numel()
        with self.meter.count_within(tokens=tokens, filler_tokens=filler_tokens):
            return super()._compute_loss_sum(batch)

    def _check(self) -> None:
        """Raise an error if the loss scale is too low, or experts lack tokens or gradients."""
        self.stepper.check()
        self.meter.check()

    def flops_per_token(self) -> tuple[float, float]:
        """Return the model FLOPs of training a token, and the part that is full attention.

        Full attention has no sliding window; the causal mask hides half of it.
        """
        recipe: GptOssRecipe = self.recipe
        return recipe.flops_per_token

    def facts(self) -> Mapping[str, Any]:
        """Return the facts of the job for the record; see ``Job.facts``."""
        recipe = self.recipe
        ranks = self.ranks
        matmul_dtype = AUTOCAST_DTYPES.get(recipe.precision, torch.float32)
        row_bytes = recipe.hidden_size * matmul_dtype.itemsize
        # Overloads are summarized over the steps after the warm-up. Sums, such as
        # ``sent_assignments``, are over all steps, as is ``meter.tokens``.
        facts = {**super().facts(), **self.meter.summarize(first_step=recipe.warmup_steps)}
        # An assignment sends one row, a token's hidden state, to an expert on another rank. The row
        # is sent, its result comes back, and both have gradients: four transfers.
        exchanged_bytes = 4 * facts["sent_assignments"] * row_bytes
        return facts | {
            "flops_formula": "palm-appendix-b, top-k experts",
            "active_parameters": recipe.active_parameters,
            "parallel": {
                "data": ranks.data_size,
                "experts": ranks.expert_size,
                "fsdp": recipe.fsdp and ranks.mesh is not None,
            },
            "routing": recipe.routing,
            "experts": f"{recipe.top_k} / {recipe.num_experts}",
            # Both are of this rank. At least 1, because no token is counted before the first step.
            "exchanged_bytes_per_token": exchanged_bytes / max(self.meter.tokens, 1),
            "kernels": self.kernels.describe_used("cross_entropy"),
        }


build = GptOssJob
