"""The torch side of the GPT: its model, optimizer and learning rates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trainmark.train.attention import choose_attention_kernels
from trainmark.train.kernels import choose_kernels
from trainmark.train.next_token import NextTokenJob
from trainmark.train.parallel import Ranks
from trainmark.train.stepper import (
    compute_cosine_factor,
    compute_decay_progress,
    compute_warmup_factor,
)

from . import data as corpus
from .model import apply_tensor_parallelism, build_model

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trainmark.data.sampling import Splits
    from trainmark.protocols import JobContext

    from .case import GptRecipe


def load_data(context: JobContext) -> Splits:
    """Return training and validation samples over the mapped tokens."""
    return corpus.load(context.data_dir, context.recipe)


def compute_lr_factor(recipe: GptRecipe, finished_steps: int) -> float:
    """Return the next step's learning rate divided by the peak: linear rise, then cosine."""
    warmup_steps = recipe.lr_warmup_fraction * recipe.lr_decay_steps
    min_factor = recipe.min_learning_rate / recipe.learning_rate
    progress = compute_decay_progress(finished_steps, warmup_steps, recipe.lr_decay_steps)
    # The cosine's factor is 1 during the warm-up, and the warm-up's factor is 1 afterwards.
    warmup_factor = compute_warmup_factor(finished_steps, warmup_steps)
    return warmup_factor * compute_cosine_factor(progress, min_factor)


# Megatron-LM's defaults for fp16, megatron/training/arguments.py in
# https://github.com/NVIDIA/Megatron-LM, 2026-11-22.
LOSS_SCALE: dict[str, Any] = {
    "loss_scale_start": 2.0**32,
    "loss_scale_window": 1000,
    "loss_scale_hysteresis": 2,
}


class GptJob(NextTokenJob):
    """The training of GPT on one rank; see ``trainmark.protocols.Job`` for the methods."""

    def __init__(self, context: JobContext, data: Splits) -> None:
        recipe: GptRecipe = context.recipe
        ranks = Ranks.from_context(
            context, tensor_parallel=recipe.tensor_parallel, with_mesh=recipe.fsdp
        )
        self.kernels = choose_kernels(recipe, context.device.torch_type)
        # The choice holds for all calls of attention on the device, so it comes before the first.
        choose_attention_kernels(context.device, dropout=recipe.dropout)
        model = build_model(recipe, seed=recipe.seed, kernels=self.kernels)
        context.device.place(model)  # moves the module in place
        if ranks.tensor_size > 1:
            # ``with_mesh`` only asks for a mesh for FSDP; tensor parallelism always has one.
            assert ranks.mesh is not None
            apply_tensor_parallelism(model, ranks.mesh["tensor"])
        super().__init__(
            context,
            data,
            ranks=ranks,
            model=model,
            blocks=model.blocks,
            compiled=recipe.compile,
            schedule_lr=lambda steps: compute_lr_factor(recipe, steps),
            **LOSS_SCALE,  # options of the fp16 loss scaler, as in Megatron-LM
        )

    def facts(self) -> Mapping[str, Any]:
        """Return the facts of the job for the record; see ``Job.facts``."""
        return {
            **super().facts(),
            "padded_vocab_size": self.recipe.padded_vocab_size,
            "kernels": self.kernels.describe_used("cross_entropy"),
        }


build = GptJob
