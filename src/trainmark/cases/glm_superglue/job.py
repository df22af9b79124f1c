"""The torch side of GLM on ReCoRD: replicas, optimizer, batches of choices, accuracy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - the field's name for it

from trainmark.protocols import Batch, Counts, Evaluation
from trainmark.train.attention import fit_attention
from trainmark.train.evaluation import EvaluationSum, ScoredRows
from trainmark.train.parameters import trained
from trainmark.train.read_ahead import read_ahead
from trainmark.train.shards import Sharding, evaluation_rows, training_batches
from trainmark.train.stepper import (
    Stepper,
    compute_decay_progress,
    compute_warmup_factor,
    make_decay_groups,
)

from . import data as cloze_data
from .data.examples import order_by_choices
from .model import build_model, load_checkpoint

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray
    from torch import Tensor

    from trainmark.protocols import JobContext

    from .case import GlmRecipe
    from .data import GlmData
    from .data.examples import ChoiceBatch
    from .model import Glm


def _make_tensors(*arrays: NDArray[Any]) -> list[Tensor]:
    return [torch.from_numpy(item) for item in arrays]


@dataclass(frozen=True, slots=True)
class SequenceTensors:
    """The model's inputs for N sequences, and the sequence that each of K targets belongs to.

    Args:
        inputs: ids, positions and block positions (N, S), separators (N,), target rows and target
            ids (K,).
        target_owner: index of each target's sequence (K,).
    """

    inputs: tuple[Tensor, ...]
    target_owner: Tensor

    @classmethod
    def from_batch(cls, batch: ChoiceBatch) -> SequenceTensors:
        """Return the tensors of ``batch``, on the host."""
        *inputs, target_owner = _make_tensors(
            batch.ids,
            batch.positions,
            batch.block_positions,
            batch.separators,
            batch.target_rows,
            batch.target_ids,
            batch.target_owner,
        )
        return cls(tuple(inputs), target_owner)

    def sum_scores(self, log_probs: Tensor) -> Tensor:
        """Return the score of each sequence (N,), summed over its targets' ``log_probs`` (K,)."""
        empty = log_probs.new_zeros(len(self.inputs[0]))
        return empty.index_add(0, self.target_owner, log_probs)


@dataclass(frozen=True, slots=True)
class ScoreLayout:
    """The positions of the scores of N sequences in a table of B samples and C candidates.

    Args:
        owner, slot: sample and candidate of each sequence (N,).
        samples, max_choices: B and C.
    """

    owner: Tensor
    slot: Tensor
    samples: int
    max_choices: int

    @classmethod
    def from_batch(cls, batch: ChoiceBatch) -> ScoreLayout:
        """Return the layout of ``batch``, on the host."""
        owner, slot = _make_tensors(batch.owner, batch.slot)
        return cls(owner, slot, batch.samples, batch.max_choices)

    def arrange_scores(self, scores: Tensor) -> Tensor:
        """Return ``scores`` (N,) as a table (B, C), with -inf where there is no candidate."""
        empty = scores.new_full((self.samples, self.max_choices), -torch.inf)
        return empty.index_put((self.owner, self.slot), scores)

    def compute_loss_sum(self, scores: Tensor) -> Tensor:
        """Return the sum over samples of the cross-entropy; candidate 0 is the right one."""
        right_choices = torch.zeros(self.samples, dtype=torch.long, device=scores.device)
        return F.cross_entropy(self.arrange_scores(scores), right_choices, reduction="sum")

    def count_right(self, scores: Tensor, correct: Tensor) -> Tensor:
        """Return the number of samples whose best candidate is right, as an integer tensor.

        Args:
            correct: whether the candidate of each sequence is right, bool (N,).
        """
        best = self.arrange_scores(scores).argmax(1, keepdim=True)
        right = self.arrange_scores(
            correct.float()
        )  # a place without a candidate is never the best
        return (right.gather(1, best) > 0).sum()


# An evaluation scores 10 sequences for each sample of a batch in one forward pass.
SEGMENT_CHOICES = 10


def load_data(context: JobContext) -> GlmData:
    """Return training and validation samples."""
    return cloze_data.load(context.data_dir, context.recipe)


def compute_lr_factor(recipe: GlmRecipe, finished_steps: int) -> float:
    """Return the next step's learning rate over the peak: linear rise, then linear decay."""
    warmup = recipe.lr_warmup_fraction * recipe.lr_decay_steps
    progress = compute_decay_progress(finished_steps, warmup, recipe.lr_decay_steps)
    return compute_warmup_factor(finished_steps, warmup) * (1 - (1 - recipe.lr_floor) * progress)


