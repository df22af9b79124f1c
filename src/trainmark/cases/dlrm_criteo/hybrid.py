"""Embedding tables sharded over ranks, and the exchanges that bring rows to samples.

This module has the two all-to-all exchanges of a step, with the sums and scaling that belong to
them. It does not know the dense part of the model.

A part is the rows of a table that a rank holds: usually all rows. A table that fits on no
rank is cut into parts of several ranks.

A step of one rank runs in this order; it waits only at the two points marked (waits):

    start                look up the local tables for the whole global batch, begin to send
                         bottom MLP, forward, during the exchange
    wait (waits)         the embeddings of all tables for this rank's samples have arrived
                         interaction, top MLP, and their backward pass
    backward of wait     begin to send gradients to the owners of the rows
                         bottom MLP, backward, during the exchange
    backward of start    the gradients of the local tables have arrived (waits): update them
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

    from .embeddings import PartTimer
    from .placement import Placement, TablePart


class HybridTables(nn.Module):
    """One rank's parts of the tables; used like ``FusedTables`` with all of them.

    A part is a whole table or, if the table is cut over several ranks, some of its rows.

    Every rank looks up its parts for the whole global batch, so ids are not exchanged. The stepper
    scales losses for DDP, which averages the dense gradients over ranks. Here the gradients of all
    ranks are summed, so they are divided by the number of ranks as well.

    Args:
        placement: which rank holds which part of which table.
        rank: number of this rank.
        seed: of the initial rows.
        exchange_dtype: type in which embeddings and gradients are sent.
        group: ranks to exchange with; None: all.
        time_part: returns a context manager that times a part of the step: look-ups and updates, or
            waiting for an exchange.
    """

    def __init__(
        self,
        placement: Placement,
        *,
        rank: int,
        seed: int,
        exchange_dtype: torch.dtype = torch.float32,
        group: dist.ProcessGroup | None = None,
        time_part: PartTimer = skip_timing,
    ) -> None:
        super().__init__()
        self.placement = placement
        self.parts = placement.parts[rank]  # the tables, or rows of a table, that this rank holds
        self.rank = rank
        self.world_size = placement.world_size
        self.exchange_dtype = exchange_dtype  # of embeddings and gradients that are sent
        self.group = group  # ranks to exchange with; None: all
        self.time_part = time_part
        self.local: Any = None  # this rank's parts as if they were whole tables; None: it has none
        if self.parts:
            num_rows = [part.rows for part in self.parts]
            # No seed: the rows are filled below, as rows of their whole tables.
            self.local = FusedTables(num_rows, placement.dim, seed=None, time_part=time_part)
        for part, weight in self.iterate_parts():
            fill_rows(
                weight,
                table=part.table,
                first_row=part.first_row,
                cardinality=placement.cardinalities[part.table],
                seed=seed,
            )
        # A rank without tables takes part in the exchanges of embeddings and gradients too.
        # Autograd calls its backward pass only because this scalar, an input of the forward pass,
        # requires a gradient.
        self.register_buffer("_anchor", torch.zeros(()), persistent=False)
        # First row in its table, and number of rows, of each part: (parts, 2, 1).
        ranges = [(part.first_row, part.rows) for part in self.parts]
        row_ranges = torch.tensor(ranges, dtype=torch.int32).view(-1, 2, 1)
        self.register_buffer("_row_ranges", row_ranges, persistent=False)
        # The numbers of each rank's tables. As buffers they move to the device with the module.
        for owner in range(self.world_size):
            numbers = torch.tensor(placement.list_tables(owner), dtype=torch.long)
            self.register_buffer(f"_tables_{owner}", numbers, persistent=False)
        # Set before every step: the backward pass updates rows with them. Gradients contain the
        # factor ``grad_scale``.
        self.learning_rate = 0.0
        self.grad_scale = 1.0

    def iterate_parts(self) -> Iterator[tuple[TablePart, Tensor]]:
        """Yield this rank's parts, each with a view of its rows (rows, dim)."""
        # The weight has the rows of all parts, one part after the other.
        first_row = 0
        for part in self.parts:
            yield part, self.local.weight.detach()[first_row : first_row + part.rows]
            first_row += part.rows

    def start(self, ids: Tensor) -> TableExchange:
        """Look up rows and begin to send them; ``wait`` of the result returns the embeddings.

        Args:
            ids: (parts, B_global): for each part of this rank and each sample of the global batch,
                the row number in the whole table.
        """
        exchange = TableExchange(self, samples=ids.shape[1])
        # Autograd calls the backward pass of a rank without tables only because this scalar
        # requires a gradient.
        anchor = cast("Tensor", self._anchor).detach().requires_grad_()
        if self.local is None:  # this rank has no tables: no embeddings, but it receives others'
            embeddings = anchor.new_zeros((ids.shape[1], 0, self.placement.dim))
        else:
            # The backward pass of ``local`` updates its rows with this learning rate and scale.
            self.local.learning_rate = self.learning_rate
            # The stepper multiplies losses by the number of ranks, because DDP averages gradients.
            # But the gradients of rows are summed over ranks. So the number of ranks is part of the
            # factor by which ``local`` divides its gradients.
            self.local.grad_scale = self.grad_scale * self.world_size
            # ``exchange`` also learns which ids have their row on another rank.
            embeddings = self.local(self._find_local_rows(ids, exchange))
        # The token is a tensor without content, by which autograd orders the backward passes:
        # ``wait`` passes it to ``_EndExchange``. So autograd calls the backward pass of
        # ``_EndExchange``, which sends gradients, before that of ``_StartExchange``, which receives
        # them.
        exchange.token = _StartExchange.apply(embeddings, anchor, exchange)  # type: ignore[no-untyped-call]
        return exchange

    def count_exchanged_bytes(self, samples: int) -> int:
        """Return the bytes that this rank sends to other ranks in a step.

        These are embeddings of its parts for the samples of other ranks, and gradients of its
        samples for the parts of other ranks.

        Args:
            samples: of the step, over all ranks.
        """
        begin, end = self.find_sample_bounds(samples, self.rank)
        local_samples = end - begin
        remote_samples = samples - local_samples
        remote_parts = sum(len(parts) for parts in self.placement.parts) - len(self.parts)
        num_embeddings = remote_samples * len(self.parts)
        num_gradients = local_samples * remote_parts
        num_vectors = num_embeddings + num_gradients
        return num_vectors * self.placement.dim * self.exchange_dtype.itemsize

    def find_sample_bounds(self, samples: int, rank: int) -> tuple[int, int]:
        """Return begin and end of the samples of ``rank`` in a global batch."""
        return samples * rank // self.world_size, samples * (rank + 1) // self.world_size

    def get_table_numbers(self, owner: int) -> Tensor:
        """Return the table numbers of the parts of ``owner``."""
        return cast("Tensor", getattr(self, f"_tables_{owner}"))

    def _find_local_rows(self, ids: Tensor, exchange: TableExchange) -> Tensor:
        """Return ids (parts, B_global) as row numbers of the local parts.

        If a table is cut, ``exchange.is_foreign`` is set: it marks the ids whose rows other ranks
        hold.
        """
        if not any(self.placement.is_cut(part) for part in self.parts):
            return ids  # whole tables have the same row numbers on this rank
        first_rows, num_rows = cast("Tensor", self._row_ranges).unbind(1)  # both (parts, 1)
        local_rows = ids - first_rows
        exchange.is_foreign = (local_rows < 0) | (local_rows >= num_rows)
        # An arbitrary local row replaces a foreign one; its embedding and gradient are set to 0.
        # The remainder spreads these rows, so that threads do not contend for a single row.
        return local_rows.remainder(num_rows)


