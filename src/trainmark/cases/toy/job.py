"""The torch side of the toy case."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from trainmark.train.evaluation import EvaluationSum, scored_rows
from trainmark.train.parameters import trained
from trainmark.train.shards import Sharding, evaluation_batches, training_batches
from trainmark.train.stepper import Stepper

from .data import FEATURES, Clouds, load
from .sizes import CLASSES, HIDDEN

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from trainmark.protocols import Batch, Counts, Evaluation, JobContext


def load_data(context: JobContext) -> dict[str, Clouds]:
    """Return both splits."""
    return load(context.data_dir)


class ToyJob:
    """The training of a small MLP on one rank; see ``trainmark.protocols.Job`` for the methods."""

    def __init__(self, context: JobContext, data: dict[str, Clouds]) -> None:
        self.context = context
        self.data = data
        # The weights are random. Each rank has called ``torch.manual_seed`` with the recipe's seed
        # before it builds its job, so they are the same on all ranks and in each run.
        self.model = nn.Sequential(
            nn.Linear(FEATURES, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, CLASSES)
        )
        context.device.place(self.model)  # moves the module in place
        optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=context.recipe.learning_rate, fused=True
        )
        # Sharding of the data: the rows of each step are divided over the ranks. Every rank has the
        # whole model.
        self.sharding = Sharding.of(context, num_rows=len(data["train"]))
        self.steps_per_epoch = self.sharding.steps_per_epoch
        self.stepper = Stepper(context, self.model, optimizer, self._compute_loss_sum)
        # These methods, which the protocol ``Job`` requires, are the stepper's.
        self.step = self.stepper.step
        self.check = self.stepper.check
        self.updates = self.stepper.updates

    def batches(self, epoch: int) -> Iterator[Batch]:
        """Yield this rank's micro-batches of an epoch, in the order of training."""
        return training_batches(self.data["train"], self.sharding, epoch)

    def _compute_loss_sum(self, batch: Batch) -> torch.Tensor:
        """Return the sum of the losses of a micro-batch; the stepper makes it a mean."""
        features, labels = batch.tensors
        return nn.functional.cross_entropy(self.stepper.model(features), labels, reduction="sum")

    def trained_parameters(self) -> Mapping[str, torch.Tensor]:
        """Return the parameters that training changes, by name."""
        return trained(self.model)

    @torch.no_grad()
    def evaluate(self) -> Evaluation:
        """Return the accuracy on the validation rows; see ``Job.evaluate``."""
        world_size = self.context.world_size
        # 1,024 rows in a batch: the result does not depend on this number.
        batches = evaluation_batches(
            self.data["validation"], size=1024, rank=self.context.rank, world_size=world_size
        )
        evaluation_sum = EvaluationSum()
        for tensors, rows in scored_rows(batches):
            features, labels = map(self.context.device.place, tensors)
            is_right = self.model(features).argmax(1) == labels
            # A rank without rows of its own gets a filler row, which does not count.
            evaluation_sum.add(rows, total=is_right[: rows.count].sum())
        return evaluation_sum.mean(world_size=world_size, device=self.stepper.device)

    def model_flops(self, counts: Counts) -> float:
        """Return the model FLOPs of training the samples of ``counts``."""
        # For each weight 2 in the forward pass, 2 for its gradient and 2 for the gradient of its
        # input, which the first layer does not compute.
        return (4.0 * FEATURES * HIDDEN + 6.0 * HIDDEN * CLASSES) * counts.samples

    def facts(self) -> Mapping[str, Any]:
        """Return what the record states about the job: size, FLOPs formula, skipped steps."""
        return {
            "parameters": sum(item.numel() for item in self.model.parameters()),
            # N weights: 2N forward, 4N backward. The first layer needs no gradient of its input.
            "flops_formula": "6N per sample, no input gradient",
            "skipped_steps": self.stepper.skipped_steps(),
        }


build = ToyJob
