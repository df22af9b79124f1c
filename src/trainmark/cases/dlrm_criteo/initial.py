"""The first values of embedding rows, the same wherever a row lives.

Owns how a row's values follow from seed, table and row number alone, so that placing
tables on ranks, or cutting one by rows, changes no number. Knows nothing of placement.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

BLOCK_ROWS = 4096  # one generator each: seeding costs little compared with drawing so many


@torch.no_grad()
def fill_rows(out: Tensor, *, table: int, first_row: int, cardinality: int, seed: int) -> None:
    """Fill ``out`` (rows, dim) with rows ``first_row`` and on of ``table``, in place.

    Values are uniform within ±1/sqrt(cardinality); ``cardinality`` counts the rows of the
    whole table. They are drawn on the device of ``out``: kinds of devices differ.
    """
    bound = cardinality**-0.5
    generator = torch.Generator(device=out.device)
    last_row = first_row + len(out)
    for block in range(first_row // BLOCK_ROWS, -(-last_row // BLOCK_ROWS)):
        start, end = block * BLOCK_ROWS, min((block + 1) * BLOCK_ROWS, cardinality)
        generator.manual_seed(_mixed(seed, table, block))
        first, last = max(start, first_row), min(end, last_row)
        if (first, last) == (start, end):
            out[start - first_row : end - first_row].uniform_(-bound, bound, generator=generator)
            continue
        whole = torch.empty((end - start, out.shape[1]), dtype=out.dtype, device=out.device)
        whole.uniform_(-bound, bound, generator=generator)
        out[first - first_row : last - first_row] = whole[first - start : last - start]


def _mixed(seed: int, table: int, block: int) -> int:
    """Return a number of 63 bits that differs for any two of table and block.

    A generator of torch keeps 32 bits on a CPU; neighbouring numbers must not meet there.
    """
    mixed = seed & (2**63 - 1)
    for part in (table, block):
        # The finaliser of splitmix64: every bit in changes half of those that come out.
        mixed = (mixed + 0x9E3779B97F4A7C15 * (part + 1)) & (2**64 - 1)
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & (2**64 - 1)
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & (2**64 - 1)
        mixed ^= mixed >> 31
    return mixed >> 1
