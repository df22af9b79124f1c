"""The first values of embedding rows, the same wherever a row lives.

Owns how a row's values follow from seed, table and row number alone, so that placing
tables on ranks, or cutting one by rows, changes no number. Knows nothing of placement.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

BLOCK_ROWS = 4096  # one generator each: seeding costs little compared with drawing so many


def fill_rows(out: Tensor, *, table: int, first_row: int, cardinality: int, seed: int) -> None:
    """Fill ``out`` (rows, dim) with rows ``first_row`` and on of ``table``, in place.

    Values are uniform within ±1/sqrt(cardinality); ``cardinality`` counts the rows of the
    whole table. They are drawn on the host, a few blocks at a time, because generators of
    other devices give other numbers.
    """
    bound = cardinality**-0.5
    last_row = first_row + len(out)

    @torch.no_grad()
    def fill(block: int) -> None:
        start, end = block * BLOCK_ROWS, min((block + 1) * BLOCK_ROWS, cardinality)
        generator = torch.Generator().manual_seed(_mixed(seed, table, block))
        first, last = max(start, first_row), min(end, last_row)
        rows = out[first - first_row : last - first_row]
        if (first, last) == (start, end) and rows.device.type == "cpu":
            rows.uniform_(-bound, bound, generator=generator)
            return
        whole = torch.empty((end - start, out.shape[1]), dtype=out.dtype, device="cpu")
        whole.uniform_(-bound, bound, generator=generator)
        rows.copy_(whole[first - start : last - start])

    blocks = range(first_row // BLOCK_ROWS, -(-last_row // BLOCK_ROWS))
    # torch draws on one thread, and releases the interpreter's lock meanwhile.
    with ThreadPoolExecutor(torch.get_num_threads()) as threads:
        for _ in threads.map(fill, blocks):
            pass


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
