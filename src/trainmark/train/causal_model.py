"""A decoder of ``transformers`` with its loss inside, and the initialization of its weights.

Works with any decoder: a case builds the library's model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from trainmark.train.kernels import Kernels
    from trainmark.train.language_recipe import LanguageRecipe

# Ends of names of matrices that write into the residual stream; the last is of stacked experts.
_RESIDUAL_MATRICES = ("o_proj.weight", "down_proj.weight", "down_proj")


class CausalModel(nn.Module):
    """The language model with its loss inside, so that FSDP and DDP see the head too.

    Args:
        library: a causal model of ``transformers``: table, blocks, last norm, head.
        kernels: has the function that computes the loss, Trainmark's own or torch's.
    """

    def __init__(self, library: PreTrainedModel, kernels: Kernels) -> None:
        super().__init__()
        # Computes the loss from the last hidden states and the weight of the head.
        self.cross_entropy = kernels.cross_entropy
        # The causal model of ``transformers``. Its head is not called: only its weight is used.
        self.library = library

    @property
    def blocks(self) -> Any:
        """Return the transformer blocks, a ``ModuleList`` of modules of ``transformers``."""
        return self.library.model.layers

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        """Return the SUM of the cross-entropy, in nats, over all targets.

        Args:
            ids: token ids, (B, T), int64.
            targets: the next token of each, (B, T), int64.
        """
        hidden = self.compute_hidden(ids).flatten(0, 1)  # (B * T, D)
        return self.cross_entropy(hidden, self.library.lm_head.weight, targets.flatten())

    def compute_hidden(self, ids: Tensor) -> Tensor:
        """Return the last hidden states (B, T, D) of token ids (B, T).

        The blocks are called here, not by ``transformers``: its loop checks the positions for
        packed sequences, so that every step would wait for the device. Blocks get no mask: their
        attention is then causal.
        """
        model = self.library.model
        x: Tensor = model.embed_tokens(ids)
        positions = torch.arange(ids.size(1), device=ids.device)[None]
        rotation = model.rotary_emb(x, position_ids=positions)
        for block in model.layers:
            x = block(x, position_embeddings=rotation, position_ids=positions)
        normed: Tensor = model.norm(x)
        return normed


def make_config_fields(recipe: LanguageRecipe) -> dict[str, Any]:
    """Return the arguments that the configurations of all decoders of ``transformers`` take."""
    return {
        "vocab_size": recipe.vocab_size,
        "hidden_size": recipe.hidden_size,
        "num_hidden_layers": recipe.num_layers,
        "num_attention_heads": recipe.num_heads,
        "num_key_value_heads": recipe.num_kv_heads,
        "use_cache": False,  # keys and values are kept only to generate text
    }


@torch.no_grad()
def materialize_weights(model: CausalModel, device: torch.device, *, seed: int, std: float) -> None:
    """Initialize a model on the meta device in place, on ``device``, as Megatron does.

    Norms are 1, biases 0, and all else has a normal distribution, which is narrower by the root of
    2 x layers for matrices that write into the residual stream. Each rank draws every parameter
    whole on the host, so that the weights do not depend on the number of ranks. It copies what the
    model has of it on this rank, a shard or all, before it draws the next one: beside the model, a
    rank never holds more than one whole parameter.

    Args:
        seed: of the random numbers, the same on every rank.
        std: standard deviation of the normal distribution.
    """
    model.to_empty(device=device)
    generator = torch.Generator().manual_seed(seed)
    residual_std = std / (2 * len(model.blocks)) ** 0.5
    for name, parameter in model.named_parameters():
        if name.endswith("norm.weight"):
            nn.init.ones_(parameter)
        elif name.endswith("bias"):
            nn.init.zeros_(parameter)
        else:
            is_residual = name.endswith(_RESIDUAL_MATRICES)
            whole = torch.empty(parameter.shape)  # of a DTensor, the shape of all shards together
            whole.normal_(0.0, residual_std if is_residual else std, generator=generator)
            _fill(parameter, whole)
    # ``to_empty`` left the buffers of the rotary embedding without values. They follow from the
    # sizes of the model: make the module again.
    decoder = model.library.model
    decoder.rotary_emb = type(decoder.rotary_emb)(decoder.config).to(device)


def _fill(parameter: Tensor, whole: Tensor) -> None:
    """Copy this rank's part of ``whole`` into a parameter; ``whole`` is the same on every rank."""
    if isinstance(parameter, DTensor):
        sharded = distribute_tensor(
            whole.to(parameter.device),
            parameter.device_mesh,
            parameter.placements,
            src_data_rank=None,  # each rank takes its part of its own copy: nothing is sent
        )
        parameter.to_local().copy_(sharded.to_local())
    else:
        parameter.copy_(whole)
