"""GLM: two position tables, pre-norm blocks with a bidirectional prefix, a tied head.

Parameters have the names of the original program. The forward pass returns log-probabilities at
target positions. Weights are drawn from a seed or loaded from a checkpoint.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the field's name for it
from torch.utils.checkpoint import checkpoint

from trainmark.train.checkpoints import describe_tensors, read_state

from .data import CHECKPOINT_FAULT, POSITION_EMBEDDINGS, find_checkpoint, match_weights

if TYPE_CHECKING:
    from pathlib import Path

    from .case import GlmShape

INIT_STD = 0.02  # divided by sqrt(2 x layers) for projections into the residual stream


def mask_prefix(prefix_lengths: Tensor, length: int) -> Tensor:
    """Return the attention mask: a token attends to its row's prefix, earlier tokens and itself.

    Args:
        prefix_lengths: number of tokens in the prefix of each row, the part to which all tokens of
            the row attend (N,).
        length: S, number of tokens in a row.

    Returns:
        Whether a query attends to a key, the same for all heads, bool (N, 1, S, S): rows, heads,
        queries, keys.
    """
    positions = torch.arange(length, device=prefix_lengths.device)
    is_not_later = positions <= positions[:, None]  # (S, S): queries, keys
    is_in_prefix = positions < prefix_lengths[:, None, None]  # (N, 1, S): rows, queries, keys
    return (is_not_later | is_in_prefix)[:, None]


class Attention(nn.Module):
    """Self-attention; the rows of ``query_key_value`` are those of queries, keys, then values."""

    def __init__(self, shape: GlmShape, dropout: float) -> None:
        super().__init__()
        self.num_heads = shape.num_heads
        self.dropout = dropout  # probability of dropping an attention weight
        # The names of the layers are those of the original program.
        self.query_key_value = nn.Linear(shape.hidden_size, 3 * shape.hidden_size)
        self.dense = nn.Linear(shape.hidden_size, shape.hidden_size)  # the output projection

    def forward(self, x: Tensor, visible: Tensor) -> Tensor:
        """Return the output of self-attention (N, S, D).

        Args:
            x: N sequences of S tokens, each with D values (N, S, D).
            visible: whether a query attends to a key, bool (N, 1, S, S): sequences, heads, queries,
                keys.
        """
        n, s, _ = x.shape
        query_key_value = self.query_key_value(x).view(n, s, 3, self.num_heads, -1)
        query, key, value = query_key_value.permute(2, 0, 3, 1, 4)  # each (N, H, S, D/H), H heads
        dropout = self.dropout if self.training else 0.0
        attended = F.scaled_dot_product_attention(
            query, key, value, attn_mask=visible, dropout_p=dropout
        )
        return self.dense(attended.transpose(1, 2).reshape(n, s, -1))  # type: ignore[no-any-return]


class FeedForward(nn.Module):
    """Two layers with GELU (tanh form) between them."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        # The names of the layers are those of the original program; ``h`` is the hidden size.
        self.dense_h_to_4h = nn.Linear(hidden_size, 4 * hidden_size)
        self.dense_4h_to_h = nn.Linear(4 * hidden_size, hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        """Map N sequences of S tokens with D values each, (N, S, D), to (N, S, D)."""
        wide = F.gelu(self.dense_h_to_4h(x), approximate="tanh")
        return self.dense_4h_to_h(wide)  # type: ignore[no-any-return]


class Layer(nn.Module):
    """Attention and a feed-forward part, each with a norm before it and a residual connection."""

    def __init__(self, shape: GlmShape, dropout: float) -> None:
        super().__init__()
        self.input_layernorm = nn.LayerNorm(shape.hidden_size)
        self.attention = Attention(shape, dropout)
        self.post_attention_layernorm = nn.LayerNorm(shape.hidden_size)
        self.mlp = FeedForward(shape.hidden_size)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, visible: Tensor) -> Tensor:
        """Return the output of the layer (N, S, D).

        Args:
            x: N sequences of S tokens, each with D values (N, S, D).
            visible: whether a query attends to a key, bool (N, 1, S, S): sequences, heads, queries,
                keys.
        """
        x = x + self.dropout(self.attention(self.input_layernorm(x), visible))
        return x + self.dropout(self.mlp(self.post_attention_layernorm(x)))  # type: ignore[no-any-return]


