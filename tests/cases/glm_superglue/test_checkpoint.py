"""Checkpoints of the original load as they are, and what does not fit is named."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003
from typing import Any

import pytest
import torch

from trainmark.cases.glm_superglue.case import GlmShape
from trainmark.cases.glm_superglue.data import (
    LATEST,
    WEIGHTS_FILE,
    find_checkpoint,
)
from trainmark.cases.glm_superglue.model import Glm, build_model
from trainmark.cases.glm_superglue.model import load_checkpoint as load
from trainmark.errors import DataError

SIZES: dict[str, int] = {"num_layers": 2, "hidden_size": 64, "num_heads": 1, "vocab_size": 30}
SHAPE = GlmShape(**SIZES, max_positions=10)
POSITIONS = "transformer.position_embeddings.weight"
BLOCK_POSITIONS = "transformer.block_position_embeddings.weight"


def make_weights() -> dict[str, torch.Tensor]:
    """Return the weights of a checkpoint by name, with another seed than ``make_model``."""
    return dict(build_model(SHAPE, seed=3).state_dict())


def write_checkpoint(folder: Path, content: Any, iteration: str = "250000") -> Path:
    """Write a checkpoint in the layout of the original; return its file.

    Args:
        folder: gets the file ``LATEST`` and the subfolder.
        content: of the file: a dictionary with the weights under ``module``.
        iteration: name of the subfolder, which the file ``LATEST`` names.
    """
    file = folder / iteration / WEIGHTS_FILE
    file.parent.mkdir(parents=True)
    torch.save(content, file)
    (folder / LATEST).write_text(f"{iteration}\n")
    return file


def make_model(**sizes: int) -> Glm:
    """Return a small GLM to load a checkpoint into; ``sizes`` replace those of the checkpoint."""
    return build_model(GlmShape(**{**SIZES, "max_positions": 10, **sizes}), seed=9)


def make_report(**tables: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    """Return what ``load`` reports: names of weights by what was unusual; by default none."""
    return {"unexpected": (), "extended": (), "cut": (), **tables}


def read_fault(folder: Path, into: Glm | None = None) -> DataError:
    """Return the error of loading ``folder``, into a new model by default."""
    with pytest.raises(DataError) as caught:
        load(into or make_model(), folder)
    return caught.value


@pytest.mark.parametrize("wrapper", ["", "module.", "model.", "module.model."])
def test_checkpoint_in_the_original_layout_loads(tmp_path: Path, wrapper: str) -> None:
    """A checkpoint with the weights of ``make_weights`` is loaded into a model with others.

    ``wrapper`` is a prefix of the names of weights. ``load`` returns a report of the weights that
    did not fit.
    """
    expected = make_weights()
    # Wrappers such as DDP prefix the names.
    state = {wrapper + name: item.half() for name, item in expected.items()}
    file = write_checkpoint(tmp_path / "blocklm-large", {"iteration": 250000, "module": state})
    assert find_checkpoint(tmp_path) == file
    assert find_checkpoint(tmp_path / "blocklm-large") == file
    loaded = make_model()
    assert load(loaded, tmp_path) == make_report()  # no weight is unexpected, extended or cut
    for name, item in loaded.state_dict().items():
        assert item.dtype == torch.float32
        # The checkpoint has float16, the model float32.
        assert torch.equal(item, expected[name].half().float())


def test_position_tables_of_another_length_are_extended_or_cut(tmp_path: Path) -> None:
    """Tables have a row more than ``max_positions``: 11 in the checkpoint, here 13 or 5.

    ``POSITIONS`` and ``BLOCK_POSITIONS`` are the names of the two tables of position embeddings.
    The checkpoint has the weights of ``make_weights``, from another seed than those of the models.
    ``load`` returns a report: which tables it extended or cut to fit.
    """
    write_checkpoint(tmp_path, {"module": make_weights()})
    loaded, fresh = make_model(max_positions=12), make_model(max_positions=12).state_dict()
    assert load(loaded, tmp_path) == make_report(extended=(POSITIONS, BLOCK_POSITIONS))
    for name in (POSITIONS, BLOCK_POSITIONS):
        # The rows of the checkpoint, and behind them the initial values of the model.
        table = loaded.state_dict()[name]
        assert torch.equal(table[:11], make_weights()[name])
        assert torch.equal(table[11:], fresh[name][11:])
    shorter = make_model(max_positions=4)
    assert load(shorter, tmp_path) == make_report(cut=(POSITIONS, BLOCK_POSITIONS))
    for name in (POSITIONS, BLOCK_POSITIONS):
        assert torch.equal(shorter.state_dict()[name], make_weights()[name][:5])


@pytest.mark.parametrize(
    ("sizes", "key", "what"),
    [
        # The checkpoint has two layers of 12 weights. All weights of a third one are missing.
        ({"num_layers": 3}, "transformer.layers.2.input_layernorm.weight", "and 11 more"),
        ({"num_layers": 1}, "transformer.layers.1.input_layernorm.weight", "unknown weight"),
        (
            {"vocab_size": 31},
            "word_embeddings.weight",
            "the weight must have shape (31, 64), as in a GLM with the recipe's sizes",
        ),
    ],
)
def test_a_checkpoint_of_another_shape_is_refused_by_key(
    tmp_path: Path, sizes: dict[str, int], key: str, what: str
) -> None:
    """The checkpoint has 2 layers of width 64 and 30 tokens; the model differs in ``sizes``.

    ``key`` is the weight that the error names, ``what`` a part of its text.
    """
    file = write_checkpoint(tmp_path, {"module": make_weights()})
    other = make_model(**sizes)
    before = {name: item.clone() for name, item in other.state_dict().items()}
    error = read_fault(tmp_path, other)
    assert error.where == f"{file}, {key}"
    assert what in str(error)
    # No weight was loaded before the refusal.
    assert all(torch.equal(item, before[name]) for name, item in other.state_dict().items())


@pytest.mark.parametrize(
    "content",
    [b"\xff" * 200, b"1" * 300, b"250\x00000", b"250000\n250001"],
)
def test_file_without_the_name_of_a_folder_is_refused(tmp_path: Path, content: bytes) -> None:
    """``LATEST`` names the folder of an iteration; here it is binary, too long or of two lines.

    Each byte that is not UTF-8 becomes a character of 3 bytes, and a name has at most 255 bytes.
    """
    write_checkpoint(tmp_path, {"module": make_weights()})
    (tmp_path / LATEST).write_bytes(content)
    error = read_fault(tmp_path)
    assert error.what == "the file does not contain the name of a folder"
    assert error.where == str(tmp_path / LATEST)
