"""The Llama 3.1 training step on a CPU: ours and ``transformers.Trainer`` on the library's Llama.

Two layers of width 512 with the whole vocabulary, both on the rows that our job trains first.
"""

from __future__ import annotations

from typing import Any

from benchmarks.harness import choose_size, conclude
from benchmarks.language import (
    make_recipe,
    measure_step,
    profile_job,
    train_library,
    train_ours,
)
from benchmarks.peers import serve

MODULE, CASE = "benchmarks.llama31_step", "llama31_8b"
FIELDS: dict[str, Any] = {
    "num_heads": 8,
    "num_kv_heads": 2,
    "num_layers": choose_size(2, 1),
    "hidden_size": choose_size(512, 64),
    "ffn_size": choose_size(1792, 128),
    "seq_length": choose_size(512, 32),
    "vocab_size": choose_size(128_256, 256),
    "micro_batch_size": 2,
    "learning_rate": 5e-4,
    "weight_decay": 0.1,
}
BARS = {"trainer": 1.0, "matmul": 0.7}


def run_ours(folder: str) -> None:
    train_ours(CASE, make_recipe(CASE, FIELDS), folder)


def train_with_library(folder: str, recipe: Any, **arguments: Any) -> None:
    """Let ``Trainer`` train the library's Llama of the same configuration, on our job's rows.

    Args:
        arguments: see ``train_library``.
    """
    import torch
    from transformers import LlamaForCausalLM

    from trainmark.cases.llama31_8b.model import build_config

    torch.manual_seed(1)
    train_library(CASE, LlamaForCausalLM(build_config(recipe)), recipe, folder, **arguments)


def run_library(folder: str) -> None:
    train_with_library(folder, make_recipe(CASE, FIELDS))


def run_profile(folder: str) -> None:
    profile_job(CASE, make_recipe(CASE, FIELDS), folder)


def main() -> bool:
    recipe = make_recipe(CASE, FIELDS)
    bars, details = measure_step(MODULE, CASE, recipe, BARS)
    return conclude(
        "llama31_step",
        f"The Llama 3.1 step, {recipe.num_layers} layers of width {recipe.hidden_size}, "
        f"{recipe.micro_batch_size} x {recipe.seq_length} tokens, CPU",
        bars,
        details,
    )


if __name__ == "__main__":
    serve({"ours": run_ours, "trainer": run_library, "profile": run_profile})
