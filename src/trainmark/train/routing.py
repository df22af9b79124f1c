"""Counts of what a job's routers chose and what experts received, and the checks of them.

Owns the loads of ranks and experts, step by step, and what must be true of them: every token that a
job counts went to as many experts as the recipe says, all of them arrived, the router chose them,
and each expert that received tokens got a gradient. Must not know models.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch import distributed as dist
from torch.distributed.tensor import DTensor
from torch.optim.optimizer import register_optimizer_step_pre_hook

from trainmark.errors import ContradictionError, NotTrainedError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray
    from torch import nn

    from trainmark.train.parallel import Ranks

TREND_POINTS = 40
_SCORES_CHECKED_EVERY = 16  # steps between two in which choices are compared with scores
_GRADIENT_STEPS = 5  # as many as ``rank.worker`` watches the gradients of whole parameters


class RoutingMeter:
    """Count the assignments of one job: each token's experts in each layer.

    Args:
        experts: of each layer, what this rank holds of them.
        is_forced: the router's scores do not choose: only counts are checked.
    """

    def __init__(
        self,
        experts: Sequence[nn.Module],
        *,
        num_experts: int,
        top_k: int,
        ranks: Ranks,
        device: torch.device,
        is_forced: bool,
    ) -> None:
        layers, self._top_k, self._ranks = len(experts), top_k, ranks
        self._is_forced = is_forced
        self._step = torch.zeros(layers, num_experts, dtype=torch.int64, device=device)
        self._received = torch.zeros(
            layers, num_experts // ranks.expert_size, dtype=torch.int64, device=device
        )
        self._unlike_scores = torch.zeros((), dtype=torch.int64, device=device)
        self._steps: list[Tensor] = []  # since the last check, on the device
        self._loads: list[NDArray[np.int32]] = []  # (steps, layers, experts) of this rank
        self.tokens = self._filler_tokens = self._num_steps = 0
        self._num_dropped = 0  # assignments that did not reach their expert, of all ranks
        self._is_open = False
        a_parameter = next(experts[0].parameters())
        # By FSDP alone: this rank holds the gradients of some experts, for the tokens of all ranks.
        self._are_sharded = ranks.expert_size == 1 and isinstance(a_parameter, DTensor)
        self._gradients = None if is_forced else _ExpertGradients(experts)

    @contextmanager
    def counting(self, *, tokens: int, filler_tokens: int) -> Iterator[None]:
        """Count the forward pass within, and no other: neither evaluations nor recomputation.

        Args:
            tokens: that the job counts as trained; ``filler_tokens`` have no weight.
        """
        self.tokens += tokens
        self._filler_tokens += filler_tokens
        self._is_open = True
        try:
            yield
        finally:
            self._is_open = False

    def add(self, layer: int, routed: Tensor, received: Tensor) -> None:
        """Count one layer's assignments: rows of each expert, see ``Dispatcher``."""
        if self._is_open:
            self._step[layer] += routed
            self._received[layer] += received

    @torch.no_grad()
    def check_choice(self, tokens: Tensor, router: Any, chosen: Tensor) -> None:
        """Note, in some steps, tokens whose experts are not those that the router's weights choose.

        Args:
            tokens: (N, D).
            router: with ``weight`` (E, D) and ``bias`` (E,), whole on this rank at the moment.
            chosen: experts of each token, (N, k).
        """
        is_checked = self._num_steps % _SCORES_CHECKED_EVERY == 0
        if self._is_forced or not self._is_open or not is_checked:
            return
        scores = torch.nn.functional.linear(tokens, router.weight, router.bias)
        lowest = scores.gather(1, chosen).amin(1)
        self._unlike_scores += (lowest < scores.topk(self._top_k).values[:, -1]).sum()

    def end_step(self) -> None:
        """Close the counts of an optimizer step."""
        self._steps.append(self._step.clone())
        self._step.zero_()
        self._num_steps += 1

    def check(self) -> None:
        """Check all counts so far. Synchronises, over all ranks: call it between windows.

        Raises:
            ContradictionError: tokens that were counted and not routed, or did not arrive; or the
                router's scores did not choose.
            NotTrainedError: an expert received tokens and no gradient.
        """
        if self._steps:
            self._loads.append(torch.stack(self._steps).cpu().numpy().astype(np.int32))
            self._steps.clear()
        routed = sum(int(part.sum(dtype=np.int64)) for part in self._loads)
        counts = torch.tensor(
            [
                routed,
                int(self._received.sum()),
                int(self._unlike_scores),
                self.tokens,
                self._filler_tokens,
            ],
            device=self._step.device,
        )
        if self._ranks.mesh is not None:
            dist.all_reduce(counts)
        routed, received, unlike, tokens, filler = counts.tolist()
        per_token = self._top_k * len(self._step)
        if routed != per_token * (tokens + filler):
            raise ContradictionError(
                "tokens_not_routed", routed=routed, tokens=tokens, per_token=per_token
            )
        self._num_dropped = routed - received
        if self._num_dropped:
            raise ContradictionError(
                "tokens_dropped",
                dropped=self._num_dropped,
                routed=routed,
                share=1 - received / routed,
            )
        if unlike:
            raise ContradictionError("routing_forced", tokens=unlike)
        if missing := self._without_gradient():
            raise NotTrainedError(
                "experts_without_gradient", number=len(missing), names=", ".join(missing[:3])
            )

    def _without_gradient(self) -> list[str]:
        """Return parameters of experts that received tokens and had no gradient, once."""
        if self._gradients is None or not self._gradients.is_finished:
            return []
        gradients, self._gradients = self._gradients, None
        received, ranks = self._received.clone(), self._ranks
        if self._are_sharded:
            dist.all_reduce(received)
            shards = received.chunk(ranks.data_size, 1)
            received = shards[ranks.data_rank] if ranks.data_rank < len(shards) else received[:, :0]
        return gradients.missing(received > 0)

    def summary(self, *, first_step: int) -> dict[str, Any]:
        """Return the loads of ranks and experts as facts of a job; every rank must call it.

        Args:
            first_step: figures are of the steps from this one on, the trend is of all.
        """
        self.check()
        loads = np.concatenate(self._loads) if self._loads else np.zeros((0, 1, 1), np.int32)
        of_ranks, of_experts = self._over_ranks(torch.from_numpy(loads).to(self._step.device))
        measured = slice(first_step if len(loads) > first_step else 0, None)
        facts: dict[str, Any] = {
            "assignments": int(of_experts.sum()),
            "assignments_dropped": self._num_dropped,
            "sent_assignments": self._sent(loads),
            "loads_of_ranks": _shares("rank", of_ranks.sum((0, 1))),
            "loads_of_experts": _shares("expert", of_experts.sum((0, 1))),
        }
        overload = {"rank": _overload(of_ranks), "expert": _overload(of_experts)}
        for name, values in overload.items():
            if len(values):
                facts[f"{name}_overload_p50"] = float(np.median(values[measured]))
                facts[f"{name}_overload_worst"] = float(values[measured].max())
        facts["overload_trend"] = [
            {
                "step": int(part[-1]) + 1,
                **{name: float(values[part].mean()) for name, values in overload.items()},
            }
            for part in np.array_split(np.arange(len(loads)), min(TREND_POINTS, len(loads)) or 1)
            if len(part)
        ]
        return facts

    def _over_ranks(self, loads: Tensor) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return what each rank, and each expert, received: (steps, layers, ranks or experts)."""
        loads = loads.to(torch.int64)
        mesh, size = self._ranks.mesh, self._ranks.expert_size
        if size == 1:
            of_ranks = loads.sum(-1, keepdim=True)
        else:
            assert mesh is not None
            loads = loads.clone()
            dist.all_reduce(loads, group=mesh["expert"].get_group())
            of_ranks = loads.unflatten(-1, (size, -1)).sum(-1)
        replicas = mesh["replica"] if mesh is not None and size > 1 else self._ranks.data_mesh
        if replicas is not None and replicas.size() > 1:
            group = replicas.get_group()
            gathered = [torch.empty_like(of_ranks) for _ in range(dist.get_world_size(group))]
            dist.all_gather(gathered, of_ranks.contiguous(), group=group)
            of_ranks = torch.cat(gathered, -1)
            dist.all_reduce(loads, group=group)
        return of_ranks.cpu().numpy(), loads.cpu().numpy()

    def _sent(self, loads: NDArray[np.int32]) -> int:
        """Return how many assignments went from this rank to experts of others."""
        size = self._ranks.expert_size
        total, held = int(loads.sum(dtype=np.int64)), loads.shape[-1] // size
        first = self._ranks.data_rank % size * held
        return total - int(loads[..., first : first + held].sum(dtype=np.int64))


def _shares(name: str, totals: NDArray[np.int64]) -> list[dict[str, Any]]:
    """Return a row for each rank or expert with its assignments and its share of all."""
    whole = max(int(totals.sum()), 1)
    return [
        {name: number, "assignments": int(count), "share": int(count) / whole}
        for number, count in enumerate(totals)
    ]


def _overload(loads: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the busiest one's load over the mean, of each step: (steps, layers, n) to (steps,).

    Layers follow one another, so in each the busiest counts.
    """
    means: NDArray[np.float64] = np.maximum(loads.mean(-1).sum(-1), 1e-9)
    overload: NDArray[np.float64] = loads.max(-1).sum(-1) / means
    return overload


