"""Distribute a layer's experts over ranks: send tokens to their experts, and results back.

Sorts rows, exchanges them over ranks in both directions, multiplies them with the matrices of
several experts, and counts the rows that were routed and received. Neighbouring ranks share a
layer's experts, each the same number. A row is a token for one of its experts (an assignment); no
row is ever dropped.

Knows no models: a case provides the tensors of its experts and the choice of its router.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.autograd import Function
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from torch.distributed.device_mesh import DeviceMesh

    Timed = Callable[[], AbstractContextManager[None]]

EXCHANGE_PART = "all_to_all"  # name of the stage of a step in which rows are exchanged


class Experts(nn.Module):
    """The experts of one layer that this rank holds.

    Args:
        library: experts of ``transformers``. They have the parameters ``gate_up_proj`` (E, D, 2 F)
            and ``down_proj`` (E, F, D), biases (E, 2 F) and (E, D), and ``_apply_gate``.
    """

    gate_up_proj: Tensor
    gate_up_proj_bias: Tensor
    down_proj: Tensor
    down_proj_bias: Tensor

    def __init__(self, library: Any) -> None:
        super().__init__()
        # ``library`` is the module of ``transformers``: take over its parameters under the same
        # names, and its activation, which combines the gates and the other values of each row.
        for name, parameter in library.named_parameters():
            self.register_parameter(name, parameter)
        self._apply_gate: Callable[[Tensor], Tensor] = library._apply_gate
        # Factor of the gradients: 1 / number of ranks that share the experts; see ``share``.
        self._gradient_share = 1.0

    def share(self, mesh: DeviceMesh) -> None:
        """Keep only this rank's experts, in place.

        Gradients of experts are then divided by the number of ranks: they are sums over the tokens
        of all these ranks, whereas gradients of other parameters are means over ranks.

        Args:
            mesh: the ranks that hold the layer together.
        """
        # ``Shard(0)``: the first dimension of each parameter is that of the experts.
        for name, parameter in list(self.named_parameters()):
            # No source rank: each rank cuts its own copy of the parameter, and nothing is sent.
            sharded = distribute_tensor(parameter.data, mesh, [Shard(0)], src_data_rank=None)
            self.register_parameter(name, nn.Parameter(sharded))
        self._gradient_share = 1.0 / mesh.size()

    def forward(self, rows: Tensor, counts: Tensor) -> Tensor:
        """Return the results (M, D) of rows (M, D) that are sorted by expert.

        Args:
            counts: number of rows for each expert, (E,).
        """
        gates_and_ups = multiply_grouped(  # (M, 2 F)
            rows,
            self._get_local(self.gate_up_proj),
            self._get_local(self.gate_up_proj_bias),
            counts,
        )
        return multiply_grouped(
            self._apply_gate(gates_and_ups),  # (M, F)
            self._get_local(self.down_proj),
            self._get_local(self.down_proj_bias),
            counts,
        )

    def _get_local(self, parameter: Tensor) -> Tensor:
        """Return this rank's part of a parameter, whose gradient is scaled.

        The factor is 1 / the number of ranks that share the experts: this rank's experts get the
        gradients of the tokens of all these ranks.
        """
        local = parameter.to_local() if isinstance(parameter, DTensor) else parameter
        return _scale_gradient(local, self._gradient_share)


def multiply_grouped(rows: Tensor, weights: Tensor, biases: Tensor, counts: Tensor) -> Tensor:
    """Return each row times the matrix of its group, plus the bias of its group: (M, O).

    In bf16, devices for which torch has a grouped kernel multiply all groups at once. Otherwise
    each group is multiplied separately, and the host waits for the sizes of the groups. (In other
    precisions torch's grouped product waits too, and on a CPU it takes 20 times as long in torch
    2.13.)

    Args:
        rows: sorted by group, (M, I).
        weights: a matrix for each group, (G, I, O).
        biases: of each group, (G, O).
        counts: number of rows of each group, (G,), on the device.
    """
    dtype = _get_product_type(rows)
    grouped_mm = getattr(nn.functional, "grouped_mm", None)  # torch has it from 2.10 on
    if grouped_mm is None or dtype != torch.bfloat16 or not _has_grouped_kernel(rows.device.type):
        sizes: list[int] = counts.tolist()  # waits for the device
        groups = zip(rows.split(sizes), weights.unbind(), biases.unbind(), strict=True)
        return torch.cat(
            [torch.addmm(bias, rows_of_group, matrix) for rows_of_group, matrix, bias in groups]
        )
    ends = counts.cumsum(0, dtype=torch.int32)  # number of the row after each group's last row
    # With the size of the output, torch need not wait for the device.
    group_of_row = torch.repeat_interleave(
        torch.arange(len(counts), device=rows.device), counts, output_size=len(rows)
    )
    product: Tensor = grouped_mm(rows.to(dtype), weights.to(dtype), offs=ends)
    return product + biases.to(dtype)[group_of_row]


@cache
def _has_grouped_kernel(device_type: str) -> bool:
    """Tell whether torch has a kernel for the grouped product on a type of device.

    Torch has no public function for this.
    """
    key = torch._C._dispatch_key_for_device(device_type)
    return torch._C._dispatch_has_kernel_for_dispatch_key("aten::_grouped_mm", key)


def _get_product_type(rows: Tensor) -> torch.dtype:
    """Return the dtype in which products of ``rows`` are computed: autocast's, if it is on."""
    device_type = rows.device.type
    if torch.is_autocast_enabled(device_type):
        return torch.get_autocast_dtype(device_type)
    return rows.dtype


