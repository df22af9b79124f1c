"""The torch side of the toy case."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from trainmark.protocols import Batch, Counts, Evaluation
from trainmark.train.parameters import trained
from trainmark.train.shards import Sharding, evaluation_rows
from trainmark.train.stepper import Stepper, add_over_ranks

from .data import FEATURES, ROWS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from trainmark.protocols import JobContext


def load_data(context: JobContext) -> dict[str, tuple[Any, Any]]:
    """Return (x, y) by split."""
    data = {}
    for split in ROWS:
        with np.load(context.data_dir / f"{split}.npz") as arrays:
            data[split] = torch.from_numpy(arrays["x"]), torch.from_numpy(arrays["y"])
    return data


class ToyJob:
    """See ``trainmark.protocols.Job``."""

    def __init__(self, context: JobContext, data: dict[str, tuple[Any, Any]]) -> None:
        self.context, self.data = context, data
        self.model = nn.Sequential(nn.Linear(FEATURES, 32), nn.ReLU(), nn.Linear(32, 2))
        context.device.place(self.model)
        weights, rate = self.model.parameters(), context.recipe.learning_rate
        optimizer = torch.optim.AdamW(weights, lr=rate, fused=True)
        self.sharding = Sharding.of(context, num_rows=len(data["train"][1]))
        self.steps_per_epoch = self.sharding.steps_per_epoch
        self.stepper = Stepper.of(context, self.model, optimizer, self._loss_sum)
        self.step, self.check = self.stepper.step, self.stepper.check
        self.updates = self.stepper.updates

    def batches(self, epoch: int) -> Iterator[Batch]:
        for part in self.sharding.micro_batches(epoch):
            tensors = [item[part.rows] for item in self.data["train"]]
            count = 0 if part.weightless else len(part.rows)
            counts = Counts(samples=count, sequences=count)
            yield Batch(tensors, counts, part.step_samples, part.closes_step)

    def _loss_sum(self, batch: Batch) -> torch.Tensor:
        features, labels = batch.tensors
        return nn.functional.cross_entropy(self.stepper.model(features), labels, reduction="sum")

    def trained_parameters(self) -> Mapping[str, torch.Tensor]:
        return trained(self.model)

    @torch.no_grad()
    def evaluate(self) -> Evaluation:
        features, labels = self.data["validation"]
        world = self.context.world_size
        rows = list(evaluation_rows(len(labels), rank=self.context.rank, world_size=world))
        scores = self.model(self.context.device.place(features[rows]))
        hits = int((scores.argmax(1).cpu() == labels[rows]).sum())
        hits, scored = add_over_ranks(hits, len(rows), world_size=world, device=scores.device)
        return Evaluation(hits / scored, scored)

    def model_flops(self, counts: Counts) -> float:
        # The first layer has no input gradient.
        return (4.0 * FEATURES * 32 + 6.0 * 32 * 2) * counts.samples

    def facts(self) -> Mapping[str, Any]:
        return {
            "parameters": sum(item.numel() for item in self.model.parameters()),
            "flops_formula": "6N per sample, no input gradient",
            "skipped_steps": self.stepper.skipped_steps(),
        }


build = ToyJob
