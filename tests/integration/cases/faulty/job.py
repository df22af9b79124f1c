"""Plant a fault in the toy job.

``FAULT_FIFO`` gets the process id when the step of the fault is reached.
"""

from __future__ import annotations

import os
import signal
import subprocess
from dataclasses import replace
from pathlib import Path

import torch

from trainmark.cases.toy.data import Clouds
from trainmark.cases.toy.job import ToyJob, load_data
from trainmark.train.evaluation import EvaluationSum, scored_rows
from trainmark.train.shards import evaluation_batches
from trainmark.train.stepper import add_over_ranks

__all__ = ["build", "load_data"]


def build(context, data):
    return FaultyJob(context, data)


class FaultyJob(ToyJob):
    def __init__(self, context, data):
        super().__init__(context, data)
        self.taken = 0
        take_step = self.step

        def step(batches):
            self.taken += 1
            recipe = self.context.recipe
            if self.taken == recipe.fault_step and self.context.rank == recipe.fault_rank:
                faulty = self.fault(recipe.fault)
                if faulty is not None:
                    return take_step(batches) * faulty
            return take_step(batches)

        self.step = step

    @torch.no_grad()
    def evaluate(self):
        """Evaluate with the mistake of an author who sums scores by hand."""
        fault = self.context.recipe.fault
        if fault == "raise_in_evaluation":
            raise ValueError("planted: no validation row fits")
        if not fault.startswith("evaluation_"):
            return super().evaluate()
        split, device = self.data["validation"], self.stepper.device
        rank, world = self.context.rank, self.context.world_size
        if fault == "evaluation_of_training_rows":
            first = self.data["train"]
            split = Clouds(first.features[: len(split)], first.labels[: len(split)])
        batches = list(
            scored_rows(evaluation_batches(split, size=300, rank=rank, world_size=world))
        )
        if fault == "evaluation_without_last_batch":
            batches = batches[:-1]
        scored, means = EvaluationSum(), []
        for (features, labels), rows in batches:
            right = (self.model(features).argmax(1) == labels)[: rows.count]
            scored.add(rows, total=right.sum())
            means.append(float(right.float().mean()))
        evaluation = scored.mean(world_size=world, device=device)
        if fault == "evaluation_not_reduced":
            return replace(evaluation, value=scored.total / scored.rows, samples=scored.rows)
        if fault == "evaluation_of_batch_means":
            (total,) = add_over_ranks(sum(means) / len(means), world_size=world, device=device)
            return replace(evaluation, value=total / world)
        if fault == "evaluation_silent":
            return replace(evaluation, scores=None)
        return evaluation

    def take_all_memory(self, like):
        if like.device.type == "cpu":
            like.new_empty(1 << 50)  # a host whose memory is full would end other programs
        tensors = []
        while True:
            tensors.append(like.new_zeros(1 << 27))

    def fault(self, kind):
        if kind == "raise":
            raise ValueError("planted: row 17 of the data is upside down")
        if kind == "hide_child":  # without the run's mark in its environment
            child = subprocess.Popen(["sleep", "infinity"], env={}, start_new_session=True)
            Path(os.environ["FAULT_FIFO"]).write_text(f"{child.pid}\n")
            signal.pause()
        if kind in ("wait", "hold", "spin"):
            fifo = Path(os.environ["FAULT_FIFO"])
            fifo.write_text(f"{os.getpid()}\n")
        if kind == "wait":
            signal.pause()
        if kind == "hold":
            fifo.with_name("go").read_text()  # until the test writes there
        while kind == "spin":
            torch.ones(8).sum()
        if kind == "fill_disk":
            with Path(os.environ["FAULT_FILL"]).open("wb", buffering=0) as file:
                while True:
                    file.write(bytes(64 * 1024))
        if kind == "oom":
            self.take_all_memory(next(self.model.parameters()))
        if kind == "nan":
            return float("nan")
        return None