class GlmJob:
    """See ``trainmark.protocols.Job``."""

    def __init__(self, context: JobContext, data: GlmData) -> None:
        recipe: GlmRecipe = context.recipe
        self.context, self.data, self.recipe = context, data, recipe
        self.shape = recipe.shape
        fit_attention(context.device, dropout=recipe.dropout, shapes_vary=True)
        self.model: Glm = build_model(
            self.shape,
            dropout=recipe.dropout,
            seed=recipe.seed,
            checkpoint_activations=recipe.checkpoint_activations,
        )
        pretrained = recipe.init == "pretrained"
        self.loaded = load_checkpoint(self.model, context.data_dir) if pretrained else None
        context.device.place(self.model)
        optimizer = torch.optim.AdamW(
            make_decay_groups(self.model, recipe.weight_decay),
            lr=recipe.learning_rate,
            betas=(0.9, 0.999),
            fused=True,
        )
        self.sharding = Sharding.of(context, num_rows=len(data.train))
        self.steps_per_epoch = self.sharding.steps_per_epoch
        self.stepper = Stepper(
            context,
            self.model,
            optimizer,
            self._compute_loss_sum,
            schedule_lr=lambda steps: compute_lr_factor(recipe, steps),
            max_grad_norm=recipe.max_grad_norm,
            loss_scale_window=recipe.loss_scale_window,
            loss_scale_hysteresis=recipe.loss_scale_hysteresis,
        )
        self.step, self.check = self.stepper.step, self.stepper.check
        self.updates = self.stepper.updates

    def batches(self, epoch: int) -> Iterator[Batch]:
        train, recipe = self.data.train, self.recipe
        order = None
        if recipe.group_by_choices:
            order = order_by_choices(train.num_choices, self.sharding, epoch)
        return training_batches(
            train,
            self.sharding,
            epoch,
            order=order,
            tensors=lambda choices: (
                SequenceTensors.from_batch(choices),
                ScoreLayout.from_batch(choices),
            ),
            identity=lambda choices: torch.from_numpy(choices.first_ids),
        )

    def _compute_loss_sum(self, batch: Batch) -> Tensor:
        sequences, places = batch.tensors
        scores = sequences.sum_scores(self.stepper.model(*sequences.inputs))
        loss: Tensor = places.compute_loss_sum(scores)
        return loss

    def trained_parameters(self) -> Mapping[str, Tensor]:
        return trained(self.model)

    def evaluate(self) -> Evaluation:
        """Return the share of validation samples with a right answer; see ``Job.evaluate``."""
        world_size, total = self.context.world_size, len(self.data.validation)
        rows = evaluation_rows(total, rank=self.context.rank, world_size=world_size)
        scored = self.score(rows)
        right, _, num_samples = scored.over_ranks(world_size=world_size, device=self.stepper.device)
        assert num_samples == total, f"{num_samples} of {total} validation samples were scored"
        return Evaluation(
            right / num_samples, num_samples, {"correct": right}, scores=scored.scores()
        )

    @torch.no_grad()
    def score(self, rows: range) -> EvaluationSum:
        """Return the number of validation samples ``rows`` that the model answers rightly.

        All candidates of a sample are scored, in as many forward passes as necessary.
        """
        scored = EvaluationSum()
        depth = self.recipe.read_ahead_batches
        self.model.eval()
        for chunks, places, correct, samples in read_ahead(
            self._read_scoring_batches(rows), self.context.device, depth=depth
        ):
            scores = torch.cat([self._compute_scores(sequences) for sequences in chunks])
            scored.add(samples, total=places.count_right(scores, correct))
        self.model.train()
        return scored

    def _read_scoring_batches(
        self, rows: range
    ) -> Iterator[tuple[list[SequenceTensors], ScoreLayout, Tensor, ScoredRows]]:
        """Yield batches to score: inputs by forward pass, layout, correct candidates, rows.

        ``correct`` is bool (N,), over the sequences of all forward passes of the batch.
        """
        size = self.recipe.micro_batch_size
        for first in range(0, len(rows), size):
            choices, _ = self.data.validation.batch(rows[first : first + size])
            chunks = [
                SequenceTensors.from_batch(chunk)
                for chunk in choices.split_sequences(SEGMENT_CHOICES * size)
            ]
            scored = ScoredRows.of(choices.first_ids, choices.samples)
            yield chunks, ScoreLayout.from_batch(choices), torch.from_numpy(choices.correct), scored

    def _compute_scores(self, sequences: SequenceTensors) -> Tensor:
        """Return the score of each sequence (N,)."""
        with self.stepper.autocast():
            return sequences.sum_scores(self.model(*sequences.inputs))

    def model_flops(self, counts: Counts) -> float:
        """Return the FLOPs of the blocks for the sequences that were run.

        Attention is counted with the mean length of ``counts``. The head, which runs at a few
        positions per sequence, is not counted. So the result never exceeds the computed FLOPs.
        """
        if not counts.sequences:
            return 0.0
        length = counts.tokens_padded / counts.sequences
        return self.shape.compute_flops_per_token(length) * counts.tokens_padded

    def facts(self) -> Mapping[str, Any]:
        recipe = self.recipe
        return {
            "parameters": self.shape.parameters,
            "trainable_parameters": self.shape.parameters,
            "flops_formula": "palm-appendix-b, blocks only",
            "init": recipe.init,
            "checkpoint": self.loaded,
            "group_by_choices": recipe.group_by_choices,
            "trim_padding": recipe.trim_padding,
            "shortened_samples": {
                "train": self.data.train.shortened,
                "validation": self.data.validation.shortened,
            },
            "skipped_steps": self.stepper.skipped_steps(),
        }


build = GlmJob
