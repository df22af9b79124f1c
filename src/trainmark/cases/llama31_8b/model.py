"""The library's Llama from a configuration, its fp8 layers and its tensor parallelism."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from trainmark.train.blocks import cut_model, recompute_blocks
from trainmark.train.causal_model import CausalModel, make_config_fields

from .case import MAX_LENGTH, RMS_NORM_EPS, ROPE_SCALING, ROPE_THETA, ROPE_TRAINED_LENGTH

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from trainmark.train.kernels import Kernels

    from .case import Llama31Recipe

# NeMo 2.1, llm/gpt/model/llama.py, Llama31Config.
INIT_STD = 0.02


def build_config(recipe: Llama31Recipe) -> LlamaConfig:
    """Return the configuration of the model for ``transformers``."""
    rope: dict[str, Any] = {
        "rope_type": "llama3",
        "rope_theta": ROPE_THETA,
        "original_max_position_embeddings": ROPE_TRAINED_LENGTH,
        **ROPE_SCALING,
    }
    return LlamaConfig(
        **make_config_fields(recipe),  # those that every decoder has, such as ``hidden_size``
        intermediate_size=recipe.ffn_size,
        max_position_embeddings=MAX_LENGTH,
        rms_norm_eps=RMS_NORM_EPS,
        rope_parameters=rope,
        attn_implementation="sdpa",
    )


def build_model(recipe: Llama31Recipe, kernels: Kernels, torch_type: str = "cpu") -> CausalModel:
    """Return the model in train mode, without memory for its weights.

    Args:
        kernels: compute the head's cross-entropy.
        torch_type: of the device that will train it, as in ``torch.device``.
    """
    with torch.device("meta"):
        model = CausalModel(LlamaForCausalLM(build_config(recipe)), kernels)
    if recipe.precision == "fp8":  # a CPU has no fp8 matmuls
        _convert_to_fp8(model.blocks, emulate=torch_type == "cpu")
    if recipe.checkpoint_activations != "none":
        recompute_blocks(model.blocks, keep_matmuls=recipe.checkpoint_activations == "selective")
    if recipe.compile:
        for block in model.blocks:  # equal blocks share one graph
            block.compile()
    return model.train()


def _convert_to_fp8(blocks: nn.ModuleList, *, emulate: bool) -> None:
    """Make linear layers of ``blocks`` compute in fp8, in place.

    The case defines fp8 training so: the first linear layer of the first block and the last linear
    layer of the last block keep their precision, all others compute in fp8. Scales are dynamic, one
    for each tensor. Activations and weights are e4m3, gradients e5m2.

    Args:
        emulate: round to fp8, but multiply in a wider type.
    """
    # An optional package, which only this precision needs.
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    linear_layers = [module for module in blocks.modules() if isinstance(module, nn.Linear)]
    converted_ids = {id(layer) for layer in linear_layers[1:-1]}
    convert_to_float8_training(
        blocks,
        module_filter_fn=lambda layer, _name: id(layer) in converted_ids,
        config=Float8LinearConfig(emulate=emulate),
    )


def apply_tensor_parallelism(model: CausalModel, recipe: Llama31Recipe, mesh: DeviceMesh) -> None:
    """Divide heads, feed-forward columns, and the vocabulary of token table and head, in place.

    Norms stay whole on every rank. They are named all the same, because their weights must become
    DTensors like all others.
    """
    block = "library.model.layers.*."
    # Modules that need all tokens, each with the keyword of its input; None: it is positional.
    whole_sequence_inputs = ((f"{block}self_attn", "hidden_states"), (f"{block}mlp", None))
    cut_model(
        model,
        mesh,
        table="library.model.embed_tokens",
        last_norm="library.model.norm",
        norms=[f"{block}input_layernorm", f"{block}post_attention_layernorm"],
        # Linear layers of which each rank computes a part of the results.
        columns=[
            "library.lm_head",
            f"{block}self_attn.q_proj",
            f"{block}self_attn.k_proj",
            f"{block}self_attn.v_proj",
            f"{block}mlp.gate_proj",
            f"{block}mlp.up_proj",
        ],
        # Linear layers of which each rank has a part of the inputs: their results are summed.
        rows=[f"{block}self_attn.o_proj", f"{block}mlp.down_proj"],
        # Before these modules, the ranks gather the tokens that they have divided.
        whole_sequence_inputs=whole_sequence_inputs if recipe.sequence_parallel else (),
    )
