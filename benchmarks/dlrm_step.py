"""The DLRM training step on a CPU: ours against bags, pairs by index and plain SGD.

The standard layers, 26 tables of 100,000 x 128, uniform ids.
"""

from __future__ import annotations

import importlib.util
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.dlrm_plain import (
    BATCH,
    BOTTOM,
    DIM,
    NUM_NUMERICAL,
    NUM_TABLES,
    TABLE_ROWS,
    TOP,
    PlainDlrm,
    draw_batch,
    make_bags,
)
from benchmarks.harness import Bar, compute_ratio, conclude, interleave
from benchmarks.peers import Peer, compare_in_bf16, iterate_turns, serve

MODULE = "benchmarks.dlrm_step"
ROUNDS, WARMUP = 5, 1
BARS = {"dense": 1.0, "sparse": 1.0, "torchrec": 1.0, "bf16": 1.8}
LABELS = {
    "dense": "bags with dense gradients",
    "sparse": "bags with sparse gradients",
    "torchrec": "the same with `torchrec`'s tables",
}
RATE, BATCHES, SMALL_BATCH = 0.1, 4, 64


def build_tables(engine: str) -> Any:
    """Return fused tables of an engine."""
    rows = [TABLE_ROWS] * NUM_TABLES
    if engine == "torchrec":
        from benchmarks.dlrm_torchrec import TorchrecTables

        return TorchrecTables(rows, DIM, seed=1)
    from trainmark.cases.dlrm_criteo.embeddings import FusedTables

    return FusedTables(rows, DIM, seed=1)


def run_ours(engine: str, precision: str, size: str) -> None:
    """Train a step a turn as the case's job does."""
    import torch

    from trainmark import devices
    from trainmark.cases.dlrm_criteo.model import build_model
    from trainmark.protocols import Batch, Counts, JobContext
    from trainmark.recipe import Recipe
    from trainmark.train.stepper import Stepper

    device = devices.choose_vendor("cpu").open(0, 1)
    tables = build_tables(engine)
    tables.learning_rate = RATE
    model = build_model(NUM_NUMERICAL, DIM, NUM_TABLES, BOTTOM, TOP, seed=1)

    def loss_sum(batch: Batch) -> torch.Tensor:
        numerical, labels, ids = batch.tensors
        logits = model(numerical, tables(ids)).float()
        return torch.nn.functional.binary_cross_entropy_with_logits(logits, labels, reduction="sum")

    recipe = Recipe(precision=precision)  # type: ignore[arg-type]
    stepper = Stepper(
        JobContext(recipe, Path(), 0, 1, device),
        model,
        torch.optim.SGD(model.parameters(), lr=RATE, fused=True),
        loss_sum,
    )
    samples = int(size)
    batches = [
        Batch(draw_batch("uniform", samples, seed=seed), Counts(samples), samples, True)
        for seed in range(BATCHES)
    ]
    for number, _ in enumerate(iterate_turns(device)):
        stepper.step(iter([batches[number % BATCHES]]))


def run_plain(gradients: str) -> None:
    import torch

    from trainmark import devices

    device = devices.choose_vendor("cpu").open(0, 1)
    model = PlainDlrm(sparse=gradients == "sparse")
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    batches = [draw_batch("uniform", BATCH, seed=seed) for seed in range(BATCHES)]
    bags = [make_bags(ids) for _, _, ids in batches]
    for number, _ in enumerate(iterate_turns(device)):
        numerical, labels, _ids = batches[number % BATCHES]
        logits = model(numerical, bags[number % BATCHES])
        torch.nn.functional.binary_cross_entropy_with_logits(logits, labels).backward()
        optimizer.step()
        optimizer.zero_grad()


def main() -> bool:
    peers = {"ours": Peer(MODULE, "ours", "plain", "fp32", str(BATCH))}
    peers |= {name: Peer(MODULE, "plain", name) for name in ("dense", "sparse")}
    with_torchrec = importlib.util.find_spec("torchrec") is not None
    if with_torchrec:
        peers["torchrec"] = Peer(MODULE, "ours", "torchrec", "fp32", str(BATCH))
    with ExitStack() as stack:
        variants = {name: stack.enter_context(peer).turn for name, peer in peers.items()}
        seconds_by_name = interleave(variants, rounds=ROUNDS, warmup=WARMUP)
    bars = []
    for name, label in LABELS.items():
        if name not in seconds_by_name:
            continue
        speed, minimum = compute_ratio(seconds_by_name[name], seconds_by_name["ours"]), BARS[name]
        bars.append(
            Bar(
                f"ours / {label}, speed",
                str(speed),
                f"at least {minimum:g}",
                speed.median >= minimum,
            )
        )
    middle = {name: sorted(values)[len(values) // 2] for name, values in seconds_by_name.items()}
    details = [
        f"Medians of {ROUNDS} rounds: "
        + ", ".join(f"{name} {seconds:.2f} s" for name, seconds in middle.items())
        + f" a step; ours {BATCH / middle['ours']:,.0f} samples/s."
    ]
    if not with_torchrec:
        details.append("`torchrec` is not installed here: not compared.")

    def list_parts(fast: bool) -> dict[str, tuple[str, ...]]:
        size = str(BATCH if fast else SMALL_BATCH)
        return {kind: ("ours", "plain", kind, size) for kind in ("fp32", "bf16")}

    bar, details_of_bf16 = compare_in_bf16(MODULE, list_parts, BARS["bf16"], f"batch {SMALL_BATCH}")
    return conclude(
        "dlrm_step",
        f"The DLRM step, batch {BATCH}, {NUM_TABLES} tables of {TABLE_ROWS:,} x {DIM}, CPU",
        [*bars, bar],
        "\n\n".join([*details, details_of_bf16]),
    )


if __name__ == "__main__":
    serve({"ours": run_ours, "plain": run_plain})