class _Scaled(Function):
    """The identity, whose gradient is multiplied by a factor."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, factor: float) -> Tensor:
        """Return ``value`` as a new tensor; ``backward`` multiplies its gradient by ``factor``."""
        ctx.factor = factor
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        """Return the gradient of ``value``; ``factor`` has none."""
        return gradient * ctx.factor, None


def _scale_gradient(value: Tensor, factor: float) -> Tensor:
    """Return ``value``, whose gradient is multiplied by ``factor``."""
    if factor == 1.0:
        return value
    scaled: Tensor = _Scaled.apply(value, factor)  # type: ignore[no-untyped-call]
    return scaled


class _Permuted(Function):
    """Rows in another order; the backward pass gathers too, which makes it deterministic."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, order: Tensor, inverse: Tensor) -> Tensor:
        """Return ``rows`` in ``order``; ``inverse`` is the inverse permutation."""
        ctx.save_for_backward(inverse)
        return rows[order]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        """Return the gradient of ``rows`` in their former order; other arguments have none."""
        (inverse,) = ctx.saved_tensors
        return gradient[inverse], None, None


class _Exchanged(Function):
    """Rows that other ranks sent; the backward pass sends their gradients back."""

    @staticmethod
    def forward(  # noqa: PLR0917  autograd passes no keywords
        ctx: Any, rows: Tensor, sent: list[int], received: list[int], group: Any, timed: Timed
    ) -> Tensor:
        """Send rows to other ranks; return those that they sent to this rank.

        Args:
            sent: number of rows for each rank of ``group``.
            received: number of rows from each rank of ``group``.
            timed: makes a context that measures the time of an exchange.
        """
        # For ``backward``, with the numbers swapped: each gradient goes where its row came from.
        ctx.exchange_back = received, sent, group, timed
        return _exchange(rows, sent, received, group, timed)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        """Return the gradient of ``rows``: send gradients back to the ranks of the rows."""
        # None: the arguments other than ``rows`` have no gradient.
        return _exchange(gradient, *ctx.exchange_back), None, None, None, None


def _exchange(
    rows: Tensor, sent: list[int], received: list[int], group: Any, timed: Timed
) -> Tensor:
    """Exchange rows with the ranks of ``group``; return the rows that were received.

    Args:
        sent: number of rows for each rank.
        received: number of rows from each rank.
        timed: makes a context that measures the time of the exchange.
    """
    result = rows.new_empty(sum(received), *rows.shape[1:])
    with timed():
        dist.all_to_all_single(result, rows.contiguous(), received, sent, group=group)
    return result


def count_rows_of_ranks(
    sent_counts: Tensor, received_counts: Tensor
) -> tuple[list[int], list[int]]:
    """Return how many rows go to each rank and how many come from it; waits for the device.

    Args:
        sent_counts: rows for each expert of each rank, (ranks, E / ranks).
        received_counts: rows from each rank for each expert of this rank, (ranks, E / ranks).
    """
    # Stacked, so that there is one copy to the host.
    sent, received = torch.stack([sent_counts.sum(1), received_counts.sum(1)]).tolist()
    return sent, received


class _Order(NamedTuple):
    """An order of rows, as their numbers, and the inverse order."""

    row_numbers: Tensor
    inverse: Tensor

    @classmethod
    def sort_by(cls, keys: Tensor) -> _Order:
        """Return the stable order that sorts ``keys``."""
        row_numbers = keys.argsort(stable=True)
        # Sorting a permutation gives its inverse.
        return cls(row_numbers, inverse=row_numbers.argsort())

    def apply(self, rows: Tensor) -> Tensor:
        """Return the rows in this order.

        Plain indexing would have a backward pass that adds gradients up, in no fixed order.
        That of ``_Permuted`` takes each gradient by its number, which is deterministic.
        """
        permuted: Tensor = _Permuted.apply(rows, self.row_numbers, self.inverse)  # type: ignore[no-untyped-call]
        return permuted

    def undo(self, rows: Tensor) -> Tensor:
        """Return rows in the order that they had before ``apply``."""
        restored: Tensor = _Permuted.apply(rows, self.inverse, self.row_numbers)  # type: ignore[no-untyped-call]
        return restored


