"""The library's GPT-OSS from a configuration, with its experts divided over ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from transformers import GptOssConfig, GptOssForCausalLM

from trainmark.train import sink_attention
from trainmark.train.blocks import recompute_blocks
from trainmark.train.causal_model import CausalModel, make_config_fields
from trainmark.train.experts import Dispatcher, Experts

from .case import MAX_LENGTH, RMS_NORM_EPS, ROPE_THETA

if TYPE_CHECKING:
    from transformers.models.gpt_oss.modeling_gpt_oss import GptOssMLP

    from trainmark.train.kernels import Kernels
    from trainmark.train.routing import RoutingMeter

    from .case import GptOssRecipe


def build_config(recipe: GptOssRecipe) -> GptOssConfig:
    """Return the library's configuration.

    By the library's default, layers with sliding-window and with full attention alternate,
    beginning with a sliding window.
    """
    return GptOssConfig(
        **make_config_fields(recipe),  # those that every decoder has, such as ``hidden_size``
        intermediate_size=recipe.ffn_size,
        head_dim=recipe.head_dim,
        sliding_window=recipe.sliding_window,
        num_local_experts=recipe.num_experts,
        num_experts_per_tok=recipe.top_k,
        max_position_embeddings=MAX_LENGTH,
        rms_norm_eps=RMS_NORM_EPS,
        rope_parameters={"rope_type": "default", "rope_theta": ROPE_THETA},
    )


class RoutedLayer(nn.Module):
    """Replaces the library's feed-forward layer: its router and experts, perhaps over ranks.

    Args:
        library_layer: the layer that is replaced.
        layer_number: from 0.
        dispatcher: sends tokens to the ranks of their experts.
        balanced: give each expert the same number of tokens, whatever the router chooses.

    Attributes:
        meter: counts the tokens of each expert; None until the job sets it.
    """

    meter: RoutingMeter | None = None

    def __init__(
        self,
        library_layer: GptOssMLP,
        layer_number: int,
        dispatcher: Dispatcher,
        *,
        balanced: bool,
    ) -> None:
        super().__init__()
        self.router = library_layer.router
        self.experts = Experts(library_layer.experts)
        self._layer_number = layer_number
        self._dispatcher = dispatcher
        # Whether experts are assigned to tokens in rotation instead of by the router's scores.
        self._balanced = balanced

    def forward(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Return the layer's result, shaped like ``hidden`` (B, T, D), and the experts' weights.

        The weights are those of each token's chosen experts (N, k). The library's layer returns
        them too.
        """
        tokens = hidden.flatten(0, -2)  # (N, D)
        # Scores of all experts (N, E); weights and ids of the k chosen ones, (N, k).
        scores, weights, chosen = self.router(tokens)
        if self._balanced:
            chosen = assign_round_robin(chosen, self._dispatcher.num_experts)
            # The router computes the weights of its own choice in the same way.
            weights = scores.gather(1, chosen).softmax(1)
        # The weighted sums of the experts' results (N, D); how many rows this rank sent to each
        # expert; and how many each of its own experts received.
        summed, routed, received = self._dispatcher(self.experts, tokens, chosen, weights)
        if self.meter is not None:  # None until the job sets it
            # Counts tokens whose experts do not have the largest scores, which would be a fault.
            # With balanced routing it compares nothing, because scores do not choose the experts.
            self.meter.check_choice(tokens, self.router, chosen)
            self.meter.add(self._layer_number, routed, received)
        return summed.view_as(hidden), weights


def assign_round_robin(chosen: Tensor, num_experts: int) -> Tensor:
    """Return expert ids in rotation, shaped like ``chosen`` (N, k), so that loads are equal."""
    expert_ids = torch.arange(chosen.numel(), device=chosen.device) % num_experts
    return expert_ids.view_as(chosen)


def list_routed_layers(model: CausalModel) -> list[RoutedLayer]:
    """Return the layers with experts, in order."""
    layers: list[RoutedLayer] = [block.mlp for block in model.blocks]
    return layers


def build_model(recipe: GptOssRecipe, kernels: Kernels, dispatcher: Dispatcher) -> CausalModel:
    """Return the model in train mode, without memory for its weights.

    Args:
        kernels: compute the head's cross-entropy.
        dispatcher: shared by all layers; sends tokens to the ranks of their experts.
    """
    with torch.device("meta"):
        library = GptOssForCausalLM(build_config(recipe))
    # This program's attention, which computes sinks by torch's fused kernels. The library selects
    # an attention by its name.
    library.set_attn_implementation(sink_attention.register_attention())
    model = CausalModel(library, kernels)
    for number, block in enumerate(model.blocks):
        block.mlp = RoutedLayer(
            block.mlp, number, dispatcher, balanced=recipe.routing == "balanced"
        )
    if recipe.checkpoint_activations != "none":
        recompute_blocks(model.blocks, keep_matmuls=recipe.checkpoint_activations == "selective")
    if recipe.compile:
        # The experts are not compiled: the size of their exchange changes in each step.
        for block in model.blocks:
            block.self_attn.compile()
    return model.train()
