"""DistilBERT at 512 tokens in fp32, tf32 and bf16, against ``transformers.Trainer``.

The batch is that of the published figure, 96, where the card has the memory for it; 14 TFLOP a
step then. Two processes and the matmuls take turns of two seconds, seven rounds a precision.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from benchmarks.card.section import Card, Findings
from benchmarks.card.training import PROFILE_S, take_turns
from benchmarks.distilbert_step import build_job, make_data, step_flops, train_with_library
from benchmarks.harness import Bar, choose_size
from benchmarks.peers import PeerFailedError, serve, take_steps
from benchmarks.profiling import format_profile, print_profile
from trainmark.machine.ceilings import try_precision

if TYPE_CHECKING:
    from benchmarks.card.training import Measured
    from trainmark.recipe import Precision

MODULE = "benchmarks.card.distilbert"
TITLE = "DistilBERT at 512 tokens, by precision"
PRECISIONS: tuple[Precision, ...] = choose_size(("fp32", "tf32", "bf16"), ("tf32", "bf16"))
SEQUENCE = choose_size(512, 16)
# The published run used 32.7 GiB of 40 with 96 rows.
LARGE, SMALL = choose_size((96, 32), (2, 2))
LARGE_NEEDS_BYTES = 38 * 2**30
LABELS = {"ours": "ours", "trainer": "`transformers.Trainer`"}
# The published row: its card's product name, and the precision that ran, by its own rate.
PUBLISHED_PRODUCT, PUBLISHED_WORLD, PUBLISHED_BATCH = "NVIDIA A100-SXM4-40GB", "1x1", "bs=96"
PUBLISHED_PRECISION: Precision = "tf32"


def _build_job(device_name: str, folder: str, precision: str, batch: str) -> object:
    return build_job(
        Path(folder),
        precision=precision,
        batch=int(batch),
        sequence=SEQUENCE,
        device_name=device_name,
    )


def run_ours(device_name: str, folder: str, precision: str, batch: str) -> None:
    take_steps(_build_job(device_name, folder, precision, batch))


def run_profile(device_name: str, folder: str, precision: str, batch: str) -> None:
    print_profile(_build_job(device_name, folder, precision, batch))


def run_library(device_name: str, folder: str, precision: str, batch: str) -> None:
    train_with_library(
        Path(folder), int(batch), SEQUENCE, device_name=device_name, precision=precision
    )


def get_published_samples_per_second() -> float:
    """Return the ``p_core`` that was published of one device with the large batch."""
    from trainmark.plan.reference import read_references

    (row,) = (
        row
        for row in read_references("distilbert_sst2").rows
        if row.world == PUBLISHED_WORLD and PUBLISHED_BATCH in row.fix_hp
    )
    return float(row.cells["p_core"])


def compare_with_published(measured: Measured, batch: int) -> tuple[Bar | None, str]:
    """Return a bar if this is the published figure's card and batch, and what to read beside."""
    published, ours = get_published_samples_per_second(), batch / median(measured.seconds["ours"])
    comparison = (
        f"Published: {published:g} samples/s on one {PUBLISHED_PRODUCT} with a batch of {LARGE}; "
        f"its page says fp32, its rate says {PUBLISHED_PRECISION}. Here in {PUBLISHED_PRECISION}: "
        f"{ours:.1f} samples/s on {measured.product_name} with a batch of {batch}."
    )
    if measured.product_name != PUBLISHED_PRODUCT or batch != LARGE:
        return None, f"{comparison} Another card or batch: the two do not compare."
    bar = Bar(
        f"{PUBLISHED_PRECISION}, samples/s on the card that was published",
        f"{ours:.1f}",
        f"at least {published:g}",
        ours >= published,
    )
    return bar, comparison


def run(card: Card) -> Findings:
    from trainmark import devices

    vendor = devices.choose_vendor(card.device)
    device = vendor.open(0, 1)
    total_bytes = device.memory().total_bytes
    batch = LARGE if total_bytes is not None and total_bytes >= LARGE_NEEDS_BYTES else SMALL
    folder = card.scratch / "distilbert"
    shutil.rmtree(folder, ignore_errors=True)
    make_data(folder)
    flops = step_flops(folder, batch, SEQUENCE)
    units = {"samples": batch, "tokens": batch * SEQUENCE}
    findings = Findings(bars=[])
    lines = [
        f"Batch {batch}, {SEQUENCE} tokens, padding included, {flops / 1e12:.4g} TFLOP a step. "
        "Trainer as it comes, without logging or saving.",
    ]
    for precision in PRECISIONS:
        why = try_precision(vendor, device, precision)
        if why is not None:
            lines.append(f"\n{precision}: {why}.")
            continue
        arguments = (card.device, str(folder), precision, str(batch))
        try:
            measured = take_turns(
                card,
                MODULE,
                {"ours": ("ours", *arguments), "trainer": ("trainer", *arguments)},
                precision=precision,
                flops=flops,
                units=units,
            )
        except PeerFailedError as failure:
            findings.bars.append(Bar(f"{precision}: ours", "failed", "ends", False))
            lines.append(f"\n{precision}: ours failed: `{failure}`")
            continue
        bars = [
            measured.speed_bar("ours", "trainer", f"{precision}: ours / `transformers.Trainer`")
        ]
        lines += [f"\n{precision}:\n", measured.table(LABELS)]
        if precision == PUBLISHED_PRECISION:
            bar, comparison = compare_with_published(measured, batch)
            bars += [] if bar is None else [bar]
            lines += ["", comparison]
        if not all(bar.met for bar in bars) or card.size == "tiny":
            head = f"\nWhere our steps in {precision} spend their time"
            lines.append(format_profile(head, MODULE, "profile", *arguments, limit_s=PROFILE_S))
        findings.bars += bars
        findings.figures |= {f"{precision}_{name}": x for name, x in measured.figures().items()}
    findings.text = "\n".join(lines)
    return findings


if __name__ == "__main__":
    serve({"ours": run_ours, "trainer": run_library, "profile": run_profile})
