"""GPT-2 124M in bf16, batch 16 of 1,024 tokens, against a plain loop and ``transformers.Trainer``.

Dropout 0.1, as the recipe has it. Three processes and the matmuls take turns of two seconds, seven
rounds. Compiled steps are a section of their own, because three processes compile first.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from benchmarks.card.section import Card, Findings
from benchmarks.card.training import PROFILE_S, take_turns
from benchmarks.gpt_step import read_token_rows, train_with_library
from benchmarks.harness import choose_size
from benchmarks.jobs import on_data
from benchmarks.peers import iterate_turns, serve, take_steps
from benchmarks.profiling import format_profile, print_profile

Compiled = Literal["uncompiled", "compiled"]

MODULE, CASE = "benchmarks.card.gpt", "gpt_megatron"
TITLE = "GPT-2 124M, bf16, batch 16, uncompiled"
RECIPE = "sp-bs16-bf16"
TINY = {
    "num_layers": 1,
    "hidden_size": 32,
    "num_heads": 2,
    "seq_length": 32,
    "vocab_size": 512,
    "micro_batch_size": 2,
}
MFU = 0.45
LABELS = {"ours": "ours", "plain": "a plain loop", "trainer": "`transformers.Trainer`"}


def make_recipe(kind: Compiled = "uncompiled") -> Any:
    """Return the case's recipe for throughput, compiled or not."""
    from trainmark import cases

    changes: dict[str, Any] = choose_size({}, TINY)
    return replace(cases.load(CASE).recipes[RECIPE], compile=kind == "compiled", **changes)


def build_job(device_name: str, folder: str, kind: Compiled) -> Any:
    return on_data(CASE, make_recipe(kind), Path(folder), device_name=device_name)


def run_ours(device_name: str, folder: str, kind: Compiled) -> None:
    take_steps(build_job(device_name, folder, kind))


def run_profile(device_name: str, folder: str, kind: Compiled) -> None:
    print_profile(build_job(device_name, folder, kind))


def run_plain(device_name: str, folder: str, kind: Compiled) -> None:
    from benchmarks.gpt_plain import step_of
    from trainmark import devices

    chosen = make_recipe(kind)
    device = devices.choose_vendor(device_name).open(0, 1)
    device.set_precision(chosen.precision)
    rows = device.place(read_token_rows(folder, chosen))
    step = step_of(chosen, rows, device.torch_type, compiled=chosen.compile)
    for _ in iterate_turns(device):
        step()


def run_library(device_name: str, folder: str, kind: Compiled) -> None:
    chosen = make_recipe(kind)
    train_with_library(folder, chosen, device_name=device_name, torch_compile=chosen.compile)


def step_flops(folder: str) -> tuple[float, int]:
    """Return the model FLOPs and the tokens of a step."""
    from trainmark.protocols import Counts

    chosen = make_recipe()
    tokens = chosen.micro_batch_size * chosen.seq_length
    # On the host, so that the card's memory is the variants' alone.
    job = build_job("cpu", folder, "uncompiled")
    return float(job.model_flops(Counts(tokens=tokens, tokens_padded=tokens))), tokens


def measure(card: Card, kind: Compiled) -> Findings:
    """Return bars, figures and tables of uncompiled or of compiled steps."""
    from trainmark import cases

    folder = card.scratch / f"gpt_{kind}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    chosen = make_recipe()
    cases.import_part(CASE, "data").generate(folder, chosen)
    flops, tokens = step_flops(str(folder))
    arguments = (card.device, str(folder), kind)
    measured = take_turns(
        card,
        MODULE,
        {name: (name, *arguments) for name in LABELS},
        precision=chosen.precision,
        flops=flops,
        units={"samples": chosen.micro_batch_size, "tokens": tokens},
    )
    bars = [
        *(
            measured.speed_bar("ours", name, f"{kind}: ours / {LABELS[name]}")
            for name in ("plain", "trainer")
        ),
        measured.mfu_bar("ours", f"{kind}: ours", MFU),
    ]
    lines = [
        f"Batch {chosen.micro_batch_size}, {chosen.seq_length} tokens, dropout {chosen.dropout:g}, "
        f"{flops / 1e12:.4g} TFLOP a step. The plain loop has its tokens on the device already; "
        "Trainer as it comes, without logging or saving.\n",
        measured.table(LABELS),
    ]
    if card.is_brief:
        return Findings(bars, measured.figures(), "\n".join(lines))
    if not all(bar.met for bar in bars) or card.size == "tiny":
        head = f"\nWhere our {kind} steps spend their time"
        lines.append(format_profile(head, MODULE, "profile", *arguments, limit_s=PROFILE_S))
    return Findings(bars, measured.figures(), "\n".join(lines))


def run(card: Card) -> Findings:
    return measure(card, "uncompiled")


if __name__ == "__main__":
    # At size tiny nothing is compiled: the section `compile` does, and it would take minutes here.
    os.environ.update(choose_size({}, {"TORCHDYNAMO_DISABLE": "1"}))
    serve(
        {
            "ours": run_ours,
            "plain": run_plain,
            "trainer": run_library,
            "profile": run_profile,
        }
    )
