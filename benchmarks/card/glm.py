"""GLM-large at the published batch: without recomputing blocks, and with it as published.

Eight samples of ten candidates, 80 x 512 tokens, take 80 TFLOP: 0.2 s at 40% of 989 TFLOP/s, and a
third more with recomputing. The original's arithmetic should take one to two seconds. Four
processes, 150 s to compile at most, seven rounds of turns of two seconds and a profile end within
seven minutes. Without recomputing activations take about 40 GB, the original's scores of the whole
vocabulary 25 GB; only the process whose turn it is holds them.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from benchmarks.card.section import Card, Findings
from benchmarks.card.training import PROFILE_S, take_turns
from benchmarks.glm_loader import CANDIDATES, SEQ_LENGTH, make_cloze
from benchmarks.harness import choose_size
from benchmarks.jobs import iterate_batches_endlessly, on_data
from benchmarks.peers import iterate_turns, serve, take_steps
from benchmarks.profiling import format_profile, print_profile

if TYPE_CHECKING:
    from torch import Tensor

MODULE, CASE = "benchmarks.card.glm", "glm_superglue"
TITLE = "GLM-large, bf16"
RECIPE = "throughput-1x1"  # the published batch, 8 samples
TINY = {"num_layers": 2, "hidden_size": 64, "num_heads": 2, "micro_batch_size": 2}
MFU = 0.4
LABELS = {
    "ours": "ours",
    "recomputed": "ours, blocks recomputed",
    "plain": "the original's arithmetic, blocks recomputed",
    "compiled": "ours, `compile=true`",
}


def make_recipe(variant: str) -> Any:
    """Return the case's recipe for throughput, from random weights."""
    from trainmark import cases

    changes: dict[str, Any] = choose_size({}, TINY)
    return replace(
        cases.load(CASE).recipes[RECIPE],
        init="random",
        seq_length=SEQ_LENGTH,
        checkpoint_activations=variant == "recomputed",
        compile=variant == "compiled",
        **changes,
    )


def build_job(device_name: str, variant: str) -> Any:
    examples = make_cloze()
    data = SimpleNamespace(train=examples, validation=examples)
    return on_data(CASE, make_recipe(variant), Path(), device_name=device_name, data=data)


def run_ours(device_name: str, variant: str) -> None:
    take_steps(build_job(device_name, variant))


def run_profile(device_name: str, variant: str) -> None:
    print_profile(build_job(device_name, variant))


def run_plain(device_name: str) -> None:
    """Train the original's arithmetic on the batches of our job, whose model stays unused."""
    import torch

    from benchmarks.glm_plain import PlainGlm
    from trainmark.train.stepper import make_decay_groups

    job = build_job(device_name, "plain")
    device, chosen = job.context.device, job.recipe
    model = device.place(
        PlainGlm(job.shape, dropout=chosen.dropout, checkpoint_activations=True).train()
    )
    groups = make_decay_groups(model, chosen.weight_decay)
    optimizer = torch.optim.AdamW(groups, lr=chosen.learning_rate, fused=True)
    stream = iterate_batches_endlessly(job)
    for _ in iterate_turns(device):
        sequences, layout = next(stream).tensors
        with job.stepper.autocast():
            loss = layout.compute_loss_sum(model(*spread(sequences.inputs))) / layout.num_samples
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), chosen.max_grad_norm)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


def spread(inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Return what ``PlainGlm`` takes: a target, or none, at each of the (N, S) positions."""
    ids, positions, blocks, separators, rows, wanted = inputs
    targets = ids.new_zeros(ids.numel()).index_put((rows,), wanted)
    counted = ids.new_zeros(ids.numel()).index_fill(0, rows, 1).float()
    return ids, positions, blocks, separators, targets.view_as(ids), counted.view_as(ids)


def run(card: Card) -> Findings:
    chosen = make_recipe("ours")
    samples = chosen.micro_batch_size
    sequences = samples * CANDIDATES
    tokens = sequences * SEQ_LENGTH
    shape = chosen.shape
    measured = take_turns(
        card,
        MODULE,
        {
            "ours": ("ours", card.device, "ours"),
            "recomputed": ("ours", card.device, "recomputed"),
            "plain": ("plain", card.device),
            "compiled": ("ours", card.device, "compiled"),
        },
        precision=chosen.precision,
        flops=shape.compute_flops_per_token(SEQ_LENGTH) * tokens,
        units={"samples": samples, "tokens": tokens},
    )
    fastest = measured.fastest("ours", "compiled")
    bars = [
        measured.mfu_bar(fastest, LABELS[fastest], MFU),
        measured.speed_bar(
            "recomputed", "plain", "ours / the original's arithmetic, blocks recomputed"
        ),
    ]
    lines = [
        f"{shape.parameters:,} parameters, {samples} samples of {CANDIDATES} candidates, "
        f"{sequences} x {SEQ_LENGTH} tokens a step, padding included. Blocks that are recomputed "
        "count once. Peak memory is what the allocator held at most, or the process where there "
        "is none.",
        "",
        measured.table(LABELS),
    ]
    if not bars[0].met:
        head = f"\nWhere our steps spend their time, {LABELS[fastest]}"
        lines.append(
            format_profile(head, MODULE, "profile", card.device, fastest, limit_s=PROFILE_S)
        )
    return Findings(bars, measured.figures(), "\n".join(lines))


if __name__ == "__main__":
    # The section `compile` compiles at size tiny.
    os.environ.update(choose_size({}, {"TORCHDYNAMO_DISABLE": "1"}))
    serve({"ours": run_ours, "plain": run_plain, "profile": run_profile})
