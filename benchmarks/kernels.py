"""What each CPU kernel of our own gains: a training step with all of them and without one.

Every case that uses kernels takes its step at the size of its own benchmark, in fp32. A kernel
stays where it gains a share of a step or of its memory as below in one case at least.
"""

from __future__ import annotations

import sys
import tempfile
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import distilbert_step, glm_step, gpt_step
from benchmarks.harness import Bar, conclude, interleave, ratio
from benchmarks.peers import Peer

if TYPE_CHECKING:
    from collections.abc import Callable

MODULE = "benchmarks.kernels"
ROUNDS, WARMUP = 15, 1
LEAST_SPEED, LEAST_MEMORY = 1.15, 1.25  # without the kernel over with it
NONE_OFF = "none"
TASKS = {
    "distilbert_sst2": ("attention",),
    "gpt_megatron": ("attention", "cross_entropy"),
    "glm_superglue": ("attention",),
}


def run_gpt(folder: str) -> None:
    sizes = (gpt_step.LAYERS, gpt_step.BATCH, gpt_step.SEQUENCE)
    gpt_step.run_ours(folder, "fp32", *map(str, sizes))


STEPS: dict[str, Callable[[str], None]] = {
    "distilbert_sst2": lambda folder: distilbert_step.run_ours(
        folder, "fp32", str(distilbert_step.BATCH)
    ),
    "gpt_megatron": run_gpt,
    "glm_superglue": lambda _: glm_step.run_steps(
        "ours", "fp32", str(glm_step.LAYERS), str(glm_step.SEQUENCE)
    ),
}


def make_data(case: str, folder: Path) -> None:
    """Write the data that the case's step reads; two of them draw their own."""
    from trainmark import cases

    if case == "distilbert_sst2":
        distilbert_step.make_data(folder)
    elif case == "gpt_megatron":
        folder.mkdir()
        cases.part(case, "data").generate(folder, gpt_step.recipe())


def run(case: str, off: str, folder: str) -> None:
    """Take steps of ``case`` with our kernels, except the one named ``off``."""
    from trainmark.train import kernels

    if off != NONE_OFF:
        kernels.OWN = replace(kernels.OWN, **{off: getattr(kernels.LIBRARY, off)})
    STEPS[case](folder)


def measure(case: str, folder: Path) -> list[Bar]:
    """Return what each kernel of ``case`` gains."""
    make_data(case, folder)
    with ExitStack() as stack:
        peers = {
            off: stack.enter_context(Peer(MODULE, case, off, str(folder)))
            for off in (NONE_OFF, *TASKS[case])
        }
        variants = {off: peer.turn for off, peer in peers.items()}
        seconds = interleave(variants, rounds=ROUNDS, warmup=WARMUP)
        peaks = {off: peer.more[-1][0] for off, peer in peers.items()}
    bars = []
    for task in TASKS[case]:
        speed = ratio(seconds[task], seconds[NONE_OFF])
        memory = peaks[task] / peaks[NONE_OFF]
        bars.append(
            Bar(
                f"{case}: {task}",
                f"time {speed}, peak memory {memory:.3f}",
                f"time at least {LEAST_SPEED:g} or memory {LEAST_MEMORY:g}",
                speed.median >= LEAST_SPEED or (memory >= LEAST_MEMORY and speed.median >= 1),
            )
        )
    return bars


def main() -> bool:
    with tempfile.TemporaryDirectory() as name:
        bars = [bar for case in TASKS for bar in measure(case, Path(name) / case)]
    return conclude(
        "kernels",
        "What each CPU kernel gains: a step without it over one with it",
        bars,
        "Memory is the peak of the process, interpreter and libraries included.",
    )


if __name__ == "__main__":
    run(*sys.argv[1:])
