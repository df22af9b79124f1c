"""Weights in files: read into a model, position tables of another length, export.

Must not execute anything that a file says: pickles are read as numbers only. Which key fits
which parameter is ``data.weights``'s.
"""

from __future__ import annotations

import re
from pickle import UnpicklingError
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from trainmark.data.input_files import readable
from trainmark.errors import DataError

from .data.weights import (
    LAYERS,
    POSITIONS,
    REMEDY,
    RULE,
    WORDS,
    LoadReport,
    another_shape,
    by_name,
    expected_shapes,
    find_checkpoint,
    match,
    no_numbers,
)
from .model import GlmShape

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from .model import Glm

_HEAD_SIZE = 64  # in every published GLM; weights do not say how many heads share them


def read_weights(file: Path, *, device: str = "cpu") -> dict[str, Tensor]:
    """Return the tensors of a checkpoint under the model's own names, on ``device``.

    Raises:
        DataError: not readable, or with something else than numbers where weights belong.
    """
    with readable(file, rule=RULE, remedy=REMEDY):
        if file.suffix == ".safetensors":
            found = _read_safetensors(file)
        else:
            found = _read_pickle(file, device)
    for key, value in found.items():
        if not (isinstance(value, Tensor) and value.is_floating_point()):
            raise no_numbers(file, key)
    return by_name(found, file)


def pickled_shapes(file: Path) -> dict[str, tuple[int, ...]] | None:
    """Return the shape of every weight; none for the format before torch 1.6, read as a whole.

    No number is read.

    Raises:
        DataError: as ``read_weights``.
    """
    with readable(file, rule=RULE, remedy=REMEDY):
        mapped = _can_be_mapped(file)
    return _shapes(read_weights(file, device="meta")) if mapped else None


def _can_be_mapped(file: Path) -> bool:
    """Tell whether a pickle has torch's format since 1.6, a zip file, were it damaged."""
    with file.open("rb") as stream:
        return stream.read(4) == b"PK\x03\x04"


def _read_safetensors(file: Path) -> dict[str, Any]:
    try:
        return load_file(file)
    except SafetensorError as error:
        raise DataError(
            f"not readable as safetensors: {error}", where=str(file), remedy=REMEDY
        ) from None


def _read_pickle(file: Path, device: str) -> dict[str, Any]:
    """Return the original's ``module``, or the weights alone; what else is there is read past."""
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
                file, map_location=device, weights_only=True, mmap=_can_be_mapped(file)
            )
    except OSError:
        raise
    except UnpicklingError as error:
        # Torch goes on to advise loading with code allowed: the name it found is enough.
        refused = re.search(r"GLOBAL (\S+)", str(error))
        raise DataError(
            "not readable as weights alone" + (f": it names {refused[1]}" if refused else ""),
            where=str(file),
            rule="the file is read without executing anything in it",
            remedy="save the weights alone again where the file comes from",
        ) from None
    except Exception as error:  # noqa: BLE001  the library raises whatever damage leads to
        said = str(error).partition(". ")[0].partition("\n")[0]
        raise DataError(
            f"damaged: {said or type(error).__name__}", where=str(file), rule=RULE, remedy=REMEDY
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
