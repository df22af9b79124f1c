"""Mistakes planted in jobs of this case; apart from the tests because spawned ranks import it.

Each changes a job that was built, and must be found by the job's own checks, the checks of the
harness on parameters, or the count of FLOPs.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from support import tiny_gpt_oss
from trainmark.cases.gpt_oss_20b.model import assign_round_robin, list_routed_layers
from trainmark.errors import RunError
from trainmark.rank.parameters import ParameterCheck
from trainmark.rank.watch import StepWatch
from trainmark.record import broken_rules, findings
from trainmark.train.parameters import GradientWatch, TensorDigest

if TYPE_CHECKING:
    from collections.abc import Callable

STEPS = 18  # the job compares the choices of the first and of the 17th step with the scores


def list_routers(job: Any) -> list[Any]:
    """Return the routers of all layers that have experts."""
    return [layer.router for layer in list_routed_layers(job.model)]


def replace_choice(
    job: Any, choose: Callable[[torch.Tensor, torch.Tensor, int], Any], layers: Any
) -> None:
    """Let ``choose(scores, chosen, call)`` choose the experts of some layers.

    Args:
        choose: gets the scores (T, E), the router's own choice (T, K) and the number of the call,
            from 0; returns the choice to use (T, K).
        layers: a slice of the layers that have experts.
    """
    for router in list_routers(job)[layers]:
        calls = iter(range(10_000))  # more numbers than a test has calls

        def forward(  # the defaults bind the values of this turn of the loop
            tokens: Any, router_forward: Any = router.forward, calls: Any = calls
        ) -> Any:
            scores, _weights, chosen = router_forward(tokens)
            chosen = choose(scores, chosen, next(calls))
            weights = scores.gather(1, chosen).softmax(1)  # as the router weighs its own choice
            return scores, weights, chosen

        router.forward = forward


def force_even_routing(job: Any) -> None:
    """Give the experts tokens in turn, whatever the scores.

    It is a planted mistake: a job must let the router choose by the scores, which have a row for
    each token and a column for each expert. ``slice(None)``: in all layers.
    """
    replace_choice(
        job,
        lambda scores, chosen, _call: assign_round_robin(chosen, scores.size(1)),
        layers=slice(None),
    )


def force_routing_in_one_layer(job: Any) -> None:
    """Give the experts of the second layer alone tokens in turn.

    It is a planted mistake: a job must let the router choose by the scores, which have a row for
    each token and a column for each expert.
    """
    replace_choice(
        job,
        lambda scores, chosen, _call: assign_round_robin(chosen, scores.size(1)),
        layers=slice(1, 2),
    )


def force_random_routing(job: Any) -> None:
    """Choose two experts of each token at random, anew in each call.

    It is a planted mistake: the router must choose by the scores. Two, as many as the tiny model
    uses; the number of the call is the seed. ``slice(None)``: in all layers.
    """
    replace_choice(
        job,
        lambda scores, _, call: (
            torch.rand(scores.shape, generator=torch.Generator().manual_seed(call)).topk(2).indices
        ),
        slice(None),
    )


def force_routing_after_warmup(job: Any) -> None:
    """Route by the scores for ten steps, then in turn.

    It is a planted mistake that a check of the first step alone would not find. A router is called
    once in each step; ``call`` counts from 0.
    """

    def choose(scores: Any, chosen: Any, call: int) -> Any:
        return chosen if call < 10 else assign_round_robin(chosen, scores.size(1))

    replace_choice(job, choose, layers=slice(None))


def route_half_of_tokens(job: Any) -> None:
    """Skip every second token in the layer, as if beyond its capacity."""
    for layer in list_routed_layers(job.model):
        # The dispatcher sends tokens to the ranks of their experts and returns the results.
        dispatch_all = layer._dispatcher

        def dispatch(
            experts: Any, tokens: Any, chosen: Any, weights: Any, dispatch_all: Any = dispatch_all
        ) -> Any:
            # The experts' results (N, D); how many tokens were sent to each expert, and how many
            # arrived, both (E,).
            summed, routed, received = dispatch_all(experts, tokens[::2], chosen[::2], weights[::2])
            output = torch.zeros_like(tokens)  # of a skipped token the layer adds nothing
            output[::2] = summed
            return output, routed, received

        layer._dispatcher = dispatch


def drop_tokens_beyond_capacity(job: Any) -> None:
    """Report that each expert received at most its even share of the tokens."""
    for layer in list_routed_layers(job.model):
        dispatch_all = layer._dispatcher

        def dispatch(
            experts: Any, tokens: Any, chosen: Any, weights: Any, dispatch_all: Any = dispatch_all
        ) -> Any:
            # The experts' results; how many tokens were sent to each expert, and how many arrived.
            summed, routed, received = dispatch_all(experts, tokens, chosen, weights)
            even_share = int(routed.sum()) // len(routed)  # tokens divided by experts
            return summed, routed, received.clamp(max=even_share)

        layer._dispatcher = dispatch


def use_fewer_experts(job: Any) -> None:
    """Let each token have one expert instead of two, the number of the tiny recipe (``top_k``)."""
    for router in list_routers(job):
        router.top_k = 1


def count_tokens_twice(job: Any) -> None:
    """Let the batches claim twice the tokens that they hold.

    It is a planted mistake: the rate of tokens would be twice the true one.
    """
    job_batches = job.batches

    def batches(epoch: int) -> Any:
        for batch in job_batches(epoch):
            counts = batch.counts
            yield replace(
                batch,
                counts=replace(
                    counts, tokens=2 * counts.tokens, tokens_padded=2 * counts.tokens_padded
                ),
            )

    job.batches = batches


def drop_gradient(job: Any, name: str, number: int, layers: Any) -> None:
    """Set the gradient of one expert to 0.

    Args:
        name: of the experts' parameter, which has all experts of this rank in its first dimension.
        number: of the expert on this rank.
        layers: a slice of the layers that have experts.
    """
    for layer in list_routed_layers(job.model)[layers]:

        def zero_gradient(gradient: Any, number: int = number) -> Any:
            changed = gradient.clone()
            is_sharded = hasattr(changed, "to_local")
            local = changed.to_local() if is_sharded else changed  # shares memory with ``changed``
            local[number] = 0
            return changed

        getattr(layer.experts, name).register_hook(zero_gradient)


def freeze_expert(job: Any) -> None:
    drop_gradient(job, "gate_up_proj", number=2, layers=slice(None))


def freeze_expert_behind_gate(job: Any) -> None:
    """Freeze an expert's second projection, in the first layer alone."""
    drop_gradient(job, "down_proj", number=1, layers=slice(0, 1))


