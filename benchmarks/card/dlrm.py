"""DLRM with the largest tables that fit, 26 of one size: ours and plain bags.

No two processes fit beside each other, so each is started anew in every round. At 80 GB it fills
64 GiB of tables, from the host's generators, in about 20 s on 16 cores, and 240 steps of 65,536
samples take four to twenty seconds: two rounds of both and a profile end within five
minutes.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.card.largest_tables import count_rows_that_fit, write_clicks
from benchmarks.card.section import Card, Findings
from benchmarks.card.training import PROFILE_S
from benchmarks.dlrm_plain import DIM, NUM_TABLES
from benchmarks.harness import Bar, choose_size, compute_ratio, interleave
from benchmarks.jobs import iterate_batches_endlessly, on_data
from benchmarks.peers import serve
from benchmarks.profiling import format_profile, print_profile
from trainmark.cases.dlrm_criteo.placement import FLOAT_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable

    from trainmark.protocols import Device

MODULE, CASE = "benchmarks.card.dlrm", "dlrm_criteo"
TITLE = "DLRM with the largest tables that fit"
RECIPE = "standard-1x1"
BATCH, TINY_ROWS = choose_size((65_536, None), (128, 200))
PLACED = choose_size(8, 2)  # batches that are on the device at once
BATCHES = choose_size(128, 4)  # of an epoch, which is longer than all steps
ROUNDS, BLOCKS, STEPS, WARMUP = choose_size((2, 5, 20, 20), (1, 2, 2, 1))
FACTS = ("embedding_bytes_per_sample", "copy_bytes_per_second")
PEERS = {"bags": "`EmbeddingBag` with sparse gradients"}


class PartFailedError(RuntimeError):
    """A process ended without a result."""


def choose_precision(device_name: str) -> Any:
    """Return the published precision, or fp32 where the device refuses it."""
    from trainmark import devices
    from trainmark.recipe import Recipe

    refused = devices.choose_vendor(device_name).refuse(Recipe(precision="fp16"), 1)
    return "fp16" if refused is None else "fp32"


def make_recipe(device_name: str) -> Any:
    """Return the published recipe at this batch, with a rate that random labels do not upset."""
    from trainmark import cases

    return replace(
        cases.load(CASE).recipes[RECIPE],
        micro_batch_size=BATCH,
        precision=choose_precision(device_name),
        learning_rate=1e-3,
        warmup_lr_steps=0,
    )


def build_job(device_name: str, folder: str) -> Any:
    return on_data(CASE, make_recipe(device_name), Path(folder), device_name=device_name)


def run_ours(device_name: str, folder: str) -> None:
    """Print seconds a step, and what the case's own figures are made of.

    First with batches that are on the device, then as a run has them, read ahead from files.
    """
    from trainmark.train.read_ahead import iterate_batches

    job = build_job(device_name, folder)
    context, device = job.context, job.context.device
    placed = cycle(list(islice(iterate_batches(job, device, 0, depth=0), PLACED)))
    times = _time_blocks(device, lambda: job.step(placed), lambda: context.stages.take_ns(device))
    read = iterate_batches_endlessly(job)
    times["read_seconds"] = _time_blocks(device, lambda: job.step(read))["seconds"]
    facts = job.facts()
    _print(device, times | {name: facts[name] for name in FACTS})


def run_bags(device_name: str, folder: str) -> None:
    """Print the seconds a step of plain bags, whose batches are on the device before."""
    import torch

    from benchmarks.dlrm_plain import PlainDlrm, make_bags
    from trainmark import cases, devices
    from trainmark.train.stepper import AUTOCAST_DTYPES

    device, chosen = devices.choose_vendor(device_name).open(0, 1), make_recipe(device_name)
    device.set_precision(chosen.precision)
    clicks = cases.import_part(CASE, "data").load(Path(folder), chosen)
    reader = cases.import_part(CASE, "data").SplitReader(clicks.spec, "train")
    batches = []
    for raw in islice(reader.read_batches(BATCH), PLACED):
        arrays = (raw.numerical, raw.labels, raw.categories)
        numerical, labels, ids = (device.place(torch.from_numpy(item)) for item in arrays)
        batches.append((numerical.float(), labels, make_bags(ids)))
    with device.place(torch.empty(0)).device:
        model = PlainDlrm(sparse=True, rows=clicks.spec.cardinalities[0])
    optimizer = torch.optim.SGD(model.parameters(), lr=chosen.learning_rate)
    dtype = AUTOCAST_DTYPES.get(chosen.precision)
    scaler = torch.amp.GradScaler(device.torch_type, enabled=chosen.precision == "fp16")
    num_batches = 0

    def step() -> None:
        nonlocal num_batches
        numerical, labels, ids = batches[num_batches % len(batches)]
        num_batches += 1
        with torch.autocast(device.torch_type, dtype, enabled=dtype is not None):
            logits = model(numerical, ids)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(logits.float(), labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()

    _print(device, _time_blocks(device, step))


def _time_blocks(
    device: Device, step: Callable[[], object], stages_ns: Callable[[], Any] = dict
) -> dict[str, Any]:
    """Return the seconds a step of each block, and those of the embedding stage."""
    for _ in range(WARMUP):
        step()
    device.synchronize()
    stages_ns()
    times: dict[str, Any] = {"seconds": [], "embedding_seconds": []}
    for _ in range(BLOCKS):
        started = time.perf_counter()
        for _ in range(STEPS):
            step()
        device.synchronize()
        times["seconds"].append((time.perf_counter() - started) / STEPS)
        times["embedding_seconds"].append(stages_ns().get("embedding", 0) * 1e-9 / STEPS)
    return times


def _print(device: Device, measured: dict[str, Any]) -> None:
    print(json.dumps(measured | {"peak_bytes": device.memory().allocator_peak_bytes}))


def run_profile(device_name: str, folder: str) -> None:
    print_profile(build_job(device_name, folder))


def measure_part(*arguments: str) -> dict[str, Any]:
    """Return what a part prints.

    Raises:
        PartFailedError: with its last words.
    """
    command = [sys.executable, "-m", MODULE, *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode:
        last = " ".join(ended.stderr.strip().splitlines()[-3:])
        raise PartFailedError(f"{' '.join(arguments)} ended with {ended.returncode}: {last}")
    document: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return document


def run(card: Card) -> Findings:
    rows = TINY_ROWS or count_rows_that_fit(card.device)
    folder = write_clicks(card.scratch / "dlrm", rows, train=BATCH * BATCHES, test=BATCH)
    parts = {"plain": ("ours", card.device, folder), "bags": ("bags", card.device, folder)}
    notes: list[str] = []
    failed: dict[str, str] = {}

    left_out: list[str] = []
    longest_s = 0.0

    def turn(name: str) -> dict[str, Any]:
        nonlocal longest_s
        if name in failed:
            return {}
        if name != "plain" and longest_s > card.seconds_left():
            left_out.append(name)
            return {}
        started_s = time.monotonic()
        try:
            return measure_part(*parts[name])
        except PartFailedError as failure:
            if name == "plain":
                raise
            failed[name] = f"{PEERS[name]} failed: `{failure}`"
            return {}
        finally:
            longest_s = max(longest_s, time.monotonic() - started_s)

    documents = interleave(
        {name: partial(turn, name) for name in parts},
        rounds=ROUNDS,
        warmup=0,
        can_go_on=lambda: 2 * longest_s < card.seconds_left(),
    )
    results = {
        name: each
        for name, each in documents.items()
        if name not in failed and name not in left_out
    }
    seconds = {
        name: [s for document in each for s in document["seconds"]]
        for name, each in results.items()
    }
    bars = []
    for name in parts:
        what = f"ours / {PEERS.get(name)}, speed"
        if name in failed:
            bars.append(Bar(what, "unknown: it failed", "at least 1", False))
        elif name in left_out:
            bars.append(Bar(what, "unknown: there was no time for it", "at least 1", None))
        elif name != "plain":
            speed = compute_ratio(seconds[name], seconds["plain"])
            bars.append(Bar(what, str(speed), "at least 1", speed.median >= 1))
    tables_bytes = rows * NUM_TABLES * DIM * FLOAT_BYTES
    figures: dict[str, float | None] = {
        "table_rows": rows * NUM_TABLES,
        "tables_bytes": tables_bytes,
    }
    for name, each in results.items():
        figures |= _make_figures(name, each, statistics.median(seconds[name]))
    lines = [
        f"{NUM_TABLES} tables of {rows:,} x {DIM} in fp32, "
        f"{tables_bytes / 2**30:.2f} GiB; uniform rows, batch {BATCH:,}, layers in "
        f"{choose_precision(card.device)}. Embedding bytes are those of the embedding stage, a row "
        "read, its gradient read, the row read again and written, over the stage's own time; the "
        "copy rate was measured in the same process. Batches are on the device before; beside "
        "it, read ahead from files.",
        "",
        *_format_table(results, seconds),
        "",
        *notes,
        *failed.values(),
        "",
    ]
    if not all(bar.met for bar in bars) and not card.is_brief:
        head = "Where our steps spend their time"
        lines.append(
            format_profile(head, MODULE, "profile", card.device, folder, limit_s=PROFILE_S)
        )
    return Findings(bars, figures, "\n".join(lines))


def _make_figures(
    name: str, documents: list[dict[str, Any]], seconds: float
) -> dict[str, float | None]:
    """Return a variant's figures; units in the names."""
    figures: dict[str, float | None] = {
        f"{name}_step_seconds": seconds,
        f"{name}_samples_per_second": BATCH / seconds,
        f"{name}_peak_memory_bytes": max((document["peak_bytes"] or 0) for document in documents)
        or None,
    }
    if "copy_bytes_per_second" in documents[0]:
        spent = statistics.median(
            [s for document in documents for s in document["embedding_seconds"]]
        )
        copied = statistics.median(document["copy_bytes_per_second"] for document in documents)
        moved = BATCH * documents[0]["embedding_bytes_per_sample"]
        read = statistics.median([s for document in documents for s in document["read_seconds"]])
        figures |= {
            f"{name}_read_samples_per_second": BATCH / read,
            f"{name}_embedding_step_seconds": spent,
            f"{name}_embedding_bytes_per_second": moved / spent,
            f"{name}_copy_bytes_per_second": copied,
            f"{name}_embedding_share_of_copy_rate": moved / spent / copied,
        }
    return figures


def _format_table(results: dict[str, Any], seconds: dict[str, list[float]]) -> list[str]:
    """Return a Markdown table of the variants with their spread."""
    lines = [
        "| | ms a step | samples/s | from files | embedding GB/s | share of the copy rate |",
        "|---|---|---|---|---|---|",
    ]
    for name, documents in results.items():
        values = sorted(seconds[name])
        quarter, middle = len(values) // 4, statistics.median(values)
        figures = _make_figures(name, documents, middle)
        moved = figures.get(f"{name}_embedding_bytes_per_second")
        share = figures.get(f"{name}_embedding_share_of_copy_rate")
        read = figures.get(f"{name}_read_samples_per_second")
        label = PEERS.get(name, "ours")
        lines.append(
            f"| {label} | {1e3 * middle:.4g} ({1e3 * values[quarter]:.4g} to "
            f"{1e3 * values[-1 - quarter]:.4g}) | {BATCH / middle:,.0f} | "
            + (
                "| | |"
                if moved is None or share is None or read is None
                else f"{read:,.0f} | {moved / 1e9:.4g} | {share:.3f} |"
            )
        )
    return lines


if __name__ == "__main__":
    serve({"ours": run_ours, "bags": run_bags, "profile": run_profile})
