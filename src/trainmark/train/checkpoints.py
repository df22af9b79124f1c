"""Read the tensors of one checkpoint file on the host.

Must not execute code from a file: pickles are read with ``weights_only``. Names and shapes are
compared by ``data.model_folder``, which reads safetensors without torch.
"""

from __future__ import annotations

import re
from pickle import UnpicklingError
from typing import TYPE_CHECKING, Any

import numpy as np

from trainmark.data.model_folder import StoredTensor, stored_tensors
from trainmark.data.splits import refuse_unreadable
from trainmark.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from torch import Tensor


def read_state(file: Path, *, rule: str, remedy: str) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file or of one that torch saved, by their keys.

    They are mapped: numbers are read when they are used.

    Args:
        rule: what a valid checkpoint is, for errors.
        remedy: the way out, for errors.

    Raises:
        DataError: the file is missing or damaged, or holds more than tensors by name.
    """
    import torch
    from safetensors.torch import load_file

    refuse_unreadable(file, rule=rule, remedy=remedy)
    try:
        whole = load_file(file) if file.suffix == ".safetensors" else _read_pickle(file)
    except UnpicklingError as error:
        # Torch's message advises to allow code from the file: show only the name it refused.
        refused = re.search(r"GLOBAL (\S+)", str(error))
        raise DataError(
            "not readable as weights alone" + (f": it names {refused[1]}" if refused else ""),
            where=str(file), rule="the file is read without executing anything in it",
            remedy="save the weights alone again where the file comes from",
        ) from None  # fmt: skip
    except Exception as error:  # noqa: BLE001  the libraries raise whatever damage leads to
        reason = str(error).partition(". ")[0].partition("\n")[0] or type(error).__name__
        raise DataError(f"damaged: {reason}", where=str(file), rule=rule, remedy=remedy) from None
    state = whole.get("module", whole) if isinstance(whole, dict) else None
    if not isinstance(state, dict) or not all(isinstance(x, torch.Tensor) for x in state.values()):
        raise DataError(
            "no tensors by name", where=f"{file}, module",
            rule="every entry of a checkpoint is a tensor", remedy=remedy,
        )  # fmt: skip
    return state


def _read_pickle(file: Path) -> Any:
    import torch

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
    """Return the tensors of ``file`` as ``data.model_folder.ModelWeights`` compares them."""
    return [StoredTensor(file, key, tuple(item.shape)) for key, item in state.items()]


def stored_weights(file: Path, *, rule: str, remedy: str) -> list[StoredTensor]:
    """Return the tensors of a checkpoint without reading their numbers.

    Torch is imported for a file that torch saved only, so that the launcher can ask.

    Raises:
        DataError: as ``read_state``.
    """
    if file.suffix == ".safetensors":
        return stored_tensors(file, rule=rule, remedy=remedy)
    return described(file, read_state(file, rule=rule, remedy=remedy))
