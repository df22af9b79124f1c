"""Read the tensors of one checkpoint file on the host.

Must not execute code from a file: pickles are read with ``weights_only``. Names and shapes are
compared by ``data.checkpoint_shapes``, which the launcher uses without torch.
"""

from __future__ import annotations

import re
from pickle import UnpicklingError
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from trainmark.data.checkpoint_shapes import StoredTensor, more_than_weights, weights_in
from trainmark.data.split_layout import refuse_unreadable
from trainmark.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


def read_state(file: Path, *, rule: str, remedy: str) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file or of one that torch saved, by their keys.

    Args:
        rule: what a valid checkpoint is, for errors.
        remedy: the way out, for errors.

    Raises:
        DataError: the file is missing or damaged, or holds more than tensors by name.
    """
    refuse_unreadable(file, rule=rule, remedy=remedy)
    try:
        whole = load_file(file) if file.suffix == ".safetensors" else _read_pickle(file)
    except UnpicklingError as error:
        # Torch's message advises to allow code from the file: show only the name it refused.
        refused = re.search(r"GLOBAL (\S+)", str(error))
        raise more_than_weights(file, refused[1] if refused else None) from None
    except SafetensorError as error:
        what = f"not readable as safetensors: {error}"
        raise DataError(what, where=str(file), rule=rule, remedy=remedy) from None
    except Exception as error:  # noqa: BLE001  the library raises whatever damage leads to
        reason = str(error).partition(". ")[0].partition("\n")[0] or type(error).__name__
        raise DataError(f"damaged: {reason}", where=str(file), rule=rule, remedy=remedy) from None
    state = weights_in(whole, file, rule=rule, remedy=remedy)
    for key, item in state.items():
        if not isinstance(item, Tensor):
            raise DataError(
                f"{key} is not a tensor", where=f"{file}, {key}",
                rule="every entry of a checkpoint is a tensor", remedy=remedy,
            )  # fmt: skip
    return state


def _read_pickle(file: Path) -> Any:
    # A training checkpoint may hold the state of numpy's random generator: arrays, not code.
    rebuild: Any = np.ndarray.__reduce__(np.zeros(1, np.uint32))[0]
    arrays = [
        (rebuild, "numpy.core.multiarray._reconstruct"),
        rebuild, np.ndarray, np.dtype, type(np.dtype(np.uint32)),
    ]  # fmt: skip
    with file.open("rb") as stream:
        zipped = stream.read(4) == b"PK\x03\x04"  # torch's format since 1.6
    with torch.serialization.safe_globals(arrays):
        # With mmap, the optimizer's state in the same file is not read.
        return torch.load(file, map_location="cpu", weights_only=True, mmap=zipped)


def described(file: Path, state: Mapping[str, Tensor]) -> list[StoredTensor]:
    """Return the tensors of ``file`` as ``data.checkpoint_shapes.match`` compares them."""
    return [
        StoredTensor(file, key, str(item.dtype).removeprefix("torch."), tuple(item.shape))
        for key, item in state.items()
    ]
