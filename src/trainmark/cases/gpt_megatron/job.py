"""The torch side of the GPT: replicas, optimizer, batches, validation."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from trainmark.errors import DataError
from trainmark.protocols import Batch, Counts, Evaluation
from trainmark.train.kernels.choice import choose
from trainmark.train.optimizer import decay_groups, decay_progress, warmup_factor
from trainmark.train.parallel import Ranks, parallelize
from trainmark.train.parameters import trained
from trainmark.train.read_ahead import read_ahead
from trainmark.train.shards import Sharding, evaluation_batches, training_batches
from trainmark.train.stepper import Stepper, add_floats_over_ranks, add_over_ranks

from . import data as corpus
from .model import build_model, tensor_parallelize

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from trainmark.protocols import JobContext

    from .data import Loaded
    from .recipe import GptRecipe


def load_data(context: JobContext) -> Loaded:
    """Return training and validation samples over the mapped tokens."""
    return corpus.load(context.data_dir, context.recipe)


def lr_factor(recipe: GptRecipe, finished_steps: int) -> float:
    """Return the learning rate of the next step over the peak: linear rise, then cosine."""
    warmup = round(recipe.lr_warmup_fraction * recipe.lr_decay_steps)
    lowest = recipe.min_learning_rate / recipe.learning_rate
    done = decay_progress(finished_steps, warmup, recipe.lr_decay_steps)
    cosine = lowest + (1 - lowest) * (1 + math.cos(math.pi * done)) / 2
    return warmup_factor(finished_steps, warmup) * cosine


class GptJob:
    """See ``trainmark.protocols.Job``."""

    def __init__(self, context: JobContext, data: Loaded) -> None:
        recipe: GptRecipe = context.recipe
        self.context, self.data, self.recipe = context, data, recipe
        ranks = Ranks.of(context, tensor_parallel=recipe.tensor_parallel, with_mesh=recipe.fsdp)
        self.ranks = ranks
        self.kernels = choose(recipe, context.device.torch_type)
        self.model = build_model(self.recipe, seed=recipe.seed, kernels=self.kernels)
        self.parameters = sum(item.numel() for item in self.model.parameters())
        context.device.place(self.model)
        if ranks.tensor_size > 1:
            assert ranks.mesh is not None
            tensor_parallelize(self.model, ranks.mesh["tensor"])
        replicas = parallelize(
            self.model, ranks, compiled=recipe.compile,
            shards=self.model.blocks if recipe.fsdp else None,
        )  # fmt: skip
        optimizer = torch.optim.AdamW(
            decay_groups(self.model, recipe.weight_decay),
            lr=recipe.learning_rate,
            betas=(0.9, recipe.adam_beta2),
            fused=True,
        )
        self.sharding = Sharding.of(
            context, num_rows=len(data.train), rank=ranks.data_rank, world_size=ranks.data_size
        )
        self.steps_per_epoch = self.sharding.steps_per_epoch
        self.stepper = Stepper.over(
            context, ranks, replicas, optimizer, self._loss_sum,
            schedule_lr=lambda steps: lr_factor(recipe, steps),
            max_grad_norm=recipe.max_grad_norm,
        )  # fmt: skip
        self.step, self.check = self.stepper.step, self.stepper.check
        self.updates = self.stepper.updates

    def batches(self, epoch: int) -> Iterator[Batch]:
        index = self.data.train.epoch(epoch)
        return training_batches(
            index, self.sharding, epoch, order=index.shuffle, counted=self.ranks.counts_here,
            tensors=self._checked,
        )  # fmt: skip

    def _checked(self, tokens: NDArray[Any]) -> Tensor:
        """Return token ids (B, T + 1) on the host: T to read, each followed by its target.

        Raises:
            DataError: an id past the vocabulary. The check before the run knows a file by
                size and time of change, and a table cut over ranks would take it for zero.
        """
        low, high = int(tokens.min()), int(tokens.max())
        if not 0 <= low <= high < self.recipe.vocab_size:
            raise DataError(
                f"token ids from {low} to {high}",
                where=str(self.context.data_dir),
                rule=f"a token id lies in [0, {self.recipe.vocab_size}), the recipe's vocab_size",
                remedy="the tokens changed since they were checked: remove indices/ beside them "
                "and run again",
            )
        return torch.from_numpy(tokens)

    def _loss_sum(self, batch: Batch) -> Tensor:
        """Return the sum over samples of each sample's mean loss a token."""
        ids: Tensor = batch.tensors
        total: Tensor = self.stepper.model(ids[:, :-1], ids[:, 1:])
        return total / self.recipe.seq_length

    def trained_parameters(self) -> Mapping[str, Tensor]:
        return trained(self.model)

    @torch.no_grad()
    def evaluate(self) -> Evaluation:
        """Return the mean loss of the validation samples; see ``Job.evaluate``.

        Every rank takes the same number of forward passes, because a sharded or divided
        model needs all its ranks in each.
        """
        index = self.data.validation.in_order()
        ranks, total, device = self.ranks, len(self.data.validation), self.stepper.device
        host = evaluation_batches(
            index, size=self.recipe.micro_batch_size, rank=ranks.data_rank,
            world_size=ranks.data_size, tensors=self._checked,
        )  # fmt: skip
        loss, scored = torch.zeros((), device=device), 0
        self.model.eval()
        depth = self.recipe.read_ahead_batches
        for ids, samples in read_ahead(host, self.context.device, depth=depth):
            with self.stepper.autocast():
                found = self.model(ids[:, :-1], ids[:, 1:])
            loss += found if samples else 0.0
            scored += samples
        self.model.train()
        counted = ranks.counts_here
        world_size = self.context.world_size
        (scored,) = add_over_ranks(scored if counted else 0, world_size=world_size, device=device)
        (loss_sum,) = add_floats_over_ranks(
            loss.item() if counted else 0.0, world_size=world_size, device=device
        )
        assert scored == total, f"{scored} of {total} validation samples were scored"
        return Evaluation(loss_sum / (scored * self.recipe.seq_length), scored)

    def model_flops(self, counts: Counts) -> float:
        recipe = self.recipe
        attention = 12.0 * recipe.num_layers * recipe.hidden_size * recipe.seq_length
        return (6.0 * recipe.matmul_weights + attention) * counts.tokens_padded

    def facts(self) -> Mapping[str, Any]:
        ranks = self.ranks
        return {
            "parameters": self.parameters,
            "trainable_parameters": self.parameters,
            "flops_formula": "palm-appendix-b",
            "padded_vocab_size": self.recipe.padded_vocab_size,
            "kernels": self.kernels.used("attention", "cross_entropy"),
            "parallel": {
                "data": ranks.data_size, "tensor": ranks.tensor_size,
                "fsdp": self.recipe.fsdp and ranks.mesh is not None,
            },
            "skipped_steps": self.stepper.skipped_steps(),
        }  # fmt: skip


build = GptJob
