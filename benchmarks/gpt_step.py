"""The GPT-2 training step on a CPU: ours and ``transformers.Trainer`` on its GPT-2.

Four layers of the standard width, sequence 512, the whole vocabulary. Both with dropout
and clipping as the standard recipe has them.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from benchmarks.harness import choose_size, conclude
from benchmarks.jobs import on_data
from benchmarks.peers import compare_in_bf16, compare_in_fp32, serve, take_steps
from benchmarks.profiling import format_profile, print_profile
from benchmarks.trainer import run_trainer

MODULE = "benchmarks.gpt_step"
BATCH, SEQUENCE, LAYERS = choose_size((4, 512, 4), (2, 32, 1))
ROUNDS, WARMUP = 9, 1
BARS = {"trainer": 1.0, "matmul": 0.75, "bf16": 1.8}


def make_recipe(**changes: Any) -> Any:
    """Return the standard recipe at the benchmark's size."""
    from trainmark import cases

    fields = {"num_layers": LAYERS, "seq_length": SEQUENCE, "micro_batch_size": BATCH}
    return cases.load("gpt_megatron").recipe_type(**{**fields, **changes})


def build_job(folder: str, **changes: Any) -> Any:
    """Return the case's own job on the data in ``folder``."""
    return on_data("gpt_megatron", make_recipe(**changes), Path(folder))


def run_ours(folder: str, precision: str, layers: str, batch: str, sequence: str) -> None:
    sizes = {"num_layers": layers, "micro_batch_size": batch, "seq_length": sequence}
    changes = {name: int(word) for name, word in sizes.items()}
    take_steps(build_job(folder, precision=precision, **changes))


def read_token_rows(folder: str, chosen: Any, batches: int = 8) -> Any:
    """Return token ids (rows, T + 1) on the host: those that our job trains first."""
    import torch

    from trainmark import cases

    index = (
        cases.import_part("gpt_megatron", "data").load(Path(folder), chosen).train.build_epoch(0)
    )
    return torch.from_numpy(index.gather_tokens(index.shuffle[: batches * chosen.micro_batch_size]))


def train_with_library(folder: str, chosen: Any, **arguments: Any) -> None:
    """Let ``Trainer`` train the library's GPT-2 at the sizes of a recipe, on our job's rows.

    Args:
        arguments: ``device_name`` and further ones of ``run_trainer``.
    """
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    rows = read_token_rows(folder, chosen)[:, :-1]
    torch.manual_seed(1)
    # The library shifts the labels itself and so predicts one token a sample less.
    items = [{"input_ids": row, "labels": row} for row in rows]
    config = GPT2Config(
        n_layer=chosen.num_layers,
        n_embd=chosen.hidden_size,
        n_head=chosen.num_heads,
        n_positions=chosen.seq_length,
        vocab_size=chosen.vocab_size,
        use_cache=False,
        resid_pdrop=chosen.dropout,
        embd_pdrop=chosen.dropout,
        attn_pdrop=chosen.dropout,
    )
    run_trainer(
        GPT2LMHeadModel(config).train(),
        items,
        batch=chosen.micro_batch_size,
        planned=10_000,
        learning_rate=chosen.learning_rate,
        lr_scheduler_type="cosine",
        weight_decay=chosen.weight_decay,
        max_grad_norm=chosen.max_grad_norm,
        precision=chosen.precision,
        **arguments,
    )


def run_library(folder: str) -> None:
    train_with_library(folder, make_recipe())


def run_profile(folder: str) -> None:
    print_profile(build_job(folder))


def main() -> bool:
    from trainmark import cases
    from trainmark.protocols import Counts

    with tempfile.TemporaryDirectory() as folder:
        cases.import_part("gpt_megatron", "data").generate(Path(folder), make_recipe())
        tokens = BATCH * SEQUENCE
        flops = build_job(folder).model_flops(Counts(tokens=tokens, tokens_padded=tokens))
        bars, details = compare_in_fp32(
            MODULE,
            {
                "ours": ("ours", folder, "fp32", str(LAYERS), str(BATCH), str(SEQUENCE)),
                "trainer": ("trainer", folder),
            },
            {"trainer": "`transformers.Trainer`"},
            BARS,
            flops=flops,
            rounds=ROUNDS,
            warmup=WARMUP,
        )

        def list_parts(fast: bool) -> dict[str, tuple[str, ...]]:
            sizes = (LAYERS, BATCH, SEQUENCE) if fast else (1, 1, 32)
            arguments = tuple(map(str, sizes))
            return {kind: ("ours", folder, kind, *arguments) for kind in ("fp32", "bf16")}

        bar, details_of_bf16 = compare_in_bf16(
            MODULE, list_parts, BARS["bf16"], "1 layer, 32 tokens"
        )
        where = format_profile("Where one of our fp32 steps goes", MODULE, "profile", folder)
    return conclude(
        "gpt_step",
        f"The GPT-2 step, {LAYERS} layers, batch {BATCH}, sequence {SEQUENCE}, CPU",
        [*bars, bar],
        f"{details}\n\n{details_of_bf16}\n\n{where}",
    )


if __name__ == "__main__":
    serve({"ours": run_ours, "trainer": run_library, "profile": run_profile})
