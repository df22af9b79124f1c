"""Weights in files: read into a model, position tables of another length, export.

Must not execute anything that a file says: pickles are read as numbers only. Which key fits
which parameter is ``weights``'s.
"""

from __future__ import annotations

import re
import zipfile
from pickle import UnpicklingError
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from trainmark.data.input_files import readable
from trainmark.errors import DataError

from .checkpoint_files import REMEDY, RULE, find_checkpoint
from .model import GlmShape
from .weights import (
    LAYERS,
    POSITIONS,
    WORDS,
    LoadReport,
    another_shape,
    by_name,
    expected_shapes,
    match,
    more_than_weights,
    no_numbers,
    no_safetensors,
    weights_in,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from torch import Tensor

    from .model import Glm

_HEAD_SIZE = 64  # in every published GLM; weights do not say how many heads share them


def read_weights(file: Path) -> dict[str, Tensor]:
    """Return the tensors of a checkpoint under the model's own names, on the host.

    Raises:
        DataError: not readable, or with something else than numbers where weights belong.
    """
    with readable(file, rule=RULE, remedy=REMEDY):
        found = _read_safetensors(file) if file.suffix == ".safetensors" else _read_pickle(file)
    for key, value in found.items():
        if not (hasattr(value, "is_floating_point") and value.is_floating_point()):
            raise no_numbers(file, key)
    return by_name(found, file)


def _read_safetensors(file: Path) -> dict[str, Any]:
    try:
        return load_file(file)
    except SafetensorError as error:
        raise no_safetensors(file, error) from None


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
    except UnpicklingError as error:
        # Torch goes on to advise loading with code allowed: the name it found is enough.
        refused = re.search(r"GLOBAL (\S+)", str(error))
        raise more_than_weights(file, refused[1] if refused else None) from None
    except (RuntimeError, EOFError, ValueError, KeyError) as error:
        said = str(error).partition(". ")[0].partition("\n")[0]
        raise DataError(
            f"damaged: {said or type(error).__name__}", where=str(file), rule=RULE, remedy=REMEDY
        ) from None
    return weights_in(whole, file)


def shape_of(weights: Mapping[str, Tensor], file: Path) -> GlmShape:
    """Return the sizes that weights have; heads are taken to be 64 wide.

    Raises:
        DataError: a table is missing.
    """
    for name in (WORDS, *POSITIONS):
        if name not in weights or weights[name].dim() != 2 or not weights[name].numel():
            raise another_shape(file, name, "no such table")
    words, places = (weights[name].shape for name in (WORDS, POSITIONS[0]))
    numbers = {name.removeprefix(LAYERS).partition(".")[0] for name in weights
               if name.startswith(LAYERS)}  # fmt: skip
    return GlmShape(
        num_layers=len(numbers), hidden_size=words[1], num_heads=max(1, words[1] // _HEAD_SIZE),
        vocab_size=words[0], max_positions=places[0] - 1,
    )  # fmt: skip


def _shapes(weights: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(item.shape) for name, item in weights.items()}


def load(model: Glm, folder: Path) -> LoadReport:
    """Copy the checkpoint in ``folder`` into ``model``, in the model's precision.

    Raises:
        DataError: none is found, it is not readable, or of another shape.
    """
    file = find_checkpoint(folder)
    weights, parameters = read_weights(file), dict(model.named_parameters())
    report = match(_shapes(weights), _shapes(parameters), file)
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
    expected = expected_shapes(
        num_layers=shape.num_layers, hidden_size=shape.hidden_size,
        vocab_size=shape.vocab_size, max_positions=shape.max_positions,
    )  # fmt: skip
    match(_shapes(weights), expected, source)
    _write({name: weights[name] for name in expected}, file)
    return shape


def _write(weights: Mapping[str, Tensor], file: Path) -> None:
    staging = file.with_name(f".{file.name}.writing")
    save_file({name: item.contiguous() for name, item in weights.items()}, staging)
    staging.rename(file)
