"""From the bytes of a safetensors file to a tensor, without a second copy in memory.

Owns reading by blocks with the change of type, and mapping a file. Must not know which
weight is which.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from trainmark.input_files import readable

from .model_files import REMEDY, RULE

if TYPE_CHECKING:
    from torch import Tensor

    from .weight_files import StoredTensor

STORED = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_BLOCK_BYTES = 1 << 24  # read at once; a multiple of every type's size


def copy_stored(stored: StoredTensor, out: Tensor) -> None:
    """Fill ``out``, contiguous on any device, with the numbers of ``stored`` in its own type.

    Raises:
        DataError: the file ends early or cannot be read.
    """
    flat, dtype = out.view(-1), STORED[stored.dtype]
    block = torch.empty(min(_BLOCK_BYTES, stored.size_bytes), dtype=torch.uint8)
    place = 0
    with readable(stored.file, rule=RULE, remedy=REMEDY), stored.file.open("rb") as stream:
        stream.seek(stored.offset)
        while place < flat.numel():
            wanted = min(len(block), (flat.numel() - place) * dtype.itemsize)
            part = block[:wanted]
            if stream.readinto(memoryview(part.numpy().data)) != wanted:
                raise OSError(f"ends within the {stored.size_bytes} bytes of a weight")
            values = part.view(dtype)
            flat[place : place + len(values)].copy_(values)
            place += len(values)


def map_stored(stored: StoredTensor, dtype: torch.dtype) -> Tensor | None:
    """Return ``stored`` as a read-only view of its file, none where types or places differ.

    Private to this process: writing to it would not reach the file.
    """
    if STORED[stored.dtype] is not dtype or stored.offset % dtype.itemsize:
        return None
    with readable(stored.file, rule=RULE, remedy=REMEDY):
        last = stored.offset + stored.size_bytes
        whole = torch.from_file(str(stored.file), shared=False, size=last, dtype=torch.uint8)
    elements = math.prod(stored.shape)
    return whole[stored.offset :].view(dtype)[:elements].view(stored.shape)
