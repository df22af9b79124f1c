"""Weights in files: which key of a checkpoint fits which parameter, and export.

Owns names, shapes and position tables of another length. Must not execute anything that a
file says: pickles are read as numbers only.
"""

from __future__ import annotations

import zipfile
from collections import Counter
from dataclasses import dataclass
from pickle import UnpicklingError
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from trainmark.errors import DataError
from trainmark.input_files import readable

from .checkpoint_files import REMEDY, RULE, find_checkpoint
from .model import Glm, GlmShape

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from torch import Tensor

FITTING = "set the recipe's sizes to the checkpoint's, or use the checkpoint of such a model"
_WRAPPERS = ("module.", "model.")  # what training wrapped a model in stands before its names
_WORDS = "word_embeddings.weight"
_POSITIONS = (
    "transformer.position_embeddings.weight",
    "transformer.block_position_embeddings.weight",
)
_LAYERS = "transformer.layers."
_HEAD_SIZE = 64  # in every published GLM; weights do not say how many heads share them


@dataclass(frozen=True, slots=True)
class LoadReport:
    """What of a checkpoint did not go one to one into the model.

    Args:
        unexpected: keys that the model has no use for, left out.
        extended: position tables that are longer in the model, which keeps its further rows.
        cut: position tables that are shorter in the model: further positions never occur.
    """

    unexpected: tuple[str, ...]
    extended: tuple[str, ...]
    cut: tuple[str, ...]


def read_weights(file: Path) -> dict[str, Tensor]:
    """Return the tensors of a checkpoint under the model's own names, on the host.

    Raises:
        DataError: not readable, or with something else than numbers where weights belong.
    """
    with readable(file, rule=RULE, remedy=REMEDY):
        found = _read_safetensors(file) if file.suffix == ".safetensors" else _read_pickle(file)
    named = {key: _bare(key) for key in found}
    double = [name for name, count in Counter(named.values()).items() if count > 1]
    if double:
        raise DataError(f"{double[0]} is there twice", where=f"{file}, {double[0]}", rule=RULE)
    for key, value in found.items():
        if not (hasattr(value, "is_floating_point") and value.is_floating_point()):
            raise DataError(
                f"{key} holds no floating-point numbers",
                where=f"{file}, {key}",
                rule="every weight is a tensor of floating-point numbers",
                remedy=REMEDY,
            )
    return {named[key]: value for key, value in found.items()}


def _bare(key: str) -> str:
    while key.startswith(_WRAPPERS):
        key = key.partition(".")[2]
    return key


def _read_safetensors(file: Path) -> dict[str, Any]:
    try:
        return load_file(file)
    except SafetensorError as error:
        raise DataError(
            f"not readable as safetensors: {error}", where=str(file), remedy=REMEDY
        ) from None


def _read_pickle(file: Path) -> dict[str, Any]:
    """Return the original's ``module``; what else training kept is read past."""
    # A checkpoint of training holds the state of numpy's generator: arrays, no code.
    rebuild: Any = np.ndarray.__reduce__(np.zeros(1, np.uint32))[0]
    arrays = [
        (rebuild, "numpy.core.multiarray._reconstruct"),
        rebuild, np.ndarray, np.dtype, type(np.dtype(np.uint32)),
    ]  # fmt: skip
    try:
        with torch.serialization.safe_globals(arrays):
            # Mapped, a file that also holds an optimizer is not read as a whole.
            whole = torch.load(
                file, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(file)
            )
    except (UnpicklingError, RuntimeError, EOFError, ValueError, KeyError) as error:
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DataError(
            f"not readable as weights alone: {first}",
            where=str(file),
            rule="the file is read without executing anything in it",
            remedy="save the weights alone again with the version of torch that wrote them",
        ) from None
    found = whole.get("module", whole) if isinstance(whole, dict) else None
    if not isinstance(found, dict) or not all(isinstance(key, str) for key in found):
        raise DataError("no weights by name", where=f"{file}, module", rule=RULE, remedy=REMEDY)
    return found


def shape_of(weights: Mapping[str, Tensor], file: Path) -> GlmShape:
    """Return the sizes that weights have; heads are taken to be 64 wide.

    Raises:
        DataError: a table is missing.
    """
    for name in (_WORDS, *_POSITIONS):
        if name not in weights or weights[name].dim() != 2 or not weights[name].numel():
            raise _another(file, name, "no such table")
    words, places = (weights[name].shape for name in (_WORDS, _POSITIONS[0]))
    numbers = {name.removeprefix(_LAYERS).partition(".")[0] for name in weights
               if name.startswith(_LAYERS)}  # fmt: skip
    return GlmShape(
        num_layers=len(numbers), hidden_size=words[1], num_heads=max(1, words[1] // _HEAD_SIZE),
        vocab_size=words[0], max_positions=places[0] - 1,
    )  # fmt: skip


def _another(file: Path, key: str, what: str) -> DataError:
    return DataError(
        what,
        where=f"{file}, {key}",
        rule="a checkpoint holds the weights of a model of these sizes",
        remedy=FITTING,
    )


def match(weights: Mapping[str, Tensor], expected: Mapping[str, Tensor], file: Path) -> LoadReport:
    """Compare a checkpoint with a model's parameters, which it may hold more than.

    Raises:
        DataError: a weight is missing or of another shape, or there are more layers.
    """
    missing = [name for name in expected if name not in weights]
    if missing:
        rest = f" and {len(missing) - 1} more" if missing[1:] else ""
        raise _another(file, missing[0], f"no weight {missing[0]}{rest}")
    unexpected = [name for name in weights if name not in expected]
    for name in unexpected:
        if name.startswith(_LAYERS):
            raise _another(file, name, f"a further weight {name}")
    extended: list[str] = []
    cut: list[str] = []
    for name, target in expected.items():
        found, wanted = tuple(weights[name].shape), tuple(target.shape)
        if name in _POSITIONS and found[1:] == wanted[1:] and found[0] != wanted[0]:
            (extended if found[0] < wanted[0] else cut).append(name)
        elif found != wanted:
            raise _another(file, name, f"{name} has shape {found}, the model's is {wanted}")
    return LoadReport(tuple(unexpected), tuple(extended), tuple(cut))


def load(model: Glm, folder: Path) -> LoadReport:
    """Copy the checkpoint in ``folder`` into ``model``, in the model's precision.

    Raises:
        DataError: none is found, it is not readable, or of another shape.
    """
    file = find_checkpoint(folder)
    weights, parameters = read_weights(file), dict(model.named_parameters())
    report = match(weights, parameters, file)
    with torch.no_grad():
        for name, parameter in parameters.items():
            rows = min(len(parameter), len(weights[name]))
            parameter[:rows].copy_(weights[name][:rows])
    return report


def export(folder: Path, file: Path) -> GlmShape:
    """Write the checkpoint in ``folder`` as safetensors, in its precision; return its sizes.

    Raises:
        DataError: none is found, it is not readable, or it does not hold a whole model.
    """
    source = find_checkpoint(folder)
    weights = read_weights(source)
    shape = shape_of(weights, source)
    with torch.device("meta"):
        expected = dict(Glm(shape).named_parameters())
    match(weights, expected, source)
    _write({name: weights[name] for name in expected}, file)
    return shape


def _write(weights: Mapping[str, Tensor], file: Path) -> None:
    staging = file.with_name(f".{file.name}.writing")
    save_file({name: item.contiguous() for name, item in weights.items()}, staging)
    staging.rename(file)