class TableExchange:
    """The two exchanges of one step: of embeddings and, in the backward pass, of their gradients.

    It holds their buffers, sizes and pending work. A part is a whole table or, if the table is cut
    over several ranks, some of its rows.

    Args:
        tables: the parts of this rank.
        samples: number of samples of the global batch.
    """

    def __init__(self, tables: HybridTables, *, samples: int) -> None:
        self.tables = tables
        self.samples = samples  # of the global batch
        # (parts, B_global): True if another rank holds the row; None: no local table is cut.
        self.is_foreign: Tensor | None = None
        # A scalar that connects the autograd nodes ``_StartExchange``, whose result it is, and
        # ``_EndExchange``, whose input it is. ``HybridTables.start`` sets it, and ``wait`` takes it
        # away.
        self.token: Any = None
        dim = tables.placement.dim
        bounds = [tables.find_sample_bounds(samples, rank) for rank in range(tables.world_size)]
        begin, end = bounds[tables.rank]
        self._local_samples = end - begin
        # For each rank, the number of elements of this rank's parts for the samples of that rank:
        # embeddings that this rank sends to it, gradients that it receives from it.
        self._sizes_of_local_parts = [
            (end - begin) * len(tables.parts) * dim for begin, end in bounds
        ]
        # For each rank, the number of elements of that rank's parts for the samples of this rank:
        # embeddings that this rank receives from it, gradients that it sends to it.
        self._sizes_of_local_samples = [
            self._local_samples * len(parts) * dim for parts in tables.placement.parts
        ]
        # Of the exchange that is under way: its handle, and the buffers sent and received.
        self._work: Any = None
        self._buffers: tuple[Tensor, Tensor] | None = None

    def wait(self) -> Tensor:
        """Return the embeddings (B_local, T, dim) of all T tables for this rank's samples.

        Waits until they have arrived.
        """
        # ``_StartExchange`` returned this scalar. As an input of ``_EndExchange`` it connects both
        # autograd nodes: the backward pass of ``_EndExchange``, which sends gradients, runs before
        # that of ``_StartExchange``, which receives them.
        token = self.token
        # The token's autograd node refers to this object, so keeping the token would make a
        # reference cycle, which Python frees late.
        self.token = None
        embeddings: Tensor = _EndExchange.apply(token, self)  # type: ignore[no-untyped-call]
        return embeddings

    def send_embeddings(self, embeddings: Tensor) -> None:
        """Begin to send embeddings to the ranks that train their samples.

        Args:
            embeddings: of this rank's parts for the global batch (B_global, parts, dim). They may
                be changed in place.
        """
        # If the type does not change, ``sent`` is ``embeddings`` itself.
        sent = embeddings.to(self.tables.exchange_dtype).contiguous()
        # If another rank holds the row of a sample, this rank has looked up an arbitrary row, and
        # sends zeros in its place: the receiver adds the vectors of all parts of a table.
        self._clear_foreign_rows(sent)
        # Sent: this rank's parts, for the samples of each rank. Received: the parts of each rank,
        # for this rank's samples.
        self._begin_exchange(
            sent.view(-1),
            sizes_sent=self._sizes_of_local_parts,
            sizes_received=self._sizes_of_local_samples,
        )

    def receive_embeddings(self) -> Tensor:
        """Return the embeddings (B_local, T, dim) of all T tables for this rank's samples."""
        received = self._end_exchange()
        placement = self.tables.placement
        shape = (self._local_samples, len(placement.cardinalities), placement.dim)
        embeddings = received.new_zeros(shape)
        # Each block has the embeddings of the parts of one rank, the owner (B_local, parts, dim).
        for owner, block in enumerate(self._split_by_owner(received)):
            tables = self.tables.get_table_numbers(owner)
            # A cut table has several owners, and the embedding is their sum. For each sample, all
            # but one of them send zeros, so the sum is exact. The embedding of a whole table has
            # one owner: to copy it costs less than to add it to zeros.
            if any(placement.is_cut(part) for part in placement.parts[owner]):
                embeddings[:, tables] += block
            else:
                embeddings[:, tables] = block
        return embeddings

    def send_gradients(self, grad: Tensor) -> None:
        """Begin to send gradients to the ranks that hold parts of the tables, the owners.

        The gradients of a table that is cut go to all ranks that hold a part of it. Each of them
        ignores those of rows that it does not hold.

        Args:
            grad: of the embeddings of all T tables, for this rank's samples (B_local, T, dim). It
                has the type ``exchange_dtype``: autograd gives a gradient the type of its tensor,
                here that of the embeddings that were received.
        """
        sent = grad.new_empty(sum(self._sizes_of_local_samples))
        for owner, block in enumerate(self._split_by_owner(sent)):
            # ``block`` is a view of ``sent``, which this fills.
            torch.index_select(grad, 1, self.tables.get_table_numbers(owner), out=block)
        # Sent: gradients of this rank's samples, for the parts of each rank. Received: gradients of
        # the samples of each rank, for this rank's parts.
        self._begin_exchange(
            sent, sizes_sent=self._sizes_of_local_samples, sizes_received=self._sizes_of_local_parts
        )

    def receive_gradients(self) -> Tensor:
        """Return the gradients of the local parts for the global batch, (B_global, parts, dim)."""
        shape = (self.samples, len(self.tables.parts), self.tables.placement.dim)
        grad = self._end_exchange().view(shape)
        # Samples whose row another rank holds looked up an arbitrary row here: do not update it.
        self._clear_foreign_rows(grad)
        return grad.float()  # sent in ``exchange_dtype``, but the tables are float32

    def _clear_foreign_rows(self, rows: Tensor) -> None:
        """Set the vectors whose rows other ranks hold to 0, in place.

        Args:
            rows: vectors of this rank's parts (B_global, parts, dim).
        """
        if self.is_foreign is None:  # no table of this rank is cut, so it holds all their rows
            return
        for column, part in enumerate(self.tables.parts):
            if self.tables.placement.is_cut(part):
                rows[:, column].masked_fill_(self.is_foreign[column, :, None], 0.0)

    def _split_by_owner(self, flat: Tensor) -> Iterator[Tensor]:
        """Yield, for each rank, the block (B_local, parts, dim) of its parts: a view of ``flat``.

        Args:
            flat: embeddings that were received, or gradients to send. It has the vectors of all
                ranks' parts for this rank's samples, rank by rank.
        """
        placement = self.tables.placement
        # The sizes: for each rank, the number of elements of its parts for this rank's samples.
        blocks = flat.split(self._sizes_of_local_samples)
        for parts, block in zip(placement.parts, blocks, strict=True):
            yield block.view(self._local_samples, len(parts), placement.dim)

    def _begin_exchange(
        self, sent: Tensor, *, sizes_sent: list[int], sizes_received: list[int]
    ) -> None:
        """Begin an all-to-all exchange.

        Args:
            sent: flat; the elements for each rank, rank by rank.
            sizes_sent: number of elements for each rank.
            sizes_received: number of elements from each rank.
        """
        received = sent.new_empty(sum(sizes_received))
        self._buffers = sent, received  # both must live until the exchange ends
        self._work = dist.all_to_all_single(
            received, sent, sizes_received, sizes_sent, group=self.tables.group, async_op=True
        )

    def _end_exchange(self) -> Tensor:
        """Wait for the exchange under way; return the flat buffer received."""
        assert self._buffers is not None, "an exchange ends once"
        with self.tables.time_part(EXCHANGE_PART):
            self._work.wait()
        _, received = self._buffers
        self._work = None
        self._buffers = None
        return received


