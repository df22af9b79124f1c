"""Embedding tables sharded over ranks, and the exchanges that bring rows to samples.

Owns both all-to-all exchanges of a step and what is summed and weighed on the way. Knows
nothing of the dense part.

A step of one rank runs in this order, and only two places wait:

    start      look up own columns for the whole global batch, begin sending
               bottom layers, forward                                  meanwhile
    wait       the embeddings of all tables for this rank's samples are here
               interaction, top layers, and all of their backward pass
    (wait's backward)   begin sending gradients to the owners of the rows
               bottom layers, backward                                 meanwhile
    (start's backward)  the gradients of own columns are here: update
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.autograd import Function

from .embeddings import FusedTables, fill_rows, skip_timing
from .figures import EXCHANGE_PART

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .embeddings import InPart
    from .placement import Placement, TablePart


class HybridTables(nn.Module):
    """One rank's share of the tables, called like all of them.

    Every rank looks its own columns up for the whole global batch, so ids never travel.
    The stepper weighs losses so that the mean over ranks is right, which is what DDP takes
    of dense gradients; here gradients of all ranks meet, so they are divided as well.

    Args:
        exchange_dtype: what embeddings and gradients travel in.
        group: ranks to exchange with; none: all.
        in_part: enters a part of the step: look-ups and updates, or waiting for an exchange.
    """

    def __init__(
        self,
        placement: Placement,
        *,
        rank: int,
        seed: int,
        exchange_dtype: torch.dtype = torch.float32,
        group: dist.ProcessGroup | None = None,
        in_part: InPart = skip_timing,
    ) -> None:
        super().__init__()
        self.placement = placement
        self.parts = placement.parts[rank]
        self.rank, self.world_size = rank, placement.world_size
        self.exchange_dtype, self.group = exchange_dtype, group
        self.in_part = in_part
        rows = tuple(part.rows for part in self.parts)
        self.local: Any = None
        if rows:
            self.local = FusedTables(rows, placement.dim, seed=None, in_part=in_part)
        for part, weight in self.iterate_parts():
            fill_rows(
                weight,
                table=part.table,
                first_row=part.first_row,
                cardinality=placement.cardinalities[part.table],
                seed=seed,
            )
        # A rank without a table takes part in both exchanges: something must need a gradient.
        self.register_buffer("_anchor", torch.zeros(()), persistent=False)
        ranges = [(part.first_row, part.rows) for part in self.parts]
        bounds = torch.tensor(ranges, dtype=torch.int32).view(-1, 2, 1)
        self.register_buffer("_ranges", bounds, persistent=False)
        for owner in range(self.world_size):
            numbers = torch.tensor(placement.list_tables(owner), dtype=torch.long)
            self.register_buffer(f"_tables_{owner}", numbers, persistent=False)
        self.learning_rate, self.grad_scale = 0.0, 1.0

    def iterate_parts(self) -> Iterator[tuple[TablePart, Tensor]]:
        """Yield this rank's parts, each with its rows (rows, dim) as they are in memory."""
        first = 0
        for part in self.parts:
            yield part, self.local.weight.detach()[first : first + part.rows]
            first += part.rows

    def start(self, ids: Tensor) -> TableExchange:
        """Look up and begin to send.

        Args:
            ids: one row a part of this rank, each of the whole global batch,
                (parts, B_global); row numbers of the whole table.
        """
        exchange = TableExchange(self, samples=ids.shape[1])
        anchor = cast("Tensor", self._anchor).detach().requires_grad_()
        if self.local is None:
            embeddings = anchor.new_zeros((ids.shape[1], 0, self.placement.dim))
        else:
            self.local.learning_rate = self.learning_rate
            self.local.grad_scale = self.grad_scale * self.world_size
            embeddings = self.local(self._find_local_rows(ids, exchange))
        exchange.token = _StartExchange.apply(embeddings, anchor, exchange)  # type: ignore[no-untyped-call]
        return exchange

    def count_exchanged_bytes(self, samples: int) -> int:
        """Return the bytes this rank sends to others in a step of ``samples`` over all ranks.

        Embeddings on the way out, gradients on the way back; what stays here is left out.
        """
        mine = self.find_sample_bounds(samples, self.rank)
        elsewhere = samples - (mine[1] - mine[0])
        parts_elsewhere = sum(len(parts) for parts in self.placement.parts) - len(self.parts)
        vectors = elsewhere * len(self.parts) + (mine[1] - mine[0]) * parts_elsewhere
        return vectors * self.placement.dim * self.exchange_dtype.itemsize

    def find_sample_bounds(self, samples: int, rank: int) -> tuple[int, int]:
        """Return where the samples of ``rank`` begin and end in a global batch."""
        return samples * rank // self.world_size, samples * (rank + 1) // self.world_size

    def get_table_numbers(self, owner: int) -> Tensor:
        """Return the numbers of the tables that ``owner`` holds rows of, one for each part."""
        return cast("Tensor", getattr(self, f"_tables_{owner}"))

    def _find_local_rows(self, ids: Tensor, exchange: TableExchange) -> Tensor:
        """Return ids as row numbers of the local parts; remember which are not ours."""
        if not any(self.placement.is_cut(part) for part in self.parts):
            return ids
        first_rows, rows = cast("Tensor", self._ranges).unbind(1)
        shifted = ids - first_rows
        exchange.outside = (shifted < 0) | (shifted >= rows)
        # Any row stands in for a foreign one: it counts 0 and gets a gradient of 0. Taking
        # the remainder spreads the stand-ins, so that no row is waited for by all threads.
        return shifted.remainder(rows)


