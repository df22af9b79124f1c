"""Look up and update rows of embedding tables: with torch, or with compiled loops on a CPU.

Owns how tensors are passed to the loops of ``row_loops`` and how the work is split over
threads. The loops need numba, an extra. Must not know autograd or a loss scale.

Results do not depend on the number of threads: each row belongs to one piece of work, which
adds its gradients in the order of the samples.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from trainmark.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

PIECES_A_THREAD = 4  # if one thread is delayed, the others take its pieces


@dataclass(frozen=True, slots=True)
class RowOperations:
    """The operations on rows of tables that are stored one after the other in one weight.

    Args:
        name: the name in records.
        look_up, add_rows: take the arguments of ``look_up_compiled`` and ``add_rows_compiled``.
    """

    name: str
    look_up: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
    add_rows: Callable[[Tensor, Tensor, Tensor, Tensor, float], None]


def _look_up(weight: Tensor, starts: Tensor, _cardinalities: Tensor, ids: Tensor) -> Tensor:
    return weight.index_select(0, _rows_of(starts, ids)).view(*ids.t().shape, weight.shape[1])


def _add_rows(weight: Tensor, starts: Tensor, ids: Tensor, grads: Tensor, factor: float) -> None:
    rows, grads = _rows_of(starts, ids), grads.reshape(-1, weight.shape[1])
    if weight.device.type == "cpu":
        # ``index_add_`` runs on one thread there. ``scatter_add_`` with an index that is a vector
        # seen as a matrix sorts the rows and gives each to one thread, always in the same order.
        weight.scatter_add_(0, rows.long()[:, None].expand_as(grads), grads * factor)
    else:
        weight.index_add_(0, rows, grads, alpha=factor)


def _rows_of(starts: Tensor, ids: Tensor) -> Tensor:
    """Return the row numbers in the weight of ids (T, B), sample by sample, (B x T,)."""
    return (ids + starts[:, None]).t().reshape(-1)


def look_up_compiled(weight: Tensor, starts: Tensor, cardinalities: Tensor, ids: Tensor) -> Tensor:
    """Return rows of tables that are stored one after the other in ``weight``.

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
    from trainmark.train.kernels import row_loops

    (tables, samples), dim = ids.shape, weight.shape[1]
    out = weight.new_empty((samples, tables, dim))
    arrays = [item.numpy() for item in (weight, starts, cardinalities, ids.contiguous(), out)]
    outside: list[int] = []

    def take(first: int, last: int) -> None:
        outside.append(row_loops.look_up_samples(*arrays, first, last))

    pieces = PIECES_A_THREAD * torch.get_num_threads()
    bounds = [samples * piece // pieces for piece in range(pieces + 1)]
    _share_out(take, [(first, last) for first, last in pairwise(bounds) if first < last])
    if max(outside, default=-1) >= 0:
        _refuse(ids, max(outside))
    return out


def add_rows_compiled(
    weight: Tensor, starts: Tensor, ids: Tensor, grads: Tensor, factor: float
) -> None:
    """Add ``factor x grads`` to the rows of ``ids`` in place; ids may repeat.

    Args:
        weight: (rows of all tables, dim) float32.
        starts: (T,) first row of each table.
        ids: (T, B) row numbers, checked by ``look_up`` before.
        grads: (B, T, dim) float32; the stride of samples may be larger, as in a slice of tables.
    """
    from trainmark.train.kernels import row_loops

    (tables, samples), dim = ids.shape, weight.shape[1]
    if grads.stride()[1:] != (dim, 1):
        grads = grads.contiguous()
    stride = grads.stride(0)
    # The compiler knows the layout of a vector for any stride of samples.
    length = max(0, (samples - 1) * stride + tables * dim)
    flat = grads.as_strided((length,), (1,))
    arrays = [item.numpy() for item in (weight, starts, ids.contiguous(), flat)]
    threads = torch.get_num_threads()
    shares = 1 if threads == 1 else -(-PIECES_A_THREAD * threads // max(1, tables))

    def take(table: int, share: int) -> None:
        row_loops.add_to_table(*arrays, stride, factor, table, share, shares)

    _share_out(take, [(table, share) for table in range(tables) for share in range(shares)])


def _share_out(work: Callable[[int, int], None], pieces: Sequence[tuple[int, int]]) -> None:
    """Do every piece of work, on as many threads as torch uses."""
    waiting = iter(pieces)  # thread-safe: the interpreter's lock guards each ``next``
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
        f"row {int(ids[table, sample])} does not exist",
        where=f"embedding table {table} of this process, sample {sample} of the batch",
        rule="row numbers are at least 0 and below the rows of their table",
        remedy="prepare the data again, or check the code that computed these row numbers",
    )


TORCH = RowOperations("torch", _look_up, _add_rows)
COMPILED = RowOperations("numba", look_up_compiled, add_rows_compiled)