def freeze_bias(job: Any) -> None:
    drop_gradient(job, "down_proj_bias", number=3, layers=slice(1, 2))


def detach_experts_of_a_layer(job: Any) -> None:
    """Let no parameter of the first layer's experts have a gradient.

    A detached tensor passes no gradient on, so the optimizer leaves the parameters as they are.
    """
    layer = list_routed_layers(job.model)[0]
    get_local = layer.experts._get_local  # returns this rank's part of a parameter
    layer.experts._get_local = lambda parameter: get_local(parameter).detach()


def add_noise_of_rank(job: Any) -> None:
    """Add noise to the routers' biases that differs from rank to rank."""
    rank = job.context.rank
    for router in list_routers(job):

        def forward(tokens: Any, router: Any = router) -> Any:
            """Route as the router does, with another bias.

            Return the scores, the weights of the chosen experts, and these experts.
            """
            noise = torch.randn(router.bias.shape, generator=torch.Generator().manual_seed(rank))
            scores = torch.nn.functional.linear(tokens, router.weight, router.bias + noise)
            top = scores.topk(router.top_k)
            return scores, top.values.softmax(1), top.indices

        router.forward = forward


def change_weights_of_rank(job: Any) -> None:
    """Begin with other weights of the routers on each rank but the first, whose number is 0."""
    # 0.01 is any small number.
    with torch.no_grad():
        for router in list_routers(job):
            router.weight += 0.01 * job.context.rank