class _ExpertGradients:
    """Which experts had a gradient that is not zero in the first steps of the optimizer."""

    def __init__(self, experts: Sequence[nn.Module]) -> None:
        self._experts = experts
        self._steps = _GRADIENT_STEPS
        self._seen: dict[tuple[int, str], Tensor] = {}
        self._handle = register_optimizer_step_pre_hook(self._look)

    @torch.no_grad()
    def _look(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if self.is_finished:
            return
        held = {id(x) for group in optimizer.param_groups for x in group["params"]}
        for layer, experts in enumerate(self._experts):
            for name, parameter in experts.named_parameters():
                if id(parameter) not in held or parameter.grad is None:
                    continue
                gradient = parameter.grad
                local = gradient.to_local() if isinstance(gradient, DTensor) else gradient
                some = local.flatten(1).any(1)
                before = self._seen.get((layer, name))
                self._seen[layer, name] = some if before is None else before | some
        self._steps -= 1

    @property
    def is_finished(self) -> bool:
        """Whether all steps to watch were seen."""
        return self._steps == 0

    def missing(self, used: Tensor) -> list[str]:
        """Return parameters of experts that were ``used``, (layers, E), and had no gradient.

        Ends watching.
        """
        self._handle.remove()
        return [
            f"layer {layer}, expert {expert}, {name}"
            for (layer, name), some in self._seen.items()
            for expert in (used[layer] & ~some).nonzero().flatten().tolist()
        ]
