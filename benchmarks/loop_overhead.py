"""What the measured loop adds to the bare step of the same job.

Three answers: interleaved runs of the same number of steps with and without the loop, and the
loop's own cost a step and that of reading a batch ahead, both measured on a job that does nothing,
which noise cannot hide.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from contextlib import closing
from functools import partial
from itertools import chain, count, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.harness import (
    DEVICE_VARIABLE,
    Bar,
    choose_size,
    compute_ratio,
    conclude,
    interleave,
)
from benchmarks.jobs import build

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainmark.protocols import Batch, Device

STEPS, ROUNDS, EMPTY_STEPS = choose_size((20, 15, 20_000), (4, 1, 20))
BAR = 1.01
DEPTH = 2  # the recipe field's default


class Endless:
    """A job whose epochs follow each other without end; all else is the job's own."""

    def __init__(self, job: Any) -> None:
        self.job = job
        self.stream = chain.from_iterable(job.batches(epoch) for epoch in count())

    def batches(self, epoch: int) -> Iterator[Batch]:
        del epoch
        return self.stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self.job, name)


class Empty:
    """A job that moves one number with one batch, over and over, the rest as ``job`` has it."""

    def __init__(self, job: Any, batch: Batch, device: Device) -> None:
        import torch

        self.job, self.batch, self.moved = job, batch, device.place(torch.zeros(()))
        self.loss = device.place(torch.full((), 0.5))

    def trained_parameters(self) -> dict[str, Any]:
        return {"moved": self.moved, **self.job.trained_parameters()}

    def batches(self, epoch: int) -> Iterator[Batch]:
        del epoch
        return repeat(self.batch)

    def step(self, batches: Iterator[Batch]) -> Any:
        next(batches)
        self.moved += 1.0
        return self.loss

    def __getattr__(self, name: str) -> Any:
        return getattr(self.job, name)


def run_loop(
    job: Any, device: Device, file: Path, steps: int, *, window_steps: int = 10, depth: int = DEPTH
) -> float:
    """Train ``steps`` as the worker does, with the events in ``file``; return the loop's seconds.

    Args:
        depth: batches that are read ahead.
    """
    from trainmark.events.schema import EventWriter
    from trainmark.rank.loop import MeasuredLoop, Schedule
    from trainmark.rank.parameters import ParameterCheck
    from trainmark.train.parameters import GradientWatch, TensorDigest
    from trainmark.train.read_ahead import iterate_batches

    schedule = Schedule(max_epochs=1, max_steps=steps, warmup_steps=1, window_steps=window_steps)
    events = EventWriter(file, time.perf_counter_ns)
    watch = GradientWatch(job.trained_parameters(), num_steps=5)
    # As the worker does; work outside of training does not count as its overhead.
    parameters = ParameterCheck(
        digest=TensorDigest(job.trained_parameters()),
        gradients=watch,
        updates=job.updates,
        clock=time.perf_counter_ns,
    )
    parameters.start()
    device.synchronize()
    start = time.perf_counter()
    MeasuredLoop(
        job=job,
        open_batches=partial(iterate_batches, job, device, depth=depth),
        schedule=schedule,
        device=device,
        clock=time.perf_counter_ns,
        barrier=lambda: None,
        emit=events.emit,
        parameters=parameters,
    ).run()
    seconds = time.perf_counter() - start
    watch.close()
    events.close()
    return seconds


def time_loop(
    job: Any, device: Device, steps: int, window_steps: int = 10, *, depth: int = DEPTH
) -> float:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "events.jsonl"
        return run_loop(job, device, file, steps, window_steps=window_steps, depth=depth)


def _time_bare_steps(job: Any, device: Device, steps: int, *, depth: int = DEPTH) -> float:
    from trainmark.train.read_ahead import iterate_batches

    device.synchronize()
    start = time.perf_counter()
    with closing(iterate_batches(job, device, 0, depth=depth)) as stream:
        for _ in range(steps):
            job.step(stream)
    device.synchronize()
    return time.perf_counter() - start


def _time_empty_steps(endless: Endless, device: Device) -> tuple[float, float]:
    """Return what the loop and what reading ahead add to an empty step of one batch."""
    job = Empty(endless.job, next(endless.stream), device)
    with_loop, ahead, bare = (
        min(measure() for _ in range(3)) / EMPTY_STEPS
        for measure in (
            lambda: time_loop(job, device, EMPTY_STEPS, depth=0),
            lambda: _time_bare_steps(job, device, EMPTY_STEPS),
            lambda: _time_bare_steps(job, device, EMPTY_STEPS, depth=0),
        )
    )
    return with_loop - bare, ahead - bare


def measure(device_name: str) -> tuple[list[Bar], dict[str, float], str]:
    """Return the bars, figures in seconds a step, and what was measured, in words."""
    job, device = build("distilbert_sst2", device_name=device_name, max_epochs=1000)
    endless = Endless(job)
    times = interleave(
        {
            "loop": lambda: time_loop(endless, device, STEPS),
            "bare": lambda: _time_bare_steps(endless, device, STEPS),
        },
        rounds=ROUNDS,
        warmup=2,
    )
    ratio = compute_ratio(times["loop"], times["bare"])
    step = min(times["bare"]) / STEPS
    own, reading = _time_empty_steps(endless, device)
    bars = [
        Bar("loop / bare step, interleaved", str(ratio), f"at most {BAR:g}", ratio.median <= BAR),
        *(
            Bar(
                f"{name} / a step",
                f"{cost * 1e6:.0f} us / {step * 1e3:.1f} ms = {100 * cost / step:.3f}%",
                "at most 1%",
                cost / step <= 0.01,
            )
            for name, cost in (("the loop's own cost", own), ("reading a batch ahead", reading))
        ),
    ]
    figures = {
        "bare_step_s": statistics.median(times["bare"]) / STEPS,
        "loop_step_s": statistics.median(times["loop"]) / STEPS,
        "loop_own_cost_s": own,
        "read_ahead_cost_s": reading,
    }
    details = (
        f"DistilBERT at its tiny size, windows of 10 steps, {STEPS} steps a run, {ROUNDS} rounds, "
        f"{EMPTY_STEPS:,} empty steps, on {device.name}."
    )
    return bars, figures, details


def main() -> bool:
    bars, _, details = measure(os.environ.get(DEVICE_VARIABLE, "cpu"))
    return conclude("loop_overhead", "The measured loop against the bare step", bars, details)


if __name__ == "__main__":
    sys.exit(not main())