def change_bias_of_rank(job: Any) -> None:
    """Begin with another bias of one expert in the second layer on each rank but the first.

    The rank's number is added, which is 0 on the first rank.
    """
    with torch.no_grad():
        list_routers(job)[1].bias[0] += job.context.rank


def skip_synchronization(job: Any) -> None:
    """Scale a gradient differently on each rank, as if it had not been averaged."""
    # The weight of the first layer's router; its gradient is multiplied by 1, 2, … before each
    # step.
    weight, rank = list_routers(job)[0].weight, job.context.rank

    def scale(*_: Any) -> None:
        weight.grad.mul_(1 + rank)

    job.stepper.optimizer.register_step_pre_hook(scale)


def claim_flops(job: Any, num_experts: int, factor: float = 1.0) -> None:
    """Claim the FLOPs of a model that uses so many experts a token, times ``factor``.

    A job's ``model_flops`` says by a formula how many FLOPs a batch takes, from the batch's counts.
    More than the job really computes make its measured utilization (MFU) too high.
    """
    # ``flops_per_token`` is all FLOPs of a token, and the part of full attention, not needed here.
    recipe = replace(job.recipe, top_k=num_experts)
    flops_per_token, _of_full_attention = recipe.flops_per_token
    job.model_flops = lambda counts: factor * flops_per_token * counts.tokens_padded


def claim_flops_of_all_experts(job: Any) -> None:
    claim_flops(job, job.recipe.num_experts)


def claim_flops_of_twice_the_experts(job: Any) -> None:
    claim_flops(job, 2 * job.recipe.top_k)


def claim_flops_of_all_parameters(job: Any) -> None:
    """Claim 6 FLOP a parameter and token, as if each token used all experts."""
    job.model_flops = lambda counts: 6.0 * job.num_parameters * counts.tokens_padded


def claim_flops_of_published_model(job: Any) -> None:
    """Claim half as many FLOPs again."""
    claim_flops(job, job.recipe.top_k, factor=1.5)


# What is found, by mistake; those of ``TWO_RANKS`` are planted on two ranks.
FORCED = "routing_forced"
MISTAKES: dict[str, tuple[Callable[[Any], None], str]] = {
    "forced evenly": (force_even_routing, FORCED),
    "forced in one layer": (force_routing_in_one_layer, FORCED),
    "forced by chance": (force_random_routing, FORCED),
    "forced after the warm-up": (force_routing_after_warmup, FORCED),
    "half of the tokens": (route_half_of_tokens, "tokens_not_routed"),
    "lost on arrival": (drop_tokens_beyond_capacity, "tokens_dropped"),
    "fewer experts": (use_fewer_experts, "tokens_not_routed"),
    "counted twice": (count_tokens_twice, "tokens_not_routed"),
    "frozen": (freeze_expert, "experts_without_gradient"),
    "frozen behind the gate": (freeze_expert_behind_gate, "experts_without_gradient"),
    "frozen bias": (freeze_bias, "experts_without_gradient"),
    "detached": (detach_experts_of_a_layer, "parameters_never_changed"),
    "all experts": (claim_flops_of_all_experts, "flops_above_counted"),
    "twice the experts": (claim_flops_of_twice_the_experts, "flops_above_counted"),
    "all parameters": (claim_flops_of_all_parameters, "flops_above_counted"),
    "half as many again": (claim_flops_of_published_model, "flops_above_counted"),
}


class TwoRankMistake(NamedTuple):
    """A mistake that only several ranks together show."""

    plant: Callable[[Any], None]
    code: str  # what finds it
    recipe: dict[str, Any]  # fields of the recipe