class Transformer(nn.Module):
    """Everything between the token table and the head."""

    def __init__(self, shape: GlmShape, *, dropout: float, checkpoint_activations: bool) -> None:
        super().__init__()
        self.checkpoint_activations = checkpoint_activations
        # As in the published model, position ids go from 0 to ``max_positions``, both included.
        rows = shape.max_positions + 1
        # A row of tokens is a context with a gap, then the answer block that fills the gap. A token
        # has two positions: one in the context, and one in the answer block.
        self.position_embeddings = nn.Embedding(rows, shape.hidden_size)
        self.block_position_embeddings = nn.Embedding(rows, shape.hidden_size)
        self.dropout = nn.Dropout(dropout)
        self.layers = nn.ModuleList(Layer(shape, dropout) for _ in range(shape.num_layers))
        self.final_layernorm = nn.LayerNorm(shape.hidden_size)

    def forward(
        self, words: Tensor, positions: Tensor, block_positions: Tensor, visible: Tensor
    ) -> Tensor:
        """Return the last hidden states of N sequences of S tokens (N, S, D).

        A sequence is a context with a gap, then the answer block that fills the gap.

        Args:
            words: embedded tokens (N, S, D).
            positions: the place of each token in its context (N, S). The tokens of the answer block
                all have the place of the gap.
            block_positions: the place of each token in its answer block, from 1; 0 in the context
                (N, S).
            visible: whether a query attends to a key, bool (N, 1, S, S): sequences, heads, queries,
                keys.
        """
        position = self.position_embeddings(positions)
        block_position = self.block_position_embeddings(block_positions)
        x = self.dropout(words + (position + block_position))
        for layer in self.layers:
            if self.checkpoint_activations and self.training:
                # The recomputation draws the same dropout masks: ``checkpoint`` saves and restores
                # the generator's state.
                x = checkpoint(layer, x, visible, use_reentrant=False)
            else:
                x = layer(x, visible)
        return self.final_layernorm(x)  # type: ignore[no-any-return]


class Glm(nn.Module):
    """The language model; the head shares the token table.

    Args:
        shape: sizes of the model.
        dropout: probability for embeddings, attention weights and both residual additions.
        checkpoint_activations: keep only the input of each layer and recompute the rest in the
            backward pass.
    """

    def __init__(
        self,
        shape: GlmShape,
        *,
        dropout: float = 0.1,
        checkpoint_activations: bool = False,
    ) -> None:
        super().__init__()
        self.shape = shape
        # Also the weights of the head, which has no parameters.
        self.word_embeddings = nn.Embedding(shape.vocab_size, shape.hidden_size)
        self.transformer = Transformer(
            shape,
            dropout=dropout,
            checkpoint_activations=checkpoint_activations,
        )

    def compute_hidden_states(
        self, ids: Tensor, positions: Tensor, block_positions: Tensor, prefix_lengths: Tensor
    ) -> Tensor:
        """Return the last hidden states of N sequences of S tokens (N, S, D).

        A sequence is a context with a gap, then the answer block that fills the gap. All tokens
        attend to the context.

        Args:
            ids: token ids, int64 (N, S).
            positions: the place of each token in its context, int64 (N, S). The tokens of the
                answer block all have the place of the gap.
            block_positions: the place of each token in its answer block, from 1; 0 in the context,
                int64 (N, S).
            prefix_lengths: number of tokens of each context (N,).
        """
        words = self.word_embeddings(ids)
        visible = mask_prefix(prefix_lengths, ids.size(1))
        return self.transformer(words, positions, block_positions, visible)  # type: ignore[no-any-return]

    def compute_target_log_probs(  # noqa: PLR0917 - called through DDP with positional arguments
        self,
        ids: Tensor,
        positions: Tensor,
        block_positions: Tensor,
        prefix_lengths: Tensor,
        rows: Tensor,
        targets: Tensor,
    ) -> Tensor:
        """Return the log-probability of each of K targets, float32 (K,).

        A sequence is a context with a gap, then the answer block that fills the gap. All tokens
        attend to the context. The targets are tokens of the answer blocks.

        Args:
            ids: token ids of N sequences of S tokens (N, S).
            positions: the place of each token in its context (N, S). The tokens of the answer block
                all have the place of the gap.
            block_positions: the place of each token in its answer block, from 1; 0 in the context
                (N, S).
            prefix_lengths: number of tokens of each context (N,).
            rows: index among all N x S tokens, flattened, of the token whose output predicts each
                target (K,).
            targets: token ids to be predicted (K,).
        """
        hidden = self.compute_hidden_states(ids, positions, block_positions, prefix_lengths)
        # The head runs only on the K states that predict targets, not on all N x S.
        predicting = hidden.flatten(0, 1).index_select(0, rows)  # (K, D)
        logits = F.linear(predicting, self.word_embeddings.weight)  # (K, size of the vocabulary)
        return torch.log_softmax(logits.float(), -1).gather(1, targets[:, None]).squeeze(1)

    # DDP needs the model to be called itself.
    forward = compute_target_log_probs


