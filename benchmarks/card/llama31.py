"""Llama 3.1 with eight of its layers in bf16 and fp8; with four beside ``transformers.Trainer``.

2 x 8192 tokens of 2.27e9 weights in matrix products take 275 TFLOP with full attention: 0.56 s at
half of 989 TFLOP/s. Weights, gradients and optimizer take 16 bytes a weight in fp32, 45 GB with the
token table; two models of four layers 62 GB.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.card.section import Card, Findings
from benchmarks.card.training import PROFILE_S, Measured, take_turns
from benchmarks.harness import Bar, choose_size, compute_ratio
from benchmarks.jobs import on_data
from benchmarks.llama31_step import FIELDS, train_with_library
from benchmarks.peers import serve, take_steps
from benchmarks.profiling import format_profile, print_profile

MODULE, CASE = "benchmarks.card.llama31", "llama31_8b"
TITLE = "Llama 3.1, 8 of 32 layers, 2 x 8192 tokens"
RECIPE = "throughput-1x1-8-layers"
MFU, FP8_SPEED = 0.5, 1.3
LABELS = {"ours_4_layers": "ours, bf16, 4 layers", "trainer": "`transformers.Trainer`, 4 layers"}


def make_recipe(precision: str = "bf16", layers: int = 8) -> Any:
    """Return the case's recipe for one card; compiled, as fp8 wants it."""
    from trainmark import cases

    changes = {"precision": precision, "compile": True, "grad_accum_steps": 1, "num_layers": layers}
    return replace(cases.load(CASE).recipes[RECIPE], **{**changes, **choose_size({}, FIELDS)})


def build_job(device_name: str, folder: str, precision: str, layers: str) -> Any:
    chosen = make_recipe(precision, int(layers))
    return on_data(CASE, chosen, Path(folder), device_name=device_name)


def run_ours(device_name: str, folder: str, precision: str, layers: str) -> None:
    take_steps(build_job(device_name, folder, precision, layers))


def run_profile(device_name: str, folder: str, precision: str, layers: str) -> None:
    print_profile(build_job(device_name, folder, precision, layers))


def run_library(device_name: str, folder: str, layers: str) -> None:
    train_with_library(
        folder,
        make_recipe(layers=int(layers)),
        device_name=device_name,
        gradient_checkpointing=True,
        torch_compile=True,
    )


def explain_missing_fp8(device_name: str) -> str | None:
    """Return why fp8 cannot be measured here, if so."""
    from trainmark import devices
    from trainmark.errors import TrainmarkError

    device = devices.choose_vendor(device_name).open(0, 1)
    if device.torch_type == "cpu":
        return "a CPU has no fp8 units"
    try:
        make_recipe("fp8").check(1)
        device.set_precision("fp8")
    except TrainmarkError as fault:
        return str(fault)
    return None


def measure(card: Card, variants: dict[str, str], precision: str, layers: int) -> Measured:
    """Let variants take turns: what each runs, by name; ours run in ``precision``."""
    from trainmark import cases

    folder, chosen = card.scratch / "llama31", make_recipe(precision, layers)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    cases.import_part(CASE, "data").generate(folder, chosen)
    tokens = chosen.micro_batch_size * chosen.seq_length
    attention = chosen.num_layers * chosen.hidden_size * chosen.seq_length
    ours = {"ours": (precision, str(layers)), "trainer": (str(layers),)}
    parts = {name: (kind, card.device, str(folder), *ours[kind]) for name, kind in variants.items()}
    return take_turns(
        card,
        MODULE,
        parts,
        precision=precision,  # type: ignore[arg-type]
        flops=tokens * (6.0 * chosen.matmul_weights + 12.0 * attention),
        units={"tokens": tokens},
    )


def run(card: Card) -> Findings:
    first = measure(card, {"bf16": "ours"}, "bf16", 8)
    bars, figures = [first.mfu_bar("bf16", "ours, bf16", MFU)], first.figures()
    lines = [
        f"8 of 32 layers, {first.flops / 1e12:.4g} TFLOP a step with full attention.\n",
        first.table({"bf16": "ours, bf16, 8 layers"}),
    ]
    what, minimum = "fp8 / bf16, speed", f"at least {FP8_SPEED:g}"
    if reason := explain_missing_fp8(card.device):
        bars.append(Bar(what, f"not measured: {reason}", minimum, None))
    else:
        second = measure(card, {"fp8": "ours"}, "fp8", 8)
        speed = compute_ratio(first.seconds["bf16"], second.seconds["fp8"])
        bars.append(Bar(what, str(speed), minimum, speed.median >= FP8_SPEED))
        figures |= {name: x for name, x in second.figures().items() if name.startswith("fp8")}
        lines.append(second.table({"fp8": "ours, fp8, 8 layers"}))
    peers = measure(card, {"ours_4_layers": "ours", "trainer": "trainer"}, "bf16", 4)
    bars.append(peers.speed_bar("ours_4_layers", "trainer", "ours / `transformers.Trainer`"))
    figures |= {name: x for name, x in peers.figures().items() if name not in figures}
    lines.append(peers.table(LABELS))
    if bars[0].met is False:
        folder = str(card.scratch / "llama31")
        head = "\nWhere our bf16 steps spend their time, 8 layers"
        arguments = (card.device, folder, "bf16", "8")
        lines.append(format_profile(head, MODULE, "profile", *arguments, limit_s=PROFILE_S))
    return Findings(bars, figures, "\n".join(lines))


if __name__ == "__main__":
    # The section `compile` compiles at size tiny.
    os.environ.update(choose_size({}, {"TORCHDYNAMO_DISABLE": "1"}))
    serve({"ours": run_ours, "trainer": run_library, "profile": run_profile})
