"""Recipes equal the configuration files of the published runs."""

from __future__ import annotations

from pathlib import Path

import pytest

import trainmark
from trainmark import cases
from trainmark.plan import reference

SEEDS = {
    "distilbert_sst2": 0,
    "dlrm_criteo": 0,
    "glm_superglue": 10_483,
    "gpt_megatron": 1234,
    "llama2_7b_lora": 42,
}


@pytest.mark.parametrize("name", SEEDS)
def test_every_published_recipe_has_the_seed_of_its_file(name: str) -> None:
    # ``SEEDS``: by case, the seed in the configuration file of the published run.
    seeds = {key: recipe.seed for key, recipe in cases.load(name).recipes.items()}
    assert seeds.pop("tiny") == 1  # ours, not published
    assert len(seeds) > 1
    assert set(seeds.values()) == {SEEDS[name]}


def test_dlrm_recipes_have_the_published_global_batches() -> None:
    # By recipe, the samples of a step over all ranks. All numbers below are the published ones.
    batch_sizes = {}
    for name, recipe in cases.load("dlrm").recipes.items():
        if recipe.world is not None:  # a published recipe, written for nodes x ranks of each
            nnodes, nproc = map(int, recipe.world.split("x"))
            batch_sizes[name] = recipe.micro_batch_size * nnodes * nproc
            assert recipe.learning_rate == 24.0
    assert batch_sizes == {
        "standard-1x1": 65_536,
        "standard-1x8": 65_536,
        "standard-2x8": 65_536,
        "throughput-1x1": 262_144,
        "throughput-1x8": 2_097_152,
        "throughput-2x8": 2_752_512,
    }


def test_published_rows_of_dlrm_are_kept_as_printed() -> None:
    (package,) = trainmark.cases.__path__
    reference_rows = reference.read_reference_file(Path(package) / "dlrm_criteo" / "reference.toml")
    # Training samples of Criteo's terabyte; then the nodes x ranks of each published row, in order.
    assert reference_rows.samples_per_pass == 4_195_197_692
    assert [row.world for row in reference_rows.rows] == ["1x1", "1x8", "2x8", "1x8", "1x1", "2x8"]


def test_llama_recipes_train_as_published_and_require_their_target() -> None:
    for name, recipe in cases.load("llama2").recipes.items():
        kind = name.split("-")[0]  # tiny, standard, published or throughput
        # "published" repeats the published program, and "standard" corrects its evaluation. The
        # published program keeps the order of the rows and drops the last one, which is short.
        assert (recipe.shuffle, recipe.short_row) == (
            (True, "train") if kind == "tiny" else (False, "drop")
        )
        assert recipe.target_required is (kind in ("standard", "tiny"))
        assert (recipe.target_value is None) == (kind == "throughput")
        assert recipe.mmlu_mode == {"published": "legacy", "throughput": "off"}.get(kind, "full")


def test_the_standard_recipes_of_glm_are_the_published_training() -> None:
    # All numbers are those of the published configuration.
    recipes = cases.load("glm").recipes
    assert recipes["standard-1x1"].shape.parameters == pytest.approx(335e6, rel=0.01)
    # Nodes x ranks of each, and samples of a step.
    for world, samples in (("1x1", 64), ("1x8", 64), ("2x8", 128)):
        item = recipes[f"standard-{world}"]
        nodes, ranks = map(int, world.split("x"))
        assert item.micro_batch_size * item.grad_accum_steps * nodes * ranks == samples
        assert (item.micro_batch_size, item.learning_rate, item.weight_decay) == (8, 1e-5, 0.1)
        assert (item.eval_every_samples, item.eval_from_sample) == (19_200, 100)
        assert (item.target_value, item.max_grad_norm, item.dropout) == (0.8, 1.0, 0.1)
        assert (item.max_wrong_choices, item.seq_length, item.lr_decay_steps) == (9, 512, 4338)
        assert (item.loss_scale_window, item.loss_scale_hysteresis) == (1000, 2)
