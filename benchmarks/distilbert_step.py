"""The DistilBERT-base training step on a CPU: ours, ``transformers.Trainer``, a plain loop.

Sequence 128, batch 16, six layers.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.harness import choose_size, conclude
from benchmarks.jobs import on_data
from benchmarks.peers import compare_in_bf16, compare_in_fp32, iterate_turns, serve, take_steps
from benchmarks.profiling import format_profile, print_profile
from benchmarks.trainer import run_trainer

if TYPE_CHECKING:
    from collections.abc import Iterator

MODULE = "benchmarks.distilbert_step"
BATCH, SEQUENCE, LAYERS = choose_size((16, 128, 6), (2, 16, 1))
VOCAB_SIZE, LEARNING_RATE, PLANNED = 30_522, 5e-5, 10_000
ROUNDS, WARMUP = 15, 3
BARS = {"trainer": 1.0, "plain": 1.15, "matmul": 0.85, "bf16": 2.3}


def make_data(folder: Path, *, layers: int = LAYERS) -> None:
    """Write the case's generated data with the base model's sizes beside it."""
    from trainmark import cases

    case = cases.load("distilbert_sst2")
    folder.mkdir()
    cases.import_part(case.name, "data").generate(folder, case.recipes["tiny"])
    config = folder / "model" / "config.json"
    sizes = {
        "dim": 768,
        "hidden_dim": 3072,
        "n_heads": 12,
        "n_layers": layers,
        "vocab_size": VOCAB_SIZE,
        "max_position_embeddings": 512,
        "dropout": 0.1,
        "attention_dropout": 0.1,
        "seq_classif_dropout": 0.2,
    }
    config.write_text(json.dumps(json.loads(config.read_text()) | sizes))
    # The case refuses a vocabulary that is shorter than the model's.
    vocabulary = folder / "model" / "vocab.txt"
    tokens = vocabulary.read_text().splitlines()
    tokens += [f"[unused{number}]" for number in range(len(tokens), VOCAB_SIZE)]
    vocabulary.write_text("\n".join(tokens) + "\n")


def build_job(
    folder: Path, *, precision: str, batch: int, sequence: int = SEQUENCE, device_name: str = "cpu"
) -> Any:
    """Return the case's own job on that data."""
    from trainmark import cases

    case = cases.load("distilbert_sst2")
    recipe = case.recipe_type(
        init="random",
        seq_length=sequence,
        micro_batch_size=batch,
        precision=precision,
        learning_rate=LEARNING_RATE,
        max_epochs=1000,
    )
    return on_data(case.name, recipe, folder, device_name=device_name)


def build_library_model(folder: Path) -> Any:
    """Return the library's model as the library gives it."""
    import torch
    from transformers import DistilBertConfig, DistilBertForSequenceClassification

    torch.manual_seed(1)
    config = DistilBertConfig.from_json_file(folder / "model" / "config.json")
    return DistilBertForSequenceClassification(config).train()


def batches(folder: Path, size: int, sequence: int) -> Iterator[dict[str, Any]]:
    """Yield the library's arguments from the very batches that our job trains, on the host."""
    import torch

    job = build_job(folder, precision="fp32", batch=size, sequence=sequence)
    batches = []
    for batch in job.batches(0):
        ids, mask, labels = batch.tensors
        if len(labels) == size:
            batches.append({"input_ids": ids, "attention_mask": mask.long(), "labels": labels})
        if len(batches) == 32:
            break
    del job
    torch.manual_seed(1)
    while True:
        yield from batches


def run_ours(folder: str, precision: str, batch: str) -> None:
    take_steps(build_job(Path(folder), precision=precision, batch=int(batch)))


def run_plain(name: str) -> None:
    import torch

    from trainmark import devices

    folder = Path(name)
    model = build_library_model(folder)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / PLANNED)
    source = batches(folder, BATCH, SEQUENCE)
    next(source)
    for _ in iterate_turns(devices.choose_vendor("cpu").open(0, 1)):
        loss = model(**next(source)).loss
        loss.backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        loss.item()


def train_with_library(folder: Path, size: int, sequence: int, **where: str) -> None:
    """Let ``Trainer`` train the library's model on the rows that our job trains.

    Args:
        where: ``device_name`` and ``precision``; see ``run_trainer``.
    """
    source = batches(folder, size, sequence)
    items = [
        {name: value[row] for name, value in batch.items()}
        for batch in (next(source) for _ in range(32))
        for row in range(size)
    ]
    run_trainer(
        build_library_model(folder),
        items,
        batch=size,
        planned=PLANNED,
        learning_rate=LEARNING_RATE,
        lr_scheduler_type="linear",
        weight_decay=0.0,
        max_grad_norm=0.0,
        **where,
    )


def run_library(name: str) -> None:
    train_with_library(Path(name), BATCH, SEQUENCE)


def run_profile(folder: str) -> None:
    print_profile(build_job(Path(folder), precision="fp32", batch=BATCH))


def step_flops(folder: Path, size: int, sequence: int) -> float:
    """Return the model FLOPs of a step of ``size`` rows."""
    from trainmark.protocols import Counts

    job = build_job(folder, precision="fp32", batch=size, sequence=sequence)
    return float(job.model_flops(Counts(size, size, size * sequence, size * sequence)))


def main() -> bool:
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        folder = place / "data"
        make_data(folder)
        data = str(folder)
        bars, details = compare_in_fp32(
            MODULE,
            {
                "ours": ("ours", data, "fp32", str(BATCH)),
                "trainer": ("trainer", data),
                "plain": ("plain", data),
            },
            {"trainer": "`transformers.Trainer`", "plain": "a plain loop"},
            BARS,
            flops=step_flops(folder, BATCH, SEQUENCE),
            rounds=ROUNDS,
            warmup=WARMUP,
        )

        def list_parts(fast: bool) -> dict[str, tuple[str, ...]]:
            make_data(place / "bf16", layers=LAYERS if fast else 1)
            batch = str(BATCH if fast else 1)
            kinds = ("fp32", "bf16")
            return {kind: ("ours", str(place / "bf16"), kind, batch) for kind in kinds}

        bar, details_of_bf16 = compare_in_bf16(MODULE, list_parts, BARS["bf16"], "1 layer, batch 1")
        where = format_profile("Where one of our fp32 steps goes", MODULE, "profile", data)
    return conclude(
        "distilbert_step",
        f"The DistilBERT-base step, batch {BATCH}, sequence {SEQUENCE}, CPU",
        [*bars, bar],
        f"{details} Plain loop with default AdamW and the loss read every step.\n\n"
        f"{details_of_bf16}\n\n{where}",
    )


if __name__ == "__main__":
    serve(
        {
            "ours": run_ours,
            "plain": run_plain,
            "trainer": run_library,
            "profile": run_profile,
        }
    )
