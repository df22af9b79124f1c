"""What the blocked cross-entropy gains: a step of GPT-2 without it and with it.

It stays if it gains a share of a step or of its memory as below.
"""

from __future__ import annotations

import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from benchmarks import gpt_step
from benchmarks.harness import Bar, compute_ratio, conclude, interleave
from benchmarks.peers import Peer

MODULE = "benchmarks.kernels"
ROUNDS, WARMUP = 15, 1
MIN_SPEED, MIN_MEMORY = 1.15, 1.25  # without the kernel over with it
SOURCES = ("own", "library")


def run(source: str, folder: str) -> None:
    """Take steps with the cross-entropy of ``source``: ``own`` or ``library``."""
    from trainmark.train import kernels

    if source == "library":
        kernels.OWN = kernels.LIBRARY
    sizes = (gpt_step.LAYERS, gpt_step.BATCH, gpt_step.SEQUENCE)
    gpt_step.run_ours(folder, "fp32", *map(str, sizes))


def measure(folder: Path) -> Bar:
    """Return what the kernel gains."""
    from trainmark import cases

    folder.mkdir()
    cases.import_part("gpt_megatron", "data").generate(folder, gpt_step.make_recipe())
    with ExitStack() as stack:
        peers = {
            source: stack.enter_context(Peer(MODULE, source, str(folder))) for source in SOURCES
        }
        turns = {source: peer.turn for source, peer in peers.items()}
        seconds = interleave(turns, rounds=ROUNDS, warmup=WARMUP)
        peak_bytes = {source: peer.more[-1][0] for source, peer in peers.items()}
    speed = compute_ratio(seconds["library"], seconds["own"])
    memory = peak_bytes["library"] / peak_bytes["own"]
    return Bar(
        "gpt_megatron: cross_entropy",
        f"time {speed}, peak memory {memory:.3f}",
        f"time at least {MIN_SPEED:g} or memory {MIN_MEMORY:g}",
        speed.median >= MIN_SPEED or (memory >= MIN_MEMORY and speed.median >= 1),
    )


def main() -> bool:
    with tempfile.TemporaryDirectory() as name:
        bar = measure(Path(name) / "data")
    return conclude(
        "kernels",
        "What the blocked cross-entropy gains: a step without it over one with it",
        [bar],
        "Memory is the peak of the process, interpreter and libraries included.",
    )


if __name__ == "__main__":
    run(*sys.argv[1:])
