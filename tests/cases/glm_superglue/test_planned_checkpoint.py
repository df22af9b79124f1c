"""Checkpoints as planning sees them: names and shapes, no numbers, nothing executed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path  # noqa: TC003
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from trainmark.cases.glm_superglue import data
from trainmark.cases.glm_superglue.case import CASE
from trainmark.cases.glm_superglue.data import generated
from trainmark.cases.glm_superglue.data.weights import EXPORTED, LATEST, ORIGINAL, expected_shapes
from trainmark.cases.glm_superglue.model import build_model
from trainmark.cases.glm_superglue.recipe import GlmRecipe, GlmShape
from trainmark.errors import DataError

SIZES = {"num_layers": 2, "hidden_size": 64, "vocab_size": 47, "max_positions": 52}
# Which one is met first follows from the order in the file.
TABLES = ("word_embeddings.weight", "transformer.block_position_embeddings.weight")


def state(**sizes: int) -> dict[str, torch.Tensor]:
    shape = GlmShape(**{**SIZES, **sizes}, num_heads=4)
    return dict(build_model(shape, seed=3).state_dict())


@pytest.fixture(params=["safetensors", "original"])
def planned(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[Path, GlmRecipe, Path]:
    """A data folder, a recipe that fits its checkpoint, and the checkpoint's file."""
    monkeypatch.setattr(generated, "PASSAGES", {"train": 4, "val": 2})
    tiny = CASE.recipes["tiny"]
    assert isinstance(tiny, GlmRecipe)
    generated.generate(tmp_path, tiny)
    recipe = replace(tiny, data="real", init="pretrained", vocab_size=47)
    if request.param == "safetensors":
        file = tmp_path / "model" / EXPORTED
        save_file(state(), file)
    else:
        file = tmp_path / "blocklm" / "7" / ORIGINAL
        file.parent.mkdir(parents=True)
        (tmp_path / "blocklm" / LATEST).write_text("7")
        weights = {f"module.{name}": item.half() for name, item in state().items()}
        torch.save({"module": weights, "rng": torch.get_rng_state(), "lr": 1e-4}, file)
    return tmp_path, recipe, file


def fault(folder: Path, recipe: GlmRecipe) -> DataError:
    with pytest.raises(DataError) as caught:
        data.check(folder, recipe)
    return caught.value


def test_names_and_shapes_are_those_of_the_model() -> None:
    wanted = {name: tuple(item.shape) for name, item in state(num_layers=3).items()}
    assert expected_shapes(GlmShape(**{**SIZES, "num_layers": 3})) == wanted


@pytest.mark.parametrize(
    ("sizes", "key", "what"),
    [
        ({"num_layers": 3}, "transformer.layers.2.input_layernorm.weight", "and 11 more"),
        ({"num_layers": 1}, "transformer.layers.1.", "unknown weight"),
        (
            {"vocab_size": 99},
            "word_embeddings.weight",
            "of the recipe's sizes has it as (99, 64)",
        ),
        ({"hidden_size": 32}, TABLES, "of the recipe's sizes has it as ("),
    ],
)
def test_a_checkpoint_of_another_shape_stops_the_plan(
    planned: tuple[Path, GlmRecipe, Path],
    sizes: dict[str, Any],
    key: str | tuple[str, ...],
    what: str,
) -> None:
    folder, recipe, file = planned
    found = fault(folder, replace(recipe, **sizes))
    place, _, named = str(found.where).partition(", ")
    assert place == str(file)
    assert named.removeprefix("module.").startswith(key)
    assert what in str(found)


def test_position_tables_of_another_length_do_not(planned: tuple[Path, GlmRecipe, Path]) -> None:
    folder, recipe, _ = planned
    assert data.check(folder, recipe).quality_comparable
    assert data.check(folder, replace(recipe, seq_length=60)).quality_comparable


def test_a_file_cut_short_stops_the_plan(planned: tuple[Path, GlmRecipe, Path]) -> None:
    folder, recipe, file = planned
    file.write_bytes(file.read_bytes()[:-70])
    found = fault(folder, recipe)
    assert found.where == str(file)
    assert found.what.startswith(("not readable as safetensors", "damaged"))