# Two autograd nodes, connected by the token, a tensor without content. Autograd runs nodes in the
# reverse order of their creation: the bottom MLP, created between the two, has its backward pass
# between theirs.


class _StartExchange(Function):
    """Begin the exchange of embeddings; in the backward pass, end that of gradients."""

    @staticmethod
    def forward(ctx: Any, embeddings: Tensor, anchor: Tensor, exchange: TableExchange) -> Tensor:
        """Begin to send the embeddings; return the token, a scalar without content.

        The token is an input of ``_EndExchange``, so autograd runs the backward pass of that node
        before the one of this node.

        Args:
            embeddings: of this rank's parts for the global batch (B_global, parts, dim).
            anchor: a scalar that requires a gradient, so that ``backward`` is called even if this
                rank has no tables.
        """
        exchange.send_embeddings(embeddings)
        ctx.exchange = exchange
        return torch.zeros_like(anchor)

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> tuple[Tensor | None, None, None]:
        """Return the gradient of the embeddings of the local parts (B_global, parts, dim).

        The argument is the gradient of the scalar that ``forward`` returned, which is 0 and only
        orders this pass. The other two inputs of ``forward`` have no gradient.
        """
        return ctx.exchange.receive_gradients(), None, None


class _EndExchange(Function):
    """End the exchange of embeddings; in the backward pass, begin that of gradients."""

    @staticmethod
    def forward(ctx: Any, _token: Tensor, exchange: TableExchange) -> Tensor:
        """Return the embeddings (B_local, T, dim) of all T tables for this rank's samples.

        Args:
            _token: the result of ``_StartExchange``. As an input it only makes autograd run the
                backward pass of this node before the one of ``_StartExchange``.
        """
        ctx.exchange = exchange
        return exchange.receive_embeddings()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        """Begin to send the gradients of the embeddings; return 0 as the gradient of the token.

        The token is a scalar without content, which connects this node with ``_StartExchange``.
        """
        ctx.exchange.send_gradients(grads[0])
        # The gradients of the token and of ``exchange``.
        return torch.zeros((), device=grads[0].device), None
