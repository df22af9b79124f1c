"""GPT-2: token and position tables, pre-norm blocks, a tied head; and its tensor parallelism.

The rows of ``attention.qkv`` are ordered by head (query, key and value of head 0, then of head 1,
…) as in Megatron, so that a division into equal parts gives every rank whole heads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the field's name for it

from trainmark.train.blocks import cut_model, recompute_blocks
from trainmark.train.kernels import LIBRARY, Kernels

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from .case import GptRecipe

INIT_STD = 0.02  # GPT-2; residual projections are divided by sqrt(2 x layers)


class Attention(nn.Module):
    """Causal self-attention over this rank's heads."""

    def __init__(self, recipe: GptRecipe) -> None:
        super().__init__()
        self.head_dim = recipe.hidden_size // recipe.num_heads
        self.dropout = recipe.dropout
        self.qkv = nn.Linear(recipe.hidden_size, 3 * recipe.hidden_size)
        self.out = nn.Linear(recipe.hidden_size, recipe.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, T, D) to (B, T, D)."""
        b, t, _ = x.shape
        # Query, key and value of a head lie together, so that tensor parallelism can divide the
        # columns of ``self.qkv`` by heads. H is then the number of this rank's heads.
        qkv = self.qkv(x).view(b, t, -1, 3, self.head_dim)  # (B, T, H, 3, D/H)
        query, key, value = qkv.permute(3, 0, 2, 1, 4)  # each (B, H, T, D/H)
        dropout = self.dropout if self.training else 0.0
        mixed = F.scaled_dot_product_attention(query, key, value, dropout_p=dropout, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(b, t, -1))  # type: ignore[no-any-return]


class Block(nn.Module):
    """Attention and a feed-forward layer, each with a residual connection."""

    def __init__(self, recipe: GptRecipe) -> None:
        super().__init__()
        self.norm_1 = nn.LayerNorm(recipe.hidden_size)
        self.attention = Attention(recipe)
        self.norm_2 = nn.LayerNorm(recipe.hidden_size)
        self.up = nn.Linear(recipe.hidden_size, 4 * recipe.hidden_size)
        self.down = nn.Linear(4 * recipe.hidden_size, recipe.hidden_size)
        self.dropout = nn.Dropout(recipe.dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, T, D) to (B, T, D)."""
        x = x + self.dropout(self.attention(self.norm_1(x)))
        wide = F.gelu(self.up(self.norm_2(x)), approximate="tanh")
        return x + self.dropout(self.down(wide))  # type: ignore[no-any-return]


class Gpt(nn.Module):
    """The language model; the head shares the token table."""

    def __init__(self, recipe: GptRecipe, kernels: Kernels) -> None:
        super().__init__()
        self.recipe = recipe
        self.cross_entropy = kernels.cross_entropy
        # The token table, which is also the weight of the head.
        self.wte = nn.Embedding(recipe.padded_vocab_size, recipe.hidden_size)
        # The position table.
        self.wpe = nn.Embedding(recipe.seq_length, recipe.hidden_size)
        self.dropout = nn.Dropout(recipe.dropout)
        self.blocks = nn.ModuleList(Block(recipe) for _ in range(recipe.num_layers))
        self.norm = nn.LayerNorm(recipe.hidden_size)

    def compute_hidden(self, ids: Tensor) -> Tensor:
        """Return the last hidden states (B, T, D) of token ids (B, T)."""
        positions = torch.arange(ids.size(1), device=ids.device)
        x = self.dropout(self.wte(ids) + self.wpe(positions))
        for block in self.blocks:
            x = block(x)
        return self.norm(x)  # type: ignore[no-any-return]

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        """Return the SUM of the cross-entropy, in nats, over all targets.

        Padding rows of the token table get no probability; otherwise the loss would depend on the
        number of ranks that share the table.

        The loss is computed here so that wrappers (DDP, FSDP) also cover the head.

        Args:
            ids, targets: (B, T), int64.
        """
        hidden = self.compute_hidden(ids).flatten(0, 1)  # (B * T, D)
        return self.cross_entropy(
            hidden, self.wte.weight, targets.flatten(), classes=self.recipe.vocab_size
        )

    def compute_logits(self, ids: Tensor) -> Tensor:
        """Return all scores (B, T, padded vocabulary), for tests and small inputs."""
        return F.linear(self.compute_hidden(ids), self.wte.weight)


@torch.no_grad()
def build_model(recipe: GptRecipe, *, seed: int, kernels: Kernels = LIBRARY) -> Gpt:
    """Return the model on the host, initialized from ``seed``, in train mode.

    The token table is drawn last, so that its padding does not change the other weights.
    """
    model = Gpt(recipe, kernels)
    torch.manual_seed(seed)
    # The weights of norms, which have one dimension, stay 1.
    for name, parameter in model.named_parameters():
        if name.endswith(("attention.out.weight", "down.weight")):
            # Smaller for outputs that are added to the residual stream, two in each layer.
            parameter.normal_(std=INIT_STD / (2 * recipe.num_layers) ** 0.5)
        elif name.endswith("bias"):
            parameter.zero_()
        elif parameter.dim() == 2 and name != "wte.weight":
            parameter.normal_(std=INIT_STD)
    model.wte.weight.normal_(std=INIT_STD)
    if recipe.checkpoint_activations:
        recompute_blocks(model.blocks)
    return model.train()


def apply_tensor_parallelism(model: Gpt, mesh: DeviceMesh) -> None:
    """Divide heads, feed-forward columns and token table rows over ``mesh``, in place."""
    block = "blocks.*."
    cut_model(
        model,
        mesh,
        table="wte",
        last_norm="norm",
        # The position table is no norm, but like norms it is the same on every rank.
        norms=("wpe", f"{block}norm_1", f"{block}norm_2"),
        columns=(f"{block}attention.qkv", f"{block}up"),
        rows=(f"{block}attention.out", f"{block}down"),
    )
