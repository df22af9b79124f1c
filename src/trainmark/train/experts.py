"""A layer's experts over ranks: each token goes to the ranks that hold its experts, and back.

Owns the order of rows, both exchanges of a layer, the matrix products of several experts, and
counts of rows routed and received. Ranks that share a layer's experts are neighbours; each of them
holds as many. A row is a token for one of its experts (an assignment): none is ever dropped.

Must not know models: a case gives the tensors of its experts and what its router chose.
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

EXCHANGE_PART = "all_to_all"  # part of a step: waiting for rows of other ranks


class Experts(nn.Module):
    """The experts of one layer that this rank holds.

    Args:
        library: with the parameters ``gate_up_proj`` (E, D, 2 F) and ``down_proj`` (E, F, D), their
            biases (E, 2 F) and (E, D), and ``_apply_gate``, as the library's experts have them.
    """

    gate_up_proj: Tensor
    gate_up_proj_bias: Tensor
    down_proj: Tensor
    down_proj_bias: Tensor

    def __init__(self, library: Any) -> None:
        super().__init__()
        for name, parameter in library.named_parameters():
            self.register_parameter(name, parameter)
        self._apply_gate: Callable[[Tensor], Tensor] = library._apply_gate
        self._gradient_share = 1.0

    def share(self, mesh: DeviceMesh) -> None:
        """Keep this rank's experts alone, in place.

        Args:
            mesh: of the ranks that hold the layer together. A gradient then is of the tokens of
                all of them, where that of any other parameter is a mean over ranks.
        """
        for name, parameter in list(self.named_parameters()):
            cut = distribute_tensor(parameter.data, mesh, [Shard(0)], src_data_rank=None)
            self.register_parameter(name, nn.Parameter(cut))
        self._gradient_share = 1.0 / mesh.size()

    def forward(self, rows: Tensor, counts: Tensor) -> Tensor:
        """Return the results (M, D) of rows (M, D), sorted by expert; (E,) ``counts`` of each."""
        wide = grouped_linear(
            rows, self._local(self.gate_up_proj), self._local(self.gate_up_proj_bias), counts
        )
        return grouped_linear(
            self._apply_gate(wide),
            self._local(self.down_proj),
            self._local(self.down_proj_bias),
            counts,
        )

    def _local(self, parameter: Tensor) -> Tensor:
        local = parameter.to_local() if isinstance(parameter, DTensor) else parameter
        return _scaled_gradient(local, self._gradient_share)


def grouped_linear(rows: Tensor, weights: Tensor, biases: Tensor, counts: Tensor) -> Tensor:
    """Return each row (M, I) times its group's matrix (G, I, O), plus its group's bias (G, O).

    Devices for which torch has a grouped kernel multiply all groups at once in bf16. Elsewhere each
    group has a product of its own, for whose sizes the host waits: in other precisions torch's
    grouped product waits too, and on a CPU torch 2.13 takes 20 times as long for it.

    Args:
        counts: rows of each group, (G,), on the device; rows are sorted by group.
    """
    dtype = _product_type(rows)
    grouped_mm = getattr(nn.functional, "grouped_mm", None)  # torch has it from 2.10 on
    if grouped_mm is None or dtype != torch.bfloat16 or not _has_grouped_kernel(rows.device.type):
        sizes: list[int] = counts.tolist()
        parts = zip(biases.unbind(), rows.split(sizes), weights.unbind(), strict=True)
        return torch.cat([torch.addmm(bias, part, matrix) for bias, part, matrix in parts])
    ends = counts.cumsum(0, dtype=torch.int32)
    group = torch.repeat_interleave(
        torch.arange(len(counts), device=rows.device), counts, output_size=len(rows)
    )
    product: Tensor = grouped_mm(rows.to(dtype), weights.to(dtype), offs=ends)
    return product + biases.to(dtype)[group]


@cache
def _has_grouped_kernel(device_type: str) -> bool:
    """Tell whether torch has a grouped product of its own for a type of device."""
    key = torch._C._dispatch_key_for_device(device_type)
    return torch._C._dispatch_has_kernel_for_dispatch_key("aten::_grouped_mm", key)


def _product_type(rows: Tensor) -> torch.dtype:
    """Return the type that products of ``rows`` are computed in: that of autocast, if it is on."""
    kind = rows.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else rows.dtype


class _Scaled(Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return gradient * ctx.factor, None


def _scaled_gradient(value: Tensor, factor: float) -> Tensor:
    """Return ``value``, whose gradient is multiplied by ``factor``."""
    if factor == 1.0:
        return value
    scaled: Tensor = _Scaled.apply(value, factor)  # type: ignore[no-untyped-call]
    return scaled


class _Permuted(Function):
    """Rows in another order; the backward pass gathers too, so that its sums have one order."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, order: Tensor, inverse: Tensor) -> Tensor:
        ctx.save_for_backward(inverse)
        return rows[order]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        (inverse,) = ctx.saved_tensors
        return gradient[inverse], None, None