class TableExchange:
    """The two exchanges of one step: buffers, sizes and what is waited for."""

    def __init__(self, tables: HybridTables, *, samples: int) -> None:
        self.tables, self.samples = tables, samples
        self.outside: Tensor | None = None  # (parts, B_global): rows that other ranks hold
        self.token: Any = None  # joins the two nodes below
        first, last = tables.find_sample_bounds(samples, tables.rank)
        dim, ranks = tables.placement.dim, range(tables.world_size)
        bounds = [tables.find_sample_bounds(samples, rank) for rank in ranks]
        self._here = last - first
        # Numbers exchanged with each rank: own parts of its samples, its parts of ours.
        self._own = [(end - begin) * len(tables.parts) * dim for begin, end in bounds]
        self._theirs = [self._here * len(tables.placement.parts[r]) * dim for r in ranks]
        self._work: Any = None
        self._buffers: tuple[Tensor, Tensor] | None = None

    def wait(self) -> Tensor:
        """Return the embeddings of all tables for this rank's samples, (B_local, T, dim)."""
        token, self.token = self.token, None  # it refers to the exchange: no cycle is left
        embeddings: Tensor = _EndExchange.apply(token, self)  # type: ignore[no-untyped-call]
        return embeddings

    def send_embeddings(self, embeddings: Tensor) -> None:
        """Begin to send rows (B_global, parts, dim) to those who train their samples."""
        sent = embeddings.to(self.tables.exchange_dtype).contiguous()
        self._clear_foreign_rows(sent)
        self._begin_exchange(sent.view(-1), sizes_sent=self._own, sizes_received=self._theirs)

    def receive_embeddings(self) -> Tensor:
        """Return (B_local, T, dim) of all tables, the parts of a cut table added up."""
        received = self._end_exchange()
        placement = self.tables.placement
        shape = (self._here, len(placement.cardinalities), placement.dim)
        out = received.new_zeros(shape)
        for owner, block in enumerate(self._split_by_owner(received)):
            tables = self.tables.get_table_numbers(owner)
            # Of a cut table all owners but one send zeros: adding them rounds nothing.
            cut = any(map(placement.is_cut, placement.parts[owner]))
            out[:, tables] = out[:, tables] + block if cut else block
        return out

    def send_gradients(self, grad: Tensor) -> None:
        """Begin to send gradients (B_local, T, dim) to the owners of the rows."""
        sent = grad.new_empty(sum(self._theirs))
        for owner, block in enumerate(self._split_by_owner(sent)):
            torch.index_select(grad, 1, self.tables.get_table_numbers(owner), out=block)
        self._begin_exchange(sent, sizes_sent=self._theirs, sizes_received=self._own)

    def receive_gradients(self) -> Tensor:
        """Return the gradients of own parts for the whole global batch, (B_global, parts, dim)."""
        shape = (self.samples, len(self.tables.parts), self.tables.placement.dim)
        grad = self._end_exchange().view(shape)
        self._clear_foreign_rows(grad)
        return grad.float()

    def _clear_foreign_rows(self, rows: Tensor) -> None:
        """Set what belongs to rows of other ranks to 0, in place."""
        if self.outside is None:
            return
        for column, part in enumerate(self.tables.parts):
            if self.tables.placement.is_cut(part):
                rows[:, column].masked_fill_(self.outside[column, :, None], 0.0)

    def _split_by_owner(self, flat: Tensor) -> Iterator[Tensor]:
        """Yield each owner's piece of a buffer of this rank's samples, (B_local, parts, dim)."""
        placement = self.tables.placement
        for parts, piece in zip(placement.parts, flat.split(self._theirs), strict=True):
            yield piece.view(self._here, len(parts), placement.dim)

    def _begin_exchange(
        self, sent: Tensor, *, sizes_sent: list[int], sizes_received: list[int]
    ) -> None:
        received = sent.new_empty(sum(sizes_received))
        self._buffers = sent, received  # the sent one must outlive the exchange
        self._work = dist.all_to_all_single(
            received, sent, sizes_received, sizes_sent, group=self.tables.group, async_op=True
        )

    def _end_exchange(self) -> Tensor:
        assert self._buffers is not None, "an exchange is waited for once"
        with self.tables.in_part(EXCHANGE_PART):
            self._work.wait()
        _, received = self._buffers
        self._work = self._buffers = None
        return received


# Two nodes joined by a token that carries no number. Autograd runs the node made last
# first: bottom layers made between the two have their backward pass between the two.


class _StartExchange(Function):
    """Begin the exchange of embeddings; in the backward pass, end that of gradients."""

    @staticmethod
    def forward(ctx: Any, embeddings: Tensor, anchor: Tensor, exchange: TableExchange) -> Tensor:
        exchange.send_embeddings(embeddings)
        ctx.exchange = exchange
        return torch.zeros_like(anchor)

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> tuple[Tensor | None, None, None]:
        return ctx.exchange.receive_gradients(), None, None


class _EndExchange(Function):
    """End the exchange of embeddings; in the backward pass, begin that of gradients."""

    @staticmethod
    def forward(ctx: Any, _token: Tensor, exchange: TableExchange) -> Tensor:
        ctx.exchange = exchange
        return exchange.receive_embeddings()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        ctx.exchange.send_gradients(grads[0])
        return torch.zeros((), device=grads[0].device), None
