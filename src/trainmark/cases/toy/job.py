"""The torch side of the toy case."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from trainmark.protocols import Batch, Counts, Evaluation
from trainmark.training.shards import Sharding, evaluation_rows
from trainmark.training.stepper import Stepper, add_over_ranks, distribute

from .case import FEATURES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from trainmark.protocols import JobContext


def load_data(context: JobContext) -> dict[str, tuple[Any, Any]]:
    """Return (x, y) by split."""
    data = {}
    for split in ("train", "validation"):
        with np.load(context.data_dir / f"{split}.npz") as arrays:
            data[split] = torch.from_numpy(arrays["x"]), torch.from_numpy(arrays["y"])
    return data


def build(context: JobContext, data: dict[str, tuple[Any, Any]]) -> ToyJob:
    """Build the model and its optimizer."""
    return ToyJob(context, data)


class ToyJob:
    """See ``trainmark.protocols.Job``."""

    def __init__(self, context: JobContext, data: dict[str, tuple[Any, Any]]) -> None:
        recipe = context.recipe
        self.context, self.data = context, data
        self.model = nn.Sequential(nn.Linear(FEATURES, 32), nn.ReLU(), nn.Linear(32, 2))
        context.device.place(self.model)
        self.sharding = Sharding(
            num_rows=len(data["train"][1]), micro_batch_size=recipe.micro_batch_size,
            grad_accum_steps=recipe.grad_accum_steps, world_size=context.world_size,
            rank=context.rank, seed=recipe.seed,
        )  # fmt: skip
        self.steps_per_epoch = self.sharding.steps_per_epoch
        torch_type = context.device.torch_type
        model = torch.compile(self.model) if recipe.compile else self.model
        self.stepper = Stepper(
            distribute(model, world_size=context.world_size, torch_type=torch_type),
            torch.optim.AdamW(self.model.parameters(), lr=recipe.learning_rate, fused=True),
            self._loss_sum, precision=recipe.precision, torch_type=torch_type,
            world_size=context.world_size,
        )  # fmt: skip
        self.step = self.stepper.step

    def batches(self, epoch: int) -> Iterator[Batch]:
        features, labels = self.data["train"]
        for part in self.sharding.micro_batches(epoch):
            tensors = [self.context.device.place(item[part.rows]) for item in (features, labels)]
            count = 0 if part.weightless else len(part.rows)
            counts = Counts(count, count, count, count)
            yield Batch(tensors, counts, part.step_samples, part.closes_step)

    def _loss_sum(self, batch: Batch) -> torch.Tensor:
        features, labels = batch.tensors
        return nn.functional.cross_entropy(self.stepper.model(features), labels, reduction="sum")

    @torch.no_grad()
    def evaluate(self) -> Evaluation:
        features, labels = self.data["validation"]
        rank, world_size = self.context.rank, self.context.world_size
        rows = list(evaluation_rows(len(labels), rank=rank, world_size=world_size))
        scores = self.model(self.context.device.place(features[rows]))
        correct = int((scores.argmax(1).cpu() == labels[rows]).sum())
        correct, scored = add_over_ranks(
            correct, len(rows), world_size=world_size, device=scores.device
        )
        return Evaluation(correct / scored, scored)

    def model_flops(self, counts: Counts) -> float:
        return 6.0 * (FEATURES * 32 + 32 * 2) * counts.samples

    def facts(self) -> Mapping[str, Any]:
        parameters = sum(item.numel() for item in self.model.parameters())
        return {
            "parameters": parameters,
            "flops_formula": "6N per sample",
            "skipped_steps": self.stepper.skipped_steps(),
        }
