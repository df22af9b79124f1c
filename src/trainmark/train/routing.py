"""Count what routers chose and what experts received, and check the counts.

The checks: every token that a job counts went to as many experts as the recipe says, all of these
assignments arrived, the router's scores chose them, and each expert that received tokens got a
gradient. Knows no models.
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

TREND_POINTS = 40  # at most, each the mean over as many steps
_SCORE_CHECK_INTERVAL = 16  # steps between two steps whose choices are compared with scores
_GRADIENT_STEPS = 5  # steps whose gradients are watched, as ``rank.worker`` does for parameters


class RoutingMeter:
    """Count the assignments of one job: each token's experts in each layer.

    Args:
        experts: for each layer, the experts that this rank holds.
        num_experts: experts of a layer, over all ranks.
        top_k: experts of a token in each layer.
        is_forced: experts are not chosen by the router's scores; only counts are checked.
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
        layers = len(experts)
        self._top_k = top_k  # experts of a token in each layer
        self._ranks = ranks
        self._is_forced = is_forced  # whether experts are not chosen by the router's scores
        # An assignment sends one token to one expert. Those that this rank routed to each expert in
        # the current step, (layers, experts).
        self._routed_in_step = torch.zeros(layers, num_experts, dtype=torch.int64, device=device)
        # The same of each finished step since the last check, on the device.
        self._routed_by_step: list[Tensor] = []
        # The same of the steps up to the last check, on the host, (steps, layers, experts) each.
        self._loads: list[NDArray[np.int32]] = []
        # Assignments that experts of this rank received in all steps.
        self._received = torch.zeros(
            layers, num_experts // ranks.expert_size, dtype=torch.int64, device=device
        )
        # Tokens whose experts are not those with the highest scores. A token counts once for each
        # layer in which it has such experts.
        self._num_unlike_scores = torch.zeros((), dtype=torch.int64, device=device)
        self.tokens = 0  # that the job counts as trained
        self._filler_tokens = 0  # routed too, but with the weight 0
        self._num_steps = 0
        self._num_dropped = 0  # assignments of all ranks that did not reach their expert
        self._is_counting = False  # true in the block of ``count_within``
        first_parameter = next(experts[0].parameters())
        # FSDP alone shards the experts: this rank then has the gradients of some experts, for the
        # tokens of all ranks.
        self._are_sharded = ranks.expert_size == 1 and isinstance(first_parameter, DTensor)
        # Notes which experts had a gradient in the first steps. None: they are not checked, because
        # the router does not choose the experts; or the check is done.
        self._gradient_watch = None if is_forced else _ExpertGradients(experts)
        # ``_received`` at the end of the steps whose gradients are watched; None: before that.
        self._received_while_watched: Tensor | None = None

    @contextmanager
    def count_within(self, *, tokens: int, filler_tokens: int) -> Iterator[None]:
        """Count the forward pass in the block.

        Other forward passes, of evaluations and of recomputation in the backward pass, run outside
        of such a block and are not counted.

        Args:
            tokens: number of tokens that the job counts as trained.
            filler_tokens: number of further tokens, which have the weight 0.
        """
        self.tokens += tokens
        self._filler_tokens += filler_tokens
        self._is_counting = True
        try:
            yield
        finally:
            self._is_counting = False

    def add(self, layer: int, routed: Tensor, received: Tensor) -> None:
        """Count the assignments of tokens to experts in a layer.

        Outside of a block of ``count_within`` nothing is counted.

        Args:
            routed: number that this rank routed to each expert, (E,).
            received: number that each expert of this rank received, (E / R,) if R ranks share the
                experts of a layer.
        """
        if self._is_counting:
            self._routed_in_step[layer] += routed
            self._received[layer] += received

    @torch.no_grad()
    def check_choice(self, tokens: Tensor, router: Any, chosen: Tensor) -> None:
        """Count the tokens of a layer whose experts are not those that the router's scores choose.

        Only one of ``_SCORE_CHECK_INTERVAL`` steps is checked, because the scores are computed once
        more for the check. If the recipe forces the choice of experts, no step is checked.

        Args:
            tokens: inputs of the router, one of the width D for each of N tokens, (N, D).
            router: scores E experts; has ``weight`` (E, D) and ``bias`` (E,), both whole on this
                rank.
            chosen: numbers of each token's experts, (N, k).
        """
        is_checked_step = self._num_steps % _SCORE_CHECK_INTERVAL == 0
        if self._is_forced or not self._is_counting or not is_checked_step:
            return
        # The router's own operation on the same tensors, so that no score is rounded differently.
        scores = torch.nn.functional.linear(tokens, router.weight, router.bias)
        # A router must choose the k experts with the highest scores. A token has other experts if
        # the lowest score of its experts is below the lowest of the k highest scores.
        lowest_chosen = scores.gather(1, chosen).amin(1)
        lowest_of_top_k = scores.topk(self._top_k).values[:, -1]
        self._num_unlike_scores += (lowest_chosen < lowest_of_top_k).sum()

    def end_step(self) -> None:
        """Close the counts of an optimizer step."""
        self._routed_by_step.append(self._routed_in_step.clone())
        self._routed_in_step.zero_()
        self._num_steps += 1
        # The gradients of experts are watched in the first steps. At the end of these steps, keep
        # how many tokens each expert has received: one that received any must have had a gradient.
        if (
            self._received_while_watched is None
            and self._gradient_watch is not None
            and self._gradient_watch.is_finished
        ):
            self._received_while_watched = self._received.clone()

    def check(self) -> None:
        """Check all counts so far. Synchronises, over all ranks: call it between windows.

        Raises:
            ContradictionError: tokens were counted but not routed, or did not arrive; or their
                experts were not chosen by the router's scores.
            NotTrainedError: an expert received tokens but no gradient.
        """
        # Move the counts of the steps since the last check from the device to the host.
        if self._routed_by_step:
            loads = torch.stack(self._routed_by_step).cpu().numpy()
            self._loads.append(loads.astype(np.int32))
            self._routed_by_step.clear()
        counts = torch.tensor(
            [
                sum(int(loads.sum(dtype=np.int64)) for loads in self._loads),
                int(self._received.sum()),
                int(self._num_unlike_scores),
                self.tokens,
                self._filler_tokens,
            ],
            device=self._routed_in_step.device,
        )
        # Without a mesh each rank has all experts, and checks the counts of its own tokens. With a
        # mesh ranks may share experts: a token arrives on another rank, and only the sums of all
        # ranks must match. If each rank has all experts even so, the sums match too.
        if self._ranks.mesh is not None:
            dist.all_reduce(counts)
        routed, received, unlike_scores, tokens, filler_tokens = counts.tolist()
        num_layers = len(self._routed_in_step)
        per_token = self._top_k * num_layers  # assignments of a token
        if routed != per_token * (tokens + filler_tokens):
            # The message compares the assignments of counted tokens: without those that belong to
            # the filler tokens.
            raise ContradictionError(
                "tokens_not_routed",
                routed=routed - per_token * filler_tokens,
                tokens=tokens,
                per_token=per_token,
            )
        self._num_dropped = routed - received
        if self._num_dropped:
            raise ContradictionError(
                "tokens_dropped",
                dropped=self._num_dropped,
                routed=routed,
                share=1 - received / routed,
            )
        if unlike_scores:
            raise ContradictionError("routing_forced", tokens=unlike_scores)
        missing = self._find_without_gradient()
        if missing:
            raise NotTrainedError(
                "experts_without_gradient", number=len(missing), names=", ".join(missing[:3])
            )

    def _find_without_gradient(self) -> list[str]:
        """Return parameters of experts that received tokens in watched steps but had no gradient.

        The check is made once, after these steps; before and after that nothing is returned.
        """
        if self._gradient_watch is None or self._received_while_watched is None:
            return []
        gradient_watch = self._gradient_watch
        self._gradient_watch = None  # the check is done
        # (layers, experts): the experts of this rank, or all of them if FSDP shards them.
        received = self._received_while_watched
        if self._are_sharded:
            dist.all_reduce(received)
            # FSDP cuts the experts into consecutive shares, one for each rank.
            shards = received.chunk(self._ranks.data_size, 1)
            if self._ranks.data_rank < len(shards):
                received = shards[self._ranks.data_rank]
            else:  # there are fewer experts than ranks: this one has none
                received = received[:, :0]
        return gradient_watch.find_missing(received > 0)

    def summarize(self, *, first_step: int) -> dict[str, Any]:
        """Return the loads of ranks and experts as facts of a job; every rank must call it.

        A load is a number of assignments, each of one token to one expert. The overload of a step
        is the load of the busiest rank (or expert) over the mean load.

        Args:
            first_step: overloads are summarized over the steps from this one on, or over all steps
                if training ended before it. Sums and the trend are over all steps.
        """
        self.check()  # it also moves the counts of the last steps to ``self._loads``
        no_steps = np.zeros((0, *self._routed_in_step.shape), np.int32)  # all sums are then 0
        loads = np.concatenate(self._loads) if self._loads else no_steps
        rank_loads, expert_loads = self._add_over_ranks(
            torch.from_numpy(loads).to(self._routed_in_step.device)
        )
        facts: dict[str, Any] = {
            "assignments": int(expert_loads.sum()),
            "assignments_dropped": self._num_dropped,
            # Of this rank alone: those that went to experts on other ranks.
            "sent_assignments": self._count_sent(loads),
            "loads_of_ranks": _list_shares("rank", rank_loads.sum((0, 1))),
            "loads_of_experts": _list_shares("expert", expert_loads.sum((0, 1))),
        }
        num_steps = len(loads)
        overloads = {
            "rank": _compute_overload(rank_loads),
            "expert": _compute_overload(expert_loads),
        }
        if num_steps > 0:
            first_measured = first_step if num_steps > first_step else 0
            for name, overload in overloads.items():
                measured = overload[first_measured:]
                facts[f"{name}_overload_p50"] = float(np.median(measured))
                facts[f"{name}_overload_worst"] = float(measured.max())
        facts["overload_trend"] = _summarize_trend(overloads, num_steps)
        return facts

    def _add_over_ranks(self, loads: Tensor) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the loads of all ranks and of all experts.

        Args:
            loads: assignments that this rank routed to each expert, (steps, layers, experts).

        Returns:
            Assignments that each rank received, (steps, layers, ranks), and that each expert
            received from all ranks, (steps, layers, experts).
        """
        # A copy, because the sums over ranks are computed in place.
        loads = loads.to(torch.int64, copy=True)
        mesh = self._ranks.mesh
        num_sharing = self._ranks.expert_size  # ranks that share the experts of a layer
        if num_sharing == 1:  # each rank computes what it routed
            rank_loads = loads.sum(-1, keepdim=True)
            replicas = self._ranks.data_mesh
        else:
            assert mesh is not None
            dist.all_reduce(loads, group=mesh["expert"].get_group())
            # Each of these ranks has the same number of neighbouring experts.
            rank_loads = loads.unflatten(-1, (num_sharing, -1)).sum(-1)
            replicas = mesh["replica"]
        if replicas is not None and replicas.size() > 1:
            group = replicas.get_group()
            gathered = [torch.empty_like(rank_loads) for _ in range(dist.get_world_size(group))]
            dist.all_gather(gathered, rank_loads.contiguous(), group=group)
            rank_loads = torch.cat(gathered, -1)  # in the order of ranks
            dist.all_reduce(loads, group=group)  # an expert is the same one in all replicas
        return rank_loads.cpu().numpy(), loads.cpu().numpy()

    def _count_sent(self, loads: NDArray[np.int32]) -> int:
        """Return the number of assignments that went from this rank to experts of other ranks.

        Args:
            loads: assignments that this rank routed to each expert, (steps, layers, experts).
        """
        num_sharing = self._ranks.expert_size  # neighbouring ranks that share a layer's experts
        num_local_experts = loads.shape[-1] // num_sharing
        place_among_sharing = self._ranks.data_rank % num_sharing
        # Each of these ranks holds ``num_local_experts`` experts with consecutive numbers.
        first = place_among_sharing * num_local_experts
        local_loads = loads[..., first : first + num_local_experts]
        return int(loads.sum(dtype=np.int64)) - int(local_loads.sum(dtype=np.int64))


def _summarize_trend(
    overloads: dict[str, NDArray[np.float64]], num_steps: int
) -> list[dict[str, Any]]:
    """Return the mean overloads of up to ``TREND_POINTS`` groups of consecutive steps.

    Args:
        overloads: by ``rank`` and ``expert``, for each step the load of the busiest one over the
            mean load, (steps,).

    Returns:
        For each group, its last step, counted from 1, and its mean of each overload.
    """
    if num_steps == 0:
        return []
    trend = []
    for steps in np.array_split(np.arange(num_steps), min(TREND_POINTS, num_steps)):
        point: dict[str, Any] = {"step": int(steps[-1]) + 1}
        for name, overload in overloads.items():
            point[name] = float(overload[steps].mean())
        trend.append(point)
    return trend


def _list_shares(name: str, totals: NDArray[np.int64]) -> list[dict[str, Any]]:
    """Return for each rank or expert its number, its assignments and its share of all assignments.

    Args:
        name: ``rank`` or ``expert``: the key under which the number of the rank or expert is.
        totals: how many assignments (of a token to an expert) each one got.
    """
    all_assignments = max(int(totals.sum()), 1)  # if there are none, all shares are 0
    return [
        {name: number, "assignments": int(count), "share": int(count) / all_assignments}
        for number, count in enumerate(totals)
    ]


def _compute_overload(loads: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return for each step the load of the busiest rank or expert over the mean load, (steps,).

    Layers run one after another, so the largest loads of all layers are summed, even if they are
    those of different ranks or experts.

    Args:
        loads: assignments of each rank or expert, (steps, layers, ranks or experts).
    """
    mean_load = loads.mean(-1).sum(-1)
    divisor: NDArray[np.float64] = np.maximum(mean_load, 1e-9)  # not 0, if no token was routed
    overload: NDArray[np.float64] = loads.max(-1).sum(-1) / divisor
    return overload


