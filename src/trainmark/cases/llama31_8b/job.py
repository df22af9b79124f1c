"""The torch side of Llama 3.1: its model over the ranks, optimizer and learning rates."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from trainmark.train.attention import choose_attention_kernels
from trainmark.train.causal_model import materialize_weights
from trainmark.train.kernels import choose_kernels
from trainmark.train.next_token import NextTokenJob
from trainmark.train.parallel import Ranks
from trainmark.train.stepper import compute_cosine_factor, compute_decay_progress

from . import data as corpus
from .model import INIT_STD, apply_tensor_parallelism, build_model

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trainmark.data.sampling import Splits
    from trainmark.protocols import JobContext

    from .case import Llama31Recipe


def load_data(context: JobContext) -> Splits:
    """Return training and validation samples over the mapped tokens."""
    return corpus.load(context.data_dir, context.recipe)


def compute_lr_factor(recipe: Llama31Recipe, finished_steps: int) -> float:
    """Return the next step's learning rate as a fraction of the peak: linear rise, then cosine.

    As in NeMo's WarmupAnnealing, step k of w warm-up steps, counted from 1, has k / (w + 1).
    """
    warmup_steps = recipe.lr_warmup_steps
    if finished_steps < warmup_steps:
        return (finished_steps + 1) / (warmup_steps + 1)
    progress = compute_decay_progress(finished_steps, warmup_steps, recipe.lr_decay_steps)
    return compute_cosine_factor(progress, recipe.min_lr_fraction)


class Llama31Job(NextTokenJob):
    """The training of Llama 3.1 on one rank; see ``trainmark.protocols.Job`` for the methods."""

    def __init__(self, context: JobContext, data: Splits) -> None:
        recipe: Llama31Recipe = context.recipe
        ranks = Ranks.from_context(
            context, tensor_parallel=recipe.tensor_parallel, with_mesh=recipe.fsdp
        )
        self.kernels = choose_kernels(recipe, context.device.torch_type)
        choose_attention_kernels(context.device)  # for all models, until the next call
        model = build_model(recipe, self.kernels, context.device.torch_type)
        if ranks.tensor_size > 1:
            # ``with_mesh`` only asks for a mesh for FSDP; tensor parallelism always has one.
            assert ranks.mesh is not None
            apply_tensor_parallelism(model, recipe, ranks.mesh["tensor"])
        super().__init__(
            context,
            data,
            ranks=ranks,
            model=model,
            # The model has no memory for its weights yet: called when it is sharded over ranks.
            materialize=partial(materialize_weights, model, seed=recipe.seed, std=INIT_STD),
            blocks=model.blocks,
            adam_eps=recipe.adam_eps,
            compiled=False,  # not as a whole: ``build_model`` has compiled each block
            schedule_lr=lambda steps: compute_lr_factor(recipe, steps),
        )

    def facts(self) -> Mapping[str, Any]:
        """Return what the record states about the job: facts of all such jobs, and the kernels."""
        return {**super().facts(), "kernels": self.kernels.describe_used("cross_entropy")}


build = Llama31Job
