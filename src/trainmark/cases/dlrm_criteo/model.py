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
        num_vectors = num_tables + 1  # the dense vector and an embedding of each table
        num_pairs = num_vectors * (num_vectors - 1) // 2
        self.dim = dim
        self.num_vectors = num_vectors
        self.num_features = count_features(num_tables, dim)
        # Features: the dense vector, the dot product of each pair of vectors, zeros as padding.
        self.padding = self.num_features - dim - num_pairs
        # The dot products of all vectors are a matrix (num_vectors, num_vectors). For each pair,
        # the index of its product in the flat matrix: only products below the diagonal, so that
        # each pair occurs once.
        row, column = torch.tril_indices(num_vectors, num_vectors, -1)
        self.register_buffer("_product_of_pair", row * num_vectors + column, persistent=False)
        # The other direction: for each product of the matrix, the index of its feature. Both orders
        # of a pair have the same feature. A product on the diagonal is no feature: its index 0 is
        # arbitrary, and the backward pass drops the gradient that is read there.
        feature = torch.zeros(num_vectors, num_vectors, dtype=torch.int64)
        pair_features = dim + torch.arange(num_pairs)
        feature[row, column] = pair_features
        feature[column, row] = pair_features
        self.register_buffer("_feature_of_product", feature.view(-1), persistent=False)

    def forward(self, dense: Tensor, embedded: Tensor) -> Tensor:
        """Return features (B, num_features) of B samples: the input of the top MLP.

        These are the dense vector, the dot products of all pairs of vectors, and zeros as padding.

        Args:
            dense: the dense vector, the output of the bottom MLP (B, dim).
            embedded: the embeddings of T tables (B, T, dim).
        """
        # Under autocast the dense vector has the lower precision, so the products have it too.
        embedded = embedded.to(dense.dtype)
        features: Tensor = _Interact.apply(dense, embedded, self)  # type: ignore[no-untyped-call]
        return features


class _Interact(Function):
    """The dot products of all pairs of vectors, with a backward pass without scatter operations.

    With the gradients of the pairs in a symmetric matrix S, the gradient of the vectors X is S X.
    """

    @staticmethod
    def forward(ctx: Any, dense: Tensor, embedded: Tensor, interaction: Interaction) -> Tensor:
        """Return features (B, num_features) of B samples.

        These are the dense vector, the dot products of all pairs of vectors, and zeros as padding.

        Args:
            dense: the dense vector (B, dim).
            embedded: the embeddings of T tables (B, T, dim).
        """
        dim = interaction.dim
        vectors = torch.cat([dense[:, None], embedded], 1)  # (B, num_vectors, dim)
        products = torch.bmm(vectors, vectors.mT).flatten(1)  # (B, num_vectors^2)
        # For each pair of vectors, the index of its product.
        product_of_pair = cast("Tensor", interaction._product_of_pair)
        features = vectors.new_zeros(len(dense), interaction.num_features)
        features[:, :dim] = dense
        features[:, dim : dim + len(product_of_pair)] = products.index_select(1, product_of_pair)
        # For each product, the index of its feature, where ``backward`` finds its gradient.
        ctx.save_for_backward(vectors, interaction._feature_of_product)
        return features

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        """Return the gradients of ``dense`` and ``embedded``, given that of the features.

        With the gradients of the products in a symmetric matrix S, the gradient of the vectors X
        is S X.
        """
        vectors, feature_of_product = ctx.saved_tensors
        num_vectors, dim = vectors.shape[1:]
        feature_grads = grads[0]
        product_grads = feature_grads.index_select(1, feature_of_product)
        product_grads = product_grads.view(-1, num_vectors, num_vectors)  # S
        # The product of a vector with itself is no feature, so it has no gradient.
        product_grads.diagonal(dim1=1, dim2=2).zero_()
        vector_grads = torch.bmm(product_grads, vectors)
        # The dense vector is the first of the vectors, and itself the first ``dim`` features.
        dense_grad = vector_grads[:, 0] + feature_grads[:, :dim]
        return dense_grad, vector_grads[:, 1:], None


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
        # ``bottom`` and ``top`` are the output widths of the layers of each MLP.
        assert bottom[-1] == dim, "the interaction multiplies the dense vector with embeddings"
        assert top[-1] == 1, "the last layer gives the logit"
        self.bottom = build_mlp([num_numerical, *bottom])
        self.interaction = Interaction(num_tables, dim)
        self.top = build_mlp([self.interaction.num_features, *top], last_is_linear=True)

    def forward(self, numerical: Tensor, embedded: Any) -> Tensor:
        """Return the logits (B,) of B samples.

        Args:
            numerical: (B, num_numerical).
            embedded: the embeddings of T tables (B, T, dim). If ranks exchange them, a
                ``TableExchange`` under way, whose ``wait`` returns them.
        """
        dense = self.bottom(numerical)
        if not isinstance(embedded, Tensor):
            embedded = embedded.wait()  # only now, so that the bottom MLP ran during the exchange
        return cast("Tensor", self.top(self.interaction(dense, embedded)).squeeze(1))

    @property
    def flops_per_sample(self) -> int:
        """FLOPs of one training step per sample, without the padding of the features.

        ``torch.utils.flop_counter`` counts the same for an unpadded model of ``nn.Linear`` and
        ``torch.bmm``: 6 per weight of a linear layer (4 for the first layer, whose input needs no
        gradient), and 6 per multiplication of two numbers in the interaction.
        """
        linear_layers = [module for module in self.modules() if isinstance(module, nn.Linear)]
        first_of_top = cast("nn.Linear", self.top[0])
        weights = sum(layer.weight.numel() for layer in linear_layers)
        # Padding features are inputs of the top MLP: the weights of these inputs do not count.
        weights -= self.interaction.padding * first_of_top.out_features
        # The interaction computes the dot product of every vector with every vector.
        multiplications = self.interaction.num_vectors**2 * self.interaction.dim
        first_layer = linear_layers[0]  # of the bottom MLP
        return 6 * (weights + multiplications) - 2 * first_layer.weight.numel()


def build_mlp(widths: Sequence[int], *, last_is_linear: bool = False) -> nn.Sequential:
    """Return linear layers with a ReLU after each, except after the last if ``last_is_linear``.

    Args:
        widths: of the input, then of the output of each layer.
    """
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layer = nn.Linear(inputs, outputs)
        # Initial weights are distributed as in NVIDIA's DLRM.
        nn.init.normal_(layer.weight, std=math.sqrt(2 / (inputs + outputs)))
        nn.init.normal_(layer.bias, std=math.sqrt(1 / outputs))
        layers += [layer, nn.ReLU(inplace=True)]
    if last_is_linear:
        del layers[-1]  # the last ReLU
    return nn.Sequential(*layers)


def build_model(
    num_numerical: int,
    dim: int,
    num_tables: int,
    bottom: Sequence[int],
    top: Sequence[int],
    *,
    seed: int,
) -> Dlrm:
    """Return the model with weights drawn from ``seed``, the same on every rank.

    Args:
        num_numerical: number of numerical values of a sample.
        dim: width of an embedding row.
        num_tables: number of embeddings of a sample.
        bottom, top: output widths of the layers of the bottom and of the top MLP.
    """
    with torch.random.fork_rng(devices=[]):  # restores the host's generator
        torch.manual_seed(seed)
        return Dlrm(num_numerical, dim, num_tables, bottom, top)