TWO_RANKS = {
    "noise of the rank": TwoRankMistake(add_noise_of_rank, FORCED, {"expert_parallel": 2}),
    "weights of the rank": TwoRankMistake(
        change_weights_of_rank, "parameters_differ", {"fsdp": False}
    ),
    "bias of the rank": TwoRankMistake(change_bias_of_rank, "parameters_differ", {"fsdp": False}),
    "gradients not synchronised": TwoRankMistake(
        skip_synchronization, "parameters_differ", {"fsdp": False}
    ),
}


def find_mistake(job: Any) -> dict[str, Any]:
    """Train 18 steps (``STEPS``) as a rank does; return what was found.

    A mistake was planted in the job. What may find it: the checks of the job itself, which compares
    the choice of experts in the first and the 17th step; those of parameters and gradients, as
    during a run (``_check_training`` finds what was not trained); and the FLOPs that torch counted,
    which the job's formula may exceed by a fifth (``_FLOPS_TOLERANCE``).

    Returns:
        ``code``: of the error, or of the broken rule; empty: nothing was found. If training went to
        its end, also ``rank`` and ``parameters``: what the event ``parameters`` has.
    """
    trained = job.trained_parameters()
    watch = GradientWatch(trained, num_steps=5)  # as many as the worker watches
    check = ParameterCheck(
        digest=TensorDigest(trained), gradients=watch, updates=job.updates, clock=lambda: 0
    )
    check.start()
    stream = job.batches(0)
    try:
        # The first step alone, so that its FLOPs are counted.
        with StepWatch(flags=dict) as step_watch:  # ``dict``: no flags to note
            first = next(stream)
            job.step(iter([first]))
        for _ in range(STEPS - 1):
            job.step(stream)
        job.check()
        check.check_window(first_step=0, steps=STEPS)
        parameters = SimpleNamespace(**check.end(), updates=job.updates())
    except RunError as error:
        return {"code": error.code}
    finally:
        watch.close()
    counted = sum(step_watch.flops.values())
    if job.model_flops(first.counts) > (1 + findings._FLOPS_TOLERANCE) * counted:
        return {"code": "flops_above_counted"}
    # What ``_check_training`` reads of a measured run, here a run of this rank alone.
    rank = SimpleNamespace(
        rank=job.context.rank,
        parameters=parameters,
        phases={"train": SimpleNamespace(steps=STEPS)},
    )
    run: Any = SimpleNamespace(ranks=[rank])
    messages = list(broken_rules._check_training(run))
    code = messages[0].code if messages else ""
    return {"code": code, "parameters": vars(parameters), "rank": rank.rank}


def check_plants_on_rank(rank: int, names: list[str]) -> list[dict[str, Any]]:
    """Train a job of one of two ranks for each name; return what ``find_mistake`` found.

    Args:
        names: of mistakes in ``TWO_RANKS`` to plant; a job with any other name has no mistake.
    """
    results = []
    for name in names:
        mistake = TWO_RANKS.get(name)
        recipe = {"expert_parallel": 2} if mistake is None else mistake.recipe
        # The recipe's fields that differ from the tiny one, such as over how many ranks the experts
        # are divided. ``plant`` is the function that makes the mistake in the job.
        job = tiny_gpt_oss.new_job(rank=rank, world_size=2, micro_batch_size=4, **recipe)
        if mistake is not None:
            mistake.plant(job)
        results.append(find_mistake(job))
    return results


def list_codes(rank_results: list[dict[str, Any]]) -> set[str]:
    """Return the codes found by each rank, and those of comparing their parameters.

    Args:
        rank_results: what ``find_mistake`` returned on each rank.
    """
    codes = {result["code"] for result in rank_results}
    ranks = [
        SimpleNamespace(rank=result["rank"], parameters=SimpleNamespace(**result["parameters"]))
        for result in rank_results
        if "parameters" in result
    ]
    # The check compares parameters of ranks that each have a whole model. An empty recipe says so:
    # no field divides the model among ranks.
    plan: Any = SimpleNamespace(recipe={})
    run: Any = SimpleNamespace(ranks=ranks)
    return codes | {item.code for item in broken_rules._check_replicas(plan, run)}
