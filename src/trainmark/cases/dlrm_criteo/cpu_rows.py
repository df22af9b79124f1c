"""Embedding rows on a CPU, looked up and updated by compiled loops on all threads.

Owns how tensors reach the loops and how these are shared out over threads. Needs numba, an
extra; ``embeddings`` asks for it. Knows nothing of autograd or of a loss scale.

Results do not depend on the number of threads: a row belongs to one piece of work, which
adds its gradients in the order of the samples.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from trainmark.errors import DataError

from .row_loops import WIDE_BYTES, WIDTH, add_to_table, look_up_samples

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

# An output far beyond a core's own caches is not in them any more when it is read.
STREAM_FROM_BYTES = 16 << 20
PIECES_A_THREAD = 4  # a thread that is held up leaves pieces to the others


def look_up(weight: Tensor, starts: Tensor, cardinalities: Tensor, ids: Tensor) -> Tensor:
    """Return rows of tables that lie one after the other in ``weight``.

    Args:
        weight: (rows of all tables, dim) float32.
        starts: (T,) first row of each table.
        cardinalities: (T,) rows of each table.
        ids: (T, B) row numbers within each table, integers.

    Returns:
        (B, T, dim) float32.

    Raises:
        DataError: a row number is outside its table.
    """
    (tables, samples), dim = ids.shape, weight.shape[1]
    out = weight.new_empty((samples, tables, dim))
    streams = (
        out.nbytes >= STREAM_FROM_BYTES and dim % WIDTH == 0 and out.data_ptr() % WIDE_BYTES == 0
    )
    arrays = [item.numpy() for item in (weight, starts, cardinalities, ids.contiguous(), out)]
    outside: list[int] = []

    def take(first: int, last: int) -> None:
        outside.append(look_up_samples(*arrays, first, last, streams))

    pieces = PIECES_A_THREAD * torch.get_num_threads()
    bounds = [samples * piece // pieces for piece in range(pieces + 1)]
    _share_out(take, [(first, last) for first, last in pairwise(bounds) if first < last])
    if max(outside, default=-1) >= 0:
        _refuse(ids, max(outside))
    return out


def add_rows(weight: Tensor, starts: Tensor, ids: Tensor, grads: Tensor, factor: float) -> None:
    """Add ``factor x grads`` to the rows of ``ids`` in place; ids may repeat.

    Args:
        weight: (rows of all tables, dim) float32.
        starts: (T,) first row of each table.
        ids: (T, B) row numbers that ``look_up`` has taken.
        grads: (B, T, dim) float32; samples may lie apart, as in a slice of tables.
    """
    (tables, samples), dim = ids.shape, weight.shape[1]
    if grads.stride()[1:] != (dim, 1):
        grads = grads.contiguous()
    stride = grads.stride(0)
    # A vector is the one shape whose layout the compiler knows for any stride of samples.
    length = max(0, (samples - 1) * stride + tables * dim)
    flat = grads.as_strided((length,), (1,))
    arrays = [item.numpy() for item in (weight, starts, ids.contiguous(), flat)]
    threads = torch.get_num_threads()
    parts = 1 if threads == 1 else -(-PIECES_A_THREAD * threads // max(1, tables))

    def take(table: int, part: int) -> None:
        add_to_table(*arrays, stride, factor, table, part, parts)

    _share_out(take, [(table, part) for table in range(tables) for part in range(parts)])


def _share_out(work: Callable[[int, int], None], pieces: Sequence[tuple[int, int]]) -> None:
    """Do every piece of work, on as many threads as torch uses."""
    waiting = iter(pieces)  # handed out under the interpreter's lock
    others = min(torch.get_num_threads(), len(pieces)) - 1
    helpers = [_helpers(others).submit(_work_off, work, waiting) for _ in range(others)]
    _work_off(work, waiting)
    for helper in helpers:
        helper.result()


def _work_off(work: Callable[[int, int], None], waiting: Iterator[tuple[int, int]]) -> None:
    for piece in waiting:
        work(*piece)


@cache
def _helpers(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="embedding-rows")


def _refuse(ids: Tensor, position: int) -> None:
    """Raise for the row number at a position in ``ids`` (T, B), counted row by row."""
    table, sample = divmod(position, ids.shape[1])
    raise DataError(
        f"row {int(ids[table, sample])} was asked for",
        where=f"embedding table {table} of this process, sample {sample} of the batch",
        rule="row numbers are at least 0 and below the rows of their table",
        remedy="prepare the data anew, or check what made these row numbers",
    )
