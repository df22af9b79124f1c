"""The Llama 3.1 training step on a CPU: ours and ``transformers.Trainer`` on the library's Llama.

Two layers of width 512 with the whole vocabulary, both on the rows that our job trains first.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from benchmarks.harness import conclude, sized
from benchmarks.jobs import on_data
from benchmarks.peers import fp32_bars, serve, take_steps
from benchmarks.profiling import print_profile, profile_table
from benchmarks.trainer import run_trainer

MODULE, CASE = "benchmarks.llama31_step", "llama31_8b"
FIELDS: dict[str, Any] = {
    "num_heads": 8, "num_kv_heads": 2, "num_layers": sized(2, 1), "hidden_size": sized(512, 64),
    "ffn_size": sized(1792, 128), "seq_length": sized(512, 32), "vocab_size": sized(128_256, 256),
    "micro_batch_size": 2, "learning_rate": 5e-4, "weight_decay": 0.1,
}  # fmt: skip
ROUNDS, WARMUP = 9, 1
BARS = {"trainer": 1.0, "matmul": 0.7}


def recipe(**changes: Any) -> Any:
    """Return the case's recipe at the benchmark's size."""
    from trainmark import cases

    return cases.load(CASE).recipe_type(data="generated", **{**FIELDS, **changes})


def our_job(folder: str) -> Any:
    """Return the case's own job on the data in ``folder``."""
    return on_data(CASE, recipe(), Path(folder))


def run_ours(folder: str) -> None:
    take_steps(our_job(folder))


def train_with_library(folder: str, chosen: Any, **arguments: Any) -> None:
    """Let ``Trainer`` train the library's Llama of the same configuration, on our job's rows.

    Args:
        arguments: ``device_name`` and further ones of ``run_trainer``.
    """
    import torch
    from transformers import LlamaForCausalLM

    from trainmark import cases
    from trainmark.cases.llama31_8b.model import build_config

    index = cases.part(CASE, "data").load(Path(folder), chosen).train.epoch(0)
    ids = index.tokens(index.shuffle[: 8 * chosen.micro_batch_size])
    torch.manual_seed(1)
    config = build_config(chosen)
    # The library shifts the labels itself and so predicts one token a sample less.
    items = [{"input_ids": row, "labels": row} for row in torch.from_numpy(ids)[:, :-1]]
    run_trainer(
        LlamaForCausalLM(config).train(), items, batch=chosen.micro_batch_size, planned=10_000,
        learning_rate=chosen.learning_rate, lr_scheduler_type="cosine",
        weight_decay=chosen.weight_decay, max_grad_norm=chosen.max_grad_norm,
        precision=chosen.precision, **arguments,
    )  # fmt: skip


def run_library(folder: str) -> None:
    train_with_library(folder, recipe())


def run_profile(folder: str) -> None:
    print_profile(our_job(folder))


def main() -> bool:
    from trainmark import cases
    from trainmark.protocols import Counts

    chosen = recipe()
    with tempfile.TemporaryDirectory() as folder:
        cases.part(CASE, "data").generate(Path(folder), chosen)
        tokens = chosen.micro_batch_size * chosen.seq_length
        flops = our_job(folder).model_flops(Counts(tokens=tokens, tokens_padded=tokens))
        bars, details = fp32_bars(
            MODULE,
            {"ours": ("ours", folder), "trainer": ("trainer", folder)},
            {"trainer": "`transformers.Trainer`"},
            BARS, flops=flops, rounds=ROUNDS, warmup=WARMUP,
        )  # fmt: skip
        where = profile_table("Where one of our fp32 steps goes", MODULE, "profile", folder)
    return conclude(
        "llama31_step",
        f"The Llama 3.1 step, {chosen.num_layers} layers of width {chosen.hidden_size}, "
        f"{chosen.micro_batch_size} x {chosen.seq_length} tokens, CPU",
        bars, f"{details}\n\n{where}",
    )  # fmt: skip


if __name__ == "__main__":
    serve({"ours": run_ours, "trainer": run_library, "profile": run_profile})
