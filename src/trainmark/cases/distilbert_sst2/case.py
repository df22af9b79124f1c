"""DistilBERT base uncased on SST-2: what is trained and how; no torch here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from trainmark.spec import Case, DataFacts, Mission, PositiveInt, Recipe, Text, recipe_field

from .generate import generate

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class DistilbertRecipe(Recipe):
    """How DistilBERT is trained; its size comes from ``model/config.json`` beside the data."""

    seq_length: PositiveInt = recipe_field(512, "tokens every sentence is padded to")
    init: Literal["pretrained", "random"] = recipe_field(
        "pretrained", "weights to start from; random: speed only, no quality to compare"
    )


def check_data(folder: Path, recipe: DistilbertRecipe) -> DataFacts:
    """Check every file that ``recipe`` reads; see ``data.check``."""
    from .data import check

    return check(folder, recipe)


def prepare(raw: Path, data: Path, say: Callable[[str], None]) -> None:
    """Turn a raw download into the npz form; see ``prepare.prepare``."""
    from .prepare import prepare as run

    run(raw, data, say)


def _standard(**changes: int | str) -> DistilbertRecipe:
    """Return the published setup: AdamW 5e-5, no decay, at most 10 epochs, accuracy 0.91."""
    return DistilbertRecipe(
        learning_rate=5e-5, max_epochs=10, target_value=0.91, **changes,  # type: ignore[arg-type]
    )  # fmt: skip


def _throughput(world: str, learning_rate: float) -> DistilbertRecipe:
    """Return a recipe that fills the device and measures speed only."""
    return DistilbertRecipe(
        micro_batch_size=96, learning_rate=learning_rate, max_epochs=10, max_steps=320,
        eval_every_epochs=None, warmup_steps=20, world=world,
    )  # fmt: skip


CASE = Case(
    name="distilbert_sst2",
    title=Text("DistilBERT on SST-2", "DistilBERT 文本分类"),
    task=Text("Text Classification", "Text Classification"),
    model="distilbert",
    dataset="SST-2",
    metric="acc",
    metric_note=Text("classification accuracy", "分类准确率"),
    sample_note=Text(
        "one sentence, padded to seq_length tokens", "一个句子，填充至 seq_length 个 token"
    ),
    recipe_type=DistilbertRecipe,
    recipes={
        "tiny": DistilbertRecipe(
            data="generated", init="random", seq_length=24, micro_batch_size=16,
            learning_rate=1e-3, max_epochs=10, target_value=0.91, timeout_s=300.0,
        ),
        "standard-1x1": _standard(micro_batch_size=32, grad_accum_steps=8, world="1x1"),
        "standard-1x8": _standard(micro_batch_size=32, world="1x8"),
        "standard-2x8": _standard(micro_batch_size=16, world="2x8"),
        "throughput-1x1": _throughput("1x1", 1.5e-4),
        "throughput-1x8": _throughput("1x8", 5e-5),
    },
    generate=generate,
    check_data=check_data,
    prepare=prepare,
    aliases=("distilbert",),
    mission=Mission(repository="nlp", model="distilbert", name="文本分类", direction_id=1),
)  # fmt: skip
