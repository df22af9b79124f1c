"""DistilBERT base uncased on SST-2: what is trained and how; no torch here."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from trainmark.recipe import PositiveInt, Recipe, recipe_field
from trainmark.spec import Case, Mission, Text


@dataclass(frozen=True, kw_only=True)
class DistilbertRecipe(Recipe):
    """How DistilBERT is trained; its size comes from ``model/config.json`` in the data folder."""

    seq_length: PositiveInt = recipe_field(
        512, "number of tokens to which every sentence is padded"
    )
    init: Literal["pretrained", "random"] = recipe_field(
        "pretrained",
        "initial weights; use random only to measure speed (the quality is not comparable)",
        rule="scope",
    )


SEED = 0  # of the published runs


def _make_standard_recipe(
    world: str, micro_batch_size: int, grad_accum_steps: int = 1
) -> DistilbertRecipe:
    """Return a recipe of the published setup: up to 10 epochs, until the accuracy is 0.91.

    Its other fields, such as no weight decay, are the defaults of ``DistilbertRecipe``.

    Args:
        world: number of nodes and of ranks on each, as in ``1x8``.
        micro_batch_size, grad_accum_steps: of each rank; a step has 256 samples in every world.
    """
    return DistilbertRecipe(
        seed=SEED,
        micro_batch_size=micro_batch_size,
        grad_accum_steps=grad_accum_steps,
        learning_rate=5e-5,
        max_epochs=10,
        target_value=0.91,
        world=world,
    )


def _make_throughput_recipe(
    standard: DistilbertRecipe, *, max_steps: int, **changes: Any
) -> DistilbertRecipe:
    """Return ``standard``, changed so that it measures only speed: without evaluation and target.

    The first 20 steps are excluded from steady-state figures; the learning rate has no warm-up. The
    micro-batch is that of the published throughput runs. The number of micro-batches of a step
    stays that of ``standard``, so a step has more samples.

    Args:
        changes: further fields in which the recipe differs from ``standard``.
    """
    return replace(
        standard,
        micro_batch_size=96,
        max_steps=max_steps,
        warmup_steps=20,
        target_value=None,
        eval_every_epochs=None,
        **changes,
    )


STANDARD_1X1 = _make_standard_recipe("1x1", 32, grad_accum_steps=8)
STANDARD_1X8 = _make_standard_recipe("1x8", 32)
STANDARD_2X8 = _make_standard_recipe("2x8", 16)

CASE = Case(
    name="distilbert_sst2",
    title=Text("DistilBERT on SST-2", "DistilBERT 文本分类"),
    task=Text("Text Classification", "文本分类"),
    model="distilbert",
    dataset="SST-2",
    metric="acc",
    metric_note=Text("classification accuracy", "分类准确率"),
    sample_note=Text(
        "one sentence, padded to seq_length tokens", "一个句子，填充到 seq_length 个 token"
    ),
    recipe_type=DistilbertRecipe,
    can_replay=True,
    recipes={
        "tiny": DistilbertRecipe(
            data="generated",
            init="random",
            seq_length=24,
            micro_batch_size=16,
            learning_rate=1e-3,
            max_epochs=10,
            target_value=0.91,
            timeout_s=1_800.0,
        ),
        "standard-1x1": STANDARD_1X1,
        "standard-1x8": STANDARD_1X8,
        "standard-2x8": STANDARD_2X8,
        "throughput-1x1": _make_throughput_recipe(
            STANDARD_1X1, max_steps=100, learning_rate=1.5e-4
        ),
        "throughput-1x8": _make_throughput_recipe(STANDARD_1X8, max_steps=320),
        "throughput-2x8": _make_throughput_recipe(STANDARD_2X8, max_steps=320),
    },
    aliases=("distilbert",),
    mission=Mission(repository="nlp", model="distilbert", name="文本分类", direction_id=1),
)