@torch.no_grad()
def build_model(
    shape: GlmShape,
    *,
    dropout: float = 0.1,
    checkpoint_activations: bool = False,
    seed: int,
) -> Glm:
    """Return the model on the host, initialized from ``seed``, in train mode."""
    model = Glm(shape, dropout=dropout, checkpoint_activations=checkpoint_activations)
    torch.manual_seed(seed)
    for name, parameter in model.named_parameters():
        if name.endswith(("attention.dense.weight", "mlp.dense_4h_to_h.weight")):
            # Smaller for outputs that are added to the residual stream, two in each layer.
            parameter.normal_(std=INIT_STD / (2 * shape.num_layers) ** 0.5)
        elif name.endswith("bias"):
            parameter.zero_()
        elif parameter.dim() == 2:  # linear layers and embedding tables
            parameter.normal_(std=INIT_STD)
        # The remaining parameters are weights of norms, which stay 1.
    return model.train()


@torch.no_grad()
def load_checkpoint(model: Glm, folder: Path) -> dict[str, tuple[str, ...]]:
    """Copy the checkpoint in ``folder`` into ``model``, in the model's precision.

    Returns:
        ``unexpected``: keys of the checkpoint that the model does not use. ``extended``: position
        tables that are longer in the model, which keeps its initial values in the additional rows.
        ``cut``: position tables that are shorter in the model, because later positions never occur.

    Raises:
        DataError: there is no checkpoint, it is unreadable, or it does not fit the model.
    """
    file = find_checkpoint(folder)
    # The tensors by their keys. If the file is unreadable, ``CHECKPOINT_FAULT`` makes the error.
    state = read_state(file, CHECKPOINT_FAULT)
    parameters = dict(model.named_parameters())
    shapes = {name: tuple(parameter.shape) for name, parameter in parameters.items()}
    # Key and shape in the checkpoint of each parameter, by the parameter's name.
    descriptions = match_weights(describe_tensors(file, state), shapes, file)
    for name, description in descriptions.items():
        # The number of rows differs only for position tables: copy the rows that both have.
        rows = min(shapes[name][0], description.shape[0])
        # ``copy_`` converts the values to the parameter's precision.
        parameters[name][:rows].copy_(state[description.key][:rows])
    used_keys = {description.key for description in descriptions.values()}
    additional_rows = {
        name: shapes[name][0] - descriptions[name].shape[0] for name in POSITION_EMBEDDINGS
    }
    return {
        "unexpected": tuple(key for key in state if key not in used_keys),
        "extended": tuple(name for name, rows in additional_rows.items() if rows > 0),
        "cut": tuple(name for name, rows in additional_rows.items() if rows < 0),
    }
