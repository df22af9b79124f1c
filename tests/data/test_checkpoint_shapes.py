"""Headers of checkpoints, and the one comparison of them with what a model expects."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from trainmark.data.checkpoint_shapes import (
    INDEX,
    SINGLE,
    ModelWeights,
    StoredTensor,
    indexed_files,
    match,
)
from trainmark.errors import DataError
from trainmark.train.checkpoints import stored_weights

SHAPES = {"table": (8, 4), "layers.0.weight": (4, 4), "head.bias": (2,)}


def expected(**changes: Any) -> ModelWeights:
    fields = {"model": "the model", "shapes": SHAPES, "rule": "a checkpoint", "remedy": "fetch it"}
    return ModelWeights(**{**fields, "fitting": "use another", **changes})


def found(prefix: str = "", **changes: Any) -> list[StoredTensor]:
    shapes = {**SHAPES, **changes}
    return [
        StoredTensor(Path("file"), f"{prefix}{key}", "float32", shape)
        for key, shape in shapes.items()
        if shape is not None
    ]


def refused(tensors: list[StoredTensor], **changes: Any) -> DataError:
    with pytest.raises(DataError) as caught:
        match(tensors, expected(**changes), where=Path("folder"))
    return caught.value


def test_every_weight_is_matched_by_the_models_name() -> None:
    matched = match(found(), expected(), where=Path("folder"))
    assert {name: tensor.key for name, tensor in matched.items()} == {name: name for name in SHAPES}


def test_a_weight_of_another_shape_is_named_with_both() -> None:
    error = refused(found(table=(8, 5)))
    assert (error.what, error.where) == ("table has shape (8, 5)", "file, table")
    assert (error.rule, error.remedy) == ("the model has it as (8, 4)", "use another")


def test_a_missing_weight_is_named_unless_it_is_optional() -> None:
    without = {"table": None, "head.bias": None}
    error = refused(found(**without))
    assert (error.what, error.where) == ("no weight table and 1 more", "folder, table")
    assert refused(found(**without), optional=("head.",)).what == "no weight table"
    headless = found(**{"head.bias": None})
    assert len(match(headless, expected(optional=("head.",)), where=Path("folder"))) == 2


def test_an_unknown_tensor_is_named_unless_it_is_unused() -> None:
    error = refused(found(extra=(3,)))
    assert (error.what, error.where) == ("unknown weight extra", "file, extra")
    ignoring = expected(unused=lambda name: name == "extra")
    assert "extra" not in match(found(extra=(3,)), ignoring, where=Path("folder"))


def read(file: Path) -> list[StoredTensor]:
    return stored_weights(file, rule="a checkpoint", remedy="fetch it")


@pytest.mark.parametrize("kind", ["safetensors", "state", "module", "old"])
def test_headers_give_names_types_and_shapes(tmp_path: Path, kind: str) -> None:
    state = {"a": torch.ones(2, 3), "b": torch.ones(4, dtype=torch.bfloat16), "c": torch.ones(())}
    file = tmp_path / (SINGLE if kind == "safetensors" else "weights.pt")
    if kind == "safetensors":
        save_file(state, file)
    elif kind == "module":
        rng = np.random.get_state()[1]
        torch.save({"module": state, "rng": torch.get_rng_state(), "numpy": rng}, file)
    else:
        torch.save(state, file, _use_new_zipfile_serialization=kind != "old")
    assert {x.key: (x.dtype, x.shape) for x in read(file)} == {
        "a": ("float32", (2, 3)), "b": ("bfloat16", (4,)), "c": ("float32", ()),
    }  # fmt: skip


@pytest.mark.parametrize("name", [SINGLE, "weights.pt"])
@pytest.mark.parametrize("size", [0, 300])
def test_a_damaged_file_is_refused(tmp_path: Path, name: str, size: int) -> None:
    file = tmp_path / name
    state = {f"a.{number}": torch.ones(9) for number in range(9)}
    save_file(state, file) if name == SINGLE else torch.save(state, file)
    file.write_bytes(file.read_bytes()[:size])
    with pytest.raises(DataError, match=r"empty|not readable|damaged") as caught:
        read(file)
    assert caught.value.where == str(file)


def test_code_in_a_pickle_is_refused_and_not_run(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> Any:
            return Path.touch, (tmp_path / "sprung",)

    file = tmp_path / "weights.pt"
    torch.save({"a": torch.ones(2), "args": Trap()}, file)
    with pytest.raises(DataError, match="not readable as weights alone: it names"):
        read(file)
    assert not (tmp_path / "sprung").exists()


def test_an_index_names_its_files_once(tmp_path: Path) -> None:
    index = tmp_path / INDEX
    names = {"a": "part-2.safetensors", "b": "part-1.safetensors", "c": "part-2.safetensors"}
    index.write_text(json.dumps({"weight_map": names}))
    files = indexed_files(index, rule="an index", remedy="fetch it")
    assert [file.name for file in files] == ["part-1.safetensors", "part-2.safetensors"]
