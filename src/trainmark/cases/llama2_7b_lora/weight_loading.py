"""From the bytes of a safetensors file to a tensor, without a second copy in memory.

Owns reading by blocks with the change of type, and a table that stays in its file. Must
not know which weight is which.
"""

from __future__ import annotations

import math
import os
import weakref
from typing import TYPE_CHECKING

import torch
from torch import nn

from trainmark.data.input_files import readable
from trainmark.errors import DataError

from .model_files import REMEDY, RULE

if TYPE_CHECKING:
    from torch import Tensor

    from .weight_files import StoredTensor

STORED = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_BLOCK_BYTES = 1 << 24  # read at once; a multiple of every type's size
_LARGE_TABLE_BYTES = 1 << 26  # below, a look-up's own cost is not worth the memory


def copy_stored(stored: StoredTensor, out: Tensor) -> None:
    """Fill ``out``, contiguous on any device, with the numbers of ``stored`` in its own type.

    Raises:
        DataError: the file ends early or cannot be read, or a number is none in the type
            of ``out``.
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
            kept = flat[place : place + len(values)].copy_(values)
            if not kept.isfinite().all():
                raise _not_finite(stored, kept, values, place)
            place += len(values)


def _not_finite(stored: StoredTensor, kept: Tensor, values: Tensor, place: int) -> DataError:
    """Return what is wrong with the first number of ``values`` that is not finite in ``kept``."""
    first = int(kept.isfinite().logical_not().nonzero()[0])
    row = (place + first) // (math.prod(stored.shape[1:]) or 1)
    kind = str(kept.dtype).removeprefix("torch.")
    number = float(values[first])
    return DataError(
        f"a weight of shape {stored.shape} holds {number:g} in its row {row}",
        where=f"{stored.file}, byte {stored.offset}",
        rule=f"every weight is a finite number in {kind}",
        remedy="set weights_dtype=fp32 or bf16" if math.isfinite(number) else REMEDY,
    )


class TableInFile(nn.Embedding):
    """A table of which a look-up reads the rows it needs; the others never take memory.

    ``weight`` is a private mapping of the file. It is there for whoever wants the whole:
    touching one row through it brings in its neighbours, up to megabytes, to stay.
    """

    def __init__(self, stored: StoredTensor) -> None:
        rows, width = stored.shape
        super().__init__(rows, width, _weight=_mapped(stored), _freeze=True)
        self._row_bytes = stored.size_bytes // rows
        self._offset = stored.offset
        with readable(stored.file, rule=RULE, remedy=REMEDY):
            self._file = os.open(stored.file, os.O_RDONLY)
        weakref.finalize(self, os.close, self._file)

    @staticmethod
    def fits(stored: StoredTensor, dtype: torch.dtype) -> bool:
        """Tell whether ``stored`` is worth it, and in the file as ``dtype`` wants it."""
        same = STORED[stored.dtype] is dtype and stored.offset % dtype.itemsize == 0
        return same and stored.size_bytes >= _LARGE_TABLE_BYTES

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - the parent's name
        """Return the rows (..., width) that ``input`` names."""
        if torch.compiler.is_compiling():
            return super().forward(input)
        found = torch.empty(*input.shape, self.embedding_dim, dtype=self.weight.dtype)
        rows = found.view(torch.uint8).view(-1, self._row_bytes).numpy()
        for row, number in zip(rows, input.flatten().tolist(), strict=True):
            place = self._offset + number * self._row_bytes
            got = os.preadv(self._file, [row.data], place)
            assert got == self._row_bytes, (
                f"row {number} of a table of weights was cut off while in use"
            )
        return found


def _mapped(stored: StoredTensor) -> Tensor:
    with readable(stored.file, rule=RULE, remedy=REMEDY):
        last = stored.offset + stored.size_bytes
        whole = torch.from_file(str(stored.file), shared=False, size=last, dtype=torch.uint8)
    return whole[stored.offset :].view(STORED[stored.dtype]).view(stored.shape)