class Dispatched(NamedTuple):
    """The result of a layer of experts, and how its rows were distributed.

    Attributes:
        summed: the weighted sum of the results of each token's experts, (N, D).
        routed: number of rows that this rank routed to each expert, (E,).
        received: number of rows that each expert of this rank received, (E / ranks,).
    """

    summed: Tensor
    routed: Tensor
    received: Tensor


class Dispatcher:
    """Send tokens to their experts and results back, over the ranks that share a layer.

    Args:
        num_experts: experts of the layer, over all ranks.
        mesh: the ranks that share each layer's experts; None: this rank holds all experts.
        timed: makes a context that measures the time of an exchange.
    """

    def __init__(self, num_experts: int, *, mesh: DeviceMesh | None, timed: Timed) -> None:
        self.num_experts = num_experts  # of the layer, over all ranks
        self._num_ranks = 1 if mesh is None else mesh.size()  # that share the layer's experts
        # The group of these ranks; None: this rank has all experts and exchanges nothing.
        self._group = None if mesh is None else mesh.get_group()
        self._timed = timed  # makes a context that measures the time of an exchange

    def __call__(
        self, experts: nn.Module, tokens: Tensor, chosen: Tensor, weights: Tensor
    ) -> Dispatched:
        """Return the weighted sum of the results of each token's experts, (N, D).

        Also return the number of rows that this rank routed to each expert of the layer, and the
        number that each expert of this rank received.

        Args:
            experts: called with rows that are sorted by expert, and the number of rows of each
                expert of this rank.
            tokens: (N, D).
            chosen: the numbers of each token's experts, (N, k).
            weights: the weights of these experts, (N, k).
        """
        top_k = chosen.size(1)
        # A row is a token for one of its experts.
        expert_of_row = chosen.flatten()  # (N k,)
        # Count the rows of each expert on the device, without waiting for it.
        ones = torch.ones_like(expert_of_row)
        routed = ones.new_zeros(self.num_experts).scatter_add_(0, expert_of_row, ones)
        order = _Order.sort_by(expert_of_row)
        inputs = tokens.to(_get_product_type(tokens))  # the dtype of matmuls: autocast's, if on
        copies = inputs[:, None].expand(-1, top_k, -1)  # of each token for each of its experts
        rows = order.apply(copies.flatten(0, 1))
        if self._num_ranks == 1:
            results = experts(rows, routed)
            received = routed
        else:
            results, received = self._exchange_rows(experts, rows, routed)
        by_token = order.undo(results).unflatten(0, (-1, top_k))  # (N, k, D)
        summed = (by_token * weights[..., None]).sum(1, dtype=tokens.dtype)
        return Dispatched(summed, routed, received)

    def _exchange_rows(
        self, experts: nn.Module, rows: Tensor, routed: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Send rows to the ranks of their experts; return their results, in the order of ``rows``.

        The host waits for the counts, because it must know how many rows arrive.

        Args:
            rows: sorted by expert.
            routed: number of rows for each expert of all ranks, (E,).

        Returns:
            The results, and the number of rows that each expert of this rank received.
        """
        sent_counts = routed.unflatten(0, (self._num_ranks, -1))  # (ranks, E / ranks)
        received_counts = torch.empty_like(sent_counts)
        with self._timed():
            dist.all_to_all_single(received_counts, sent_counts, group=self._group)
        sent, received = count_rows_of_ranks(sent_counts, received_counts)
        arrived = _Exchanged.apply(rows, sent, received, self._group, self._timed)  # type: ignore[no-untyped-call]
        # Rows arrive sorted by rank, then by expert: sort them by expert.
        experts_here = torch.arange(received_counts.size(1), device=rows.device)
        expert_of_row = torch.repeat_interleave(
            experts_here.repeat(self._num_ranks),
            received_counts.flatten(),
            output_size=len(arrived),
        )
        order = _Order.sort_by(expert_of_row)
        expert_counts = received_counts.sum(0)
        results = order.undo(experts(order.apply(arrived), expert_counts))
        # The results go back the way that the rows came.
        returned: Tensor = _Exchanged.apply(results, received, sent, self._group, self._timed)  # type: ignore[no-untyped-call]
        return returned, expert_counts
