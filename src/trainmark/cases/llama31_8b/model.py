"""The library's Llama from a configuration, its loss, and how ranks cut it.

Weights are drawn parameter by parameter on the host and cut there, so that they do not depend on
how many ranks hold the model, and no rank ever holds a whole one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from trainmark.train.blocks import cut, recompute

from .case import MAX_LENGTH, RMS_NORM_EPS, ROPE_SCALING, ROPE_THETA, ROPE_TRAINED_LENGTH

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from trainmark.train.kernels import Kernels

    from .case import Llama31Recipe

# NeMo 2.1, llm/gpt/model/llama.py, Llama31Config; projections back into the residual stream are
# divided by sqrt(2 x layers), as Megatron's scaled_init_method_normal.
INIT_STD = 0.02


def config_of(recipe: Llama31Recipe) -> LlamaConfig:
    """Return the library's configuration."""
    rope: dict[str, Any] = {
        "rope_type": "llama3", "rope_theta": ROPE_THETA,
        "original_max_position_embeddings": ROPE_TRAINED_LENGTH, **ROPE_SCALING,
    }  # fmt: skip
    return LlamaConfig(
        vocab_size=recipe.vocab_size, hidden_size=recipe.hidden_size,
        intermediate_size=recipe.ffn_size, num_hidden_layers=recipe.num_layers,
        num_attention_heads=recipe.num_heads, num_key_value_heads=recipe.num_kv_heads,
        max_position_embeddings=MAX_LENGTH, rms_norm_eps=RMS_NORM_EPS, use_cache=False,
        rope_parameters=rope, attn_implementation="sdpa",
    )  # fmt: skip


class Llama31(nn.Module):
    """The language model with its loss inside, so that FSDP and DDP see the head too."""

    def __init__(self, recipe: Llama31Recipe, kernels: Kernels) -> None:
        super().__init__()
        self.cross_entropy = kernels.cross_entropy
        self.llama = LlamaForCausalLM(config_of(recipe))

    @property
    def blocks(self) -> nn.ModuleList:
        """The transformer blocks."""
        layers: nn.ModuleList = self.llama.model.layers
        return layers

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        """Return the SUM of the cross-entropy, in nats, over all targets; both (B, T), int64."""
        return self.cross_entropy(
            self.hidden(ids).flatten(0, 1), self.llama.lm_head.weight, targets.flatten()
        )

    def hidden(self, ids: Tensor) -> Tensor:
        """Return the last hidden states (B, T, D) of token ids (B, T).

        The library's own loop looks for packed sequences in the positions, for which every step
        would wait for the device.
        """
        model = self.llama.model
        x: Tensor = model.embed_tokens(ids)
        positions = torch.arange(ids.size(1), device=ids.device)[None]
        rotation = model.rotary_emb(x, position_ids=positions)
        for block in model.layers:
            x = block(x, position_embeddings=rotation, position_ids=positions)
        normed: Tensor = model.norm(x)
        return normed


def build_model(recipe: Llama31Recipe, kernels: Kernels, torch_type: str = "cpu") -> Llama31:
    """Return the model without memory for its weights, in train mode; see ``materialize``."""
    with torch.device("meta"):
        model = Llama31(recipe, kernels)
    if recipe.precision == "fp8":
        _to_fp8(model.blocks, emulate=torch_type == "cpu")
    if recipe.checkpoint_activations != "none":
        recompute(model.blocks, keep_matmuls=recipe.checkpoint_activations == "selective")
    if recipe.compile:
        for block in model.blocks:  # equal blocks share one graph
            block.compile()
    return model.train()


def _to_fp8(blocks: nn.ModuleList, *, emulate: bool) -> None:
    """Compute the linear layers of ``blocks`` in fp8 but the first and the last, in place.

    Scales are dynamic, one a tensor; activations and weights are e4m3, gradients e5m2.

    Args:
        emulate: round to fp8 and multiply in a wider type.
    """
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    linear = [x for x in blocks.modules() if isinstance(x, nn.Linear)]
    chosen = {id(layer) for layer in linear[1:-1]}
    convert_to_float8_training(
        blocks, module_filter_fn=lambda layer, _name: id(layer) in chosen,
        config=Float8LinearConfig(emulate=emulate),
    )  # fmt: skip


def tensor_parallelize(model: Llama31, recipe: Llama31Recipe, mesh: DeviceMesh) -> None:
    """Cut heads, feed-forward columns, and the rows of token table and head, in place."""
    block = "llama.model.layers.*."
    whole = ((f"{block}self_attn", "hidden_states"), (f"{block}mlp", None))
    cut(
        model, mesh, table="llama.model.embed_tokens", last_norm="llama.model.norm",
        norms=[block + name for name in ("input_layernorm", "post_attention_layernorm")],
        columns=["llama.lm_head", *(f"{block}self_attn.{x}_proj" for x in "qkv"),
                 *(f"{block}mlp.{x}_proj" for x in ("gate", "up"))],
        rows=[f"{block}self_attn.o_proj", f"{block}mlp.down_proj"],
        sequence=whole if recipe.sequence_parallel else (),
    )  # fmt: skip


@torch.no_grad()
def materialize(model: Llama31, recipe: Llama31Recipe, device: torch.device) -> None:
    """Give the parameters memory on ``device`` and draw them from the recipe's seed, in place."""
    model.to_empty(device=device)
    model.llama.model.rotary_emb = LlamaRotaryEmbedding(model.llama.config).to(device)
    generator = torch.Generator().manual_seed(recipe.seed)
    residual = INIT_STD / (2 * recipe.num_layers) ** 0.5
    for name, parameter in model.named_parameters():
        if parameter.dim() < 2:
            nn.init.ones_(parameter)
            continue
        std = residual if name.endswith(("o_proj.weight", "down_proj.weight")) else INIT_STD
        _fill(parameter, torch.empty(parameter.shape).normal_(std=std, generator=generator))


def _fill(parameter: Tensor, whole: Tensor) -> None:
    """Copy what of ``whole`` this rank holds; every rank has drawn the same."""
    if isinstance(parameter, DTensor):
        cut = distribute_tensor(
            whole.to(parameter.device), parameter.device_mesh, parameter.placements,
            src_data_rank=None,
        )  # fmt: skip
        parameter.to_local().copy_(cut.to_local())
    else:
        parameter.copy_(whole)
