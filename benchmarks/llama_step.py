"""The step of training adapters on a CPU: ours, and ``transformers.Trainer`` with peft.

Two layers at the 7B model's width, sequence 512, batch 1, the standard adapters. Both start
from the same folder, and each process's peak memory counts from its start.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.harness import Bar, choose_size, compute_ratio, conclude, interleave
from benchmarks.jobs import on_data
from benchmarks.peers import Peer, compare_in_fp32, serve, take_steps
from benchmarks.profiling import format_profile, print_profile
from benchmarks.trainer import run_trainer

if TYPE_CHECKING:
    from collections.abc import Mapping

MODULE = "benchmarks.llama_step"
LARGE, SMALL = choose_size("7b-2layers", "tiny"), "tiny"
SEQUENCE, BATCHES = choose_size(512, 64), {LARGE: 1, SMALL: 2}
ROUNDS, WARMUP = 9, 1
BARS = {"trainer": 1.0, "matmul": 0.8, "memory": 0.85, "bf16": 1.0}


def make_recipe(size: str, **changes: Any) -> Any:
    """Return the standard recipe on a generated folder of that size."""
    from trainmark import cases

    fields = {
        "data": "generated",
        "model_size": size,
        "micro_batch_size": BATCHES[size],
        "seq_length": SEQUENCE,
        "learning_rate": 1e-4,
        "eval_every_epochs": None,
        "mmlu_mode": "off",
    }
    return cases.load("llama2_7b_lora").recipe_type(**{**fields, **changes})


def build_job(folder: str, size: str, **changes: Any) -> Any:
    """Return the case's own job on the data and the weights in ``folder``."""
    return on_data("llama2_7b_lora", make_recipe(size, **changes), Path(folder))


def run_generate(folder: str, size: str) -> None:
    """Write the data in a separate process, because it holds all weights in memory."""
    from trainmark import cases

    Path(folder).mkdir()
    cases.import_part("llama2_7b_lora", "data").generate(Path(folder), make_recipe(size))


def run_ours(folder: str, size: str, precision: str) -> None:
    take_steps(build_job(folder, size, precision=precision))


def run_library(folder: str, size: str, precision: str) -> None:
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import LlamaForCausalLM

    chosen = make_recipe(size, precision=precision)
    torch.manual_seed(1)
    model = LlamaForCausalLM.from_pretrained(Path(folder) / "model", dtype=torch.float32)
    model.config.use_cache = False
    settings = LoraConfig(
        task_type="CAUSAL_LM",
        r=chosen.lora_rank,
        lora_alpha=int(chosen.lora_alpha),
        lora_dropout=chosen.lora_dropout,
        target_modules=chosen.lora_targets.split(","),
    )
    train_with_library(get_peft_model(model, settings).train(), folder, chosen)


def train_with_library(model: Any, folder: str, chosen: Any, *, device_name: str = "cpu") -> None:
    """Let ``transformers.Trainer`` train a model of peft, in train mode, on our rows."""
    import torch

    from trainmark import cases

    split = cases.import_part("llama2_7b_lora", "data").load(Path(folder), chosen).train
    items = [
        {"input_ids": torch.from_numpy(ids), "labels": torch.from_numpy(labels)}
        for ids, labels in zip(split.ids[:64], split.labels[:64], strict=True)
    ]
    del split
    run_trainer(
        model,
        items,
        batch=chosen.micro_batch_size,
        planned=10_000,
        device_name=device_name,
        precision=chosen.precision,
        learning_rate=chosen.learning_rate,
        lr_scheduler_type="constant",
        weight_decay=chosen.weight_decay,
        max_grad_norm=0.0,
    )


def run_profile(folder: str, size: str) -> None:
    print_profile(build_job(folder, size))


def run_flops(folder: str, size: str) -> None:
    """Print the model FLOPs of one step; building the model is left to its own process."""
    from trainmark.protocols import Counts

    job = build_job(folder, size)
    tokens = SEQUENCE * BATCHES[size]
    print(job.model_flops(Counts(BATCHES[size], BATCHES[size], tokens, tokens)))


def _run_part(*arguments: str) -> str:
    command = [sys.executable, "-m", MODULE, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def compare_in_bf16(folder: str) -> tuple[Bar, str]:
    """Compare both in bf16, at a size that ends where bf16 is slow."""
    parts: Mapping[str, tuple[str, ...]] = {
        name: (name, folder, SMALL, "bf16") for name in ("ours", "trainer")
    }
    with Peer(MODULE, *parts["ours"]) as ours, Peer(MODULE, *parts["trainer"]) as trainer:
        seconds_by_name = interleave(
            {"ours": ours.turn, "trainer": trainer.turn}, rounds=ROUNDS, warmup=WARMUP
        )
    speed = compute_ratio(seconds_by_name["trainer"], seconds_by_name["ours"])
    what, bar = "ours / `transformers.Trainer`, speed in bf16", f"at least {BARS['bf16']:g}"
    return (
        Bar(what, str(speed), bar, speed.median >= BARS["bf16"]),
        "bf16 at the tiny model's size: where a processor has no bf16 units, 7B width takes hours.",
    )


def main() -> bool:
    with tempfile.TemporaryDirectory() as place:
        folder, small = str(Path(place) / "large"), str(Path(place) / "small")
        _run_part("generate", folder, LARGE)
        _run_part("generate", small, SMALL)
        flops = float(_run_part("flops", folder, LARGE))
        bars, details = compare_in_fp32(
            MODULE,
            {name: (name, folder, LARGE, "fp32") for name in ("ours", "trainer")},
            {"trainer": "`transformers.Trainer`"},
            BARS,
            flops=flops,
            rounds=ROUNDS,
            warmup=WARMUP,
        )
        bar, details_of_bf16 = compare_in_bf16(small)
        where = format_profile("Where one of our fp32 steps goes", MODULE, "profile", folder, LARGE)
    return conclude(
        "llama_step",
        f"The step with adapters, 2 layers at 7B width, batch {BATCHES[LARGE]}, "
        f"sequence {SEQUENCE}, CPU",
        [*bars, bar],
        f"{details} Model FLOPs are 4 a frozen weight that is multiplied and 6 an adapter's; "
        "gradients in the first block that lead to no adapter are not counted.\n\n"
        f"{details_of_bf16}\n\n{where}",
    )


if __name__ == "__main__":
    serve(
        {
            "generate": run_generate,
            "ours": run_ours,
            "trainer": run_library,
            "profile": run_profile,
            "flops": run_flops,
        }
    )
