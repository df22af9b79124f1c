"""Checkpoints as planning sees them: names and shapes, no numbers, nothing executed."""

from __future__ import annotations

import io
import pickle
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from trainmark.cases.glm_superglue import data
from trainmark.cases.glm_superglue.case import CASE
from trainmark.cases.glm_superglue.data import generated
from trainmark.cases.glm_superglue.data.weights import EXPORTED, LATEST, ORIGINAL, expected_shapes
from trainmark.cases.glm_superglue.model import GlmShape, build_model
from trainmark.cases.glm_superglue.recipe import GlmRecipe
from trainmark.data.checkpoint_shapes import stored_tensors
from trainmark.errors import DataError

SIZES = {"num_layers": 2, "hidden_size": 64, "vocab_size": 47, "max_positions": 52}
BIAS = "transformer.layers.1.attention.query_key_value.bias"
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


def pickled_shapes(file: Path) -> dict[str, tuple[int, ...]] | None:
    found = stored_tensors(file, rule="a checkpoint", remedy="put one there")
    return None if found is None else {item.key: item.shape for item in found}


def fault(folder: Path, recipe: GlmRecipe) -> DataError:
    with pytest.raises(DataError) as caught:
        data.check(folder, recipe)
    return caught.value


def test_names_and_shapes_are_those_of_the_model() -> None:
    wanted = {name: tuple(item.shape) for name, item in state(num_layers=3).items()}
    assert expected_shapes(**{**SIZES, "num_layers": 3}) == wanted


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


def test_whole_numbers_where_weights_belong_stop_the_plan(
    planned: tuple[Path, GlmRecipe, Path],
) -> None:
    folder, recipe, file = planned
    whole = {**state(), BIAS: torch.ones(192, dtype=torch.int64)}
    if file.name == EXPORTED:
        save_file(whole, file)
        assert load_file(file)[BIAS].dtype == torch.int64
    else:
        torch.save({"module": whole}, file)
    found = fault(folder, recipe)
    assert found.where == f"{file}, {BIAS}"
    assert "weights are floating-point numbers" in str(found.rule)


def test_code_beside_the_weights_stops_the_plan_and_is_not_run(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> Any:
            return Path.touch, (tmp_path / "sprung",)

    file = tmp_path / ORIGINAL
    torch.save({"module": state(), "args": Trap()}, file)
    with pytest.raises(DataError, match=r"it names pathlib\.\S+"):
        pickled_shapes(file)
    assert not (tmp_path / "sprung").exists()


def test_names_that_only_the_library_knows_are_left_to_it(tmp_path: Path) -> None:
    file = tmp_path / ORIGINAL
    parameters = {name: torch.nn.Parameter(item) for name, item in state().items()}
    torch.save({"module": parameters, "dtype": torch.float16, "names": {"a"}}, file)
    assert pickled_shapes(file) == {name: tuple(item.shape) for name, item in state().items()}
    torch.save({"module": {"a": torch.ones(2)}}, file, _use_new_zipfile_serialization=False)
    assert pickled_shapes(file) is None


@pytest.mark.parametrize(
    ("content", "where", "what"),
    [
        ({"module": {"a": 3}}, ", a", "a holds no floating-point numbers"),
        ({"module": 3}, ", module", "no weights by name"),
        ([1], ", module", "no weights by name"),
    ],
)
def test_what_holds_no_weights_stops_the_plan(
    tmp_path: Path, content: Any, where: str, what: str
) -> None:
    file = tmp_path / ORIGINAL
    torch.save(content, file)
    with pytest.raises(DataError, match=what) as caught:
        pickled_shapes(file)
    assert caught.value.where == f"{file}{where}"


def read_or_refused(file: Path) -> dict[str, tuple[int, ...]] | str:
    try:
        return pickled_shapes(file) or {}
    except DataError as error:
        return str(error)


@given(at=st.integers(0, 10_000), put=st.binary(max_size=12), cut=st.booleans())
def test_damage_of_any_kind_is_refused_or_gives_shapes(
    tmp_path_factory: pytest.TempPathFactory, at: int, put: bytes, cut: bool
) -> None:
    whole = pickle.dumps({"module": {"a": torch.Size((2, 3)), "b": [1, (2.0,)]}}, 2)
    at %= len(whole)
    rest = b"" if cut else whole[at + len(put) :]
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w") as stream:
        stream.writestr("archive/data.pkl", whole[:at] + put + rest)
    file = tmp_path_factory.mktemp("damaged") / ORIGINAL
    file.write_bytes(held.getvalue())
    found = read_or_refused(file)
    if isinstance(found, str):
        assert str(file) in found
    else:
        assert all(type(shape) is tuple for shape in found.values())
