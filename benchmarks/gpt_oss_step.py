"""The GPT-OSS training step on a CPU, beside the library's model and torchtitan's expert layer.

Two layers of width 256 with 8 experts, 2 for each token, on the rows that our job trains first.
The library computes its experts one by one: its grouped product is far slower on a CPU.

Torchtitan's layer multiplies in bf16 only, and on a CPU it runs only with all its parameters and
tokens in bf16, so ours is beside it in bf16 too: forward and backward of one layer. torchtitan
0.3.0 needs Python 3.11, spmd_types, tyro, torch_checkpointing and, though no card computes here,
triton; it is no requirement of this project. Without it the layer is not measured.
"""

from __future__ import annotations

from contextlib import nullcontext
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from benchmarks.harness import Bar, choose_size, compute_ratio, conclude, interleave
from benchmarks.language import (
    ROUNDS,
    WARMUP,
    make_recipe,
    measure_step,
    profile_job,
    train_library,
    train_ours,
)
from benchmarks.peers import Peer, iterate_turns, serve

if TYPE_CHECKING:
    from torch import nn

MODULE, CASE = "benchmarks.gpt_oss_step", "gpt_oss_20b"
FIELDS: dict[str, Any] = {
    "num_heads": 8,
    "num_kv_heads": 2,
    "head_dim": choose_size(32, 8),
    "num_layers": 2,
    "hidden_size": choose_size(256, 64),
    "ffn_size": choose_size(256, 64),
    "num_experts": 8,
    "top_k": 2,
    "sliding_window": choose_size(128, 8),
    "seq_length": choose_size(512, 32),
    "vocab_size": choose_size(8192, 256),
    "micro_batch_size": 2,
    "learning_rate": 4e-4,
    "weight_decay": 0.1,
}
BARS = {"trainer": 1.0, "matmul": 0.7}
MIN_LAYER_SPEED = 1.0  # against torchtitan's


def run_ours(folder: str) -> None:
    train_ours(CASE, make_recipe(CASE, FIELDS), folder)


def run_library(folder: str) -> None:
    import torch
    from transformers import GptOssForCausalLM

    from trainmark.cases.gpt_oss_20b.model import build_config

    recipe = make_recipe(CASE, FIELDS)
    torch.manual_seed(1)
    model = GptOssForCausalLM(build_config(recipe))
    model.set_experts_implementation("eager")
    train_library(CASE, model, recipe, folder)


def run_profile(folder: str) -> None:
    profile_job(CASE, make_recipe(CASE, FIELDS), folder)


def run_our_layer() -> None:
    from transformers.models.gpt_oss.modeling_gpt_oss import GptOssMLP

    from trainmark.cases.gpt_oss_20b.model import RoutedLayer, build_config
    from trainmark.train.experts import Dispatcher

    recipe = make_recipe(CASE, FIELDS)
    dispatcher = Dispatcher(recipe.num_experts, mesh=None, timed=nullcontext)
    layer = RoutedLayer(GptOssMLP(build_config(recipe)), 0, dispatcher, balanced=False)
    take_layer_steps(layer, recipe)


def run_titan_layer() -> None:
    from torchtitan.models.common.linear import Linear
    from torchtitan.models.common.moe import RoutedExperts, TokenChoiceTopKRouter
    from torchtitan.models.common.token_dispatcher import LocalTokenDispatcher
    from torchtitan.models.gpt_oss.moe import GptOssGroupedExperts, GptOssMoE

    recipe = make_recipe(CASE, FIELDS)
    width, num_experts, top_k = recipe.hidden_size, recipe.num_experts, recipe.top_k
    experts = GptOssGroupedExperts.Config(
        dim=width, hidden_dim=recipe.ffn_size, num_experts=num_experts
    )
    config = GptOssMoE.Config(
        num_experts=num_experts,
        load_balance_coeff=None,
        routed_experts=RoutedExperts.Config(
            inner_experts=experts,
            token_dispatcher=LocalTokenDispatcher.Config(num_experts=num_experts, top_k=top_k),
        ),
        router=TokenChoiceTopKRouter.Config(
            num_experts=num_experts,
            gate=Linear.Config(in_features=width, out_features=num_experts, bias=True),
            top_k=top_k,
            score_func="softmax",
            route_norm=True,
        ),
    )
    take_layer_steps(config.build(), recipe)


def take_layer_steps(layer: nn.Module, recipe: Any) -> None:
    """Take forward and backward passes of an expert layer in bf16, in the parent's turns."""
    import torch

    from trainmark import devices

    torch.manual_seed(1)
    layer.to(torch.bfloat16)
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=0.02)
    shape = (recipe.micro_batch_size, recipe.seq_length, recipe.hidden_size)
    tokens = torch.randn(shape, dtype=torch.bfloat16, requires_grad=True)
    for _ in iterate_turns(devices.choose_vendor("cpu").open(0, 1)):
        result = layer(tokens)
        output = result[0] if isinstance(result, tuple) else result
        output.sum().backward()
        layer.zero_grad()


def measure_layer() -> tuple[list[Bar], str]:
    """Interleave our expert layer and torchtitan's; no bar if torchtitan is not installed."""
    if find_spec("torchtitan") is None:
        return [], "torchtitan is not installed here: its expert layer was not measured."
    with Peer(MODULE, "our_layer") as ours, Peer(MODULE, "titan_layer") as titan:
        seconds = interleave({"ours": ours.turn, "titan": titan.turn}, rounds=ROUNDS, warmup=WARMUP)
    speed = compute_ratio(seconds["titan"], seconds["ours"])
    row = Bar(
        "our expert layer / torchtitan's, speed in bf16",
        str(speed),
        f"at least {MIN_LAYER_SPEED:g}",
        speed.median >= MIN_LAYER_SPEED,
    )
    return [row], (
        "torchtitan's layer (0.3.0) is its GptOssMoE on one rank, with torch's grouped product; "
        "ours has a product for each expert. Forward and backward of one layer, with all "
        "parameters and tokens in bf16: theirs runs on a CPU in no other precision."
    )


def main() -> bool:
    recipe = make_recipe(CASE, FIELDS)
    bars, details = measure_step(MODULE, CASE, recipe, BARS)
    layer_bars, layer_details = measure_layer()
    return conclude(
        "gpt_oss_step",
        f"The GPT-OSS step, {recipe.num_layers} layers of width {recipe.hidden_size}, "
        f"{recipe.num_experts} experts, {recipe.micro_batch_size} x {recipe.seq_length} tokens, "
        "CPU",
        [*bars, *layer_bars],
        f"{layer_details}\n\n{details}",
    )


if __name__ == "__main__":
    serve(
        {
            "ours": run_ours,
            "trainer": run_library,
            "profile": run_profile,
            "our_layer": run_our_layer,
            "titan_layer": run_titan_layer,
        }
    )
