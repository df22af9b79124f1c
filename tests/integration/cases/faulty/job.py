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
    """Return the job of a rank, as the program asks every case for."""
    return FaultyJob(context, data)


class FaultyJob(ToyJob):
    """The toy job, whose step ``fault_step`` on rank ``fault_rank`` begins with a fault."""

    def __init__(self, context, data):
        """Replace the step of the toy job by one that counts, and begins a step with the fault.

        The recipe says which fault, at which step (``fault_step``, counted from 1) and on which
        rank. ``fault`` does what goes wrong, and returns a factor of the loss, or None.
        """
        super().__init__(context, data)
        self.num_begun_steps = 0
        take_step = self.step

        def step(batches):
            """Take a step of the toy job; the step of the fault begins with the fault."""
            self.num_begun_steps += 1
            recipe = self.context.recipe
            is_fault_step = self.num_begun_steps == recipe.fault_step
            if is_fault_step and self.context.rank == recipe.fault_rank:
                factor = self.fault(recipe.fault)
                if factor is not None:
                    return take_step(batches) * factor
            return take_step(batches)

        self.step = step

    @torch.no_grad()
    def evaluate(self):
        """Evaluate with the mistake of an author who sums scores by hand.

        The recipe's ``fault`` names the mistake; with one that is not of the evaluation, this is
        the evaluation of the toy job.
        """
        fault = self.context.recipe.fault
        if not fault.startswith("evaluation_"):
            return super().evaluate()
        split = self.data["validation"]
        device = self.stepper.device
        rank, world = self.context.rank, self.context.world_size
        if fault == "evaluation_of_training_rows":
            train = self.data["train"]
            size = len(split)  # as many rows as the validation has
            split = Clouds(train.features[:size], train.labels[:size])
        # Of 300 rows the last batch is not full.
        batches = list(
            scored_rows(evaluation_batches(split, size=300, rank=rank, world_size=world))
        )
        if fault == "evaluation_without_last_batch":
            batches = batches[:-1]
        scored, means = EvaluationSum(), []
        for (features, labels), rows in batches:
            # Without rows that only fill the last batch.
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
            # Without the scores, by which the harness checks the evaluation.
            return replace(evaluation, scores=None)
        return evaluation

    def take_all_memory(self, like):
        """Allocate tensors as ``like``, on its device, until the device refuses."""
        if like.device.type == "cpu":
            # Refused at once: a host whose memory is full would end other programs.
            like.new_empty(1 << 50)  # 4 PiB in fp32
        tensors = []
        while True:
            tensors.append(like.new_zeros(1 << 27))  # 512 MiB in fp32

    def fault(self, kind):
        """Do what goes wrong; return a factor of the step's loss, None for a usual step.

        The test learns a process id through the pipe that the variable ``FAULT_FIFO`` names. A kind
        ``evaluation_…`` does nothing here: it goes wrong in ``evaluate``.
        """
        if kind == "raise":
            raise ValueError("planted: row 17 of the data is upside down")
        if kind == "hide_child":
            # Its empty environment lacks ``TRAINMARK_RUN``, by which a run's processes are found.
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
        while kind == "spin":  # for ever: computes, but takes no step
            torch.ones(8).sum()
        if kind == "oom":
            self.take_all_memory(next(self.model.parameters()))
        if kind == "nan":
            return float("nan")
        return None
