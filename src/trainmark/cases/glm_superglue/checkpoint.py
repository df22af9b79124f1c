"""GLM's weights in files: read into a model, position tables of another length.

Which key fits which parameter is ``data.weights``'s.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from trainmark.train.checkpoints import described, read_state

from .data.weights import (
    POSITIONS,
    REMEDY,
    RULE,
    find_checkpoint,
    match_weights,
)

if TYPE_CHECKING:
    from pathlib import Path

    from .model import Glm


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
