"""The safetensors files in ``model/``: which tensor lies in which file, and of what shape.

Owns the check of names and shapes against the sizes of ``config.json``; reads headers
only. No torch, so that the launcher can check.
"""

from __future__ import annotations

import json
import math
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trainmark.data.input_files import file_bytes, readable
from trainmark.errors import DataError

from .model_files import REMEDY, RULE, expected_shapes, read_json

if TYPE_CHECKING:
    from pathlib import Path

    from .model_files import ModelConfig

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
BYTES = {"F32": 4, "F16": 2, "BF16": 2}  # types that weights may be stored in
IGNORED_BUFFERS = (".rotary_emb.inv_freq",)  # computed from the sizes
_LENGTH = struct.Struct("<Q")  # the first bytes of a safetensors file: length of its header
_MAX_HEADER = 100_000_000  # bytes; what the format itself allows


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Where a weight lies: its file, type (``F32``) and shape, and its bytes in the file."""

    file: Path
    dtype: str
    shape: tuple[int, ...]
    offset: int
    size_bytes: int


def check_weights(folder: Path, config: ModelConfig) -> dict[str, StoredTensor]:
    """Return where each weight of the model lies, by its name on the hub.

    Raises:
        DataError: a file that is missing or cut short, or a weight that is missing, unknown,
            of another type, or of another shape than the config's.
    """
    expected = expected_shapes(config)
    found: dict[str, StoredTensor] = {}
    for file in weight_files(folder):
        for name, tensor in _tensors(file).items():
            if name.endswith(IGNORED_BUFFERS):
                continue
            if name == "lm_head.weight" and config.tie_embeddings:
                continue  # some writers store the shared table twice
            _refuse(name, tensor, expected.get(name), config)
            found[name] = tensor
    missing = [name for name in expected if name not in found]
    if missing:
        raise DataError(
            f"no weight {missing[0]}" + (f" and {len(missing) - 1} more" if missing[1:] else ""),
            where=str(folder),
            rule=f"a Llama of {config.num_layers} layers has {len(expected)} weights",
            remedy=REMEDY,
        )
    return found


def weight_files(folder: Path) -> list[Path]:
    """Return the safetensors files of the model folder.

    Raises:
        DataError: there are none, or the index names something else.
    """
    if (folder / SINGLE).exists():
        return [folder / SINGLE]
    if not (folder / INDEX).exists():
        raise DataError(
            f"no {SINGLE} and no {INDEX}",
            where=str(folder),
            rule="init=pretrained starts from the model's weights, as safetensors",
            remedy=f"{REMEDY}, or add init=random, which is labelled performance-only",
        )
    index = read_json(folder / INDEX)
    names = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(names, dict) or not names:
        raise _damaged(folder / INDEX, "no weight_map")
    files = sorted({str(name) for name in names.values()})
    strange = next((x for x in files if "/" in x or not x.endswith(".safetensors")), None)
    if strange is not None:
        raise _damaged(folder / INDEX, f"the weight_map names {strange!r}")
    return [folder / name for name in files]


def _tensors(file: Path) -> dict[str, StoredTensor]:
    """Return the tensors of one file by name, as its header tells."""
    if not file.exists():
        raise DataError("no such file", where=str(file), rule=RULE, remedy=REMEDY)
    with readable(file, rule=RULE, remedy=REMEDY):
        total = file_bytes(file)
        with file.open("rb") as stream:
            head = stream.read(_LENGTH.size)
            length = _LENGTH.unpack(head)[0] if len(head) == _LENGTH.size else 0
            if not 0 < length <= min(_MAX_HEADER, total - _LENGTH.size):
                raise _damaged(file, f"no header in its {total} bytes")
            text = stream.read(length)
    try:
        header = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _damaged(file, f"its header is no JSON: {error}") from None
    if not isinstance(header, dict):
        raise _damaged(file, f"its header is a {type(header).__name__}")
    start = _LENGTH.size + length
    return {
        name: _tensor(file, name, item, start, total)
        for name, item in header.items()
        if name != "__metadata__"
    }


def _tensor(file: Path, name: str, item: Any, start: int, total: int) -> StoredTensor:
    """Return one entry of a header, held against the length of the file."""
    try:
        dtype, shape = str(item["dtype"]), tuple(int(size) for size in item["shape"])
        first, last = (int(place) for place in item["data_offsets"])
    except (KeyError, TypeError, ValueError):
        raise _damaged(file, f"its header has no type, shape and place of {name}") from None
    size = BYTES.get(dtype, 0) * math.prod(shape)
    if not 0 <= first <= last or (size and size != last - first):
        raise _damaged(file, f"{name} has {last - first} bytes and shape {shape} of {dtype}")
    if start + last > total:
        raise _damaged(file, f"{name} ends at byte {start + last}, the file at {total}")
    return StoredTensor(file, dtype, shape, start + first, last - first)


def _refuse(
    name: str, tensor: StoredTensor, shape: tuple[int, ...] | None, config: ModelConfig
) -> None:
    """Raise DataError for a weight that the model does not have in this form."""
    where = f"{tensor.file}, {name}"
    if shape is None:
        raise DataError(
            f"unknown weight {name}",
            where=where,
            rule=f"a Llama of {config.num_layers} layers has no such weight",
            remedy=REMEDY,
        )
    if tensor.shape != shape:
        raise DataError(
            f"{name} has shape {tensor.shape}",
            where=where,
            rule=f"model/config.json makes it {shape}",
            remedy="use the config.json and the weights of one and the same model",
        )
    if tensor.dtype not in BYTES:
        raise DataError(
            f"{name} is stored as {tensor.dtype}",
            where=where,
            rule=f"weights are stored as {', '.join(BYTES)}",
            remedy=REMEDY,
        )


def _damaged(file: Path, what: str) -> DataError:
    return DataError(
        f"not readable as safetensors: {what}", where=str(file), rule=RULE, remedy=REMEDY
    )
