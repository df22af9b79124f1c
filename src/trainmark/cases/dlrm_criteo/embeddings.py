"""The embedding tables of one process, with their SGD step inside the backward pass.

All tables share one weight. The backward pass updates the rows that were looked up, so there is
never a gradient of a whole table. This module does not know ranks or the rest of the model.
"""

from __future__ import annotations

import mmap
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from .figures import EMBEDDING_PART
from .placement import FLOAT_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    # Given the name of a part of the step, returns a context manager that times its block.
    PartTimer = Callable[[str], AbstractContextManager[Any]]

BLOCK_ROWS = 4096  # rows for each generator; seeding it costs little compared with drawing them


def fill_rows(out: Tensor, *, table: int, first_row: int, cardinality: int, seed: int) -> None:
    """Fill ``out`` (rows, dim) with the initial rows of ``table`` from ``first_row`` on, in place.

    Values are uniform within ±1/sqrt(cardinality). They are drawn on the host, a few blocks at a
    time, because generators of other devices give other numbers. Each block of a table has its own
    generator, so a row's values do not depend on which rank holds it.

    Args:
        out: requires no gradient.
        table: number of the table; with ``seed``, it determines the values.
        first_row: row of the table that the first row of ``out`` is.
        cardinality: number of rows of the whole table.
    """
    bound = cardinality**-0.5
    end_row = first_row + len(out)

    def fill_block(block: int) -> None:
        """Fill the rows of ``out`` that are in a block of the table.

        All four bounds below are rows of the table, of which ``out`` has ``first_row`` to
        ``end_row - 1``.
        """
        block_start = block * BLOCK_ROWS
        block_end = min(block_start + BLOCK_ROWS, cardinality)
        start = max(block_start, first_row)
        end = min(block_end, end_row)
        rows = out[start - first_row : end - first_row]
        generator = torch.Generator().manual_seed(_mix_seed(seed, table, block))
        is_whole_block = start == block_start and end == block_end
        if is_whole_block and rows.device.type == "cpu":
            rows.uniform_(-bound, bound, generator=generator)
            return
        # Draw the whole block, of which ``out`` has only a part or is on another device.
        drawn = torch.empty((block_end - block_start, out.shape[1]), dtype=out.dtype, device="cpu")
        drawn.uniform_(-bound, bound, generator=generator)
        rows.copy_(drawn[start - block_start : end - block_start])

    end_block = -(-end_row // BLOCK_ROWS)  # rounded up
    # torch draws on one thread and releases the interpreter's lock while it does.
    with ThreadPoolExecutor(torch.get_num_threads()) as threads:
        for _ in threads.map(fill_block, range(first_row // BLOCK_ROWS, end_block)):
            pass  # the loop raises what a thread raised


def _mix_seed(seed: int, table: int, block: int) -> int:
    """Return a seed of 63 bits, a number that torch accepts, for a block of a table.

    A CPU generator of torch uses only 32 bits of the seed. So the numbers of table and block are
    mixed into all bits.
    """
    mixed = seed & (2**63 - 1)
    for number in (table, block):
        # One step of the generator splitmix64, with its constants: a change of one input bit flips
        # about half of the output bits. Python's integers have no limit: ``&`` keeps 64 bits.
        mixed = (mixed + 0x9E3779B97F4A7C15 * (number + 1)) & (2**64 - 1)
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & (2**64 - 1)
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & (2**64 - 1)
        mixed ^= mixed >> 31
    return mixed >> 1


def skip_timing(_part: str) -> AbstractContextManager[Any]:
    """Return a context manager that does not time the work inside."""
    return nullcontext()


class FusedTables(nn.Module):
    """Look up rows in tables that are stored one after the other in one weight.

    Args:
        cardinalities: number of rows of each table.
        dim: width of a row.
        seed: of the initial rows; None: the caller fills ``weight``.
        time_part: returns a context manager that times a part of the step, given its name.

    Attributes:
        weight: (sum of cardinalities, dim) float32; a buffer, so no optimizer sees it.
        learning_rate: of the SGD step in the next backward pass.
        grad_scale: the factor in incoming gradients; a tensor if it is on the device, as a loss
            scale is. Gradients that overflowed are dropped.
    """

    def __init__(
        self,
        cardinalities: Sequence[int],
        dim: int,
        *,
        seed: int | None,
        time_part: PartTimer = skip_timing,
    ) -> None:
        super().__init__()
        self.time_part = time_part  # times a part of the step, given the name of the part
        self.cardinalities = tuple(cardinalities)  # number of rows of each table
        self.dim = dim
        # The caller sets both before a step; the backward pass updates the rows with them. The
        # gradients contain the factor ``grad_scale``, a tensor if it is on the device.
        self.learning_rate: float = 0.0
        self.grad_scale: float | Tensor = 1.0
        self.register_buffer("weight", _allocate_rows(sum(self.cardinalities), dim))
        ends = torch.tensor(self.cardinalities, dtype=torch.int64).cumsum(0)
        starts = torch.cat([ends.new_zeros(1), ends[:-1]])
        # First row of each table in the weight; int32 if it can count all rows, because that halves
        # the bytes to read.
        fits_int32 = sum(self.cardinalities) < 2**31
        self.register_buffer("_starts", starts.to(torch.int32 if fits_int32 else torch.int64))
        # Autograd calls a backward pass only if an input of the forward pass requires a gradient.
        # Ids and the weight do not, so this scalar is passed as well.
        self.register_buffer("_anchor", torch.zeros(()), persistent=False)
        if seed is not None:  # None: the caller fills the weight
            for table, rows in enumerate(self.split_tables()):
                fill_rows(rows, table=table, first_row=0, cardinality=len(rows), seed=seed)

    def split_tables(self) -> Sequence[Tensor]:
        """Return each table as a view of the weight, (cardinality, dim)."""
        tables: Sequence[Tensor] = cast("Tensor", self.weight).split(self.cardinalities)
        return tables

    def forward(self, ids: Tensor) -> Tensor:
        """Return the rows of ``ids`` as (B, T, dim).

        Args:
            ids: a row number of each of T tables for each of B samples (T, B), int32 or int64.
        """
        # Autograd calls the backward pass, which updates the rows, only because this scalar
        # requires a gradient.
        anchor = cast("Tensor", self._anchor).detach().requires_grad_()
        embeddings: Tensor = _LookUp.apply(anchor, self, ids)  # type: ignore[no-untyped-call]
        return embeddings

    @torch.no_grad()
    def look_up(self, ids: Tensor) -> Tensor:
        """Return the rows of ids (T, B) as (B, T, dim); autograd does not see it.

        Args:
            ids: a row number of each of T tables for each of B samples.
        """
        num_tables, batch_size = ids.shape
        row_numbers = self._find_rows(ids)  # in the weight, sample by sample (B x T,)
        rows = cast("Tensor", self.weight).index_select(0, row_numbers)
        return rows.view(batch_size, num_tables, self.dim)

    def _find_rows(self, ids: Tensor) -> Tensor:
        """Return the row numbers in the weight of ids (T, B), sample by sample, (B x T,)."""
        return (ids + cast("Tensor", self._starts)[:, None]).t().reshape(-1)

    @torch.no_grad()
    def update(self, ids: Tensor, grads: Tensor) -> None:
        """Take the SGD step for the rows of ids (T, B) with gradients (B, T, dim).

        T is the number of tables, B of samples. The gradients contain the factor ``grad_scale``.
        Those of a row that occurs several times add up.
        """
        factor = -self.learning_rate / self.grad_scale
        if isinstance(factor, Tensor):
            # fp16: the scale is on the device and is not read. If a gradient overflowed, all become
            # 0, so no row changes.
            grads = scale_or_zero(grads, factor)
            factor = 1.0
        weight = cast("Tensor", self.weight)
        # Row numbers in the weight, sample by sample like the gradients (B x T,).
        rows = self._find_rows(ids)
        grads = grads.reshape(-1, self.dim)
        if weight.device.type == "cpu":
            # On a CPU, ``index_add_`` uses only one thread. ``scatter_add_`` with an expanded index
            # uses all: it sorts by rows, and divides the rows among the threads. One thread adds
            # all gradients of a row, always in the same order.
            weight.scatter_add_(0, rows.long()[:, None].expand_as(grads), grads * factor)
        else:
            weight.index_add_(0, rows, grads, alpha=factor)


class _LookUp(Function):
    """Look up rows of a weight; the backward pass updates them and returns no gradient."""

    @staticmethod
    def forward(ctx: Any, _anchor: Tensor, tables: FusedTables, ids: Tensor) -> Tensor:
        """Return the rows of ids as (B, T, dim).

        Args:
            _anchor: a scalar that requires a gradient, so that ``backward`` is called.
            ids: a row number of each of T tables for each of B samples (T, B).
        """
        ctx.tables = tables
        ctx.save_for_backward(ids)
        with tables.time_part(EMBEDDING_PART):
            return tables.look_up(ids)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        """Update the rows, given their gradients (B, T, dim); B samples, T tables.

        The anchor, a scalar input that only causes this call, gets the gradient 0.
        """
        (ids,) = ctx.saved_tensors
        with ctx.tables.time_part(EMBEDDING_PART):
            ctx.tables.update(ids, grads[0].float())
        return grads[0].new_zeros(()), None, None  # of the anchor, of the tables, of the ids


def _allocate_rows(rows: int, dim: int) -> Tensor:
    """Return uninitialized float32 (rows, dim), on huge pages if the host has them.

    Rows are read in random order; with pages of 4 KiB, nearly every row costs a page-table walk.
    """
    # The caller has made the device on which it builds the tables the default device.
    on_cpu = torch.get_default_device().type == "cpu"
    is_empty = rows * dim == 0  # no memory can be mapped
    if not on_cpu or is_empty or not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.empty(rows, dim)
    memory = mmap.mmap(-1, rows * dim * FLOAT_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a kernel that was built without huge pages refuses the advice
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.float32).view(rows, dim)  # keeps ``memory`` alive


def scale_or_zero(grads: Tensor, factor: Tensor) -> Tensor:
    """Return ``grads x factor``, or only zeros if an element overflowed.

    All of this runs on the device: the host does not wait for the result of the check.
    """
    scaled = grads * factor
    # One check for all elements: the sum is inf or nan if any of them is. A sum of finite elements
    # does not overflow: they come from fp16 gradients, of at most 65,504 each, and are float32.
    return torch.where(torch.isfinite(scaled.sum()), scaled, torch.zeros_like(scaled))
