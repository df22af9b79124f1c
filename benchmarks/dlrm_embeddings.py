"""The embedding stage of DLRM on a CPU: look-up, backward, update, against memory copies.

Bytes are counted as the stage must move them at least: every row looked up is read, every
gradient read, every row that was looked up read and written once however often it came.
What the look-up writes is left out of the bar, though it is written; the share with it, as
FBGEMM's benchmark of these tables counts, is printed beside.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING

from benchmarks.dlrm_plain import (
    BATCH,
    DIM,
    NUM_TABLES,
    TABLE_ROWS,
    PlainTables,
    draw_ids,
    make_bags,
)
from benchmarks.harness import Bar, choose_size, compute_ratio, conclude, interleave
from benchmarks.peers import Peer, iterate_turns, serve

if TYPE_CHECKING:
    from collections.abc import Callable

    from trainmark.protocols import Device

MODULE = "benchmarks.dlrm_embeddings"
ROUNDS, WARMUP = 7, 1
STEPS, REFERENCES = 2, ("dense", "sparse")
FLOAT_BYTES = 4
COPY_BYTES = choose_size(256, 1) << 20  # read and written each; far beyond every cache
BARS = {"copy": 0.5, "plain": 1.5}
RATE = 1e-3


def set_up_process() -> Device:
    """Set the process up as a rank's is: its threads, its allocator."""
    from trainmark import devices

    return devices.choose_vendor("cpu").open(0, 1)


def repeat(device: Device, step: Callable[[int], object]) -> None:
    """Take ``STEPS`` steps a turn."""
    step(0)
    for _ in iterate_turns(device):
        for number in range(STEPS):
            step(number)


def run_ours(kind: str) -> None:
    import torch

    from trainmark.cases.dlrm_criteo.embeddings import FusedTables

    device = set_up_process()
    tables = FusedTables([TABLE_ROWS] * NUM_TABLES, DIM, seed=1)
    tables.learning_rate = RATE
    batches = [draw_ids(kind, BATCH, seed=seed) for seed in range(STEPS)]
    grad = torch.randn(BATCH, NUM_TABLES, DIM)

    def step(number: int) -> None:
        tables(batches[number]).backward(grad)

    repeat(device, step)


def run_plain(kind: str, gradients: str) -> None:
    import torch

    device = set_up_process()
    tables = PlainTables(sparse=gradients == "sparse")
    optimizer = torch.optim.SGD(tables.parameters(), lr=RATE)
    batches = [make_bags(draw_ids(kind, BATCH, seed=seed)) for seed in range(STEPS)]
    grads = list(torch.randn(NUM_TABLES, BATCH, DIM))

    def step(number: int) -> None:
        torch.autograd.backward(tables(batches[number]), grads)
        optimizer.step()
        optimizer.zero_grad()

    repeat(device, step)


def run_copy() -> None:
    import torch

    device = set_up_process()
    source = torch.ones(COPY_BYTES // FLOAT_BYTES)
    target = torch.empty_like(source)

    def step(_: int) -> None:
        target.copy_(source)

    repeat(device, step)


def count_stage_bytes(kind: str) -> tuple[float, float]:
    """Return the bytes of a turn, and those its look-ups write beside."""
    total = written = 0
    for seed in range(STEPS):
        ids = draw_ids(kind, BATCH, seed=seed)
        touched = sum(len(row.unique()) for row in ids)
        total += 2 * ids.numel() + 2 * touched
        written += ids.numel()
    return float(total * DIM * FLOAT_BYTES), float(written * DIM * FLOAT_BYTES)


def measure(kind: str) -> tuple[list[Bar], str]:
    """Interleave our stage with copies and with both references."""
    peers = {name: Peer(MODULE, "plain", kind, name) for name in REFERENCES}
    peers |= {"ours": Peer(MODULE, "ours", kind), "copy": Peer(MODULE, "copy")}
    with ExitStack() as stack:
        variants = {name: stack.enter_context(peer).turn for name, peer in peers.items()}
        seconds_by_name = interleave(variants, rounds=ROUNDS, warmup=WARMUP)
    moved, written = count_stage_bytes(kind)
    rates = [moved / seconds / 1e9 for seconds in seconds_by_name["ours"]]
    copies = [2 * COPY_BYTES * STEPS / seconds / 1e9 for seconds in seconds_by_name["copy"]]
    share = compute_ratio(rates, copies)
    bars = [
        Bar(
            f"{kind}: embedding bytes/s / copied bytes/s",
            str(share),
            f"at least {BARS['copy']:g}",
            share.median >= BARS["copy"],
        )
    ]
    for name in REFERENCES:
        speed = compute_ratio(seconds_by_name[name], seconds_by_name["ours"])
        minimum = BARS["plain"]
        bars.append(
            Bar(
                f"{kind}: ours / EmbeddingBag with {name} gradients, speed",
                str(speed),
                f"at least {minimum:g}",
                speed.median >= minimum,
            )
        )
    each = ", ".join(
        f"{name} {1e3 * sorted(values)[len(values) // 2] / STEPS:.0f} ms"
        for name, values in seconds_by_name.items()
    )
    with_output = compute_ratio([rate * (1 + written / moved) for rate in rates], copies)
    return bars, (
        f"{kind}: {moved / STEPS / 1e6:.0f} MB a step; medians: {each}; "
        f"copy {sorted(copies)[len(copies) // 2]:.1f} GB/s read and written. "
        f"With what look-ups write, {(moved + written) / STEPS / 1e6:.0f} MB: {with_output}."
    )


def main() -> bool:
    bars, details = [], []
    for kind in ("uniform", "zipf"):
        print(kind, file=sys.stderr)
        bars_of_kind, detail = measure(kind)
        bars += bars_of_kind
        details.append(detail)
    return conclude(
        "dlrm_embeddings",
        f"DLRM's embedding stage, batch {BATCH}, {NUM_TABLES} tables {TABLE_ROWS:,} x {DIM}, CPU",
        bars,
        (__doc__ or "").split("\n\n", 1)[1] + "\n" + "\n".join(details),
    )


if __name__ == "__main__":
    serve({"ours": run_ours, "plain": run_plain, "copy": run_copy})
