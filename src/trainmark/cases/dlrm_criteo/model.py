"""The dense part of DLRM: two MLPs and the dot interaction between them.

This module does not know where embedding rows come from.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from .placement import count_features

if TYPE_CHECKING:
    from collections.abc import Sequence


class Interaction(nn.Module):
    """Turn a dense vector and ``num_tables`` embeddings into the top MLP's features.

    Features are the dense vector, the dot products of all pairs of the ``num_tables + 1``
    vectors, and zeros up to a multiple of 32.
    """

    def __init__(self, num_tables: int, dim: int) -> None:
        super().__init__()
        vectors = num_tables + 1
        pairs = vectors * (vectors - 1) // 2
        self.dim, self.num_vectors = dim, vectors
        self.num_features = count_features(num_tables, dim)
        self.padding = self.num_features - dim - pairs
        row, column = torch.tril_indices(vectors, vectors, -1)
        self.register_buffer("_pairs", row * vectors + column, persistent=False)
        # For each pair, in both orders, the index of its feature; the diagonal has none.
        feature = torch.zeros(vectors, vectors, dtype=torch.int64)
        feature[row, column] = feature[column, row] = dim + torch.arange(pairs)
        self.register_buffer("_features", feature.view(-1), persistent=False)

    def forward(self, dense: Tensor, embedded: Tensor) -> Tensor:
        """Return features (B, num_features) of ``dense`` (B, dim), ``embedded`` (B, T, dim)."""
        # Under autocast the dense vector has the lower precision, which both then use.
        embedded = embedded.to(dense.dtype)
        features: Tensor = _Interact.apply(dense, embedded, self)  # type: ignore[no-untyped-call]
        return features


class _Interact(Function):
    """The dot products of all pairs of vectors, with a backward pass without scatter operations.

    With the gradients of the pairs in a symmetric matrix S, the gradient of the vectors X is S X.
    """

    @staticmethod
    def forward(ctx: Any, dense: Tensor, embedded: Tensor, shape: Interaction) -> Tensor:
        vectors = torch.cat([dense[:, None], embedded], 1)
        products = torch.bmm(vectors, vectors.mT).flatten(1)
        features = vectors.new_zeros(len(dense), shape.num_features)
        pairs = cast("Tensor", shape._pairs)
        features[:, : shape.dim] = dense
        features[:, shape.dim : shape.dim + len(pairs)] = products.index_select(1, pairs)
        ctx.save_for_backward(vectors, shape._features)
        return features

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        vectors, feature = ctx.saved_tensors
        size, dim = vectors.shape[1:]
        grad = grads[0]
        both_ways = grad.index_select(1, feature).view(-1, size, size)
        both_ways.diagonal(dim1=1, dim2=2).zero_()
        gradients = torch.bmm(both_ways, vectors)
        return gradients[:, 0] + grad[:, :dim], gradients[:, 1:], None


class Dlrm(nn.Module):
    """Bottom MLP, interaction, top MLP; the last layer gives one logit.

    Args:
        num_numerical: number of numerical values of a sample.
        dim: width of an embedding row; the last width of the bottom MLP.
        num_tables: number of embeddings of a sample.
        bottom: widths of the bottom MLP's layers.
        top: widths of the top MLP's layers, ending in 1.
    """

    def __init__(
        self,
        num_numerical: int,
        dim: int,
        num_tables: int,
        bottom: Sequence[int],
        top: Sequence[int],
    ) -> None:
        super().__init__()
        assert bottom[-1] == dim
        assert top[-1] == 1
        self.bottom = build_mlp([num_numerical, *bottom])
        self.interaction = Interaction(num_tables, dim)
        self.top = build_mlp([self.interaction.num_features, *top], last_is_linear=True)

    def forward(self, numerical: Tensor, embedded: Any) -> Tensor:
        """Return logits (B,) of ``numerical`` (B, num_numerical), ``embedded`` (B, T, dim).

        ``embedded`` may be a ``TableExchange``; its ``wait`` returns the embeddings.
        """
        dense = self.bottom(numerical)
        if not isinstance(embedded, Tensor):
            embedded = embedded.wait()
        return cast("Tensor", self.top(self.interaction(dense, embedded)).squeeze(1))

    @property
    def flops_per_sample(self) -> int:
        """FLOPs of one training step per sample, without the padding of the features.

        ``torch.utils.flop_counter`` counts the same for an unpadded model of ``nn.Linear`` and
        ``torch.bmm``: 6 per weight of a linear layer (4 for the first layer, whose input needs no
        gradient), and 6 per product of the interaction.
        """
        linear_layers = [item for item in self.modules() if isinstance(item, nn.Linear)]
        first_of_top = cast("nn.Linear", self.top[0])
        weights = sum(layer.weight.numel() for layer in linear_layers)
        weights -= self.interaction.padding * first_of_top.out_features
        products = self.interaction.num_vectors**2 * self.interaction.dim
        return 6 * (weights + products) - 2 * linear_layers[0].weight.numel()


def build_mlp(widths: Sequence[int], *, last_is_linear: bool = False) -> nn.Sequential:
    """Return linear layers with a ReLU after each, except after the last if ``last_is_linear``."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layer = nn.Linear(inputs, outputs)
        nn.init.normal_(layer.weight, std=math.sqrt(2 / (inputs + outputs)))
        nn.init.normal_(layer.bias, std=math.sqrt(1 / outputs))
        layers += [layer, nn.ReLU(inplace=True)]
    return nn.Sequential(*(layers[:-1] if last_is_linear else layers))


def build_model(
    num_numerical: int,
    dim: int,
    num_tables: int,
    bottom: Sequence[int],
    top: Sequence[int],
    *,
    seed: int,
) -> Dlrm:
    """Return the model with weights drawn from ``seed``, the same on every rank."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Dlrm(num_numerical, dim, num_tables, bottom, top)
