"""Plant a fault in the toy job. ``FAULT_FIFO`` is told when the fault's step is reached."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import torch

from trainmark.cases.toy.job import ToyJob, load_data

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

    def evaluate(self):
        if self.context.recipe.fault == "raise_in_evaluation":
            raise ValueError("planted: no validation row fits")
        return super().evaluate()

    def take_all_memory(self, like):
        if like.device.type == "cpu":
            like.new_empty(1 << 50)  # a host whose memory is full would end other programs
        taken = []
        while True:
            taken.append(like.new_zeros(1 << 27))

    def fault(self, kind):
        if kind == "raise":
            raise ValueError("planted: row 17 of the data is upside down")
        if kind == "leave_child":  # which keeps what the rank has open
            if os.fork() == 0:
                signal.pause()
            raise ValueError("planted: a child outlives the rank")
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
