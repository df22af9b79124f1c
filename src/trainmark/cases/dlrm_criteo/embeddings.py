"""The embedding tables of one process, with their SGD step inside the backward pass.

Owns the one weight that all tables share, the look-up, and the update of the rows that were
looked up. There is never a gradient of a whole table. Must not know of ranks or of the
model above.
"""

from __future__ import annotations

import mmap
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
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

    InPart = Callable[[str], AbstractContextManager[Any]]

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
        generator = torch.Generator().manual_seed(_mix_seed(seed, table, block))
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


def _mix_seed(seed: int, table: int, block: int) -> int:
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


def skip_timing(_part: str) -> AbstractContextManager[Any]:
    """Time nothing."""
    return nullcontext()


class FusedTables(nn.Module):
    """Look rows up in tables that are stored one after the other in one weight.

    Args:
        cardinalities: rows of each table.
        dim: numbers of a row.
        seed: of the initial rows; none: the caller fills ``weight``.
        in_part: enters a part of the step by name: look-ups and updates are one.

    Attributes:
        weight: (sum of cardinalities, dim) float32; no parameter, so no optimizer sees it.
        learning_rate: of the SGD step that the next backward pass takes.
        grad_scale: what incoming gradients were multiplied by; a tensor where it lives on
            the device, as a loss scale does. Gradients that overflowed under it are dropped.
    """

    def __init__(
        self,
        cardinalities: Sequence[int],
        dim: int,
        *,
        seed: int | None,
        in_part: InPart = skip_timing,
    ) -> None:
        super().__init__()
        self.in_part = in_part
        self.cardinalities, self.dim = tuple(cardinalities), dim
        self.learning_rate: float = 0.0
        self.grad_scale: float | Tensor = 1.0
        self.register_buffer("weight", _allocate_rows(sum(self.cardinalities), dim))
        ends = torch.tensor(self.cardinalities, dtype=torch.int64).cumsum(0)
        starts = torch.cat([ends.new_zeros(1), ends[:-1]])
        # Ids come as int32 where all rows can be counted in it: half the bytes to read.
        narrow = sum(self.cardinalities) < 2**31
        self.register_buffer("_starts", starts.to(torch.int32 if narrow else torch.int64))
        # Autograd calls backward only below something that asks for a gradient.
        self.register_buffer("_anchor", torch.zeros(()), persistent=False)
        if seed is not None:
            for table, part in enumerate(self.split_tables()):
                cardinality = len(part)
                fill_rows(part, table=table, first_row=0, cardinality=cardinality, seed=seed)

    def split_tables(self) -> Sequence[Tensor]:
        """Return each table as a view of the weight, (cardinality, dim)."""
        parts: Sequence[Tensor] = cast("Tensor", self.weight).split(self.cardinalities)
        return parts

    def forward(self, ids: Tensor) -> Tensor:
        """Return the rows of ``ids`` (T, B), int32 or int64, as (B, T, dim)."""
        anchor = cast("Tensor", self._anchor).detach().requires_grad_()
        embeddings: Tensor = _LookUp.apply(anchor, self, ids)  # type: ignore[no-untyped-call]
        return embeddings

    @torch.no_grad()
    def look_up(self, ids: Tensor) -> Tensor:
        """Return the rows of ids (T, B) as (B, T, dim)."""
        weight = cast("Tensor", self.weight)
        return weight.index_select(0, self._find_rows(ids)).view(*ids.t().shape, self.dim)

    def _find_rows(self, ids: Tensor) -> Tensor:
        """Return the rows in the weight of ids (T, B), sample by sample, (B x T,)."""
        return (ids + cast("Tensor", self._starts)[:, None]).t().reshape(-1)

    @torch.no_grad()
    def update(self, ids: Tensor, grads: Tensor) -> None:
        """Take the SGD step for the rows of ids (T, B) with gradients (B, T, dim).

        Rows may repeat within a look-up: their gradients add up.
        """
        factor = -self.learning_rate / self.grad_scale
        if isinstance(factor, Tensor):
            grads = scale_or_zero(grads, factor)
            factor = 1.0
        weight, rows = cast("Tensor", self.weight), self._find_rows(ids)
        grads = grads.reshape(-1, self.dim)
        if weight.device.type == "cpu":
            # ``index_add_`` runs on one thread there. ``scatter_add_`` with an index that is a
            # vector seen as a matrix sorts the rows and gives each to one thread, always in the
            # same order.
            weight.scatter_add_(0, rows.long()[:, None].expand_as(grads), grads * factor)
        else:
            weight.index_add_(0, rows, grads, alpha=factor)


class _LookUp(Function):
    """Rows of a weight; the backward pass updates them instead of handing a gradient on."""

    @staticmethod
    def forward(ctx: Any, _anchor: Tensor, tables: FusedTables, ids: Tensor) -> Tensor:
        ctx.tables = tables
        ctx.save_for_backward(ids)
        with tables.in_part(EMBEDDING_PART):
            return tables.look_up(ids)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (ids,) = ctx.saved_tensors
        with ctx.tables.in_part(EMBEDDING_PART):
            ctx.tables.update(ids, grads[0].float())
        return grads[0].new_zeros(()), None, None


def _allocate_rows(rows: int, dim: int) -> Tensor:
    """Return (rows, dim) float32 to be filled, on huge pages where the host has them.

    Rows lie at random: with pages of 4 KiB nearly each costs a walk through page tables.
    """
    on_cpu = torch.get_default_device().type == "cpu"
    if not on_cpu or not rows * dim or not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.empty(rows, dim)
    room = mmap.mmap(-1, rows * dim * FLOAT_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    room.madvise(mmap.MADV_HUGEPAGE)  # advice: a kernel without them leaves pages as they are
    return torch.frombuffer(room, dtype=torch.float32).view(rows, dim)  # keeps ``room`` alive


def scale_or_zero(grads: Tensor, factor: Tensor) -> Tensor:
    """Return ``grads x factor``, or zeros where one overflowed; asks nothing of the host."""
    scaled = grads * factor
    return torch.where(torch.isfinite(scaled.sum()), scaled, torch.zeros_like(scaled))
