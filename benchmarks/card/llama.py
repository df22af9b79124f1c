"""Adapters of the 7B model on random weights: both kinds of kernels, and ``Trainer`` with peft.

4 x 512 tokens take 56 TFLOP: 0.11 s at half of 989 TFLOP/s. A process starts in half a minute:
it draws 6.74e9 weights on the device, 13.5 GB in bf16, and tokenises 6,000 dialogues. With four of
them, 150 s to compile at most, seven rounds of turns of two seconds and a profile this ends within
seven minutes. Activations take 12 GB more, which only the process whose turn it is holds.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from benchmarks.card.section import Card, Findings
from benchmarks.card.training import PROFILE_S, take_turns
from benchmarks.harness import choose_size, compute_ratio
from benchmarks.jobs import on_data
from benchmarks.llama_step import train_with_library
from benchmarks.peers import serve, take_steps
from benchmarks.profiling import format_profile, print_profile

Kernels = Literal["library", "own"]
Variant = Kernels | Literal["compiled"]

MODULE, CASE = "benchmarks.card.llama", "llama2_7b_lora"
TITLE = "Llama2-7B LoRA, random weights, bf16"
RECIPE = "throughput-1x1"  # 4 x 512 tokens in bf16, frozen weights in bf16
TINY = {"model_size": "tiny", "seq_length": 64, "micro_batch_size": 2}
MFU = 0.5
LABELS = {
    "library": "`kernels=library`",
    "own": "`kernels=own`",
    "trainer": "`transformers.Trainer` with peft",
    "compiled": "`compile=true`",
}


def make_recipe(variant: Variant | None = None) -> Any:
    """Return the case's recipe for throughput, with the variant's kernels or compiled."""
    from trainmark import cases

    changes: dict[str, Any] = choose_size({}, TINY)
    if variant == "compiled":
        changes |= {"compile": True}
    elif variant is not None:
        changes |= {"kernels": variant}
    return replace(cases.load(CASE).recipes[RECIPE], **changes)


def build_job(device_name: str, folder: str, variant: Variant) -> Any:
    return on_data(CASE, make_recipe(variant), Path(folder), device_name=device_name)


def run_ours(device_name: str, folder: str, variant: Variant) -> None:
    take_steps(build_job(device_name, folder, variant))


def run_profile(device_name: str, folder: str, variant: Variant) -> None:
    print_profile(build_job(device_name, folder, variant))


def run_library(device_name: str, folder: str) -> None:
    """Let the library train its own model of the same weights on the same rows."""
    from trainmark import cases, devices
    from trainmark.cases.llama2_7b_lora.model_files import PRESETS

    chosen = make_recipe()
    model = cases.import_part(CASE, "model").build_model(
        PRESETS[chosen.model_size],
        chosen,
        weights=None,
        device=devices.choose_vendor(device_name).open(0, 1),
    )
    train_with_library(model.peft.train(), folder, chosen, device_name=device_name)


def generate_data(card: Card) -> str:
    """Write dialogues and the tokenizer, in two seconds, and return their folder."""
    from trainmark import cases

    folder = card.scratch / "llama"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    cases.import_part(CASE, "data").generate(folder, make_recipe())
    return str(folder)


def run(card: Card) -> Findings:
    from trainmark.cases.llama2_7b_lora.case import parse_targets
    from trainmark.cases.llama2_7b_lora.estimates import (
        compute_model_flops_per_token,
        predict_peak_bytes,
    )
    from trainmark.cases.llama2_7b_lora.model_files import PRESETS, count_parameters

    folder, chosen = generate_data(card), make_recipe()
    config, tokens = PRESETS[chosen.model_size], chosen.micro_batch_size * chosen.seq_length
    per_token = compute_model_flops_per_token(
        config, rank=chosen.lora_rank, targets=parse_targets(chosen), seq_length=chosen.seq_length
    )
    parts = {
        "library": ("ours", card.device, folder, "library"),
        "own": ("ours", card.device, folder, "own"),
        "trainer": ("trainer", card.device, folder),
    }
    if not card.is_brief:  # to compile takes longer than a budget has
        parts["compiled"] = ("ours", card.device, folder, "compiled")
    measured_variants = take_turns(
        card,
        MODULE,
        parts,
        precision=chosen.precision,
        flops=tokens * per_token,
        units={"tokens": tokens},
    )
    fastest = measured_variants.fastest("library", "own", "compiled")
    bars = [
        measured_variants.mfu_bar(fastest, f"the fastest of ours, {LABELS[fastest]}", MFU),
        measured_variants.speed_bar("library", "trainer", "ours / `transformers.Trainer`"),
    ]
    figures = measured_variants.figures() | {"own_over_library_speed": None}
    lines = [
        f"{count_parameters(config):,} frozen weights drawn on the device in "
        f"{chosen.weights_dtype}, {chosen.micro_batch_size} x {chosen.seq_length} tokens a step. "
        "Peak memory is what the allocator held at most, or the process where there is none.",
        "",
        measured_variants.table(LABELS),
        "",
    ]
    if "own" in measured_variants.seconds:
        speed = compute_ratio(
            measured_variants.seconds["library"], measured_variants.seconds["own"]
        )
        figures["own_over_library_speed"] = speed.median
        lines.append(f"- `kernels=own` over `kernels=library`, speed: {speed}.")
    kinds: tuple[Kernels, ...] = ("library", "own")
    for kernels in kinds:
        if kernels not in measured_variants.seconds:
            continue
        predicted = predict_peak_bytes(config, make_recipe(kernels), 1).total
        measured = measured_variants.peak_bytes[kernels]
        figures[f"{kernels}_predicted_memory_bytes"] = predicted
        lines.append(
            f"- Peak of `kernels={kernels}` over the case's prediction of "
            f"{predicted / 2**30:.2f} GiB: {measured / predicted:.3f}."
        )
    if not bars[0].met and not card.is_brief:
        head = f"\nWhere our steps spend their time, {LABELS[fastest]}"
        lines.append(
            format_profile(head, MODULE, "profile", card.device, folder, fastest, limit_s=PROFILE_S)
        )
    return Findings(bars, figures, "\n".join(lines))


if __name__ == "__main__":
    # The section `compile` compiles at size tiny.
    os.environ.update(choose_size({}, {"TORCHDYNAMO_DISABLE": "1"}))
    serve({"ours": run_ours, "trainer": run_library, "profile": run_profile})
