"""The GPT-OSS training step on a CPU: ours and ``transformers.Trainer`` on the library's model.

Two layers of width 256 with 8 experts, 2 for each token, both on the rows that our job trains
first. The library computes its experts one by one: its grouped product is far slower on a CPU.
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

MODULE, CASE = "benchmarks.gpt_oss_step", "gpt_oss_20b"
FIELDS: dict[str, Any] = {
    "num_heads": 8, "num_kv_heads": 2, "head_dim": sized(32, 8), "num_layers": 2,
    "hidden_size": sized(256, 64), "ffn_size": sized(256, 64), "num_experts": 8, "top_k": 2,
    "sliding_window": sized(128, 8), "seq_length": sized(512, 32), "vocab_size": sized(8192, 256),
    "micro_batch_size": 2, "learning_rate": 4e-4, "weight_decay": 0.1,
}  # fmt: skip
ROUNDS, WARMUP = 9, 1
BARS = {"trainer": 1.0}


def recipe(**changes: Any) -> Any:
    """Return the case's recipe at the benchmark's size."""
    from trainmark import cases

    return cases.load(CASE).recipe_type(data="generated", **{**FIELDS, **changes})


def our_job(folder: str) -> Any:
    """Return the case's own job on the data in ``folder``."""
    return on_data(CASE, recipe(), Path(folder))


def run_ours(folder: str) -> None:
    take_steps(our_job(folder))


def run_library(folder: str) -> None:
    """Let ``Trainer`` train the library's model of the same configuration, on our job's rows."""
    import torch
    from transformers import GptOssForCausalLM

    from trainmark import cases
    from trainmark.cases.gpt_oss_20b.model import build_config

    chosen = recipe()
    index = cases.part(CASE, "data").load(Path(folder), chosen).train.epoch(0)
    ids = index.tokens(index.shuffle[: 8 * chosen.micro_batch_size])
    torch.manual_seed(1)
    # The library shifts the labels itself and so predicts one token a sample less.
    items = [{"input_ids": row, "labels": row} for row in torch.from_numpy(ids)[:, :-1]]
    model = GptOssForCausalLM(build_config(chosen)).train()
    model.set_experts_implementation("eager")
    run_trainer(
        model, items, batch=chosen.micro_batch_size,
        planned=10_000, learning_rate=chosen.learning_rate, lr_scheduler_type="cosine",
        weight_decay=chosen.weight_decay, max_grad_norm=chosen.max_grad_norm,
        precision=chosen.precision,
    )  # fmt: skip


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
        "gpt_oss_step",
        f"The GPT-OSS step, {chosen.num_layers} layers of width {chosen.hidden_size}, "
        f"{chosen.num_experts} experts, {chosen.micro_batch_size} x {chosen.seq_length} tokens, "
        "CPU",
        bars, f"{details}\n\n{where}",
    )  # fmt: skip


if __name__ == "__main__":
    serve({"ours": run_ours, "trainer": run_library, "profile": run_profile})