class _Exchanged(Function):
    @staticmethod
    def forward(  # noqa: PLR0917  autograd passes no keywords
        ctx: Any, rows: Tensor, sent: list[int], received: list[int], group: Any, timed: Timed
    ) -> Tensor:
        ctx.arguments = received, sent, group, timed
        return _exchange(rows, sent, received, group, timed)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return _exchange(gradient, *ctx.arguments), None, None, None, None


def _exchange(
    rows: Tensor, sent: list[int], received: list[int], group: Any, timed: Timed
) -> Tensor:
    """Send ``sent`` rows to each rank of ``group``, return those ``received`` from each."""
    result = rows.new_empty(sum(received), *rows.shape[1:])
    with timed():
        dist.all_to_all_single(result, rows.contiguous(), received, sent, group=group)
    return result


def count_rows_of_ranks(
    sent_counts: Tensor, received_counts: Tensor
) -> tuple[list[int], list[int]]:
    """Return how many rows go to each rank, and how many come from it; the host waits for them.

    Args:
        sent_counts: rows for each expert of each rank, (ranks, E / ranks).
        received_counts: rows of each rank for each expert of this rank, likewise.
    """
    sent, received = torch.stack([sent_counts.sum(1), received_counts.sum(1)]).tolist()
    return sent, received


class _Order(NamedTuple):
    """An order of rows, and the one that restores them."""

    forward: Tensor
    backward: Tensor

    @classmethod
    def by(cls, keys: Tensor) -> _Order:
        """Return the order that sorts ``keys``; equal ones keep theirs."""
        order = keys.argsort(stable=True)
        return cls(order, order.argsort())

    def apply(self, rows: Tensor) -> Tensor:
        permuted: Tensor = _Permuted.apply(rows, self.forward, self.backward)  # type: ignore[no-untyped-call]
        return permuted

    def undo(self, rows: Tensor) -> Tensor:
        restored: Tensor = _Permuted.apply(rows, self.backward, self.forward)  # type: ignore[no-untyped-call]
        return restored


class Dispatcher:
    """Take tokens to their experts and results back, over the ranks that share a layer.

    Args:
        mesh: of the ranks that share each layer's experts; none: this rank holds all of them.
        timed: makes a context whose time is that of an exchange.
    """

    def __init__(self, num_experts: int, *, mesh: DeviceMesh | None, timed: Timed) -> None:
        self.num_experts = num_experts
        self.ranks = 1 if mesh is None else mesh.size()
        self._group = None if mesh is None else mesh.get_group()
        self._timed = timed

    def __call__(
        self, experts: nn.Module, tokens: Tensor, chosen: Tensor, weights: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the weighted sum (N, D) of each token's experts, and two counts of rows.

        Args:
            experts: called with rows sorted by expert and the number of each; see ``Experts``.
            tokens: (N, D).
            chosen: the numbers of each token's experts, (N, k); ``weights`` likewise.

        Returns:
            the sums; how many rows this rank routed to each expert, (E,); how many the experts of
            this rank received, (E / ranks,).
        """
        top_k = chosen.size(1)
        keys = chosen.flatten()
        routed = keys.new_zeros(self.num_experts).scatter_add_(0, keys, torch.ones_like(keys))
        order = _Order.by(keys)
        given = tokens.to(_product_type(tokens))
        rows = order.apply(given[:, None].expand(-1, top_k, -1).flatten(0, 1))
        if self.ranks == 1:
            results, received = experts(rows, routed), routed
        else:
            results, received = self._over_ranks(experts, rows, routed)
        by_token = order.undo(results).unflatten(0, (-1, top_k))  # (N, k, D)
        summed = (by_token * weights[..., None]).sum(1, dtype=tokens.dtype)
        return summed, routed, received

    def _over_ranks(
        self, experts: nn.Module, rows: Tensor, routed: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Exchange ``rows``; return their results and how many each expert here received.

        The host must know how many rows arrive before it can ask for them: it waits for the counts.
        """
        sent_counts = routed.unflatten(0, (self.ranks, -1))  # (ranks, E / ranks)
        received_counts = torch.empty_like(sent_counts)
        with self._timed():
            dist.all_to_all_single(received_counts, sent_counts, group=self._group)
        sent, received = count_rows_of_ranks(sent_counts, received_counts)
        arrived = _Exchanged.apply(rows, sent, received, self._group, self._timed)  # type: ignore[no-untyped-call]
        # They arrive by rank, and by expert within: sort them by expert.
        numbers = torch.arange(received_counts.size(1), device=rows.device).repeat(self.ranks)
        keys = torch.repeat_interleave(numbers, received_counts.flatten(), output_size=len(arrived))
        order = _Order.by(keys)
        of_experts = received_counts.sum(0)
        results = order.undo(experts(order.apply(arrived), of_experts))
        returned: Tensor = _Exchanged.apply(results, received, sent, self._group, self._timed)  # type: ignore[no-untyped-call]
        return returned, of_experts