class _ExpertGradients:
    """Notes which experts had a non-zero gradient in the optimizer's first steps.

    Args:
        experts: for each layer, the experts that this rank holds.
    """

    def __init__(self, experts: Sequence[nn.Module]) -> None:
        self._experts = experts  # a module for each layer, with all experts of this rank
        self._steps_left = _GRADIENT_STEPS  # that are still to be watched
        # Whether each expert of this rank had a non-zero gradient, (experts,), by the number of the
        # layer and the name of the parameter.
        self._had_gradient: dict[tuple[int, str], Tensor] = {}
        # Torch calls the hook before each step of any optimizer; the handle removes it later.
        self._handle = register_optimizer_step_pre_hook(self._note_gradients)

    @torch.no_grad()
    def _note_gradients(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        """Note the gradients of the experts; torch calls this before the step of an optimizer."""
        if self.is_finished:
            return
        # The hook is called for every optimizer: leave out experts that this one does not hold.
        optimized = {id(x) for group in optimizer.param_groups for x in group["params"]}
        holds_experts = False
        for layer, experts in enumerate(self._experts):
            for name, parameter in experts.named_parameters():
                if id(parameter) not in optimized:
                    continue
                holds_experts = True
                if parameter.grad is None:  # no backward pass of this step reached the layer
                    continue
                gradient = parameter.grad
                local = gradient.to_local() if isinstance(gradient, DTensor) else gradient
                # The first dimension of a parameter has one entry for each expert.
                is_nonzero = local.flatten(1).any(1)  # (experts,)
                earlier = self._had_gradient.get((layer, name))
                if earlier is not None:
                    is_nonzero = earlier | is_nonzero
                self._had_gradient[layer, name] = is_nonzero
        if holds_experts:  # a step of another optimizer does not count
            self._steps_left -= 1

    @property
    def is_finished(self) -> bool:
        """Tell whether the gradients of all steps that are to be watched were seen."""
        return self._steps_left == 0

    def find_missing(self, is_used: Tensor) -> list[str]:
        """End watching; return the parameters of used experts whose gradients were all zero.

        Each is a text with the layer, the expert and the name of the parameter. Experts are
        numbered among those of this rank. A parameter whose gradient was None in all watched steps
        is not returned: no backward pass reached it.

        Args:
            is_used: whether each expert of this rank received tokens, (layers, experts).
        """
        self._handle.remove()
        missing = []
        for (layer, name), had_gradient in self._had_gradient.items():
            experts = (is_used[layer] & ~had_gradient).nonzero().flatten().tolist()
            missing += [f"layer {layer}, expert {expert}, {name}" for expert in experts]
        return missing
