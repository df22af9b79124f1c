"""What GLM is compared with: the original's arithmetic, step by step.

Every key's score is there, what must not be seen is pushed down by an added -65504, and all
positions are scored over the whole vocabulary before a few are picked. The parameters are
those of ``GlmShape``, under the original's names. The tests take it as the reference.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

if TYPE_CHECKING:
    from trainmark.cases.glm_superglue.case import GlmShape

HIDDEN_SCORE = -65504.0


def make_seen_mask(separators: Tensor, length: int) -> Tensor:
    """Return ones where a key is seen and zeros elsewhere, (N, 1, S, S)."""
    device = separators.device
    ones = torch.ones(len(separators), length, length, device=device).tril()
    is_context = torch.arange(length, device=device)[None, None] < separators[:, None, None]
    return ones.masked_fill(is_context, 1.0)[:, None]


class PlainAttention(nn.Module):
    """All scores, then those that are hidden pushed down."""

    def __init__(self, shape: GlmShape, dropout: float) -> None:
        super().__init__()
        self.heads = shape.num_heads
        self.query_key_value = nn.Linear(shape.hidden_size, 3 * shape.hidden_size)
        self.dense = nn.Linear(shape.hidden_size, shape.hidden_size)
        self.attention_dropout = nn.Dropout(dropout)
        self.output_dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        n, s, width = x.shape
        query, key, value = (
            part.view(n, s, self.heads, -1).permute(0, 2, 1, 3)
            for part in self.query_key_value(x).split(width, -1)
        )
        scores = torch.matmul(query, key.transpose(-1, -2) / math.sqrt(width // self.heads))
        scores = scores * mask + HIDDEN_SCORE * (1.0 - mask)
        weights = self.attention_dropout(torch.softmax(scores, -1))
        mixed = torch.matmul(weights, value).permute(0, 2, 1, 3).contiguous().view(n, s, width)
        return self.output_dropout(self.dense(mixed))


class PlainFeedForward(nn.Module):
    """GELU written out."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.dense_h_to_4h = nn.Linear(width, 4 * width)
        self.dense_4h_to_h = nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        wide = self.dense_h_to_4h(x)
        curve = torch.tanh(math.sqrt(2 / math.pi) * wide * (1.0 + 0.044715 * wide * wide))
        return self.dropout(self.dense_4h_to_h(0.5 * wide * (1.0 + curve)))


class PlainLayer(nn.Module):
    """Normed before, added after."""

    def __init__(self, shape: GlmShape, dropout: float) -> None:
        super().__init__()
        self.input_layernorm = nn.LayerNorm(shape.hidden_size, eps=1e-5)
        self.attention = PlainAttention(shape, dropout)
        self.post_attention_layernorm = nn.LayerNorm(shape.hidden_size, eps=1e-5)
        self.mlp = PlainFeedForward(shape.hidden_size, dropout)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = x + self.attention(self.input_layernorm(x), mask)
        return x + self.mlp(self.post_attention_layernorm(x))


class PlainTransformer(nn.Module):
    """Its parts; ``PlainGlm`` runs them."""

    def __init__(self, shape: GlmShape, dropout: float) -> None:
        super().__init__()
        rows = shape.max_positions + 1
        self.position_embeddings = nn.Embedding(rows, shape.hidden_size)
        self.block_position_embeddings = nn.Embedding(rows, shape.hidden_size)
        self.embedding_dropout = nn.Dropout(dropout)
        self.layers = nn.ModuleList(PlainLayer(shape, dropout) for _ in range(shape.num_layers))
        self.final_layernorm = nn.LayerNorm(shape.hidden_size, eps=1e-5)


class PlainGlm(nn.Module):
    """The same mathematics, written directly from its definition.

    Args:
        checkpoint_activations: compute each layer again in the backward pass, as the original.
    """

    def __init__(
        self, shape: GlmShape, *, dropout: float = 0.1, checkpoint_activations: bool = False
    ) -> None:
        super().__init__()
        self.checkpoint_activations = checkpoint_activations
        self.word_embeddings = nn.Embedding(shape.vocab_size, shape.hidden_size)
        self.transformer = PlainTransformer(shape, dropout)

    def logits(
        self, ids: Tensor, positions: Tensor, block_positions: Tensor, separators: Tensor
    ) -> Tensor:
        """Return the scores of the whole vocabulary at every position, (N, S, V)."""
        body = self.transformer
        x = self.word_embeddings(ids) + body.position_embeddings(positions)
        x = body.embedding_dropout(x + body.block_position_embeddings(block_positions))
        mask = make_seen_mask(separators, ids.size(1))
        for layer in body.layers:
            again = self.checkpoint_activations
            x = checkpoint(layer, x, mask, use_reentrant=False) if again else layer(x, mask)
        x = body.final_layernorm(x)
        return nn.functional.linear(x, self.word_embeddings.weight)

    def forward(  # noqa: PLR0917 - as modules are called
        self,
        ids: Tensor,
        positions: Tensor,
        block_positions: Tensor,
        separators: Tensor,
        targets: Tensor,
        counted: Tensor,
    ) -> Tensor:
        """Return each sequence's sum of log-probabilities, (N,).

        Args:
            targets: (N, S): the token asked for at each position.
            counted: (N, S): one where the position counts, zero elsewhere.
        """
        scores = self.logits(ids, positions, block_positions, separators)
        chances = torch.log_softmax(scores.float(), -1)
        rows = torch.arange(len(ids), device=ids.device)[:, None].expand_as(targets)
        places = torch.arange(ids.size(1), device=ids.device)[None].expand_as(targets)
        return (chances[rows, places, targets] * counted).sum(1)
