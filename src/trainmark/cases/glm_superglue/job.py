"""The torch side of GLM on ReCoRD: replicas, optimizer, batches of choices, accuracy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - the field's name for it

from trainmark.protocols import Batch, Counts, Evaluation
from trainmark.train.attention import choose_attention_kernels
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

    from trainmark.protocols import JobContext

    from .case import GlmRecipe
    from .data import GlmData
    from .data.examples import ChoiceBatch
    from .model import Glm


@dataclass(frozen=True, slots=True)
class SequenceTensors:
    """The model's inputs for N sequences, and the sequence that each of K targets belongs to.

    Args:
        inputs: the parameters of ``Glm.forward``: ids, positions and block positions (N, S), prefix
            lengths (N,), target rows and target ids (K,).
        sequence_of_target: index of each target's sequence (K,).
    """

    inputs: tuple[Tensor, ...]
    sequence_of_target: Tensor

    @classmethod
    def from_batch(cls, batch: ChoiceBatch) -> SequenceTensors:
        """Return the tensors of ``batch``, on the host."""
        inputs = (  # in the order of the parameters of ``Glm.forward``
            batch.ids,
            batch.positions,
            batch.block_positions,
            batch.prefix_lengths,
            batch.target_rows,
            batch.target_ids,
        )
        return cls(
            inputs=tuple(torch.from_numpy(array) for array in inputs),
            sequence_of_target=torch.from_numpy(batch.sequence_of_target),
        )

    def sum_scores(self, log_probs: Tensor) -> Tensor:
        """Return the score of each sequence: the sum of its targets' log-probabilities (N,).

        Args:
            log_probs: of all targets of all sequences (K,).
        """
        num_sequences = len(self.inputs[0])  # the first input are the token ids (N, S)
        zeros = log_probs.new_zeros(num_sequences)
        return zeros.index_add(0, self.sequence_of_target, log_probs)


@dataclass(frozen=True, slots=True)
class ScoreLayout:
    """The positions of the scores of N sequences in a table of B samples and C candidates.

    Args:
        sample_of_sequence: index of each sequence's sample in the batch (N,).
        choice_of_sequence: index of each sequence's candidate in its sample (N,).
        num_samples: B, number of samples in the batch.
        max_choices: C, maximum number of candidates of a sample.
    """

    sample_of_sequence: Tensor
    choice_of_sequence: Tensor
    num_samples: int
    max_choices: int

    @classmethod
    def from_batch(cls, batch: ChoiceBatch) -> ScoreLayout:
        """Return the layout of ``batch``, on the host."""
        return cls(
            sample_of_sequence=torch.from_numpy(batch.sample_of_sequence),
            choice_of_sequence=torch.from_numpy(batch.choice_of_sequence),
            num_samples=batch.num_samples,
            max_choices=batch.max_choices,
        )

    def arrange_scores(self, scores: Tensor) -> Tensor:
        """Return a table with the score of each candidate of each sample (B, C).

        C is the number of candidates of the sample with the most. The rows of samples with fewer
        candidates are filled with -inf.

        Args:
            scores: of each sequence, which is one candidate of one sample (N,).
        """
        empty = scores.new_full((self.num_samples, self.max_choices), -torch.inf)
        return empty.index_put((self.sample_of_sequence, self.choice_of_sequence), scores)

    def compute_loss_sum(self, scores: Tensor) -> Tensor:
        """Return the sum over samples of the cross-entropy of the right candidate.

        The scores of a sample's candidates are the logits. Used in training only, where candidate 0
        of each sample is the right one.

        Args:
            scores: of each sequence, which is one candidate of one sample (N,).
        """
        right_choices = torch.zeros(self.num_samples, dtype=torch.long, device=scores.device)
        return F.cross_entropy(self.arrange_scores(scores), right_choices, reduction="sum")

    def count_right(self, scores: Tensor, is_right: Tensor) -> Tensor:
        """Return the number of samples whose best-scored candidate is right, as an integer tensor.

        Args:
            scores: of each sequence, which is one candidate of one sample (N,).
            is_right: whether the candidate of each sequence is right, bool (N,).
        """
        # B rows of C candidates. A sample with fewer candidates has scores of -inf at the end of
        # its row, which are never the best.
        best_candidates = self.arrange_scores(scores).argmax(1, keepdim=True)  # (B, 1)
        # The same table for ``is_right``: 1.0 for right, 0.0 for wrong, -inf for no candidate.
        is_right_table = self.arrange_scores(is_right.float())
        return (is_right_table.gather(1, best_candidates) > 0).sum()


class ScoringBatch(NamedTuple):
    """A batch of validation samples to score.

    Args:
        chunks: inputs of each forward pass; together they have the N sequences of the batch.
        layout: the sample and the candidate of each sequence.
        is_right: whether the candidate of each sequence is right, bool (N,).
        scored_rows: the number of samples, and a key of each.
    """

    chunks: list[SequenceTensors]
    layout: ScoreLayout
    is_right: Tensor
    scored_rows: ScoredRows


# One forward pass of an evaluation scores at most this many sequences for each sample of a batch:
# as many as a sample has in training by default, one right candidate and 9 wrong ones.
CHOICES_PER_PASS = 10


def load_data(context: JobContext) -> GlmData:
    """Return training and validation samples."""
    return cloze_data.load(context.data_dir, context.recipe)


def compute_lr_factor(recipe: GlmRecipe, finished_steps: int) -> float:
    """Return the learning rate of the next step as a fraction of the peak rate.

    The fraction rises linearly from 0 to 1 in the warm-up. Then it falls linearly to ``lr_floor``,
    which it reaches after ``lr_decay_steps`` steps, warm-up included, and keeps.
    """
    warmup_steps = recipe.lr_warmup_fraction * recipe.lr_decay_steps
    progress = compute_decay_progress(finished_steps, warmup_steps, recipe.lr_decay_steps)
    # The decay's factor is 1 during the warm-up, and the warm-up's factor is 1 afterwards.
    decay_factor = 1 - (1 - recipe.lr_floor) * progress
    return compute_warmup_factor(finished_steps, warmup_steps) * decay_factor


class GlmJob:
    """The training of GLM on one rank; see ``trainmark.protocols.Job`` for the methods."""

    def __init__(self, context: JobContext, data: GlmData) -> None:
        recipe: GlmRecipe = context.recipe
        self.context = context
        self.data = data
        self.recipe = recipe
        self.shape = recipe.shape
        # Shapes vary between steps, because samples have different numbers of candidates.
        choose_attention_kernels(context.device, dropout=recipe.dropout, shapes_vary=True)
        self.model: Glm = build_model(
            self.shape,
            dropout=recipe.dropout,
            seed=recipe.seed,
            checkpoint_activations=recipe.checkpoint_activations,
        )
        pretrained = recipe.init == "pretrained"
        # For the record: the tensors of the checkpoint that the model does not use, and the tables
        # whose number of rows differs. None: no checkpoint is loaded, and the weights are random.
        self.checkpoint_report = (
            load_checkpoint(self.model, context.data_dir) if pretrained else None
        )
        context.device.place(self.model)  # moves the module in place
        optimizer = torch.optim.AdamW(
            make_decay_groups(self.model, recipe.weight_decay),
            lr=recipe.learning_rate,
            betas=(0.9, 0.999),
            fused=True,
        )
        # Which samples this rank trains in each step.
        self.sharding = Sharding.of(context, num_rows=len(data.train))
        self.steps_per_epoch = self.sharding.steps_per_epoch
        self.stepper = Stepper(
            context,
            self.model,
            optimizer,
            self._compute_loss_sum,
            schedule_lr=lambda finished_steps: compute_lr_factor(recipe, finished_steps),
            max_grad_norm=recipe.max_grad_norm,
            loss_scale_window=recipe.loss_scale_window,
            loss_scale_hysteresis=recipe.loss_scale_hysteresis,
        )
        # These methods of the ``Job`` protocol, which this class implements, are the stepper's.
        self.step = self.stepper.step
        self.check = self.stepper.check
        self.updates = self.stepper.updates

    def batches(self, epoch: int) -> Iterator[Batch]:
        """Yield this rank's micro-batches of an epoch, on the host, in the order of training."""
        train, recipe = self.data.train, self.recipe
        order = None  # ``training_batches`` then permutes the samples at random, by seed and epoch
        if recipe.group_by_choices:
            # All ranks get similar numbers of candidates in a micro-batch, so they wait less for
            # each other.
            order = order_by_choices(train.num_choices, self.sharding, epoch)
        return training_batches(
            train,
            self.sharding,
            epoch,
            order=order,
            # What ``_compute_loss_sum`` gets as the tensors of a batch.
            tensors=lambda choice_batch: (
                SequenceTensors.from_batch(choice_batch),
                ScoreLayout.from_batch(choice_batch),
            ),
            # The check of the trained samples recognizes a sample by the token ids of its first
            # sequence.
            identity=lambda choice_batch: torch.from_numpy(choice_batch.first_ids),
        )

    def _compute_loss_sum(self, batch: Batch) -> Tensor:
        """Return the sum of the losses of a micro-batch's samples.

        The stepper calls it under autocast.
        """
        sequences, layout = batch.tensors  # ``SequenceTensors`` and ``ScoreLayout``
        # The model returns the log-probability of each target; a sequence's score is their sum. The
        # stepper's model is ``self.model`` as it is wrapped for training on several ranks.
        scores = sequences.sum_scores(self.stepper.model(*sequences.inputs))
        loss_sum: Tensor = layout.compute_loss_sum(scores)
        return loss_sum

    def trained_parameters(self) -> Mapping[str, Tensor]:
        """Return the parameters that training changes, by name."""
        return trained(self.model)

    def evaluate(self) -> Evaluation:
        """Return the share of validation samples whose best-scored candidate is right.

        Every rank evaluates a part of the samples and returns the share over all ranks.
        """
        world_size = self.context.world_size
        total = len(self.data.validation)
        rows = evaluation_rows(total, rank=self.context.rank, world_size=world_size)
        evaluation_sum = self.score(rows)
        # Over all ranks: the number of samples with a right answer, the sum of the samples' weights
        # (all 1, so not needed) and the number of samples.
        num_right, _, num_samples = evaluation_sum.sum_over_ranks(
            world_size=world_size, device=self.stepper.device
        )
        assert num_samples == total, f"{num_samples} of {total} validation samples were scored"
        return Evaluation(
            value=num_right / num_samples,
            samples=num_samples,
            detail={"correct": num_right},  # the record lists it beside the accuracy
            scores=evaluation_sum.scores(),  # of this rank, for the checks of the evaluation
        )

    @torch.no_grad()
    def score(self, rows: range) -> EvaluationSum:
        """Count the right answers among the validation samples ``rows``, which this rank evaluates.

        An answer is right if the candidate with the highest score is a right one. All candidates of
        a sample are scored, in as many forward passes as necessary.
        """
        evaluation_sum = EvaluationSum()
        host_batches = self._read_scoring_batches(rows)
        depth = self.recipe.read_ahead_batches  # number of batches
        self.model.eval()
        # ``read_ahead`` yields the batches with their tensors on the device.
        for batch in read_ahead(host_batches, self.context.device, depth=depth):
            # A chunk has the sequences of one forward pass.
            scores = torch.cat([self._compute_scores(sequences) for sequences in batch.chunks])
            num_right = batch.layout.count_right(scores, batch.is_right)
            # ``scored_rows`` has the number of samples, and a key of each for the checks.
            evaluation_sum.add(batch.scored_rows, total=num_right)
        self.model.train()
        return evaluation_sum

    def _read_scoring_batches(self, rows: range) -> Iterator[ScoringBatch]:
        """Yield the validation samples ``rows`` on the host, in batches of the training's size."""
        batch_size = self.recipe.micro_batch_size  # in samples
        for first in range(0, len(rows), batch_size):
            choice_batch, _counts = self.data.validation.batch(rows[first : first + batch_size])
            # A sample may have many more candidates than in training. So the sequences of a batch
            # are split into chunks, one for each forward pass.
            chunks = choice_batch.split_sequences(CHOICES_PER_PASS * batch_size)
            yield ScoringBatch(
                chunks=[SequenceTensors.from_batch(chunk) for chunk in chunks],
                layout=ScoreLayout.from_batch(choice_batch),
                is_right=torch.from_numpy(choice_batch.correct),
                # The check of the scored samples recognizes a sample by the token ids of its first
                # sequence.
                scored_rows=ScoredRows.of(choice_batch.first_ids, choice_batch.num_samples),
            )

    def _compute_scores(self, sequences: SequenceTensors) -> Tensor:
        """Return the score of each sequence: the sum of its targets' log-probabilities (N,)."""
        with self.stepper.autocast():
            # The model returns the log-probability of each target.
            return sequences.sum_scores(self.model(*sequences.inputs))

    def model_flops(self, counts: Counts) -> float:
        """Return the FLOPs of training the transformer blocks on the sequences of ``counts``.

        The result never exceeds the FLOPs that the device computed, for two reasons. All sequences
        are counted with their mean length, although the FLOPs of attention grow with the square of
        the length. The head, which runs at a few positions per sequence, is not counted.
        """
        if not counts.sequences:
            return 0.0
        mean_length = counts.tokens_padded / counts.sequences  # including padding
        return self.shape.compute_flops_per_token(mean_length) * counts.tokens_padded

    def facts(self) -> Mapping[str, Any]:
        """Return what the record reports about the model, its weights and its batches."""
        recipe = self.recipe
        return {
            "parameters": self.shape.parameters,
            "trainable_parameters": self.shape.parameters,  # all are trained
            "flops_formula": "palm-appendix-b, blocks only",
            "init": recipe.init,
            "checkpoint": self.checkpoint_report,
            # Whether all ranks get similar numbers of candidates in a micro-batch.
            "group_by_choices": recipe.group_by_choices,
            "trim_padding": recipe.trim_padding,
            # Number of samples whose passage is cut to fit the sequence length; None: not known.
            "shortened_samples": {
                "train": self.data.train.num_shortened,
                "validation": self.data.validation.num_shortened,
            },
            "skipped_steps": self.stepper.skipped_steps(),  # because of an overflow in fp16
        }


build = GlmJob
