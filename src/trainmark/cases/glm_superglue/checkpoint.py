"""GLM's weights in files: read into a model, position tables of another length, export.

Which key fits which parameter is ``data.weights``'s.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from safetensors.torch import save_file

from trainmark.errors import DataError
from trainmark.train.checkpoints import described, read_state

from .data.weights import (
    FITTING,
    LAYERS,
    POSITIONS,
    REMEDY,
    RULE,
    WORDS,
    expected_shapes,
    find_checkpoint,
    match_weights,
)
from .recipe import GlmShape

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from trainmark.data.checkpoint_shapes import StoredTensor

    from .model import Glm

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


def load(model: Glm, folder: Path) -> LoadReport:
    """Copy the checkpoint in ``folder`` into ``model``, in the model's precision.

    Raises:
        DataError: none is found, it is not readable, or of another shape.
    """
    file = find_checkpoint(folder)
    state = read_state(file, rule=RULE, remedy=REMEDY)
    parameters = dict(model.named_parameters())
    shapes = {name: tuple(item.shape) for name, item in parameters.items()}
    matched = match_weights(described(file, state), shapes, file)
    with torch.no_grad():
        for name, tensor in matched.items():
            rows = min(shapes[name][0], tensor.shape[0])
            parameters[name][:rows].copy_(state[tensor.key][:rows])
    used = {tensor.key for tensor in matched.values()}
    lengths = {name: (matched[name].shape[0], shapes[name][0]) for name in POSITIONS}
    return LoadReport(
        unexpected=tuple(key for key in state if key not in used),
        extended=tuple(name for name, (held, wanted) in lengths.items() if held < wanted),
        cut=tuple(name for name, (held, wanted) in lengths.items() if held > wanted),
    )


def export(source: Path, file: Path) -> GlmShape:
    """Write a checkpoint as safetensors, in its precision; return its sizes.

    Raises:
        DataError: it is not readable, or does not hold a whole model.
    """
    state = read_state(source, rule=RULE, remedy=REMEDY)
    tensors = described(source, state)
    shape = shape_of(tensors, source)
    matched = match_weights(tensors, expected_shapes(shape), source)
    save_file({name: state[tensor.key].contiguous() for name, tensor in matched.items()}, file)
    return shape


def shape_of(tensors: Sequence[StoredTensor], file: Path) -> GlmShape:
    """Return the sizes that weights have; heads are taken to be 64 wide.

    Raises:
        DataError: a table is missing.
    """
    tables: list[tuple[int, ...]] = []
    for name in (WORDS, POSITIONS[0]):
        held = next((item.shape for item in tensors if item.key.endswith(name)), ())
        if len(held) != 2 or 0 in held:
            raise DataError(
                "no such table", where=f"{file}, {name}",
                rule="a checkpoint holds the weights of a whole model", remedy=FITTING,
            )  # fmt: skip
        tables.append(held)
    numbers = {found[1] for item in tensors
               if (found := re.search(rf"{re.escape(LAYERS)}(\d+)\.", item.key))}  # fmt: skip
    (vocab_size, hidden_size), (places, _) = tables
    return GlmShape(
        num_layers=len(numbers), hidden_size=hidden_size, vocab_size=vocab_size,
        num_heads=max(1, hidden_size // _HEAD_SIZE), max_positions=places - 1,
    )  # fmt: skip
