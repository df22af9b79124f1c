"""What benchmarks of pre-trained language models share: the library as a peer, and the rounds."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.jobs import on_data
from benchmarks.peers import compare_in_fp32, take_steps
from benchmarks.profiling import format_profile, print_profile
from benchmarks.trainer import run_trainer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from benchmarks.harness import Bar

ROUNDS, WARMUP = 9, 1


def make_recipe(case: str, fields: Mapping[str, Any], **changes: Any) -> Any:
    """Return the recipe of ``case`` at the benchmark's size."""
    from trainmark import cases

    return cases.load(case).recipe_type(data="generated", **{**fields, **changes})


def train_ours(case: str, recipe: Any, folder: str) -> None:
    """Train the case's own job on the data in ``folder``, in the parent's turns."""
    take_steps(on_data(case, recipe, Path(folder)))


def train_library(case: str, model: Any, recipe: Any, folder: str, **arguments: Any) -> None:
    """Let ``Trainer`` train the library's ``model`` on the rows that our job trains first.

    Args:
        arguments: ``device_name`` and further ones of ``run_trainer``.
    """
    import torch

    from trainmark import cases

    index = cases.import_part(case, "data").load(Path(folder), recipe).train.build_epoch(0)
    ids = index.gather_tokens(index.shuffle[: 8 * recipe.micro_batch_size])
    # The library shifts the labels itself and so predicts one token a sample less.
    items = [{"input_ids": row, "labels": row} for row in torch.from_numpy(ids)[:, :-1]]
    run_trainer(
        model.train(),
        items,
        batch=recipe.micro_batch_size,
        planned=10_000,
        learning_rate=recipe.learning_rate,
        lr_scheduler_type="cosine",
        weight_decay=recipe.weight_decay,
        max_grad_norm=recipe.max_grad_norm,
        precision=recipe.precision,
        **arguments,
    )


def profile_job(case: str, recipe: Any, folder: str) -> None:
    """Print where the time of our job's steps goes."""
    print_profile(on_data(case, recipe, Path(folder)))


def measure_step(
    module: str, case: str, recipe: Any, bars: Mapping[str, float]
) -> tuple[list[Bar], str]:
    """Interleave our steps, the library's and matrix products; return the bars and the details.

    Args:
        module: serves the parts ``ours``, ``trainer`` and ``profile``, each with a folder of data.
    """
    from trainmark import cases
    from trainmark.protocols import Counts

    with tempfile.TemporaryDirectory() as folder:
        cases.import_part(case, "data").generate(Path(folder), recipe)
        tokens = recipe.micro_batch_size * recipe.seq_length
        job = on_data(case, recipe, Path(folder))
        rows, details = compare_in_fp32(
            module,
            {"ours": ("ours", folder), "trainer": ("trainer", folder)},
            {"trainer": "`transformers.Trainer`"},
            bars,
            flops=job.model_flops(Counts(tokens=tokens, tokens_padded=tokens)),
            rounds=ROUNDS,
            warmup=WARMUP,
        )
        where = format_profile("Where one of our fp32 steps goes", module, "profile", folder)
    return rows, f"{details}\n\n{where}"
